"""AReaL: a directory with one safetensors file per sequence, with the tensors that its workflows return.

Source: inclusionAI/AReaL 0761668, areal/workflow/vision_rlvr.py: input_ids, loss_mask, logprobs, versions,
attention_mask [1, tokens], rewards [1], pixel_values, image_grid_thw. logprobs are 0 and versions -1 at
prompt tokens. With `--checkpoint` pixel_values [tiles, 3, side, side] are added, cut as for the policy, and
`image_grid_thw` [images, 3] with one (1, rows, columns) per picture (the thumbnail not counted). `index.json`
names files, groups and trajectories.

Lost: kept ids; the pixels are this architecture's tiles, which another model's processor would cut otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..data import pixels
from .common import Exporter, Taken, Tokens, tokens


def tensors(sequence: Tokens, checkpoint: Path | None) -> dict[str, np.ndarray]:
    """Tensors of one sequence."""
    before = len(sequence.prompt)
    count = before + len(sequence.response)
    found: dict[str, np.ndarray] = {
        "input_ids": np.array([sequence.prompt + sequence.response], np.int64),
        "loss_mask": np.array([[0] * before + sequence.mask], np.int64),
        "logprobs": np.array([[0.0] * before + sequence.logprobs], np.float32),
        "versions": np.array([[-1] * before + sequence.versions], np.int64),
        "attention_mask": np.ones((1, count), np.bool_),
        "rewards": np.array([sequence.taken.trajectory.reward], np.float32),
    }
    if checkpoint is not None:
        from ..model.config import read_config

        vision = read_config(checkpoint).vision
        assert vision is not None, "a text model reads no screenshots"
        cut = [pixels.tiles(pixels.decode(blob), vision.tiling) for blob in sequence.screenshots]
        found["pixel_values"] = np.concatenate([pixels.normalise(tiles, vision.tiling) for tiles, _ in cut])
        found["image_grid_thw"] = np.array([[1, rows, cols] for _, (cols, rows) in cut], np.int64)
    return found


def write(found: Iterator[Taken], path: Path, checkpoint: Path | None) -> int:
    """Writes the directory."""
    from safetensors.numpy import save_file

    path.mkdir()
    index: list[dict[str, object]] = []
    for one in found:
        for sequence in tokens(one):
            name = f"{len(index):08}.safetensors"
            save_file(tensors(sequence, checkpoint), path / name)
            index.append(
                {
                    "file": name,
                    "group_id": one.group.group_id,
                    "trajectory_id": one.trajectory.trajectory_id,
                    "steps": sequence.steps,
                }
            )
    (path / "index.json").write_text(json.dumps(index, indent=1) + "\n", "utf8")
    return len(index)


EXPORTER = Exporter("rl", write)
