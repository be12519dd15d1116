"""Trajectories as token sequences: what the model reads, and which of its tokens were sampled from which
distribution.

Under `append` a trajectory is one sequence, since nothing is ever dropped. Under the other context policies
each step is one: its prompt `K_t ++ prompt_token_ids_t` and its response. K and the prompts are rebuilt by
the data set's rule and compared with its hashes.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from ..data.rows import Flags, Floats, Ids, ImageSpan, Step, Trajectory
from ..data.token_hash import token_hash
from ..errors import DataError
from .images import Images, Key


@dataclass(frozen=True, slots=True)
class Picture:
    """Rows of an image in a sequence."""

    start: int
    length: int
    key: Key


@dataclass(frozen=True, slots=True)
class ResponseTokens:
    """Response tokens of a sequence, in order; all arrays have an entry per token."""

    position: Ids
    """Index of the token in the sequence."""
    sampled: Flags
    """The policy sampled it; else it was forced or appended, and has no loss."""
    logprob: Floats
    """Log-prob that it was sampled with, after grammar and truncation; NaN where the policy recorded
    none."""
    whole_logprob: Floats
    """Over the whole vocabulary at the same temperature; NaN where there is none."""
    entropy: Floats
    """Entropy of the distribution that it was sampled from, in nats; NaN where unknown."""
    temperature: Floats
    version: Ids
    """Policy version that sampled it; -1 for demonstrations."""
    state_version: Ids
    """Oldest version that wrote any state it was sampled from."""
    kept: tuple[Ids | None, ...]
    """Ids that it was sampled from; `None`: all, or more than are listed."""
    unlisted: Flags
    """Sampled from fewer ids than all, but more than are listed: only `whole_logprob` can be recomputed."""

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class Sequence:
    """Tokens the model reads in one go."""

    trajectory_id: str
    group_id: str
    steps: tuple[int, int]
    """First and last step whose responses are trained on."""
    ids: Ids
    pictures: tuple[Picture, ...]
    responses: ResponseTokens

    def __len__(self) -> int:
        return len(self.ids)


def sequences(trajectory: Trajectory, steps: Items[Step], images: Images) -> list[Sequence]:
    """All sequences of a trajectory with tokens.

    Raises:
        DataError: when a step has no tokens, or a rebuilt prompt does not match its hash.
    """
    found: list[Sequence] = []
    kept = np.zeros(0, np.int32)
    growing: list[Step] = []
    for step in steps:
        if step.prompt_token_ids is None or step.response_token_ids is None:
            raise DataError(
                f"{trajectory.trajectory_id} step {step.step} has no tokens: no model policy wrote it"
            )
        prompt = np.concatenate([kept, step.prompt_token_ids])
        _check(step, kept, prompt)
        pictures = [
            Picture(span.token_start, span.token_len, images.add(steps[span.step], span))
            for span in step.image_spans
        ]
        whole = np.concatenate([prompt, step.response_token_ids])
        growing.append(step)
        if step.commit_token_ids is None:
            kept = whole
            if not step.is_last:
                continue
        else:
            kept = np.concatenate([kept, step.commit_token_ids])
        found.append(_sequence(trajectory, growing, whole, pictures))
        growing = []
    return found


def _sequence(trajectory: Trajectory, steps: list[Step], ids: Ids, pictures: list[Picture]) -> Sequence:
    responses, begin = [], len(ids)
    for step in reversed(steps):
        assert step.response_token_ids is not None and step.prompt_token_ids is not None
        begin -= len(step.response_token_ids)
        responses.append(_response_tokens(step, begin))
        begin -= len(step.prompt_token_ids)
    responses.reverse()
    return Sequence(
        trajectory.trajectory_id,
        trajectory.group_id,
        (steps[0].step, steps[-1].step),
        ids,
        tuple(pictures),
        joined(responses),
    )


def _response_tokens(step: Step, begin: int) -> ResponseTokens:
    assert step.response_token_ids is not None
    count = len(step.response_token_ids)
    nothing = np.full(count, np.nan, np.float32)
    sampled = step.response_mask if step.response_mask is not None else np.ones(count, np.bool_)
    kept = tuple(step.kept_ids(index) if is_sampled else None for index, is_sampled in enumerate(sampled))
    cut = np.zeros(count, np.bool_) if step.kept_count is None else ~np.isnan(step.kept_count)
    listed = np.array([ids is not None for ids in kept], np.bool_)
    versions = step.policy_versions if step.policy_versions is not None else np.full(count, -1, np.int32)
    oldest = -1 if step.state_version_min is None else step.state_version_min
    return ResponseTokens(
        position=np.arange(begin, begin + count, dtype=np.int32),
        sampled=sampled,
        logprob=nothing if step.sampled_logprobs is None else step.sampled_logprobs,
        whole_logprob=nothing if step.logprobs is None else step.logprobs,
        entropy=nothing if step.entropy is None else step.entropy,
        temperature=np.full(count, step.temperature, np.float32),
        version=versions,
        state_version=np.full(count, oldest, np.int32),
        kept=kept,
        unlisted=sampled & cut & ~listed,
    )


def joined(parts: Items[ResponseTokens]) -> ResponseTokens:
    """Response tokens of several steps, one after the other."""
    return ResponseTokens(
        position=np.concatenate([part.position for part in parts]),
        sampled=np.concatenate([part.sampled for part in parts]),
        logprob=np.concatenate([part.logprob for part in parts]),
        whole_logprob=np.concatenate([part.whole_logprob for part in parts]),
        entropy=np.concatenate([part.entropy for part in parts]),
        temperature=np.concatenate([part.temperature for part in parts]),
        version=np.concatenate([part.version for part in parts]),
        state_version=np.concatenate([part.state_version for part in parts]),
        kept=tuple(kept for part in parts for kept in part.kept),
        unlisted=np.concatenate([part.unlisted for part in parts]),
    )


def _check(step: Step, kept: Ids, prompt: Ids) -> None:
    where = f"{step.trajectory_id} step {step.step}"
    if step.prefix_len is not None and step.prefix_len != len(kept):
        raise DataError(f"{where}: prefix_len is {step.prefix_len}, the commits make it {len(kept)}")
    if step.prompt_hash is not None and token_hash(prompt, step.image_spans) != step.prompt_hash:
        raise DataError(f"{where}: the rebuilt prompt has another hash")
    for span in step.image_spans:
        if (
            not (span.token_start >= 0 and span.token_start + span.token_len <= len(prompt))
            or not 0 <= span.step <= step.step
        ):
            raise DataError(f"{where}: an image span of step {span.step} lies outside the prompt")


__all__ = ["ImageSpan", "Picture", "ResponseTokens", "Sequence", "joined", "sequences"]
