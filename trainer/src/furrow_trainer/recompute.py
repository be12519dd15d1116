"""Recomputes recorded log-probabilities from rows and checkpoints alone, and reports the gaps.

One forward pass per sequence, as in training, on the checkpoint of the version that sampled the token. Tokens
whose state another version wrote, JPEG pictures (decoders differ) and bfloat16 checkpoints are reported
apart, and have no limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
import torch

from .data import Reader
from .data.rows import Step, Trajectory
from .learn.batch import Batch, padded, split
from .learn.images import Images
from .learn.scores import score
from .learn.sequence import Sequence, sequences
from .model import Checkpoint

# Steps chosen at random, by trajectory.
SampledSteps = dict[str, set[int]]


@dataclass(slots=True)
class Gaps:
    """Absolute differences by kind (`float32`, `float32, JPEG`, `float32, mixed versions`, ..) and column."""

    values: dict[tuple[str, str], list[np.ndarray]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, column: str, gaps: np.ndarray) -> None:
        """Adds gaps; NaN is a value that was not recorded."""
        gaps = gaps[~np.isnan(gaps)]
        if len(gaps):
            self.values.setdefault((kind, column), []).append(gaps)

    def merge(self, other: Gaps) -> None:
        """Adds the gaps of another."""
        for key, parts in other.values.items():
            self.values.setdefault(key, []).extend(parts)
        self.counts.update(other.counts)

    def table(self) -> dict[str, dict[str, float]]:
        """`KIND: COLUMN` to compared, p50, p99, max."""
        joined = {
            f"{kind}: {column}": np.concatenate(parts)
            for (kind, column), parts in sorted(self.values.items())
        }
        return {
            name: {
                "compared": len(v),
                "p50": float(np.median(v)),
                "p99": float(np.quantile(v, 0.99)),
                "max": float(v.max()),
            }
            for name, v in joined.items()
        }

    def largest(self, kind: str) -> float:
        """The largest gap of a kind; 0 where nothing was compared."""
        return max(
            (
                float(part.max())
                for (found, _), parts in self.values.items()
                if found == kind
                for part in parts
            ),
            default=0.0,
        )


def recompute(
    checkpoints: Mapping[int, Checkpoint],
    reader: Reader,
    steps_max: int,
    tokens_max: int = 4096,
    seed: int = 0,
) -> Gaps:
    """Compares `steps_max` steps, chosen at random, with the checkpoints of the policy versions that sampled
    them.

    Tokens of a version without a checkpoint are counted, and reported as mixed versions: the newest
    checkpoint recomputes them.
    """
    first = next(iter(checkpoints.values()))
    assert first.config.vision is not None, "a text model reads no screenshots"
    vision = first.config.vision
    work = _Work(checkpoints, tokens_max)
    # Groups hold the locations of rows, no screenshots: all groups are listed before any step is read.
    groups = list(reader.groups())
    sampled_steps = _sample_steps([one for group in groups for one in group.trajectories], steps_max, seed)
    for group in groups:
        images = Images(vision.tiling, vision.rows_per_tile)
        for trajectory in group.trajectories:
            if trajectory.trajectory_id in sampled_steps:
                work.take(
                    trajectory, reader.steps(trajectory), sampled_steps[trajectory.trajectory_id], images
                )
        work.compare(images)
        work.gaps.counts.update(images.counts)
        reader.done(group)
    return work.gaps


def _sample_steps(trajectories: Items[Trajectory], steps_max: int, seed: int) -> SampledSteps:
    """`steps_max` steps, or all: each as likely as any other."""
    every = [(one.trajectory_id, step) for one in trajectories for step in range(one.num_steps)]
    found: SampledSteps = {}
    for index in np.random.default_rng(seed).permutation(len(every))[:steps_max]:
        name, step = every[index]
        found.setdefault(name, set()).add(step)
    return found


@dataclass(slots=True)
class _Taken:
    """A sequence with chosen steps, and the step of each sampled token that is compared, -1 for the
    others."""

    sequence: Sequence
    step_of: np.ndarray
    is_jpeg: bool


class _Work:
    def __init__(self, checkpoints: Mapping[int, Checkpoint], tokens_max: int) -> None:
        self.checkpoints, self.tokens_max = checkpoints, tokens_max
        self.gaps = Gaps()
        rounded = any(dtype != torch.float32 for one in checkpoints.values() for dtype in one.dtypes.values())
        self.dtype = "bfloat16" if rounded else "float32"
        self.taken: list[_Taken] = []

    def take(
        self, trajectory: Trajectory, steps: list[Step], sampled_steps: set[int], images: Images
    ) -> None:
        """Takes a trajectory's sequences that hold chosen steps, and counts these."""
        is_jpeg = any(step.image_format == "jpeg" for step in steps)
        for sequence in sequences(trajectory, steps, images):
            begin, end = sequence.steps
            parts = []
            for step in steps[begin : end + 1]:
                assert step.response_token_ids is not None
                mask = (
                    step.response_mask
                    if step.response_mask is not None
                    else np.ones(len(step.response_token_ids), np.bool_)
                )
                parts.append(np.full(int(mask.sum()), step.step if step.step in sampled_steps else -1))
            step_of = np.concatenate(parts)
            if (step_of >= 0).any():
                self.taken.append(_Taken(sequence, step_of, is_jpeg))
                self.count(sequence, step_of, is_jpeg)

    def count(self, sequence: Sequence, step_of: np.ndarray, is_jpeg: bool) -> None:
        """Counts steps by whether one version wrote their state and their response."""
        responses = sequence.responses
        version, state = responses.version[responses.sampled], responses.state_version[responses.sampled]
        for step in np.unique(step_of[step_of >= 0]):
            mine = step_of == step
            one = (version[mine] == state[mine]).all() and version[mine].min() == version[mine].max()
            self.gaps.counts["steps"] += 1
            self.gaps.counts["steps of one version" if one else "steps of mixed versions"] += 1
            self.gaps.counts["steps with a JPEG"] += is_jpeg
            if one:
                self.gaps.counts[f"steps of one version, {int(version[mine][0])}"] += 1

    def compare(self, images: Images) -> None:
        """Compares all that was taken, each version's tokens with its own checkpoint."""
        by_versions: dict[tuple[int, ...], list[_Taken]] = {}
        for one in self.taken:
            responses = one.sequence.responses
            versions = np.unique(responses.version[responses.sampled][one.step_of >= 0])
            by_versions.setdefault(tuple(int(version) for version in versions), []).append(one)
        self.taken = []
        for sampled_by, taken in by_versions.items():
            of = {id(one.sequence): one for one in taken}
            for part in split([one.sequence for one in taken], self.tokens_max):
                batch = padded(part, images)
                mine = [of[id(sequence)] for sequence in batch.sequences]
                for version in sampled_by:
                    self.compare_batch(batch, mine, version)

    def compare_batch(self, batch: Batch, taken: list[_Taken], version: int) -> None:
        """Compares the tokens of a batch that a version sampled."""
        t = batch.targets
        own = torch.from_numpy(np.concatenate([one.step_of for one in taken]) >= 0) & (t.version == version)
        is_known = version in self.checkpoints
        if not is_known:
            self.gaps.counts["draws of versions without a checkpoint"] += int(own.sum())
        with torch.inference_mode():
            got = score(self.checkpoints[version if is_known else max(self.checkpoints)].policy, batch)
        for index, one in enumerate(taken):
            mine = own & (t.sequence == index)
            for is_mixed in (False, True):
                where = mine & (((t.state_version != version) | (not is_known)) == is_mixed)
                kind = (
                    self.dtype + (", JPEG" if one.is_jpeg else "") + (", mixed versions" if is_mixed else "")
                )
                listed = where & ~t.unlisted
                self.gaps.add(kind, "logprobs", (got.whole_logprob - t.whole_logprob)[where].abs().numpy())
                self.gaps.add(kind, "sampled_logprobs", (got.logprob - t.logprob)[listed].abs().numpy())
                self.gaps.add(kind, "entropy", (got.entropy - t.entropy)[listed].abs().numpy())
        self.gaps.counts["draws"] += int(own.sum())
        self.gaps.counts["draws whose ids are not listed"] += int((own & t.unlisted).sum())
