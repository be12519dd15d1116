"""Plots as SVG, without a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 34, 40
# Approximate number of steps of an axis.
STEPS = 5
COLOURS = ("#14466b", "#c2571a", "#3c7d3c")


@dataclass(slots=True)
class Line:
    """One series: points (x, y), and for each point the bounds of its interval, if it has one."""

    name: str
    points: list[tuple[float, float]]
    bounds: list[tuple[float, float]] = field(default_factory=list)
    marks: bool = False
    """Draw points with bars instead of a line in a band."""


def figure(title: str, x_name: str, lines: Items[Line], y_range: tuple[float, float] | None = None) -> str:
    """An SVG document."""
    xs = [x for line in lines for x, _ in line.points] or [0.0]
    ys = [y for line in lines for _, y in line.points] + [
        y for line in lines for bounds in line.bounds for y in bounds
    ]
    low, high = y_range or (min(ys, default=0.0), max(ys, default=1.0))
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    first, last = min(xs), max(*xs, min(xs) + 1)
    step = _step(low, high)
    # A hundredth of a step beyond a round number does not add another step.
    low, high = math.floor(low / step + 0.01) * step, math.ceil(high / step - 0.01) * step

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (min(max(y, low), high) - low) / (high - low) * (
            HEIGHT - TOP - BOTTOM
        )

    parts = [f"<text x='{LEFT}' y='18' font-size='13' font-weight='bold'>{html.escape(title)}</text>"]
    for y in _ticks(low, high):
        down = at(first, y)[1]
        parts.append(f"<path d='M{LEFT} {down:.1f}H{WIDTH - RIGHT}' stroke='#dde3e8'/>")
        parts.append(
            f"<text x='{LEFT - 5}' y='{down + 4:.1f}' font-size='11' text-anchor='end'>{y:.6g}</text>"
        )
    parts += [
        f"<text x='{at(x, low)[0]:.1f}' y='{HEIGHT - BOTTOM + 16}' font-size='11' text-anchor='middle'>"
        f"{x:.6g}</text>"
        for x in _ticks(first, last)
    ]
    parts.append(
        f"<text x='{WIDTH / 2:.0f}' y='{HEIGHT - 6}' font-size='11' "
        f"text-anchor='middle'>{html.escape(x_name)}</text>"
    )
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        parts += _elements(line, colour, at)
        down = TOP + 14 * index
        parts.append(
            f"<text x='{WIDTH - RIGHT}' y='{down}' font-size='11' fill='{colour}' "
            f"text-anchor='end'>{html.escape(line.name)}</text>"
        )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} "
        f"{HEIGHT}' font-family='sans-serif'>"
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#fcfdfe'/>{''.join(parts)}</svg>\n"
    )


def _step(low: float, high: float) -> float:
    """1, 2 or 5 times a power of ten, about a fifth of the range."""
    rough = (high - low) / STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from the first to the last within the range."""
    step = _step(low, high)
    return [step * count for count in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _elements(line: Line, colour: str, at: Callable[[float, float], tuple[float, float]]) -> list[str]:
    positions = [at(x, y) for x, y in line.points]
    bars = [(at(x, low), at(x, high)) for (x, _), (low, high) in zip(line.points, line.bounds, strict=False)]
    parts = []
    if line.marks:
        parts += [
            f"<path d='M{low[0]:.1f} {low[1]:.1f}V{high[1]:.1f}' stroke='{colour}' stroke-width='1.5'/>"
            for low, high in bars
        ]
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>" for x, y in positions]
        return parts
    if bars:
        around = [low for low, _ in bars] + [high for _, high in reversed(bars)]
        parts.append(f"<polygon points='{_points(around)}' fill='{colour}' fill-opacity='0.14'/>")
    parts.append(f"<polyline points='{_points(positions)}' fill='none' stroke='{colour}' stroke-width='2'/>")
    return parts


def _points(positions: Items[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
