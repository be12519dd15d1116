"""Losses as tables, and gradients against sums written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from furrow_trainer.learn.batch import Targets
from furrow_trainer.learn.loss import reinforcement, supervised
from furrow_trainer.learn.objective import Objective
from furrow_trainer.learn.scores import Scores


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
    assert loss.metrics["ratio/mean"] == pytest.approx(math.exp(now - recorded), rel=1e-5)


def test_an_unlisted_token_is_compared_over_the_whole_vocabulary_on_both_sides() -> None:
    scores, _ = of([-1.0])
    loss = reinforcement(scores, targets([-1.0], [True]), torch.ones(1), torch.ones(1), Objective())
    assert loss.metrics["ratio/mean"] == pytest.approx(1.0)


def test_divergence_is_zero_where_the_two_agree_and_pulls_back_where_not() -> None:
    objective = Objective(kl=1.0)
    for there, want in ((-1.0, 0.0), (-0.5, math.exp(0.5) - 1.5), (-1.5, math.exp(-0.5) - 0.5)):
        scores, logprob = of([-1.0])
        loss = reinforcement(
            scores, targets([-1.0]), torch.zeros(1), torch.ones(1), objective, torch.tensor([there])
        )
        assert loss.metrics["policy/kl_reference"] == pytest.approx(want, abs=1e-6)
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


def test_supervised_loss_is_over_the_whole_vocabulary() -> None:
    scores, _ = of([-1.0, -2.0])
    assert supervised(scores, torch.tensor([0.5, 0.25])).metrics["loss/nll"] == pytest.approx(
        0.5 * 2 + 0.25 * 3
    )
