"""From rows to scores: what is recomputed is what was recorded, in every layout, and rows that do not fit are
refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from actor import Actor, play
from farm import Farm
from furrow_trainer.data import Reader, Step, Trajectory
from furrow_trainer.errors import DataError
from furrow_trainer.learn.batch import Batch, packed, padded, split
from furrow_trainer.learn.images import Images
from furrow_trainer.learn.scores import score, scores
from furrow_trainer.learn.sequence import Sequence, sequences
from furrow_trainer.model import load
from furrow_trainer.recompute import recompute
from paths import ORACLE_VL

CHECKPOINT = ORACLE_VL / "vl_f32"


def images() -> Images:
    vision = load(CHECKPOINT).config.vision
    assert vision is not None
    return Images(vision.tiling, vision.rows_per_tile)


def acted(folder: Path, context: str = "last_image", steps: int = 3) -> list[tuple[Trajectory, list[Step]]]:
    """Trajectories that an actor made."""
    farm = Farm(folder)
    play(farm, Actor(CHECKPOINT, 0, 7, context), 0, 3, 2, steps)
    reader = Reader(folder)
    return [
        (trajectory, reader.steps(trajectory))
        for group in reader.groups()
        for trajectory in group.trajectories
    ]


@pytest.mark.parametrize("context", ["last_image", "append"])
@pytest.mark.parametrize("layout", [padded, packed])
def test_what_was_recorded_is_recomputed(
    tmp_path: Path, context: str, layout: Callable[[list[Sequence], Images], Batch]
) -> None:
    policy, shots = load(CHECKPOINT).policy, images()
    found = [
        one for trajectory, steps in acted(tmp_path, context) for one in sequences(trajectory, steps, shots)
    ]
    assert len(found) == (6 if context == "append" else 18)
    compared = 0
    for part in split(found, 600):
        batch = layout(part, shots)
        with torch.no_grad():
            got = score(policy, batch, chunk=16)
        t = batch.targets
        assert torch.allclose(got.logprob, t.logprob, atol=2e-5)
        assert torch.allclose(got.whole_logprob, t.whole_logprob, atol=2e-5)
        assert torch.allclose(got.entropy, t.entropy, atol=2e-5)
        compared += len(t)
    assert compared == 36, "two sampled tokens per step, 18 steps"


def test_a_trunk_is_used_and_gives_the_gradients_of_a_packed_row(tmp_path: Path) -> None:
    policy, shots = load(CHECKPOINT).policy, images()
    found = [one for trajectory, steps in acted(tmp_path) for one in sequences(trajectory, steps, shots)]

    def gradients(batch: Batch) -> dict[str, Tensor]:
        policy.zero_grad()
        score(policy, batch, chunk=8).logprob.sum().backward()
        return {
            name: parameter.grad.clone()
            for name, parameter in policy.named_parameters()
            if parameter.grad is not None
        }

    side_by_side, one_row = padded(found, shots), packed(found, shots)
    assert side_by_side.trunk is not None and side_by_side.trunk.shape[1] == 22
    got, want = gradients(side_by_side), gradients(one_row)
    assert set(got) == set(want) and any(name.startswith("vision_model.") for name in got)
    for name, value in want.items():
        assert torch.allclose(got[name], value, atol=1e-4 * float(value.abs().max()) + 1e-7), name


def test_the_command_finds_no_gap_and_finds_one_where_there_is(tmp_path: Path) -> None:
    acted(tmp_path)
    checkpoint = load(CHECKPOINT)
    gaps = recompute({0: checkpoint}, Reader(tmp_path), 100)
    assert gaps.counts["steps"] == 18 and gaps.counts["draws"] == 36
    assert 0 < gaps.largest("float32") < 1e-4
    with torch.no_grad():
        checkpoint.policy.language_model.lm_head.weight *= 1.05
    assert recompute({0: checkpoint}, Reader(tmp_path), 100).largest("float32") > 1e-3
    other = recompute({1: checkpoint}, Reader(tmp_path), 100)
    assert other.largest("float32") == 0 and other.largest("float32, mixed versions") > 1e-3
    assert other.counts["draws of versions without a checkpoint"] == 36
    some = recompute({0: checkpoint}, Reader(tmp_path), 7, seed=3)
    assert some.counts["steps"] == some.counts["steps of one version, 0"] == 7 and some.counts["draws"] == 14


def test_scores_are_those_of_the_sampling_distribution(tmp_path: Path) -> None:
    shots = images()
    found = [
        one for trajectory, steps in acted(tmp_path, steps=1) for one in sequences(trajectory, steps, shots)
    ]
    targets = padded(found, shots).targets
    logits = torch.randn(len(targets), 512, generator=torch.Generator().manual_seed(1), requires_grad=True)
    warm = dataclasses.replace(targets, temperature=torch.full_like(targets.temperature, 0.7))
    got = scores(logits, warm)
    got.logprob.sum().backward()
    assert logits.grad is not None and bool(logits.grad.isfinite().all())
    assert targets.kept is not None
    for row in range(len(targets)):
        kept = targets.kept[row][targets.kept[row] >= 0]
        among = logits[row].detach() / 0.7 if not len(kept) else logits[row].detach()[kept] / 0.7
        own = logits[row, targets.token[row]].detach() / 0.7
        share = among.log_softmax(-1)
        assert torch.isclose(got.logprob[row], own - among.logsumexp(-1), atol=1e-5)
        assert torch.isclose(got.entropy[row], -(share.exp() * share).sum(), atol=1e-5)
        outside = torch.ones(512, dtype=torch.bool)
        outside[kept if len(kept) else slice(None)] = False
        assert not logits.grad[row][outside].any(), "an id that was not allowed gets no gradient"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"prefix_len": 5}, "prefix_len is 5"),
        ({"prompt_hash": bytes(16)}, "another hash"),
        ({"screenshot": b"other"}, "blob_sha256 is not"),
        ({"prompt_token_ids": None}, "has no tokens"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    trajectory, steps = acted(tmp_path, steps=1)[0]
    with pytest.raises(DataError, match=why):
        sequences(trajectory, [dataclasses.replace(steps[0], **change)], images())  # type: ignore[arg-type]


def test_other_pixels_are_an_error_of_a_png_and_counted_of_a_jpeg(tmp_path: Path) -> None:
    step = acted(tmp_path, steps=1)[0][1][0]
    shots = images()
    span = dataclasses.replace(step.image_spans[0], rgb_sha256=bytes(32))
    with pytest.raises(DataError, match="not those that the policy saw"):
        shots.add(dataclasses.replace(step, image_spans=(span,)), span)
    shots.add(dataclasses.replace(step, image_format="jpeg"), span)
    assert shots.counts["JPEG pictures that decode to other pixels here"] == 1


def test_parts_hold_everything_and_keep_to_the_budget(tmp_path: Path) -> None:
    shots = images()
    found = [one for trajectory, steps in acted(tmp_path) for one in sequences(trajectory, steps, shots)]
    for tokens_max in (1, 100, 300, 10_000):
        parts = list(split(found, tokens_max))
        assert sorted(id(one) for part in parts for one in part) == sorted(map(id, found))
        assert all(len(part) == 1 or padded(part, shots).tokens <= tokens_max for part in parts)
    for part in parts:
        batch = padded(part, shots)
        trunk = 0 if batch.trunk is None else batch.trunk.shape[1]
        content = batch.content_tokens - trunk * (len(part) - 1)
        assert batch.tokens - content <= max(trunk, 0.25 * content), "padding stays small"
    assert len(parts) < len(found) / 2
    order = np.random.default_rng(0).permutation(len(found))
    reordered = [
        [one.trajectory_id, one.steps] for part in split([found[i] for i in order], 300) for one in part
    ]
    assert reordered == [[one.trajectory_id, one.steps] for part in split(found, 300) for one in part], (
        "the cut follows from the sequences alone"
    )
