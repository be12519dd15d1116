"""Advantages: how much better an attempt did than the others at its task."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
KINDS = ("grpo", "rloo", "group_mean", "running_mean")
# GRPO divides by the group's standard deviation; this keeps the advantages of a nearly constant group finite.
SPREAD_MIN = 1e-6


def group_advantages(rewards: Items[float], kind: str) -> Values:
    """Advantages of the attempts of one group.

    ```text
    grpo        (r_i - mean) / (std + 1e-6), std the population's    DeepSeekMath, arXiv 2402.03300
    rloo        r_i - mean of the others                             Ahmadian et al., arXiv 2402.14740
    group_mean  r_i - mean                                           Dr. GRPO, arXiv 2503.20783
    ```

    A group of one has no others: all three give 0.
    """
    values = np.asarray(rewards, np.float64)
    if len(values) < 2:
        return np.zeros(len(values))
    off = values - values.mean()
    if kind == "grpo":
        return off / (values.std() + SPREAD_MIN)
    if kind == "rloo":
        # r_i - (sum - r_i) / (n - 1) = (r_i - mean) n / (n - 1)
        return off * len(values) / (len(values) - 1)
    if kind == "group_mean":
        return off
    raise ValueError(f"advantage {kind!r} is unknown; use grpo, rloo or group_mean")


class RunningMean:
    """REINFORCE's baseline for attempts without siblings: an exponential mean of each task's rewards before
    the attempt."""

    def __init__(self, decay: float = 0.9, means: dict[str, float] | None = None) -> None:
        self.decay = decay
        self.means = dict(means or {})

    def advantage(self, task_id: str, reward: float) -> float:
        """reward - baseline; the first attempt at a task sets its baseline and has advantage 0."""
        before = self.means.get(task_id, reward)
        self.means[task_id] = self.decay * before + (1 - self.decay) * reward
        return reward - before


def permuted(rewards: Items[float], rng: np.random.Generator) -> list[float]:
    """The control of an experiment: the same rewards, permuted at random over the attempts of all groups."""
    return [float(reward) for reward in rng.permutation(np.asarray(rewards, np.float64))]
