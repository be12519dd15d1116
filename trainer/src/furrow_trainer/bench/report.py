"""Figures of several rounds and the machine they were taken on, as `furrow bench --json` tells them."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import TrainerError

# Beyond this, what else runs on the machine shows in the figures.
LOAD_MAX = 1.0


class Report:
    """A benchmark in the making: conditions first, then figures.

    Raises:
        TrainerError: on a machine that is busy, unless `anyway`.
    """

    def __init__(self, anyway: bool) -> None:
        self.conditions = conditions()
        if self.conditions["load"] > LOAD_MAX:
            busy = f"the load of the last minute is {self.conditions['load']}, more than {LOAD_MAX:g}"
            if not anyway:
                raise TrainerError(f"{busy}; wait, or measure with --anyway")
            print(f"warning: {busy}: the figures are of a busy machine", file=sys.stderr)
        self.figures: dict[str, tuple[str, list[float]]] = {}
        self.notes: list[str] = []

    def add(self, name: str, unit: str, value: float) -> None:
        """This round's value of a figure."""
        self.figures.setdefault(name, (unit, []))[1].append(value)

    def note(self, text: str) -> None:
        """A sentence without which a figure would be misread."""
        if text not in self.notes:
            self.notes.append(text)

    def median(self, name: str) -> float:
        """Of a figure's rounds."""
        return statistics.median(self.figures[name][1])

    def value(self) -> dict[str, Any]:
        """All of it, for JSON."""
        figures = {
            name: {"median": statistics.median(rounds), "unit": unit, "rounds": rounds}
            for name, (unit, rounds) in self.figures.items()
        }
        return {"conditions": self.conditions, "figures": figures, "notes": self.notes}

    def text(self) -> str:
        """For people: a line a figure, medians of the rounds."""
        lines = [f"{key}: {value}" for key, value in self.conditions.items()]
        for name, (unit, rounds) in self.figures.items():
            lines.append(
                f"{name}: {statistics.median(rounds):,.3g} {unit} ({min(rounds):,.3g} to {max(rounds):,.3g}, {len(rounds)} rounds)"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def conditions() -> dict[str, Any]:
    """The machine: processor, cores, kernel, commit, load of the last minute, and what reads the files."""
    import numpy
    import pyarrow

    return {
        "cpu": _processor(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "commit": _commit(),
        "load": round(os.getloadavg()[0], 2), "version": __version__, "python": platform.python_version(), "pyarrow": pyarrow.__version__,
        "numpy": numpy.__version__,
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        "unknown processor",
    )


def _commit() -> str | None:
    """Of the folder this package lies in, when it is one of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
