"""Where the time of a window went: of the sessions' slots, of the steps, and of the device. Each has parts, a
whole that was measured apart from them, and the rest between the two, which is shown and held to a bound."""

from __future__ import annotations

from typing import Any

from rates import distribution
from sources import totals

BROWSER = ("boot", "observe", "act", "settle", "finish")
DEVICE_IDLE = ("no_work", "no_room", "host")
# A session's time is added when what it went to is left: a wait that lies across an edge of the window is
# counted whole on one side of it. A device's time is added when it turns to something else, so a line of
# metrics.jsonl may be behind by a batch or a pause.
RESIDUAL_MOST = {"slots": 0.005, "device": 0.005, "steps": 0.02}
DEVICE_EDGE_SECONDS = 2.0


def waterfall(
    what: str, parts: dict[str, float], whole: float, unit: str = "s", edge: float = 0.0
) -> dict[str, Any]:
    """Parts with their shares, their sum, the whole, and what is between: whole - sum. `residual_most` is the
    share that may be left: a little, and `edge`, which is in the whole's unit."""
    total = sum(parts.values())
    residual = whole - total
    share = residual / whole if whole else None
    most = RESIDUAL_MOST[what] + (edge / whole if whole else 0.0)
    return {
        "what": what,
        "unit": unit,
        "whole": whole,
        "sum": total,
        "residual": residual,
        "residual_share": share,
        "adds_up": share is not None and abs(share) <= most,
        "residual_most": most,
        "parts": [
            {"part": name, "value": value, "share": value / whole if whole else None}
            for name, value in parts.items()
        ],
    }


def slots(
    rows: list[dict[str, Any]], began: float, ended: float, reply_seconds: float = 0.0
) -> dict[str, Any] | None:
    """Of the environment workers' slots: slots x seconds of the window, by what a session did or why a slot
    was empty. Of metrics.jsonl.

    reply_seconds: how long most sessions wait for a reply; such a wait of each may lie across an edge.
    """
    used, covered = totals(rows, "env/slot_micros/", began, ended)
    spent, _ = totals(rows, "env/session_micros/", began, ended)
    # The gauge is read where the worker runs: a worker that has left holds none.
    count = max(
        (row.get("env/slots", 0) for row in rows if row.get("role") == "env" and began < row["at"] <= ended),
        default=0,
    )
    if not used or not count:
        return None
    parts = {
        name: spent.get(name, 0.0) / 1e6
        for name in ("boot", "observe", "policy", "act", "settle", "record", "finish")
    }
    parts |= {f"empty: {name}": micros / 1e6 for name, micros in used.items() if name != "busy"}
    return waterfall("slots", parts, count * covered, edge=count * reply_seconds)


def device(rows: list[dict[str, Any]], began: float, ended: float) -> dict[str, Any] | None:
    """Of the policy workers' engines: seconds they ran in the window, by what the device did or why it did
    nothing. Of metrics.jsonl."""
    used, covered = totals(rows, "policy/device_micros/", began, ended)
    if not used or not any(used.values()):
        return None
    parts = {
        (f"idle: {name}" if name in DEVICE_IDLE else name): micros / 1e6 for name, micros in used.items()
    }
    return waterfall("device", parts, covered, edge=DEVICE_EDGE_SECONDS)


def stages(step: dict[str, Any]) -> dict[str, float]:
    """A step's time by stage, seconds. The policy's part is split by what the engine says of it: the way
    there and back, the queue, the session's own share of the device's time, and what it waited in batches for
    its neighbours and the host."""
    timing, engine = step["timing"], step["engine"]
    found = {name: timing[f"{name}_micros"] / 1e6 for name in ("boot", "observe", "act", "settle", "record")}
    policy, service = timing["policy_micros"] / 1e6, engine.get("service_micros", 0) / 1e6
    queue = min(service, engine.get("queue_micros", 0) / 1e6)
    own = min(service - queue, engine.get("gpu_micros", 0) / 1e6)
    return found | {
        "transport": policy - service,
        "queue": queue,
        "device, own share": own,
        "beside neighbours": service - queue - own,
    }


def steps(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the steps of the window, by stage, in the mean. The whole is the wall time from the beginning of a
    step to that of the next one of its trajectory, by the timestamps and not by the stages; a trajectory's
    last step has none and is left out. Of the Parquet files."""
    by_trajectory: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_trajectory.setdefault(row["trajectory_id"], {})[row["step"]] = row
    parts: dict[str, float] = {}
    whole, count = 0.0, 0
    for found in by_trajectory.values():
        for number, row in found.items():
            following = found.get(number + 1)
            if following is None or row["table"] != following["table"]:
                continue
            for name, value in stages(row).items():
                parts[name] = parts.get(name, 0.0) + value
            whole += following["observed_at"] - row["observed_at"]
            count += 1
    if not count:
        return None
    order = (
        "observe",
        "transport",
        "queue",
        "device, own share",
        "beside neighbours",
        "act",
        "settle",
        "record",
    )
    fall = waterfall("steps", {name: parts.get(name, 0.0) / count for name in order}, whole / count)
    return fall | {"steps": count, "unit": "s a step"}


def latencies(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Distribution of each stage's seconds, and of the whole time from observation sent to reply read."""
    listed = [stages(row) for row in rows]
    names = listed[0] if listed else ()
    found = {name: distribution([row[name] for row in listed]) for name in names}
    found["page to reply"] = distribution([row["timing"]["policy_micros"] / 1e6 for row in rows])
    return found
