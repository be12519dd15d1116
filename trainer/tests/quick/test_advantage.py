"""Advantages and the weights of tokens, as tables."""

import numpy as np
import pytest

from furrow_trainer.learn.advantage import RunningMean, group_advantages, permuted
from furrow_trainer.learn.objective import Objective, token_weights


@pytest.mark.parametrize(
    ("rewards", "kind", "want"),
    [
        ([0, 0, 0, 1], "group_mean", [-0.25, -0.25, -0.25, 0.75]),
        ([0, 0, 0, 1], "rloo", [-1 / 3, -1 / 3, -1 / 3, 1.0]),
        ([0, 1], "grpo", [-1.0, 1.0]),
        ([0.2, 0.2], "grpo", [0.0, 0.0]),
        ([1], "rloo", [0.0]),
        ([1], "grpo", [0.0]),
        ([], "group_mean", []),
    ],
)
def test_advantages(rewards: list[float], kind: str, want: list[float]) -> None:
    assert np.allclose(group_advantages(rewards, kind), want, atol=1e-5)


def test_a_running_baseline_is_that_of_before_the_attempt() -> None:
    baseline = RunningMean(decay=0.5)
    assert [baseline.advantage("a", reward) for reward in (1.0, 0.0, 1.0)] == [0.0, -1.0, 0.5]
    assert baseline.advantage("b", 3.0) == 0.0 and baseline.means == {"a": 0.75, "b": 3.0}


def test_the_control_permutes_the_rewards() -> None:
    rewards = [float(index) for index in range(50)]
    permutation = permuted(rewards, np.random.default_rng(1))
    assert sorted(permutation) == rewards and permutation != rewards


@pytest.mark.parametrize(
    ("normaliser", "want"),
    [
        ("tokens", {"a": 0.1, "b": 0.1}),
        ("sequences", {"a": 0.25, "b": 0.0625}),
        ("constant", {"a": 0.05, "b": 0.05}),
    ],
)
def test_what_a_token_counts(normaliser: str, want: dict[str, float]) -> None:
    assert token_weights({"a": 2, "b": 8}, Objective(normaliser=normaliser, constant=10)) == pytest.approx(
        want
    )
