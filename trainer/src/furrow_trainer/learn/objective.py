"""The objective of reinforcement learning, and the weight that it gives to each token; without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

ALGORITHMS = ("reinforce", "grpo")
NORMALISERS = ("tokens", "sequences", "constant")


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss that is minimised."""

    algorithm: str = "grpo"
    """`reinforce`: -min(ratio, ratio_cap) A log p, the ratio without gradient. `grpo`: PPO's clipped
    ratio."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_cap: float = 5.0
    """Truncated importance sampling: the largest weight of a token. For `grpo` it bounds the ratio of tokens
    with A < 0, which PPO does not."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    kl: float = 0.0
    """Weight of the divergence from the reference policy."""
    normaliser: str = "tokens"
    """`tokens`: each sampled token of the step weighs the same; `sequences`: each trajectory; `constant`:
    tokens over a fixed number."""
    constant: float = 1.0


def token_weights(counts: dict[str, int], objective: Objective) -> dict[str, float]:
    """Weight of a sampled token of each trajectory, from the numbers of sampled tokens of all trajectories of
    a step.

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
