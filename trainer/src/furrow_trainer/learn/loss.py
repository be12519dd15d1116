"""Losses over the drawn tokens of a batch.

The behaviour's log-probability is the recorded one: what the sampler said when it drew, token by token, whatever version of the weights it
had. The ratio to it corrects both for staleness and for any difference between sampler and trainer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import Targets
from .scores import Scores

ALGORITHMS = ("reinforce", "grpo")
NORMALISERS = ("tokens", "sequences", "constant")
WEIGHT = "weight"
# exp(20) is 5e8: beyond it a ratio is infinite for every purpose.
LOG_RATIO_MAX = 20.0


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised."""

    algorithm: str = "grpo"
    """`reinforce`: -min(ratio, ratio_cap) A log p, the ratio without gradient. `grpo`: PPO's clipped ratio."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_cap: float = 5.0
    """Truncated importance sampling: no token weighs more. For `grpo` it bounds the ratio of tokens with A < 0, which PPO leaves open."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    kl: float = 0.0
    """Weight of the divergence from the reference policy."""
    normaliser: str = "tokens"
    """`tokens`: each drawn token of the step weighs the same; `sequences`: each trajectory; `constant`: tokens over a fixed number."""
    constant: float = 1.0


@dataclass(frozen=True, slots=True)
class Loss:
    """A sum over tokens, each already weighted, and figures to report (sums over the same tokens)."""

    total: Tensor
    figures: dict[str, float]


def supervised(scores: Scores, weights: Tensor) -> Loss:
    """-sum(w log p) over the whole vocabulary: demonstrations were not drawn from any distribution."""
    total = -(scores.whole_logprob * weights).sum()
    with torch.no_grad():
        figures = {
            "loss/nll": float(-(scores.whole_logprob * weights).sum()),
            "policy/entropy": float((scores.entropy * weights).sum()),
        }
    return Loss(total, figures)


def behaviour(targets: Targets) -> tuple[Tensor, Tensor]:
    """Recorded log-probabilities, and which of them are over the whole vocabulary because the ids drawn among are not listed."""
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
        advantages: [draws].
        weights: [draws], what each token counts; they add up to 1 over a step of the optimiser (see `token_weights`).
        objective: what is minimised.
        reference: [draws] log-probabilities under the reference policy, for `kl`.
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
    figures = {"loss/policy": float(policy_loss.detach()), "policy/entropy": float(entropy.detach())}
    if reference is not None:
        # The k3 estimator: exp(q - p) - (q - p) - 1 >= 0, unbiased for KL(p || q) under draws of p.
        off = (reference - logprob).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
        divergence = ((off.exp() - off - 1) * weights).sum()
        total = total + objective.kl * divergence
        figures["policy/kl_reference"] = float(divergence.detach())
    with torch.no_grad():
        figures |= _figures(ratio, log_ratio, weights, objective)
    return Loss(total, figures)


def _figures(ratio: Tensor, log_ratio: Tensor, weights: Tensor, objective: Objective) -> dict[str, float]:
    outside = (ratio < 1 - objective.clip_low) | (ratio > 1 + objective.clip_high)
    return {
        "ratio/mean": float((ratio * weights).sum()),
        "ratio/clipped": float((outside * weights).sum()),
        "ratio/capped": float(((ratio > objective.ratio_cap) * weights).sum()),
        # KL(recorded || now), estimated the same way.
        "policy/kl_behaviour": float(((ratio - log_ratio - 1) * weights).sum()),
        # What the means above are over: attempts whose advantage is 0 are not computed.
        WEIGHT: float(weights.sum()),
    }


def token_weights(counts: dict[str, int], objective: Objective) -> dict[str, float]:
    """What a drawn token of each trajectory counts, from the numbers of drawn tokens of all trajectories of a step.

    ```text
    tokens     1 / all tokens
    sequences  1 / (trajectories x own tokens)
    constant   1 / (trajectories x constant)
    ```
    """
    if objective.normaliser == "tokens":
        return dict.fromkeys(counts, 1 / max(sum(counts.values()), 1))
    if objective.normaliser == "sequences":
        return {name: 1 / (len(counts) * max(count, 1)) for name, count in counts.items()}
    return dict.fromkeys(counts, 1 / (len(counts) * objective.constant))
