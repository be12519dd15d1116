"""The arithmetic of a measured window: rates, intervals, and whether two sources agree. Plain numbers in,
plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

HOUR = 3600.0
# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
T_95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
WINDOW_LEAST = 1.2
BLOCKS = 10


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """Linear between the two nearest of the sorted values, as numpy has it."""
    if not values:
        return None
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def distribution(values: Iterable[float]) -> dict[str, Any]:
    """Count, mean, least, p50, p90, p99, most."""
    listed = list(values)
    if not listed:
        return {"count": 0}
    return {
        "count": len(listed),
        "mean": sum(listed) / len(listed),
        "min": min(listed),
        "p50": quantile(listed, 0.5),
        "p90": quantile(listed, 0.9),
        "p99": quantile(listed, 0.99),
        "max": max(listed),
    }


def poisson(count: int) -> tuple[float, float]:
    """95 % interval of a Poisson mean by Byar's approximation: n (1 - 1/9n - z/3 sqrt(n))^3, and the same
    with n + 1 and +z. Right to 1 % from 3 on."""
    z = 1.959963984540054
    low = count * (1 - 1 / (9 * count) - z / (3 * math.sqrt(count))) ** 3 if count else 0.0
    more = count + 1
    return max(0.0, low), more * (1 - 1 / (9 * more) + z / (3 * math.sqrt(more))) ** 3


def blocks(moments: Sequence[float], began: float, ended: float, count: int = BLOCKS) -> list[float]:
    """Events a second in `count` equal parts of the window (began, ended]."""
    width = (ended - began) / count
    found = [0] * count
    for moment in moments:
        if began < moment <= ended:
            found[min(count - 1, max(0, math.ceil((moment - began) / width) - 1))] += 1
    return [events / width for events in found]


def batch_means(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean and 95 % interval of equal blocks: mean +- t(n-1) s / sqrt(n); None with fewer than two."""
    n = len(values)
    if n < 2:
        return None
    mean = sum(values) / n
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = T_95[min(n - 1, len(T_95)) - 1] * spread / math.sqrt(n)
    return mean, mean - half, mean + half


def tolerance(steps: float, sessions: int) -> float:
    """How far two counts of the same steps may lie apart, as a share: 1 %, and 2 sqrt(2 sessions) steps for
    the two edges.

    At an edge each session is inside a step that one source counts and the other does not yet, so a count is
    off by at most one for each session, as often up as down: sqrt(2 sessions) for both edges together, twice
    that for 95 %."""
    return 0.01 + 2 * math.sqrt(2 * sessions) / max(1.0, steps)


def steps_of_ledger(
    trajectories: Sequence[dict[str, Any]],
    began: float,
    ended: float,
    open_began: dict[str, int] | None,
    open_ended: dict[str, int] | None,
) -> tuple[float, str]:
    """Steps in the window (began, ended] by the ledger, and how they were counted.

    The ledger knows a trajectory's steps when it has ended. With the steps of open ones at both edges (as the
    coordinator told them) the count is whole: ended in the window, plus open at its end, minus open at its
    beginning. Without them a trajectory's steps are spread evenly over its time.

    trajectories: started_at, ended_at (seconds, None while open), steps (None while open), trajectory_id.
    """
    if open_began is not None and open_ended is not None:
        inside = sum(
            row["steps"] or 0
            for row in trajectories
            if row["ended_at"] is not None and began < row["ended_at"] <= ended
        )
        # Those that ended between the look and the edge are in neither or both; the ledger's own time
        # decides.
        after = {
            row["trajectory_id"] for row in trajectories if row["ended_at"] is None or row["ended_at"] > ended
        }
        before = {
            row["trajectory_id"] for row in trajectories if row["ended_at"] is None or row["ended_at"] > began
        }
        late = sum(steps for name, steps in open_ended.items() if name in after)
        early = sum(steps for name, steps in open_began.items() if name in before)
        return inside + late - early, "ended in the window + open at its end - open at its beginning"
    total = 0.0
    for row in trajectories:
        if row["ended_at"] is None or not row["steps"]:
            continue
        life = row["ended_at"] - row["started_at"]
        shared = min(ended, row["ended_at"]) - max(began, row["started_at"])
        if shared > 0 and life > 0:
            total += row["steps"] * shared / life
    return (
        total,
        (
            "steps of ended trajectories, spread evenly over their time; those still open at the end of the "
            "run are missing"
        ),
    )


def shortened(trajectories: Sequence[dict[str, Any]], sessions: int, steps_max: int) -> set[str]:
    """Those of the first `sessions` assignments (by fencing token) that were given fewer steps than the job's
    limit: they ended at a limit of their own."""
    first = sorted(trajectories, key=lambda row: row["token"])[:sessions]
    return {
        row["trajectory_id"]
        for row in first
        if row["ended"] == "max_steps" and row["steps"] is not None and row["steps"] < steps_max
    }


def first_limit(number: int, sessions: int, steps_max: int) -> int:
    """Steps of the `number`-th trajectory of a job (from 0) under limits.spread_first_steps: ceil((n + 1) x
    max / sessions)."""
    return -(-(number + 1) * steps_max // sessions) if number < sessions else steps_max


def unevenness(ages: Sequence[float], steps_max: int) -> float | None:
    """Largest distance between the shares of sessions up to an age and what even ages would have, 0 (even) to
    1 (all alike)."""
    if not ages:
        return None
    ordered = sorted(min(1.0, age / steps_max) for age in ages)
    n = len(ordered)
    return max(max((index + 1) / n - age, age - index / n) for index, age in enumerate(ordered))


def rate(steps_per_second: float, steps_mean: float | None) -> float | None:
    """Trajectories an hour: steps a second x 3,600 / mean steps of a trajectory."""
    return steps_per_second * HOUR / steps_mean if steps_mean else None


def window_needed(steps_max: int, sessions: int, steps_per_second: float) -> float | None:
    """Seconds that a window must last: 1.2 times what a trajectory of all steps takes, sessions x steps /
    (steps a second)."""
    return WINDOW_LEAST * steps_max * sessions / steps_per_second if steps_per_second > 0 else None
