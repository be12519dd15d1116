"""What comes back from the GPU machine: at most 8 files of at most 16 MiB, at any phase. Partial reports are
reports."""

from __future__ import annotations

import io
import pathlib
import tarfile
import time
from typing import Any

import report
import sources
from cells import CELLS
from machine import Layout, read_json, tail, write_json

FILE_MAX = 16 << 20
LOG_LINES = 150


def collect(layout: Layout, out: pathlib.Path, cells: list[Any]) -> list[str]:
    """Writes state.json, reports.json, report.txt, logs.txt, ledger.json, dashboard.json, screenshot.*,
    metrics.tar.gz; the names of those that were."""
    out.mkdir(parents=True, exist_ok=True)
    states = {
        path.stem: read_json(path)
        for path in sorted(layout.states.glob("*.json"))
        if not path.name.startswith(".")
    }
    reports: dict[str, Any] = {}
    texts: list[str] = []
    ledgers: dict[str, Any] = {}
    pages: dict[str, Any] = {}
    for cell in cells:
        if not layout.run(cell.name).is_dir():
            continue
        state = states.get(cell.name) or {}
        # Of a cell that runs the report is made anew; the window may be half over.
        made = report.make(cell, layout, state)
        reports[cell.name] = made
        texts.append(report.text(made))
        try:
            ledgers[cell.name] = {
                "trajectories": sources.ledger(layout.run(cell.name)),
                "versions": sources.versions(layout.run(cell.name)),
            }
        except Exception as why:
            ledgers[cell.name] = {"unread": f"{type(why).__name__}: {why}"}
        found = sorted(layout.reports.glob(f"{cell.name}-dashboard-*.json"))
        pages[cell.name] = {
            path.name.removeprefix(f"{cell.name}-dashboard-").removesuffix(".json"): read_json(path)
            for path in found
        }
    _json(out / "state.json", {"collected_at": time.time(), "states": states})
    _json(out / "reports.json", reports)
    _text(out / "report.txt", "\n".join(texts) or "no cell has a run yet\n")
    _text(out / "logs.txt", logs(layout))
    _json(out / "ledger.json", ledgers)
    _json(out / "dashboard.json", pages)
    screenshot(layout, out, [cell.name for cell in cells])
    _tar(layout, out / "metrics.tar.gz", [cell.name for cell in cells])
    return sorted(path.name for path in out.iterdir())


def logs(layout: Layout) -> str:
    """The tails of all logs, the supervisors' first."""
    paths = sorted(layout.states.glob("*.log"), key=lambda path: (path.name.count("."), path.name))
    return "".join(f"=== {path.name}\n" + "\n".join(tail(path, LOG_LINES)) + "\n" for path in paths)


def screenshot(layout: Layout, out: pathlib.Path, names: list[str]) -> None:
    """The newest screenshot of the data set: what the policy was shown."""
    for name in names:
        try:
            files = sources.listed(layout.run(name), "steps")
            row = next(sources.table(layout.run(name), "steps", ["observation"]), None) if files else None
        except Exception:
            continue
        if row:
            observation = row["observation"]
            (out / f"screenshot.{'png' if observation['format'] == 'png' else 'jpg'}").write_bytes(
                observation["screenshot"]["bytes"]
            )
            return


def _json(path: pathlib.Path, value: Any) -> None:
    write_json(path, value)
    if path.stat().st_size > FILE_MAX:
        write_json(
            path, {"left_out": f"{path.stat().st_size} bytes are more than {FILE_MAX}", "keys": list(value)}
        )


def _text(path: pathlib.Path, value: str) -> None:
    path.write_bytes(value.encode()[-FILE_MAX:])


def _tar(layout: Layout, path: pathlib.Path, names: list[str]) -> None:
    """metrics.jsonl, memory samples, jobs and the parts' own reports of the cells, as long as all stay below
    the limit; the largest go first."""
    files = [
        (file, file.name)
        for file in [
            *layout.reports.iterdir(),
            *layout.states.glob("*.toml"),
            *layout.states.glob("*.samples.jsonl"),
        ]
        if file.is_file()
    ]
    files += [
        (layout.run(name) / "metrics.jsonl", f"{name}.metrics.jsonl")
        for name in names
        if (layout.run(name) / "metrics.jsonl").is_file()
    ]
    files.sort(key=lambda pair: pair[0].stat().st_size)
    while True:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
            for file, name in files:
                archive.add(file, name, recursive=False)
        if buffer.tell() <= FILE_MAX or not files:
            break
        files.pop()
    path.write_bytes(buffer.getvalue())


def clear(out: pathlib.Path) -> None:
    """Removes what an earlier collection left there."""
    for name in (
        "state.json",
        "reports.json",
        "report.txt",
        "logs.txt",
        "ledger.json",
        "dashboard.json",
        "screenshot.png",
        "screenshot.jpg",
        "metrics.tar.gz",
    ):
        (out / name).unlink(missing_ok=True)


def known() -> list[Any]:
    return list(CELLS.values())
