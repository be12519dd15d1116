"""Plots as SVG, so that nothing else need be installed."""

from __future__ import annotations

import html
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 34, 40
TICKS = 5
COLOURS = ("#14466b", "#c2571a", "#3c7d3c")


@dataclass(slots=True)
class Line:
    """One series: points (x, y), and for each the bounds of its interval where it has one."""

    name: str
    points: list[tuple[float, float]]
    bounds: list[tuple[float, float]] = field(default_factory=list)
    marks: bool = False
    """Draw points with bars instead of a line in a band."""


def figure(title: str, x_name: str, lines: Items[Line], y_range: tuple[float, float] | None = None) -> str:
    """An SVG document."""
    xs = [x for line in lines for x, _ in line.points] or [0.0]
    ys = [y for line in lines for _, y in line.points] + [y for line in lines for bounds in line.bounds for y in bounds]
    low, high = y_range or (min(ys, default=0.0), max(ys, default=1.0))
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    first, last = min(xs), max(max(xs), min(xs) + 1)

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (min(max(y, low), high) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f"<text x='{LEFT}' y='18' font-size='13' font-weight='bold'>{html.escape(title)}</text>"]
    for tick in range(TICKS + 1):
        y, x = low + (high - low) * tick / TICKS, first + (last - first) * tick / TICKS
        down, across = at(first, y)[1], at(x, low)[0]
        parts.append(f"<path d='M{LEFT} {down:.1f}H{WIDTH - RIGHT}' stroke='#dde3e8'/>")
        parts.append(f"<text x='{LEFT - 5}' y='{down + 4:.1f}' font-size='11' text-anchor='end'>{y:.3g}</text>")
        parts.append(f"<text x='{across:.1f}' y='{HEIGHT - BOTTOM + 16}' font-size='11' text-anchor='middle'>{x:.3g}</text>")
    parts.append(f"<text x='{WIDTH / 2:.0f}' y='{HEIGHT - 6}' font-size='11' text-anchor='middle'>{html.escape(x_name)}</text>")
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        parts += _drawn(line, colour, at)
        down = TOP + 14 * index
        parts.append(f"<text x='{WIDTH - RIGHT}' y='{down}' font-size='11' fill='{colour}' text-anchor='end'>{html.escape(line.name)}</text>")
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' font-family='sans-serif'>"
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#fcfdfe'/>{''.join(parts)}</svg>\n"
    )


def _drawn(line: Line, colour: str, at) -> list[str]:  # type: ignore[no-untyped-def]
    places = [at(x, y) for x, y in line.points]
    bars = [(at(x, low), at(x, high)) for (x, _), (low, high) in zip(line.points, line.bounds, strict=False)]
    parts = []
    if line.marks:
        parts += [f"<path d='M{low[0]:.1f} {low[1]:.1f}V{high[1]:.1f}' stroke='{colour}' stroke-width='1.5'/>" for low, high in bars]
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>" for x, y in places]
        return parts
    if bars:
        around = [low for low, _ in bars] + [high for _, high in reversed(bars)]
        parts.append(f"<polygon points='{_points(around)}' fill='{colour}' fill-opacity='0.14'/>")
    parts.append(f"<polyline points='{_points(places)}' fill='none' stroke='{colour}' stroke-width='2'/>")
    return parts


def _points(places: Items[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
