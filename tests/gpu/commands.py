"""Commands that a phase runs to their end, and the checkpoints that they make."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import pathlib
import shutil
import signal
import subprocess
import time
from typing import Any

import second
from cells import Cell
from machine import Layout, read_json, write_json
from phases import PhaseFailed

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(
    command: list[str], seconds: float, fine: tuple[int, ...], output: pathlib.Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; it ends with this process, so that after a cut no second one writes where
    the first still does. `output`: the file that it prints into, which keeps what it printed until a
    limit."""
    try:
        with open(output, "w") if output else contextlib.nullcontext(subprocess.PIPE) as printed:
            done = subprocess.run(
                command,
                stdout=printed,
                stderr=subprocess.PIPE,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=seconds,
                preexec_fn=_die_with_parent,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise PhaseFailed(f"{' '.join(command[:3])} took more than {seconds:.0f} s") from None
    except OSError as why:
        raise PhaseFailed(
            f"{command[0]} cannot be started: {why}; unpack the parts first (tests/gpu.sh unpack)"
        ) from None
    if done.returncode not in fine:
        raise PhaseFailed(
            f"{' '.join(command[:3])} ended with status {done.returncode}: "
            f"{(done.stderr or done.stdout or '')[-800:].strip()}"
        )
    return done


def make_checkpoints(cell: Cell, layout: Layout, until: float) -> dict[str, Any]:
    """The first version, written by the program, and the second beside it. One process at a time makes them;
    another waits for it."""
    first = layout.checkpoints / cell.first
    mark = first.with_name(f"{first.name}.json")
    with open(layout.checkpoints / f".{first.name}.lock", "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.time() > until:
                    raise PhaseFailed(
                        f"{first}: another process is still making it; look at farm.py status"
                    ) from None
                time.sleep(0.5)
        began = time.time()
        if not mark.is_file():
            if cell.dry:
                # The small sizes are not gone on with; the published one is, at its first missing shard.
                shutil.rmtree(first, ignore_errors=True)
            dtype = ["--dtype", "bfloat16"] if cell.engine.backend == "cuda" else []
            done = run(
                [
                    str(layout.furrow),
                    "checkpoint",
                    "init",
                    "--size",
                    cell.size,
                    "--seed",
                    "1",
                    *dtype,
                    "--json",
                    str(first),
                ],
                max(10.0, until - time.time()),
                (0,),
            )
            write_json(mark, {"said": json.loads(done.stdout or "{}"), "seconds": time.time() - began})
        return {"first": read_json(mark), "second": second.make(first, layout.checkpoints / cell.second)}


def refusals(plan: dict[str, Any], sessions: int) -> list[str]:
    """Why the job of a printed plan is not started: what `furrow run` would refuse, memory of processes and
    disk that are estimated not to fit (a worker would go on with fewer sessions), and fewer sessions at work
    than are to be measured. The disk of a data set of a million groups is no reason.

    Raises PhaseFailed where the plan has no budget.
    """
    try:
        budget = plan["budget"]
        refused = [str(why) for why in budget["refusals"]]
        residency = budget.get("residency")
        short = [part["what"] for part in budget["sums"] if part["fits"] is False]
    except (KeyError, TypeError):
        raise PhaseFailed("furrow plan --json printed no budget; is the program an older one?") from None
    refused += [f"{what} does not fit" for what in short if what in ("memory of processes", "disk to run")]
    if residency and residency["admitted"] < sessions:
        refused.append(f"{residency['admitted']} of {sessions} sessions are admitted")
    return refused
