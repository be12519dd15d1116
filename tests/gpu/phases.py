"""The order of a cell's phases: what is done once, what is done again after a cut, and what is still done
after a failure. No clock but the one it is given, no process, no file."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any

TODO, DONE, FAILED, SKIPPED = "todo", "done", "failed", "skipped"


class PhaseFailed(Exception):
    """A phase cannot reach its end; the text says why, with values, and what to do."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """One step of a cell.

    `live`: it needs the farm's processes. `always`: it is done whatever failed before it, for a partial
    report is a report."""

    name: str
    seconds_max: float
    act: Callable[[], dict[str, Any]]
    live: bool = False
    always: bool = False


def begin(state: dict[str, Any], names: list[str], is_live: bool, now: float, live: set[str]) -> None:
    """Prepares the state of a cell that is started, for the first time or after a cut.

    Phases that were done stay done. Where the next of them that needs the farm finds no farm, the farm is
    started again (`farm`, `ready`), and a window that had begun is recorded as cut: it is measured anew from
    the resumed run. Where the farm outlived its supervisor, the window goes on: what is measured is in the
    run's own files."""
    phases = state.setdefault("phases", {})
    for name in names:
        phases.setdefault(name, {"state": TODO})
        # What failed or was left out may be possible now.
        if phases[name]["state"] in (FAILED, SKIPPED, "running"):
            phases[name] = {"state": TODO}
    state["starts"] = state.get("starts", 0) + 1
    if is_live or "farm" not in names or phases["farm"]["state"] != DONE:
        return
    waiting = [
        name
        for name in names
        if name in live and name not in ("farm", "ready") and phases[name]["state"] == TODO
    ]
    if not waiting:
        return
    for name in ("farm", "ready"):
        phases[name] = {"state": TODO}
    state["resumed"] = state.get("resumed", 0) + 1
    note = f"start {state['starts']}: no process of the farm was left; it is started again with --resume"
    if "window" in waiting and state.get("window", {}).get("began_at"):
        state.setdefault("cut_windows", []).append({**state.pop("window"), "cut_at": now})
        note += ", and the window that was cut is measured anew from the resumed run"
    state.setdefault("notes", []).append(note)


def run(
    phases: list[Phase],
    state: dict[str, Any],
    save: Callable[[], None],
    clock: Callable[[], float],
    until: str | None = None,
) -> bool:
    """Goes through the phases in order; True where all that were to be done are done.

    A failed phase leaves out the later ones but those that are `always` done. `until`: the last phase of this
    start; later ones stay to be done."""
    broken: str | None = None
    for phase in phases:
        entry = state["phases"][phase.name]
        if entry["state"] != DONE:
            if broken and not phase.always:
                entry.update(state=SKIPPED, why=f"{broken} failed")
                save()
            else:
                began = clock()
                entry.clear()
                entry.update(state="running", began_at=began, seconds_max=phase.seconds_max)
                state["phase"] = phase.name
                save()
                try:
                    result = phase.act()
                    entry.update(state=DONE, seconds=clock() - began, result=result)
                except PhaseFailed as why:
                    entry.update(state=FAILED, seconds=clock() - began, why=str(why))
                except Exception as why:  # A bug of a phase must not take the later ones' reports with it.
                    entry.update(
                        state=FAILED,
                        seconds=clock() - began,
                        why=f"{type(why).__name__}: {why}",
                        trace=traceback.format_exc(),
                    )
                if entry["state"] == FAILED:
                    broken = broken or phase.name
                save()
        if phase.name == until:
            break
    state["phase"] = "ended"
    state["failed"] = broken
    save()
    return broken is None
