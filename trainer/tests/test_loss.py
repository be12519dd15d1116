"""Advantages and losses as tables, and gradients against sums written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from furrow_trainer.learn.advantage import RunningMean, group_advantages, permuted
from furrow_trainer.learn.batch import Targets
from furrow_trainer.learn.loss import Objective, reinforcement, supervised, token_weights
from furrow_trainer.learn.scores import Scores


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


def test_the_control_deals_out_the_same_rewards() -> None:
    rewards = [float(index) for index in range(50)]
    dealt = permuted(rewards, np.random.default_rng(1))
    assert sorted(dealt) == rewards and dealt != rewards


def targets(recorded: list[float], unlisted: list[bool] | None = None) -> Targets:
    count = len(recorded)
    zeros = torch.zeros(count, dtype=torch.long)
    values = torch.tensor(recorded)
    flags = torch.tensor(unlisted or [False] * count)
    return Targets(
        zeros, zeros, zeros, values, values - 1, values, torch.ones(count), None, flags, zeros, zeros, zeros
    )


def of(now: list[float]) -> tuple[Scores, Tensor]:
    logprob = torch.tensor(now, requires_grad=True)
    return Scores(logprob, logprob - 1, torch.full((len(now),), 0.5)), logprob


# recorded log-prob, log-prob now, advantage, gradient of the loss by the log-prob now (weight 1)
CASES = [
    ("reinforce", -1.0, -1.0, 2.0, -2.0),
    ("reinforce", -1.0, -1.0 + math.log(2), 1.0, -2.0),
    ("reinforce", -3.0, -1.0, 1.0, -5.0),  # ratio 7.4, capped at 5
    ("grpo", -1.0, -1.0, 2.0, -2.0),
    ("grpo", -1.0, -1.0 + math.log(1.1), 1.0, -1.1),
    ("grpo", -1.0, -1.0 + math.log(1.3), 1.0, 0.0),  # beyond 1 + clip_high with A > 0: clipped
    ("grpo", -1.0, -1.0 + math.log(1.3), -1.0, 1.3),
    ("grpo", -1.0, -1.0 + math.log(0.7), -1.0, 0.0),  # below 1 - clip_low with A < 0: clipped
    ("grpo", -1.0, -1.0 + math.log(0.7), 1.0, -0.7),
    ("grpo", -3.0, -1.0, -1.0, 0.0),  # ratio 7.4 with A < 0: bounded by ratio_cap
]


@pytest.mark.parametrize(("algorithm", "recorded", "now", "advantage", "want"), CASES)
def test_gradients(algorithm: str, recorded: float, now: float, advantage: float, want: float) -> None:
    scores, logprob = of([now])
    loss = reinforcement(
        scores, targets([recorded]), torch.tensor([advantage]), torch.ones(1), Objective(algorithm=algorithm)
    )
    loss.total.backward()
    assert logprob.grad is not None and float(logprob.grad[0]) == pytest.approx(want, abs=1e-5)
    assert loss.figures["ratio/mean"] == pytest.approx(math.exp(now - recorded), rel=1e-5)


def test_an_unlisted_draw_is_compared_over_the_whole_vocabulary_on_both_sides() -> None:
    scores, _ = of([-1.0])
    loss = reinforcement(scores, targets([-1.0], [True]), torch.ones(1), torch.ones(1), Objective())
    assert loss.figures["ratio/mean"] == pytest.approx(1.0)


def test_divergence_is_zero_where_the_two_agree_and_pulls_back_where_not() -> None:
    objective = Objective(kl=1.0)
    for there, want in ((-1.0, 0.0), (-0.5, math.exp(0.5) - 1.5), (-1.5, math.exp(-0.5) - 0.5)):
        scores, logprob = of([-1.0])
        loss = reinforcement(
            scores, targets([-1.0]), torch.zeros(1), torch.ones(1), objective, torch.tensor([there])
        )
        assert loss.figures["policy/kl_reference"] == pytest.approx(want, abs=1e-6)
        loss.total.backward()
        assert logprob.grad is not None and np.sign(float(logprob.grad[0])) == np.sign(-1.0 - there)


def test_entropy_is_rewarded() -> None:
    logprob = torch.tensor([-1.0])
    entropy = torch.tensor([0.5], requires_grad=True)
    loss = reinforcement(
        Scores(logprob, logprob, entropy),
        targets([-1.0]),
        torch.zeros(1),
        torch.ones(1),
        Objective(entropy=0.1),
    )
    loss.total.backward()
    assert entropy.grad is not None and float(entropy.grad[0]) == pytest.approx(-0.1)


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


def test_supervised_loss_is_over_the_whole_vocabulary() -> None:
    scores, _ = of([-1.0, -2.0])
    assert supervised(scores, torch.tensor([0.5, 0.25])).figures["loss/nll"] == pytest.approx(
        0.5 * 2 + 0.25 * 3
    )
