"""Log-probabilities of sampled tokens under the distribution that they were sampled from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.policy import Policy
from .batch import Batch, Targets, hidden_rows


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of each sampled token; all are [samples]."""

    logprob: Tensor
    """Under the distribution sampled from; over the whole vocabulary where the ids of that are not listed."""
    whole_logprob: Tensor
    """log-softmax(logits / temperature) over the whole vocabulary."""
    entropy: Tensor
    """Of the same distribution as `logprob`, in nats."""


def scores(logits: Tensor, targets: Targets) -> Scores:
    """Scores from logits [samples, vocabulary] in float32."""
    scaled = logits / targets.temperature.unsqueeze(-1)
    own = scaled.gather(-1, targets.token.unsqueeze(-1)).squeeze(-1)
    whole = scaled.log_softmax(-1)
    whole_logprob = whole.gather(-1, targets.token.unsqueeze(-1)).squeeze(-1)
    whole_entropy = -(whole.exp() * whole).sum(-1)
    if targets.kept is None:
        return Scores(whole_logprob, whole_logprob, whole_entropy)
    listed = targets.kept >= 0
    is_cut = listed.any(-1)
    # A row without a list gets one id, so that no gradient meets log(0).
    listed = torch.cat([listed[:, :1] | ~is_cut.unsqueeze(-1), listed[:, 1:]], dim=-1)
    among = scaled.gather(-1, targets.kept.clamp(min=0)).masked_fill(~listed, -torch.inf)
    normaliser = among.logsumexp(-1)
    share = (among - normaliser.unsqueeze(-1)).masked_fill(~listed, 0.0)
    entropy = -(share.exp().masked_fill(~listed, 0.0) * share).sum(-1)
    return Scores(
        torch.where(is_cut, own - normaliser, whole_logprob),
        whole_logprob,
        torch.where(is_cut, entropy, whole_entropy),
    )


def score(policy: Policy, batch: Batch, chunk: int | None = None) -> Scores:
    """Runs the model and scores the batch's sampled tokens."""
    return scores(policy.logits(hidden_rows(policy, batch, chunk)), batch.targets)
