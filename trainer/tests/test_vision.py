"""The encoder against the oracle."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from furrow_trainer.data import pixels
from furrow_trainer.model import load
from furrow_trainer.model.vision import pixel_shuffle
from paths import ORACLE_VL


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).square().mean().sqrt() / want.double().square().mean().sqrt())


@pytest.mark.parametrize("case", ["vl_f32", "vl_bf16_sharded"])
@pytest.mark.parametrize("align", [False, True])
def test_tiles_become_the_oracles_rows(case: str, align: bool) -> None:
    folder = ORACLE_VL / case
    policy = load(folder).policy
    expected = load_file(folder / "expected.safetensors")
    vision = policy.config.vision
    assert vision is not None and policy.vision_model is not None
    object.__setattr__(vision, "align_corners", align)
    variant = "ac1" if align else "ac0"
    compared = 0
    for key in json.loads((folder / "inputs.json").read_text())["images"]:
        cut = expected.get(f"{key}.tiles_u8")
        if cut is None or f"{key}.{variant}.embeds" not in expected:
            continue
        array = cut.numpy() if cut.shape[-1] == 3 else cut.permute(0, 2, 3, 1).contiguous().numpy()
        normalised = torch.from_numpy(pixels.normalise(array, vision.tiling))
        want = expected.get(f"{key}.pixels.u8path")
        assert want is None or float((normalised - want).abs().max()) < 1e-6
        with torch.no_grad():
            features = policy.vision_model(normalised)
            rows = policy.image_rows(normalised)
        if f"{key}.{variant}.features" in expected:
            assert relative(features, expected[f"{key}.{variant}.features"].view_as(features)) < 1e-5
            shuffled = expected[f"{key}.{variant}.shuffled"]
            assert (
                relative(
                    pixel_shuffle(features, vision.swapped),
                    shuffled.view(len(features), -1, shuffled.shape[-1]),
                )
                < 1e-5
            )
        assert (
            relative(rows.flatten(0, 1), expected[f"{key}.{variant}.embeds"].view(-1, rows.shape[-1])) < 1e-5
        )
        compared += 1
    assert compared
