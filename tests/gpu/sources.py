"""What a run wrote down, as plain rows: the ledger (SQLite), metrics.jsonl, and the Parquet files that the
manifest lists.

Times are seconds since the Unix epoch. A source that is not there is empty; one that cannot be read is an
error with its path."""

from __future__ import annotations

import calendar
import json
import pathlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

MICROS = 1e6


def ledger(run: pathlib.Path) -> list[dict[str, Any]]:
    """Every trajectory of the ledger: id, token, state, ended, steps, started_at, ended_at, versions, worker,
    shard. Reads beside a running coordinator."""
    path = run / "ledger.sqlite"
    if not path.is_file():
        return []
    sql = """SELECT trajectory_id, token, state, ended, steps, started_at_micros, ended_at_micros,
                    version_min, version_max, policy_worker, shard_id, env_worker
             FROM trajectories ORDER BY token"""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            rows = connection.execute(sql).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as why:
        raise RuntimeError(f"{path}: cannot be read: {why}") from why
    return [
        {
            "trajectory_id": row[0],
            "token": row[1],
            "state": row[2],
            "ended": row[3],
            "steps": row[4],
            "started_at": row[5] / MICROS,
            "ended_at": None if row[6] is None else row[6] / MICROS,
            "version_min": row[7],
            "version_max": row[8],
            "policy_worker": row[9],
            "shard_id": row[10],
            "env_worker": row[11],
        }
        for row in rows
    ]


def versions(run: pathlib.Path) -> list[dict[str, Any]]:
    """Versions of the weights in the ledger."""
    path = run / "ledger.sqlite"
    if not path.is_file():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    try:
        rows = connection.execute(
            "SELECT version, form, state, weights_sha256, published_at_micros FROM weights ORDER BY version"
        ).fetchall()
    finally:
        connection.close()
    return [
        {
            "version": row[0],
            "form": row[1],
            "state": row[2],
            "weights_sha256": row[3],
            "published_at": row[4] / MICROS,
        }
        for row in rows
    ]


def seconds(stamp: str) -> float:
    """An RFC 3339 time in UTC, such as 2026-11-23T06:49:35.608456Z, as seconds since the epoch."""
    whole, _, rest = stamp.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + (float(f"0.{rest}") if rest else 0.0)


def metrics(run: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl with `at` in seconds; without the rates, which are differences of the
    totals. A last line that is not whole is left out."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return []
    rows = []
    with open(path) as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            kept = {key: value for key, value in row.items() if not key.endswith("_per_second")}
            kept["at"] = seconds(row["time"])
            rows.append(kept)
    return rows


def totals(
    rows: list[dict[str, Any]], prefix: str, began: float, ended: float
) -> tuple[dict[str, float], float]:
    """What the totals that begin with `prefix` grew by in (began, ended], summed over processes, and the
    seconds of processes that this covers.

    A process's total at a moment is that of its last line until then, and its seconds are those between the
    two lines. Of one that began in the window the first line counts on which anything had grown: what it did
    before, such as reading a checkpoint, is in no account and so in no sum."""
    by_process: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if any(key.startswith(prefix) for key in row):
            by_process.setdefault((row["role"], row["pid"], row.get("started")), []).append(row)
    grown: dict[str, float] = {}
    covered = 0.0
    for own in by_process.values():
        names = [
            key
            for key, value in own[-1].items()
            if key.startswith(prefix) and isinstance(value, (int, float))
        ]
        lines = [row for row in own if any(row.get(name) for name in names) and row["at"] <= ended]
        first = next((row for row in reversed(lines) if row["at"] <= began), lines[0] if lines else None)
        last = lines[-1] if lines else None
        if last is None or first is None or last is first:
            continue
        for name in names:
            grown[name[len(prefix) :]] = grown.get(name[len(prefix) :], 0.0) + last[name] - first.get(name, 0)
        covered += last["uptime_seconds"] - first["uptime_seconds"]
    return grown, covered


def counter(rows: list[dict[str, Any]], name: str, until: float | None = None) -> float:
    """A total at a moment, summed over all processes of the run."""
    last: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if name in row and (until is None or row["at"] <= until):
            last[row["role"], row["pid"], row.get("started")] = row[name]
    return sum(last.values())


def listed(run: pathlib.Path, table: str) -> list[pathlib.Path]:
    """The files of a table that the manifest lists now."""
    files: dict[str, str] = {}
    for path in sorted((run / "data" / "manifest").glob("*.json")):
        commit = json.loads(path.read_text())
        for gone in commit.get("removed", []):
            files.pop(gone, None)
        files.update((file["path"], file["table"]) for file in commit["files"])
    return [run / "data" / path for path, name in files.items() if name == table]


TRAJECTORY = [
    "trajectory_id",
    "status",
    "end",
    "num_steps",
    "num_response_tokens",
    "started_at",
    "ended_at",
    "task",
    "timing",
    "gpu_micros",
    "fencing_token",
]
STEP = [
    "trajectory_id",
    "step",
    "observed_at",
    "timing",
    "engine",
    "image_spans",
    "response_mask",
    "forced",
    "prefix_len",
    "policy_version",
    "state_version_min",
    "action",
    "finish_reason",
]


def table(run: pathlib.Path, name: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of a table with these columns, times in seconds. Screenshots and token lists stay on disk but
    where they are named."""
    import pyarrow.parquet

    for path in listed(run, name):
        file = pyarrow.parquet.ParquetFile(path)
        there = set(file.schema_arrow.names)
        for batch in file.iter_batches(
            batch_size=1024, columns=[column for column in columns if column in there]
        ):
            for row in batch.to_pylist():
                for key in ("observed_at", "started_at", "ended_at"):
                    if row.get(key) is not None:
                        row[key] = row[key].timestamp()
                yield row


def trajectories(run: pathlib.Path) -> list[dict[str, Any]]:
    """Committed trajectories, failed attempts included."""
    return list(table(run, "trajectories", TRAJECTORY))


def steps(run: pathlib.Path) -> list[dict[str, Any]]:
    """Steps of all committed trajectories, those of failed attempts included, each with `done_at`: when it
    went to be recorded; a step is stamped when it begins."""
    found = []
    for name in ("steps", "failed_steps"):
        for row in table(run, name, STEP):
            timing, engine = row.pop("timing"), row["engine"] or {}
            spans = row.pop("image_spans") or []
            mask = row.pop("response_mask")
            forced = row.pop("forced")
            action = row.pop("action") or {}
            later = ("observe_micros", "policy_micros", "act_micros", "settle_micros", "record_micros")
            found.append(
                {
                    **row,
                    "table": name,
                    "timing": timing,
                    "engine": engine,
                    "done_at": row["observed_at"] + sum(timing[key] for key in later) / MICROS,
                    "tiles": [
                        span["tiles_x"] * span["tiles_y"] + (span["tiles_x"] * span["tiles_y"] > 1)
                        for span in spans
                        if span["step"] == row["step"]
                    ],
                    "image_tokens": sum(span["token_len"] for span in spans),
                    "tokens": None if mask is None else len(mask),
                    "forced": None if forced is None else sum(forced),
                    "action": action.get("name"),
                }
            )
    return found
