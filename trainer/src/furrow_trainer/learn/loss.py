"""Losses over the sampled tokens of a batch.

The behaviour's log-probability is the recorded one: that of the sampler, token by token, under whatever
version of the weights it had. The ratio to it corrects both for staleness and for any difference between
sampler and trainer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import Targets
from .objective import Objective
from .scores import Scores

WEIGHT = "weight"
# exp(20) is 5e8: beyond it a ratio is infinite for every purpose.
LOG_RATIO_MAX = 20.0


@dataclass(frozen=True, slots=True)
class Loss:
    """A sum over tokens, each already weighted, and metrics to report (sums over the same tokens)."""

    total: Tensor
    metrics: dict[str, float]


def supervised(scores: Scores, weights: Tensor) -> Loss:
    """-sum(w log p) over the whole vocabulary: demonstrations were not sampled from any distribution."""
    total = -(scores.whole_logprob * weights).sum()
    with torch.no_grad():
        metrics = {
            "loss/nll": float(-(scores.whole_logprob * weights).sum()),
            "policy/entropy": float((scores.entropy * weights).sum()),
        }
    return Loss(total, metrics)


def behaviour(targets: Targets) -> tuple[Tensor, Tensor]:
    """Recorded log-probabilities, and which of them are over the whole vocabulary because the ids sampled
    from are not listed."""
    unlisted = targets.unlisted
    return torch.where(unlisted, targets.whole_logprob, targets.logprob), unlisted


def reinforcement(
    scores: Scores,
    targets: Targets,
    advantages: Tensor,
    weights: Tensor,
    objective: Objective,
    reference: Tensor | None = None,
) -> Loss:
    """The policy's loss.

    Args:
        scores: of the policy, with gradients.
        targets: of the batch.
        advantages: [samples].
        weights: [samples], the weight of each token; they add up to 1 over a step of the optimiser (see
            `token_weights`).
        objective: the loss that is minimised.
        reference: [samples] log-probabilities under the reference policy, for `kl`.
    """
    recorded, unlisted = behaviour(targets)
    logprob = torch.where(unlisted, scores.whole_logprob, scores.logprob)
    log_ratio = (logprob - recorded).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    ratio = log_ratio.exp()
    capped = ratio.clamp(max=objective.ratio_cap)
    if objective.algorithm == "reinforce":
        gain = capped.detach() * advantages * logprob
    else:
        clipped = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
        gain = torch.minimum(torch.where(advantages < 0, capped, ratio) * advantages, clipped * advantages)
    policy_loss = -(gain * weights).sum()
    entropy = (scores.entropy * weights).sum()
    total = policy_loss - objective.entropy * entropy
    metrics = {"loss/policy": float(policy_loss.detach()), "policy/entropy": float(entropy.detach())}
    if reference is not None:
        # The k3 estimator: exp(q - p) - (q - p) - 1 >= 0, unbiased for KL(p || q) under samples of p.
        off = (reference - logprob).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
        divergence = ((off.exp() - off - 1) * weights).sum()
        total = total + objective.kl * divergence
        metrics["policy/kl_reference"] = float(divergence.detach())
    with torch.no_grad():
        metrics |= _loss_metrics(ratio, log_ratio, weights, objective)
    return Loss(total, metrics)


def _loss_metrics(
    ratio: Tensor, log_ratio: Tensor, weights: Tensor, objective: Objective
) -> dict[str, float]:
    outside = (ratio < 1 - objective.clip_low) | (ratio > 1 + objective.clip_high)
    return {
        "ratio/mean": float((ratio * weights).sum()),
        "ratio/clipped": float((outside * weights).sum()),
        "ratio/capped": float(((ratio > objective.ratio_cap) * weights).sum()),
        # KL(recorded || now), estimated the same way.
        "policy/kl_behaviour": float(((ratio - log_ratio - 1) * weights).sum()),
        # The weight that the means above are over: attempts whose advantage is 0 are not computed.
        WEIGHT: float(weights.sum()),
    }
