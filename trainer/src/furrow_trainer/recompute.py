"""Recomputes what a policy said it sampled, from rows and a checkpoint alone, and says how far apart the two are.

One forward pass a sequence, as training runs it. Tokens whose state or draw belongs to another version than the checkpoint's, JPEG
pictures (decoders differ) and bfloat16 checkpoints are told apart, not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from .data import Reader
from .data.rows import Step, Trajectory
from .learn.batch import padded, split
from .learn.images import Images
from .learn.scores import score
from .learn.sequence import Sequence, sequences
from .model import Checkpoint


@dataclass(slots=True)
class Gaps:
    """Absolute differences by kind (`float32`, `float32, JPEG`, `mixed versions`, ..) and column."""

    values: dict[tuple[str, str], list[np.ndarray]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, column: str, gaps: np.ndarray) -> None:
        """Takes some; NaN stands for what was not recorded."""
        gaps = gaps[~np.isnan(gaps)]
        if len(gaps):
            self.values.setdefault((kind, column), []).append(gaps)

    def merge(self, other: Gaps) -> None:
        """Takes another's."""
        for key, parts in other.values.items():
            self.values.setdefault(key, []).extend(parts)
        self.counts.update(other.counts)

    def table(self) -> dict[str, dict[str, float]]:
        """`KIND: COLUMN` to compared, p50, p99, max."""
        joined = {f"{kind}: {column}": np.concatenate(parts) for (kind, column), parts in sorted(self.values.items())}
        return {
            name: {"compared": len(v), "p50": float(np.median(v)), "p99": float(np.quantile(v, 0.99)), "max": float(v.max())}
            for name, v in joined.items()
        }

    def largest(self, kind: str) -> float:
        """The largest gap of a kind; 0 where nothing was compared."""
        return max((float(part.max()) for (found, _), parts in self.values.items() if found == kind for part in parts), default=0.0)


def recompute(checkpoint: Checkpoint, reader: Reader, steps_max: int, version: int = 0, tokens_max: int = 4096, seed: int = 0) -> Gaps:
    """Compares the steps of trajectories drawn at random, some `steps_max` steps, with a checkpoint that has policy version `version`."""
    assert checkpoint.config.vision is not None, "a text model reads no screenshots"
    vision = checkpoint.config.vision
    gaps = Gaps()
    rounded = any(dtype != torch.float32 for dtype in checkpoint.dtypes.values())
    # Groups hold rows' places, no screenshots: all of them are looked at before any step is read.
    groups = list(reader.groups())
    chosen = _drawn([one for group in groups for one in group.trajectories], steps_max, seed)
    for group in groups:
        images = Images(vision.tiling, vision.rows_per_tile)
        taken = [(one, reader.steps(one)) for one in group.trajectories if one.trajectory_id in chosen]
        gaps.counts["steps"] += sum(len(steps) for _, steps in taken)
        _compare(checkpoint, gaps, taken, images, version, "bfloat16" if rounded else "float32", tokens_max)
        gaps.counts.update(images.counts)
        reader.done(group)
    return gaps


def _drawn(trajectories: list[Trajectory], steps_max: int, seed: int) -> set[str]:
    """Ids of trajectories in an order by chance, until they have so many steps."""
    found: set[str] = set()
    steps = 0
    for index in np.random.default_rng(seed).permutation(len(trajectories)):
        if steps >= steps_max:
            break
        found.add(trajectories[index].trajectory_id)
        steps += trajectories[index].num_steps
    return found


def _compare(
    checkpoint: Checkpoint, gaps: Gaps, taken: Iterable[tuple[Trajectory, list[Step]]], images: Images, version: int, dtype: str, tokens_max: int
) -> None:
    found: list[Sequence] = []
    formats: dict[str, str] = {}
    for trajectory, steps in taken:
        found += sequences(trajectory, steps, images)
        formats[trajectory.trajectory_id] = ", JPEG" if any(step.image_format == "jpeg" for step in steps) else ""
    for part in split(found, tokens_max):
        batch = padded(part, images)
        with torch.inference_mode():
            got = score(checkpoint.policy, batch)
        t = batch.targets
        mixed = (t.version != t.state_version) | (t.version != version)
        for index, sequence in enumerate(batch.sequences):
            mine = t.sequence == index
            for is_mixed, kind in ((False, dtype + formats[sequence.trajectory_id]), (True, f"{dtype}, mixed versions")):
                where = mine & (mixed == is_mixed)
                listed = where & ~t.unlisted
                gaps.add(kind, "logprobs", (got.whole_logprob - t.whole_logprob)[where].abs().numpy())
                gaps.add(kind, "sampled_logprobs", (got.logprob - t.logprob)[listed].abs().numpy())
                gaps.add(kind, "entropy", (got.entropy - t.entropy)[listed].abs().numpy())
        gaps.counts["draws"] += len(t)
        gaps.counts["draws whose ids are not listed"] += int(t.unlisted.sum())
