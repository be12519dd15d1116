#!/usr/bin/env python3
"""The whole farm on a GPU machine, cell by cell, by commands that end within seconds while it goes on.

    farm.py start init                     checkpoints alone, in the background; dry-init: the small ones
    farm.py start CELL                     everything of a cell, or what is left of it after a cut
    farm.py status [--wait SECONDS]        one screen; with --wait until nothing runs any more, a phase
                                           failed, something is noted, or so long
    farm.py collect OUT                    at most 8 files of at most 16 MiB, at any phase
    farm.py watch OUT --seconds SECONDS    both in turn: what there is comes back though the command is cut
    farm.py stop                           ends the supervisor and drains what it started

Cells: append-7, last_image-3, append-3, last_image-7, and dry-append-7 and so on: the small checkpoint on the
processor. The root is FURROW_GPU_ROOT, else /var/tmp/furrow-gpu. docs/benchmarks/GPU_RUNBOOK.md has the calls
in their order."""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import time
from typing import Any

import cells
import copies
from machine import TREE, Layout, alive, detach, identity, read_json, send, tail, wait_for_end, write_json

UNTIL = (
    "checkpoint",
    "budget",
    "ready",
    "window",
    "kill",
    "drain",
    "verify",
    "logprobs",
    "recorded",
    "report",
)
INIT = {"init": "append-7", "dry-init": "dry-append-7"}
# 100 sessions and their browsers need 4,096. Not all there may be: some programs walk the whole limit.
DESCRIPTORS = 65_536


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start a cell, or go on with it; returns within seconds")
    start.add_argument("cell")
    start.add_argument(
        "--until", choices=UNTIL, help="the last phase of this start; another start does the rest"
    )
    start.add_argument(
        "--minutes", type=float, help="end window and recovery in time for a start of so many minutes"
    )
    start.add_argument(
        "--without",
        action="append",
        default=[],
        choices=("swap", "kill"),
        help="leave this out, in later starts too",
    )
    start.add_argument(
        "--with",
        action="append",
        default=[],
        dest="with_",
        choices=("bench",),
        help="also run furrow-bench gpu --recorded",
    )
    start.add_argument("--sessions", help="other than 100")
    start.add_argument("--steps", help="other than the cell's")
    start.add_argument(
        "--fresh", action="store_true", help="put what there is of the cell aside, and begin anew"
    )
    start.add_argument(
        "--anyway",
        action="store_true",
        help="go on where only the sum of this plan refuses; furrow run and furrow policy check GPU and "
        "pinned memory again, and refuse",
    )
    start.add_argument("--foreground", action="store_true", help="do not detach: for tests")
    status = commands.add_parser("status", help="say where it is")
    status.add_argument("--json", action="store_true")
    status.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
    collect = commands.add_parser("collect", help="write what there is")
    collect.add_argument("out", type=pathlib.Path)
    watch = commands.add_parser("watch", help="status --wait and collect in turn")
    watch.add_argument("out", type=pathlib.Path)
    watch.add_argument("--seconds", type=float, required=True, help="of all of it")
    watch.add_argument("--every", type=float, default=115.0, help="seconds from one collection to the next")
    commands.add_parser("stop", help="end the supervisor and what it started")
    return made


def main(argv: list[str]) -> int:
    given = parser().parse_args(argv)
    layout = Layout()
    if layout.site.is_dir() and not has_packages():
        sys.path.append(str(layout.site))
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [os.environ.get("PYTHONPATH"), str(layout.site)])
        )
    layout.make()
    if given.command == "start":
        return begin(layout, given)
    if given.command == "status":
        if given.wait:
            wait_for_news(layout, given.wait)
        return show(layout, given.json)
    if given.command == "stop":
        return stop(layout)
    if given.command == "watch":
        return look_on(layout, given.out, given.seconds, given.every)
    gather(layout, given.out)
    return 0


def has_packages() -> bool:
    """Whether this Python has what the checks import without the carried wheels, which would hide its own
    from a process that gets them by PYTHONPATH."""
    return all(importlib.util.find_spec(name) for name in ("pyarrow", "PIL"))


def gather(layout: Layout, out: pathlib.Path) -> None:
    """Collects into a folder below the root, then moves it: a cut leaves the one before it, or this."""
    import collect as collecting

    kept = layout.root / ".collection"
    shutil.rmtree(kept, ignore_errors=True)
    names = collecting.collect(layout, kept, [_as_run(layout, cell) for cell in collecting.known()])
    out.mkdir(parents=True, exist_ok=True)
    collecting.clear(out)
    for name in names:
        shutil.move(kept / name, out / name)
        print(f"{(out / name).stat().st_size:>12,}  {name}")


def look_on(layout: Layout, out: pathlib.Path, seconds: float, every: float) -> int:
    """Shows the state and collects every so often for `seconds`; ends early as `status --wait` does. Exit
    status 1 where a phase failed."""
    until = time.time() + seconds
    known = events(states_of(layout))
    collected = 0.0
    while True:
        began = time.time()
        # The last collection must end in time, too.
        ended = wait_for_news(layout, min(every, until - began - 1.5 * collected), known)
        status = show(layout, False)
        began = time.time()
        gather(layout, out)
        collected = time.time() - began
        if ended or time.time() + 2 * collected + 5 > until:
            print(f"watched until {ended or 'its time was over'}", flush=True)
            return status


def supervisor_of(layout: Layout, name: str) -> dict[str, Any] | None:
    """The supervisor of a cell, if it runs."""
    known = (read_json(layout.state(name)) or {}).get("supervisor")
    return known if alive(known) else None


def _as_run(layout: Layout, cell: cells.Cell) -> cells.Cell:
    """The cell as it was started: with the sessions and steps that its state names."""
    options = (read_json(layout.state(cell.name)) or {}).get("options") or {}
    return cells.chosen(cell.name, options.get("sessions"), options.get("steps"))


def begin(layout: Layout, given: argparse.Namespace) -> int:
    """Starts the supervisor of a cell. Exit status 2: refused, with the reason."""
    name = given.cell
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        # Every process of the farm inherits it, and none raises its own.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if not TREE.is_relative_to(layout.root.resolve()):
        # Another command on the machine writes its checkout anew while the supervisor of this one goes on.
        script = copies.make(TREE, layout.root) / "tests" / "gpu" / "farm.py"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, str(script), *start_arguments(given)])
    # The supervisor holds this lock as long as it lives: two starts at once cannot both go on.
    lock = open(layout.states / (".init.lock" if name in INIT else ".farm.lock"), "w")  # noqa: SIM115 - it outlives this function
    try:
        before = read_json(layout.state(name)) or {}
        earlier = {} if given.fresh else before.get("options") or {}
        sessions, steps = (getattr(given, key) or earlier.get(key) for key in ("sessions", "steps"))
        if not given.fresh and "phases" in before:
            same_size(given, earlier)
        cell = cells.chosen(INIT.get(name, name), sessions, steps)
        need_programs(layout, given.with_)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ValueError as why:
        print(f"farm.py: {why}", file=sys.stderr)
        return 2
    except OSError:
        print(
            "farm.py: another cell is running; see farm.py status, and farm.py stop ends it", file=sys.stderr
        )
        return 2
    options = {"sessions": sessions, "steps": steps} | options_of(given, earlier, time.time())
    print(f"{name}: {json.dumps(options)}")
    if given.fresh:
        put_aside(layout, name)
    log = layout.log(name)
    if not given.foreground:
        # A log that a start began is known by its time.
        with open(log, "a") as file:
            file.write(f"--- start {time.strftime('%FT%TZ', time.gmtime())} {' '.join(sys.argv[1:])}\n")
        os.set_inheritable(lock.fileno(), False)
        fd = lock.fileno()
        started_at = time.time()
        if not detach(log, keep=(fd,)):
            # A status that follows at once must find it.
            until = time.time() + 10
            while time.time() < until:
                state = read_json(layout.state(name)) or {}
                if state.get("saved_at", 0) >= started_at and "supervisor" in state:
                    break
                time.sleep(0.05)
            print(f"{name} goes on in the background; state {layout.state(name)}, log {log}")
            return 0
        if name in INIT:
            # Its threads fill every core: what looks at the machine meanwhile, and a farm, come first.
            os.nice(19)
    return supervise(layout, name, cell, options)


def need_programs(layout: Layout, with_: list[str]) -> None:
    """Raises ValueError where a program that the start needs was not unpacked."""
    if not layout.furrow.is_file():
        raise ValueError(f"{layout.furrow} is not there; unpack the parts first (tests/gpu.sh unpack)")
    if "bench" in with_ and not layout.bench.is_file():
        raise ValueError(f"{layout.bench} is not there; unpack the last part, too, or leave out --with bench")


def options_of(given: argparse.Namespace, earlier: dict[str, Any], now: float) -> dict[str, Any]:
    """What a start is to do: what it was given, and of an earlier one that was cut what left something out,
    and the end of its time where that is still to come."""
    ends_at = now + 60 * given.minutes if given.minutes else earlier.get("ends_at")
    return {
        "until": given.until,
        "ends_at": ends_at if ends_at and ends_at > now else None,
        "without": sorted({*given.without, *earlier.get("without", ())}),
        "with": given.with_,
        "anyway": given.anyway or bool(earlier.get("anyway")),
    }


def same_size(given: argparse.Namespace, earlier: dict[str, Any]) -> None:
    """Raises ValueError for sessions or steps other than those that the job file of an earlier start has:
    such a cell would wait for sessions that its job does not allow."""
    for key in ("sessions", "steps"):
        wanted, had = getattr(given, key), earlier.get(key)
        if wanted is not None and wanted != had:
            raise ValueError(
                f"{given.cell} was started with {f'--{key} {had}' if had else f'its own {key}'}, not --{key} "
                f"{wanted}: leave it out to go on, or begin anew with --fresh"
            )


def start_arguments(given: argparse.Namespace) -> list[str]:
    """The command line of a start once more."""
    arguments = ["start", given.cell]
    for name in ("until", "minutes", "sessions", "steps"):
        if getattr(given, name) is not None:
            arguments += [f"--{name}", str(getattr(given, name))]
    arguments += [argument for name in given.without for argument in ("--without", name)]
    arguments += [argument for name in given.with_ for argument in ("--with", name)]
    return arguments + [f"--{name}" for name in ("fresh", "anyway", "foreground") if getattr(given, name)]


def supervise(layout: Layout, name: str, cell: cells.Cell, options: dict[str, Any]) -> int:
    import phases
    from commands import make_checkpoints
    from supervise import Supervisor

    state = read_json(layout.state(name)) or {}
    if name in INIT:
        path = layout.state(name)

        def save() -> None:
            state["saved_at"] = time.time()
            write_json(path, state)

        listed = [phases.Phase("checkpoint", 900, lambda: make_checkpoints(cell, layout, time.time() + 880))]
        phases.begin(state, ["checkpoint"], False, time.time(), set())
        state.update(cell=name, supervisor=identity(os.getpid()), options=options)
        state.setdefault("started_at", time.time())
        return 0 if phases.run(listed, state, save, time.time) else 1
    done = Supervisor(cell, layout, state, options).go()
    print(
        f"{time.strftime('%FT%TZ', time.gmtime())} {name}: "
        f"{'all phases done' if done else 'phase ' + str(state.get('failed')) + ' failed'}"
    )
    return 0 if done else 1


def put_aside(layout: Layout, name: str) -> None:
    """Ends what is left of an earlier start and renames its run, state and reports."""
    state = read_json(layout.state(name)) or {}
    for known in (state.get("roles") or {}).values():
        send(known, signal.SIGKILL)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    for path in (
        layout.run(name),
        layout.state(name),
        layout.states / f"{name}.toml",
        layout.states / f"{name}.samples.jsonl",
    ):
        if path.exists():
            path.rename(path.with_name(f"{path.name}.before-{stamp}"))
    for path in layout.reports.glob(f"{name}-*"):
        path.rename(path.with_name(f"before-{stamp}-{path.name}"))


def stop(layout: Layout) -> int:
    """SIGTERM, then SIGKILL to supervisors; then each cell's farm is drained for at most 60 s."""
    from roles import Roles

    for path in sorted(layout.states.glob("*.json")):
        state = read_json(path) or {}
        if alive(state.get("supervisor")):
            send(state["supervisor"], signal.SIGKILL)
            wait_for_end(state["supervisor"], 5)
            print(f"ended the supervisor of {path.stem}")
        if state.get("roles"):
            roles = Roles(path.stem, layout.states / f"{path.stem}.toml", layout, state, lambda: None)
            if roles.any_lives() or roles.stray():
                drained = roles.stop(60)
                roles.stop_dashboard()
                roles.kill_all()
                print(f"drained {path.stem}: {drained}")
    return 0


def states_of(layout: Layout) -> dict[str, dict[str, Any]]:
    """The state of each cell that was started."""
    return {
        path.stem: state
        for path in sorted(layout.states.glob("*.json"))
        if (state := read_json(path)) and "phases" in state
    }


def running_of(states: dict[str, dict[str, Any]]) -> list[str]:
    """Names of those whose supervisor runs."""
    return [name for name, state in states.items() if alive(state.get("supervisor"))]


def events(states: dict[str, dict[str, Any]]) -> set[tuple[str, str]]:
    """Failed phases and notes of all cells: what is in this set and was not before is news."""
    return {
        (name, text)
        for name, state in states.items()
        for text in [
            *(f"{phase} failed" for phase, entry in state["phases"].items() if entry["state"] == "failed"),
            *state.get("notes", []),
        ]
    }


def wait_for_news(layout: Layout, seconds: float, known: set[tuple[str, str]] | None = None) -> str | None:
    """Waits so long, or until nothing runs, a phase failed or something was noted; which of these it was,
    None for the time. `known`: what is no news; what there is now where absent."""
    until = time.time() + seconds
    known = events(states_of(layout)) if known is None else known
    while True:
        states = states_of(layout)
        if not running_of(states):
            return "nothing runs any more"
        if new := sorted(events(states) - known):
            return f"news of {new[0][0]}: {new[0][1][:200]}"
        if time.time() >= until:
            return None
        time.sleep(min(1.0, max(0.0, until - time.time())))


def show(layout: Layout, as_json: bool) -> int:
    """Prints the state of every cell, one that runs with its figures. Exit status 1 where a phase failed."""
    states = states_of(layout)
    running = running_of(states)
    if as_json:
        print(json.dumps({"running": running, "states": states, "at": time.time()}, indent=1))
    else:
        for name, state in states.items():
            print("\n".join(screen(layout, name, state, name in running)))
        if not states:
            print(f"nothing was started below {layout.root}")
    return (
        1
        if any(entry["state"] == "failed" for state in states.values() for entry in state["phases"].values())
        else 0
    )


def screen(layout: Layout, name: str, state: dict[str, Any], runs: bool) -> list[str]:
    """A cell on a few lines."""
    now, entries = time.time(), state["phases"]
    phase = state.get("phase", "-")
    entry = entries.get(phase, {})
    head = f"== {name}: {phase}" + (f", {now - entry['began_at']:.0f} s in it" if "began_at" in entry else "")
    lines = [
        head
        + (
            ""
            if runs or phase == "ended"
            else " -- CUT OFF: no supervisor runs; farm.py start " + name + " goes on"
        )
    ]
    lines.append(
        "   "
        + ", ".join(
            f"{key} {value['state']}" + (f" {value['seconds']:.0f} s" if "seconds" in value else "")
            for key, value in entries.items()
        )
    )
    live = state.get("live")
    if runs and live:
        lines.append(
            "   "
            + ", ".join(
                f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}"
                for key, value in live.items()
                if not key.endswith("_at")
            )
        )
        if live.get("window_ends_at") and phase == "window":
            lines.append(f"   window: {max(0.0, live['window_ends_at'] - now):.0f} s left")
    if runs and layout.run(name).is_dir():
        lines.append("   " + counted(layout.run(name)))
    memory = state.get("memory")
    if memory:
        gpu = memory.get("gpu")
        device = (
            f"GPU {gpu['memory.used']} of {gpu['memory.total']} MiB, {gpu['utilization.gpu']} %, "
            f"{gpu['power.draw']} W"
            if gpu
            else "no GPU"
        )
        kept = {
            key.removesuffix("_bytes"): value / 1e9 for key, value in memory.items() if key.endswith("_bytes")
        }
        lines.append(f"   {device}; GB: " + ", ".join(f"{key} {value:.1f}" for key, value in kept.items()))
    lines += [
        f"   {key} failed: {value['why'][:300]}"
        for key, value in entries.items()
        if value["state"] == "failed"
    ]
    lines += [f"   note: {note[:200]}" for note in state.get("notes", [])[-4:]]
    result = entries.get("report", {}).get("result")
    if result:
        lines.append(
            f"   trajectories an hour {result['trajectories_per_hour']}; {len(result['flags'])} flags"
        )
    if runs:
        lines += [f"   | {line[:180]}" for line in tail(layout.log(name), 4)]
    return lines


def counted(run: pathlib.Path) -> str:
    """Trajectories of the ledger by state."""
    import collections

    import sources

    try:
        rows = sources.ledger(run)
    except RuntimeError as why:
        return str(why)
    ends = collections.Counter(row["state"] for row in rows)
    return (
        f"trajectories: {ends['assigned']} open, {ends['scored'] + ends['finished']} ended, "
        f"{ends['failed']} failed"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
