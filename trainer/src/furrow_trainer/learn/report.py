"""The report of a training: one HTML page with a plot per metric, as SVG, without a plotting library."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

# Metric and its description; plotted in this order where a training has them.
METRICS = [
    ("reward/mean", "mean reward of the attempts trained on"),
    ("loss/policy", "policy loss"),
    ("loss/nll", "negative log-likelihood per token, nats"),
    ("policy/entropy", "entropy per sampled token, nats"),
    ("staleness/mean", "versions between sampling and training, mean"),
    ("ratio/mean", "importance ratio, mean"),
    ("ratio/clipped", "share of tokens outside the clip range"),
    ("policy/kl_behaviour", "KL(recorded || trained), nats per token"),
    ("policy/kl_reference", "KL(trained || reference), nats per token"),
    ("gradient/norm", "norm of the gradient before clipping"),
    ("tokens_per_second", "content tokens per second, forward and backward"),
]
WIDTH, HEIGHT, MARGIN = 560, 200, 44
SMOOTHED = 10


def write(path: Path, lines: list[dict[str, Any]], title: str) -> None:
    """Writes the page from the lines of metrics.jsonl."""
    plots = [
        _plot(name, what, _points(lines, name)) for name, what in METRICS if len(_points(lines, name)) > 1
    ]
    last = lines[-1] if lines else {}
    rows = "".join(
        f"<tr><td>{html.escape(key)}</td><td>{html.escape(_text(value))}</td></tr>"
        for key, value in sorted(last.items())
    )
    path.write_text(
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html.escape(title)}</title><style>body{{font:14px sans-serif;margin:2em;max-width:1200px}}"
        "main{display:flex;flex-wrap:wrap;gap:1em}td{padding:.1em 1em .1em "
        "0}svg{background:#fafafa}</style></head>"
        f"<body><h1>{html.escape(title)}</h1><p>{len(lines)} steps. Thin: each step; thick: the mean of "
        f"{SMOOTHED}.</p>"
        f"<main>{''.join(plots)}</main><h2>The last step</h2><table>{rows}</table></body></html>\n",
        "utf8",
    )


def _points(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [
        (float(line["step"]), float(line[name])) for line in lines if isinstance(line.get(name), (int, float))
    ]


def _plot(name: str, what: str, points: list[tuple[float, float]]) -> str:
    xs, ys = zip(*points, strict=True)
    low, high = min(ys), max(ys)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5

    def svg_point(x: float, y: float) -> str:
        left = MARGIN + (x - xs[0]) / max(xs[-1] - xs[0], 1) * (WIDTH - 2 * MARGIN)
        top = HEIGHT - MARGIN + (y - low) / (high - low) * (2 * MARGIN - HEIGHT)
        return f"{left:.1f},{top:.1f}"

    smooth = [
        (xs[i], sum(ys[max(0, i + 1 - SMOOTHED) : i + 1]) / min(i + 1, SMOOTHED)) for i in range(len(xs))
    ]
    line = " ".join(svg_point(*point) for point in points)
    mean = " ".join(svg_point(*point) for point in smooth)
    texts = [
        (MARGIN, 16, f"{name}: {what}", "start"),
        (MARGIN - 4, MARGIN + 4, _text(high), "end"),
        (MARGIN - 4, HEIGHT - MARGIN, _text(low), "end"),
        (MARGIN, HEIGHT - MARGIN + 16, _text(xs[0]), "start"),
        (WIDTH - MARGIN, HEIGHT - MARGIN + 16, f"step {_text(xs[-1])}", "end"),
    ]
    labels = "".join(
        f"<text x='{x}' y='{y}' font-size='11' text-anchor='{anchor}'>{html.escape(text)}</text>"
        for x, y, text, anchor in texts
    )
    return (
        f"<svg width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}'>{labels}"
        f"<polyline fill='none' stroke='#9bb' stroke-width='1' points='{line}'/>"
        f"<polyline fill='none' stroke='#146' stroke-width='2' points='{mean}'/></svg>"
    )


def _text(value: object) -> str:
    if isinstance(value, float):
        return (
            str(int(value))
            if value == int(value) and abs(value) < 1e9
            else f"{value:.4g}"
            if math.isfinite(value)
            else "not finite"
        )
    return str(value)
