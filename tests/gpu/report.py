"""The report of a cell, as JSON and as text, of whatever there is: a cell that was cut has one, too, and it
says what is missing."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Callable
from typing import Any

import rates
import sources
import waterfalls
from cells import Cell
from machine import Layout, read_json, write_json


def write(cell: Cell, layout: Layout, state: dict[str, Any]) -> dict[str, Any]:
    """Writes `<cell>-report.json` and `<cell>-report.txt`; returns the former."""
    report = make(cell, layout, state)
    write_json(layout.report(cell.name), report)
    layout.report(cell.name, "report.txt").write_text(text(report))
    return report


def make(cell: Cell, layout: Layout, state: dict[str, Any]) -> dict[str, Any]:
    """All figures that can be had; a source that cannot be read is named under `missing`."""
    run = layout.run(cell.name)
    missing: dict[str, str] = {}

    def had(what: str, of: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return of()
        except Exception as why:  # One source that cannot be read must not take the others' figures with it.
            missing[what] = f"{type(why).__name__}: {why}"
            return otherwise

    rows = had("ledger", lambda: sources.ledger(run), [])
    lines = had("metrics", lambda: sources.metrics(run), [])
    committed = had("trajectories", lambda: sources.trajectories(run), [])
    steps = had("steps", lambda: sources.steps(run), [])
    report: dict[str, Any] = {
        "cell": cell.name,
        "dry": cell.dry,
        "sessions": cell.sessions,
        "steps_max": cell.steps,
        "tokens": cell.tokens,
        "context": cell.keep,
        "screenshot": f"{cell.width}x{cell.height}",
        "phases": _phases(state),
        "notes": state.get("notes", []),
        "starts": state.get("starts"),
        "resumed": state.get("resumed", 0),
        "cut_windows": state.get("cut_windows", []),
        "ends": dict(collections.Counter(f"{row['state']}: {row['ended']}" for row in rows)),
        "versions": had("versions", lambda: sources.versions(run), []),
    }
    window = dict(state.get("window") or {})
    if window.get("began_at") and not window.get("ended_at") and window.get("seen_at"):
        window |= {"ended_at": window["seen_at"], "open_at_end": window["open_seen"], "cut": True}
    if window.get("ended_at") and rows:
        report |= had("window", lambda: _window(cell, window, rows, lines, committed, steps, state), {})
    report["swap"] = had("swap", lambda: _swap(state, steps, lines), None)
    report["kill"] = had("kill", lambda: _kill(state, steps, rows), None)
    report["share_of_bench"] = had("bench", lambda: _bench(cell, layout, report), None)
    report["logprobs"] = read_json(layout.report(cell.name, "logprobs.json"))
    report["missing"] = missing
    report["flags"] = _flags(cell, report, window)
    return report


def _phases(state: dict[str, Any]) -> dict[str, Any]:
    kept = ("state", "seconds", "why")
    return {
        name: {key: entry[key] for key in kept if key in entry}
        for name, entry in state.get("phases", {}).items()
        if name != "report"
    }


def _window(
    cell: Cell,
    window: dict[str, Any],
    rows: list[dict[str, Any]],
    lines: list[dict[str, Any]],
    committed: list[dict[str, Any]],
    steps: list[dict[str, Any]],
    state: dict[str, Any],
) -> dict[str, Any]:
    began, ended = window["began_at"], window["ended_at"]
    seconds = ended - began
    by_ledger, how = rates.steps_of_ledger(rows, began, ended, window.get("open"), window.get("open_at_end"))
    inside = [row for row in steps if began < row["done_at"] <= ended]
    over = [row for row in rows if row["ended_at"] is not None and began < row["ended_at"] <= ended]
    scored = [row for row in over if row["state"] in ("scored", "finished")]
    limits = {row["trajectory_id"]: (row["task"] or {}).get("max_steps") for row in committed}
    short = rates.shortened(rows, cell.sessions, cell.steps)
    # A slot that was tried again keeps its limit, which the committed task names.
    short |= {name for name, limit in limits.items() if limit is not None and limit < cell.steps}
    whole = [row["steps"] for row in scored if row["trajectory_id"] not in short]
    mean, mean_all = (
        rates.ratio(sum(whole), len(whole)),
        rates.ratio(sum(row["steps"] for row in scored), len(scored)),
    )
    # Where none of full length ended in the window, the job's limit stands in, and the report says so.
    divisor = mean or float(cell.steps)
    per_second = {"ledger": by_ledger / seconds, "parquet": len(inside) / seconds}
    apart = abs(by_ledger - len(inside)) / max(by_ledger, 1.0)
    bound = rates.tolerance(by_ledger, cell.sessions)
    pieces = rates.blocks([row["done_at"] for row in inside], began, ended)
    spread = rates.batch_means(pieces)
    counted = rates.poisson(len(scored))
    needed = rates.window_needed(cell.steps, cell.sessions, per_second["ledger"])
    per_hour = rates.HOUR / seconds
    reply = rates.quantile([row["timing"]["policy_micros"] / 1e6 for row in inside], 0.9) or 0.0
    return {
        "window": {
            "began_at": began,
            "ended_at": ended,
            "seconds": seconds,
            "seconds_needed": needed,
            "cut": window.get("cut", False),
            "trajectory_times": rates.ratio(seconds, (needed or 0.0) / rates.WINDOW_LEAST),
            "restarts": window.get("restarts", 0),
            "unevenness_of_ages": rates.unevenness(_ages(cell, window.get("open"), rows, limits), cell.steps),
        },
        "rate": {
            "trajectories_per_hour": rates.rate(per_second["ledger"], divisor),
            "by_parquet": rates.rate(per_second["parquet"], divisor),
            "interval_95": [rates.rate(value, divisor) for value in spread[1:]]
            if spread and inside
            else None,
            "interval_is": f"mean of {rates.BLOCKS} equal parts of the window +- t({rates.BLOCKS - 1}) s / "
            f"sqrt({rates.BLOCKS}), steps of the Parquet files",
            "steps_per_second": per_second,
            "steps": {"ledger": by_ledger, "parquet": len(inside)},
            "ledger_counts": how,
            "steps_per_second_by_part": pieces,
            "apart": apart,
            "apart_most": bound,
            "agree": apart <= bound,
            "uncommitted": sum(row["shard_id"] is None for row in rows),
            "mean_steps": mean,
            "mean_steps_is_limit": mean is None,
            "mean_steps_of_all_ended": mean_all,
        },
        "counted": {
            "ended": len(scored),
            "failed": len(over) - len(scored),
            "per_hour": len(scored) * per_hour,
            "interval_95": [value * per_hour for value in counted],
            "interval_is": "Poisson, Byar's approximation: wide, for ends of even ages are more regular",
            "with_shortened_limits": sum(row["trajectory_id"] in short for row in scored),
            "of_full_length": len(whole),
            "first_trajectories_shortened": sorted(short),
        },
        "measured": _measured(inside, scored, cell),
        "waterfalls": [
            fall
            for fall in (
                waterfalls.slots(lines, began, ended, reply),
                waterfalls.device(lines, began, ended),
                waterfalls.steps(inside),
            )
            if fall
        ],
        "latencies": waterfalls.latencies(inside),
        "memory": state.get("memory"),
    }


def _ages(
    cell: Cell, open_then: dict[str, int] | None, rows: list[dict[str, Any]], limits: dict[str, int | None]
) -> list[float]:
    """Steps that each session had behind it at the window's beginning, as if all trajectories were of full
    length: one with a limit of its own began late. Limits of those that are not committed are the job's
    rule's."""
    first = sorted(rows, key=lambda row: row["token"])[: cell.sessions]
    ruled = {
        row["trajectory_id"]: rates.first_limit(number, cell.sessions, cell.steps)
        for number, row in enumerate(first)
    }
    ages = []
    for name, steps in (open_then or {}).items():
        limit = limits.get(name) or ruled.get(name) or cell.steps
        ages.append(cell.steps - limit + steps + 0.5)
    return ages


def _measured(inside: list[dict[str, Any]], scored: list[dict[str, Any]], cell: Cell) -> dict[str, Any]:
    """What the window's steps were: tokens a reply, prompts, tiles, state, actions."""
    engines = [row["engine"] for row in inside]
    count = collections.Counter
    return {
        "steps_of_a_trajectory": rates.distribution([row["steps"] for row in scored]),
        "tokens_a_reply": rates.distribution([row["tokens"] for row in inside if row["tokens"] is not None]),
        "replies_of_other_length": sum(row["tokens"] != cell.tokens for row in inside),
        "forced_tokens_a_reply": rates.distribution(
            [row["forced"] for row in inside if row["forced"] is not None]
        ),
        "prompt_tokens_read": rates.distribution([engine.get("prefill_tokens") or 0 for engine in engines]),
        "tokens_behind_the_step": rates.distribution(
            [row["prefix_len"] for row in inside if row["prefix_len"] is not None]
        ),
        "tiles": dict(count(tiles for row in inside for tiles in row["tiles"])),
        "screenshot_tokens": rates.distribution([row["image_tokens"] for row in inside]),
        "decode_batch": rates.distribution([engine.get("batch_size_mean") or 0.0 for engine in engines]),
        "state_origin": dict(count(str(engine.get("state_origin")) for engine in engines)),
        "versions": {
            str(version): steps
            for version, steps in sorted(count(row["policy_version"] for row in inside).items(), key=str)
        },
        "actions": dict(count(str(row["action"]) for row in inside)),
        "finish_reasons": dict(count(str(row["finish_reason"]) for row in inside)),
    }


def _swap(
    state: dict[str, Any], steps: list[dict[str, Any]], lines: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The second version: how long until every policy worker ran it, the device's time for it, and steps
    around it."""
    swap = state.get("swap")
    if not swap:
        return None
    found = {key: swap[key] for key in ("state", "asked_at", "seconds", "said", "why") if key in swap}
    requested_at = swap.get("asked_at")
    if requested_at:
        ended = requested_at + swap.get("seconds", 30.0)
        newer = [row["done_at"] for row in steps if (row["policy_version"] or 0) > 0]
        found["first_step_of_it_seconds"] = min(newer) - requested_at if newer else None
        device, _ = sources.totals(lines, "policy/device_micros/", requested_at, ended + 5)
        found["device_seconds_for_weights"] = device.get("weights", 0.0) / 1e6
        found["steps_per_second"] = {
            "60 s before": sum(requested_at - 60 < row["done_at"] <= requested_at for row in steps) / 60,
            "while it came": sum(requested_at < row["done_at"] <= ended for row in steps)
            / max(1e-3, ended - requested_at),
        }
    return found


def _kill(
    state: dict[str, Any], steps: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The killed policy worker: from its death to the next one's first steps, by the Parquet files."""
    kill = state.get("kill")
    if not kill:
        return None
    after = sorted(
        (row for row in steps if row["engine"].get("worker") == kill["started"]),
        key=lambda row: row["done_at"],
    )
    first_replies: dict[str, float] = {}
    for row in after:
        # The reply, not the step: the page acts and settles behind it.
        replied = (
            row["observed_at"] + (row["timing"]["observe_micros"] + row["timing"]["policy_micros"]) / 1e6
        )
        first_replies.setdefault(row["trajectory_id"], replied - kill["killed_at"])
    open_then = {
        row["trajectory_id"]
        for row in rows
        if row["started_at"] <= kill["killed_at"]
        and (row["ended_at"] is None or row["ended_at"] > kill["killed_at"])
    }
    back = sorted(seconds for name, seconds in first_replies.items() if name in open_then)
    died = collections.Counter(
        row["ended"] for row in rows if row["trajectory_id"] in open_then and row["state"] == "failed"
    )
    return kill | {
        "first_reply_seconds_by_parquet": back[0] if back else None,
        "half_of_the_sessions_seconds": rates.quantile(back, 0.5),
        "last_seen_seconds": back[-1] if back else None,
        "sessions_open": len(open_then),
        "sessions_back": len(back),
        "state_origin_after": dict(
            collections.Counter(str(row["engine"].get("state_origin")) for row in after)
        ),
        "ended_by_the_farm": dict(died),
    }


def _paces(value: Any, name: str) -> list[tuple[str, float]]:
    """Every `steps_per_second` in what a command printed, with the names on the way to it."""
    if isinstance(value, list):
        return [found for number, one in enumerate(value) for found in _paces(one, f"{name}[{number}]")]
    if not isinstance(value, dict):
        return []
    found = (
        [(str(value.get("what") or name), value["steps_per_second"])]
        if isinstance(value.get("steps_per_second"), (int, float))
        else []
    )
    return found + [pair for key, one in value.items() for pair in _paces(one, f"{name}.{key}")]


def _printed(path: pathlib.Path) -> list[Any]:
    """JSON that a command printed, one value in all or one a line."""
    whole = read_json(path)
    if whole is not None:
        return [whole]
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    except (OSError, ValueError):
        return []


def _bench(cell: Cell, layout: Layout, report: dict[str, Any]) -> dict[str, Any] | None:
    """The measured steps a second beside those of bench and simulator: of the recorded steps, tokens and
    tiles where they were run on them, and of the committed bench, whose pages take two seconds and whose
    sessions are of all ages."""
    measured = report.get("rate", {}).get("steps_per_second", {}).get("ledger")
    if measured is None or cell.dry:
        return None
    paces = _paces(_printed(layout.report(cell.name, "bench.jsonl")), "bench --recorded")
    for planned in _printed(layout.report(cell.name, "plan.jsonl")):
        # `models` beside these is of the published mix of steps, not of this run's.
        paces += _paces((planned.get("recorded") or {}).get("floors"), "floor of the recorded steps")
        paces += [
            (f"simulated, {one['context']}", one["steps_per_second"])
            for one in planned.get("simulated") or []
        ]
    paces += [("bench, committed", cell.bench_steps)] if cell.bench_steps else []
    return {name: {"steps_per_second": pace, "share": measured / pace} for name, pace in paces if pace > 0}


def _flags(cell: Cell, report: dict[str, Any], window: dict[str, Any]) -> list[str]:
    """What a reader of the figures must know first."""
    flags = [
        f"phase {name} {entry['state']}: {entry.get('why', '')}"
        for name, entry in report["phases"].items()
        if entry["state"] in ("failed", "skipped")
    ]
    flags += [f"{name} could not be read: {why}" for name, why in report["missing"].items()]
    if "rate" not in report:
        return [*flags, "NO RATE: no window was measured"]
    rate, frame, measured = report["rate"], report["window"], report["measured"]
    if rate["uncommitted"]:
        flags.insert(
            0,
            f"{rate['uncommitted']} trajectories of the ledger are not in the Parquet files yet: those "
            "count fewer steps until the run is drained",
        )
    if not rate["agree"]:
        flags.insert(
            0,
            f"LEDGER AND PARQUET DISAGREE: {rate['steps']} steps, {rate['apart']:.1%} apart, at most "
            f"{rate['apart_most']:.1%}",
        )
    if frame["cut"]:
        flags.append("the window has not ended, or was cut: figures are until it was last looked at")
    if (frame["trajectory_times"] or 0) < 0.999 * rates.WINDOW_LEAST:
        flags.append(
            f"partial: the window lasted {frame['trajectory_times'] or 0:.2f} trajectory times, "
            f"{rates.WINDOW_LEAST} are asked for"
        )
    if frame["restarts"]:
        flags.append(f"{frame['restarts']} processes ended by themselves in the window")
    if window.get("resumed"):
        flags.append(
            "the window is of a resumed run: sessions began again together, so their ages are not even"
        )
    uneven = frame["unevenness_of_ages"]
    # Ages are whole steps: half of one is not unevenness.
    even = 0.15 + 0.5 / cell.steps
    if uneven is None or uneven > even:
        flags.append(
            "ages of the sessions at the window's beginning: "
            f"{'not known' if uneven is None else f'{uneven:.2f} from even'}, at most {even:.2f}"
        )
    if report["counted"]["with_shortened_limits"]:
        flags.append(
            f"{report['counted']['with_shortened_limits']} of {report['counted']['ended']} trajectories that "
            "ended had a shortened first limit: contexts are younger than in a run that goes on for long, "
            "so the rate is biased upwards (compare the parts of the window)"
        )
    if rate["mean_steps_is_limit"]:
        flags.append(
            "no trajectory of full length ended in the window; the rate divides by the limit of "
            f"{cell.steps} steps"
        )
    others = {
        end: count
        for end, count in report["ends"].items()
        if end.split(": ")[1] not in ("max_steps", "None", "cancelled")
    }
    if others:
        flags.append(f"trajectories that ended otherwise than by their limit: {others}")
    if measured["replies_of_other_length"]:
        flags.append(
            f"{measured['replies_of_other_length']} replies had not {cell.tokens} tokens: "
            f"{measured['tokens_a_reply']}"
        )
    if set(measured["tiles"]) - {cell.tiles}:
        flags.append(f"screenshots of other tiles than {cell.tiles}: {measured['tiles']}")
    flags += [
        f"waterfall of {fall['what']} does not add up: {fall['residual_share']:.2%} are left, at most "
        f"{fall['residual_most']:.1%}"
        for fall in report["waterfalls"]
        if not fall["adds_up"]
    ]
    for name in ("slots", "device", "steps"):
        if name not in [fall["what"] for fall in report["waterfalls"]]:
            flags.append(f"there is no waterfall of {name}")
    return flags


def text(report: dict[str, Any]) -> str:
    """The same for people, on two screens."""
    lines = [
        (
            f"{report['cell']}: {report['context']}, {report['screenshot']}, {report['sessions']} sessions, "
            f"{report['steps_max']} steps, {report['tokens']} tokens a reply"
        )
    ]
    lines += [f"! {flag}" for flag in report["flags"]]
    if "rate" in report:
        rate, frame, counted = report["rate"], report["window"], report["counted"]
        low, high = rate["interval_95"] or (None, None)
        lines += [
            (
                f"rate        {_n(rate['trajectories_per_hour'])} trajectories an hour ({_n(low)} to "
                f"{_n(high)}), by Parquet {_n(rate['by_parquet'])}"
            ),
            (
                f"steps       {_n(rate['steps_per_second']['ledger'], 3)}/s by the ledger, "
                f"{_n(rate['steps_per_second']['parquet'], 3)}/s by Parquet, "
                f"{rate['apart']:.2%} apart (at most {rate['apart_most']:.2%}); mean steps "
                f"{_n(rate['mean_steps'], 2)}"
            ),
            (
                f"counted     {counted['ended']} ended in {frame['seconds']:.0f} s: "
                f"{_n(counted['per_hour'])} "
                "an hour "
                f"({_n(counted['interval_95'][0])} to {_n(counted['interval_95'][1])}); "
                f"{counted['with_shortened_limits']} with a shortened first limit"
            ),
            f"window      {_n(frame['trajectory_times'], 2)} trajectory times; steps/s by part: "
            + " ".join(_n(part, 2) for part in rate["steps_per_second_by_part"]),
        ]
        for fall in report["waterfalls"]:
            lines.append(
                f"{fall['what']}: {fall['whole']:.3f} {fall['unit']}, parts {fall['sum']:.3f}, left "
                f"{fall['residual']:+.3f} ({fall['residual_share']:+.2%})"
            )
            lines += [
                f"  {part['part']:<22} {part['value']:>12.3f}  {part['share']:>7.2%}"
                for part in fall["parts"]
                if part["value"]
            ]
        lines.append("latencies, s       p50      p90      p99")
        for name, found in report["latencies"].items():
            if found["count"]:
                lines.append(f"  {name:<18} {found['p50']:>8.3f} {found['p90']:>8.3f} {found['p99']:>8.3f}")
        for name, found in report["measured"].items():
            lines.append(f"{name}: {_short(found)}")
    for name in ("swap", "kill", "share_of_bench", "logprobs", "ends"):
        if report.get(name):
            lines.append(f"{name}: {json.dumps(report[name])[:1200]}")
    for name, entry in report["phases"].items():
        lines.append(
            f"phase {name:<11} {entry['state']:<8} {entry.get('seconds', 0):>7.1f} s  "
            f"{entry.get('why', '')[:160]}"
        )
    return "\n".join(lines + [f"note: {note}" for note in report["notes"]]) + "\n"


def _n(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _short(found: Any) -> str:
    if isinstance(found, dict) and "p50" in found:
        return (
            f"mean {found['mean']:.1f}, {found['min']:g} to {found['max']:g}, p50 {found['p50']:g}, p99 "
            f"{found['p99']:g} ({found['count']})"
        )
    return json.dumps(found)
