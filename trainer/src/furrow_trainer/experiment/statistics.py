"""Intervals of 95 %, with the formulas of `furrow report` (docs/EVALUATION.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items

import numpy as np

# Quantile of the standard normal distribution for two-sided 95 %.
Z = 1.959963984540054
RESAMPLES = 2000


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Wilson's score interval of a share (1927; Newcombe 1998, method 3). The trials must be independent: one
    per seed.

    ```text
    (p + z^2 / 2n  ±  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    ```
    """
    if trials <= 0:
        return 0.0, 1.0
    rate, square = successes / trials, Z * Z
    middle = rate + square / (2 * trials)
    half = Z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials * trials))
    scale = 1 + square / trials
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def bootstrap(values: Items[float], seed: int = 0) -> tuple[float, float]:
    """Percentile interval of the mean of independent values: means of groups, or differences between
    pairs."""
    if not len(values):
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    sample = np.asarray(values, np.float64)
    means = sample[rng.integers(len(sample), size=(RESAMPLES, len(sample)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
