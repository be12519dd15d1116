"""Metrics of several rounds and the machine they were measured on, in the form of `furrow-bench --json`."""

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

# Above this load other processes change the metrics.
LOAD_MAX = 1.0


class Report:
    """Collects a benchmark's results: conditions first, then metrics.

    Raises:
        TrainerError: on a machine that is busy, unless `anyway`.
    """

    def __init__(self, anyway: bool) -> None:
        self.conditions = conditions()
        if self.conditions["load"] > LOAD_MAX:
            busy = f"the load of the last minute is {self.conditions['load']}, more than {LOAD_MAX:g}"
            if not anyway:
                raise TrainerError(f"{busy}; wait, or measure with --anyway")
            print(f"warning: {busy}: other processes change the metrics", file=sys.stderr)
        self.metrics: dict[str, tuple[str, list[float]]] = {}
        self.notes: list[str] = []

    def add(self, name: str, unit: str, value: float) -> None:
        """Adds this round's value of a metric."""
        self.metrics.setdefault(name, (unit, []))[1].append(value)

    def note(self, text: str) -> None:
        """Adds a sentence that a reader of the metrics needs."""
        if text not in self.notes:
            self.notes.append(text)

    def median(self, name: str) -> float:
        """Median of a metric over its rounds."""
        return statistics.median(self.metrics[name][1])

    def value(self) -> dict[str, Any]:
        """The report as a JSON object."""
        metrics = {
            name: {"median": statistics.median(rounds), "unit": unit, "rounds": rounds}
            for name, (unit, rounds) in self.metrics.items()
        }
        return {"conditions": self.conditions, "figures": metrics, "notes": self.notes}

    def text(self) -> str:
        """The report as text: a line per metric with the median of its rounds."""
        lines = [f"{key}: {value}" for key, value in self.conditions.items()]
        for name, (unit, rounds) in self.metrics.items():
            lines.append(
                f"{name}: {statistics.median(rounds):,.3g} {unit} ({min(rounds):,.3g} to {max(rounds):,.3g}, "
                f"{len(rounds)} rounds)"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def conditions() -> dict[str, Any]:
    """The machine: processor, cores, kernel, commit, load of the last minute, and versions of the
    libraries."""
    import numpy
    import pyarrow

    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 2),
        "version": __version__,
        "python": platform.python_version(),
        "pyarrow": pyarrow.__version__,
        "numpy": numpy.__version__,
    }


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
    """The commit of the repository that holds this package, if one does."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
