"""Pixels and encoder against the oracle."""

import hashlib
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from furrow_trainer.data import pixels
from furrow_trainer.data.pixels import Tiling
from furrow_trainer.errors import DataError
from furrow_trainer.model import load
from furrow_trainer.model.vision import pixel_shuffle
from places import ORACLE_VL


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


def test_screenshots_are_cut_as_the_oracles() -> None:
    images = json.loads((ORACLE_VL / "preprocess_512.json").read_text())["images"]
    tiling = Tiling(512, 12, True, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    assert len(images) == 5
    for name, want in images.items():
        decoded = pixels.decode((ORACLE_VL / "screenshots" / f"{name}.png").read_bytes())
        cut, grid = pixels.tiles(decoded, tiling)
        assert grid == (want["cols"], want["rows"]) and len(cut) == want["tiles"], name
        canvas = pixels.resize(decoded, grid[0] * 512, grid[1] * 512)
        for key, array in (("rgb_source", decoded), ("rgb_canvas", canvas), ("tiles_u8_nhwc", cut)):
            digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
            assert digest == want[f"sha256_{key}"], (name, key)


def test_grids_are_the_oracles() -> None:
    rows = json.loads((ORACLE_VL / "grids_512.json").read_text())["rows"]
    assert len(rows) == 194
    for width, height, cols, lines, tiles, tokens in rows:
        got = pixels.choose_grid(width, height, 512, 12)
        assert got == (cols, lines), (width, height)
        assert tokens == 256 * tiles and tiles == cols * lines + (cols * lines > 1)


@pytest.mark.parametrize("alpha", [0, 1, 127, 254, 255])
def test_what_is_transparent_shows_white(alpha: int) -> None:
    colours = np.arange(256, dtype=np.uint8)
    rgba = np.stack([colours, colours[::-1], colours, np.full(256, alpha, np.uint8)], axis=-1)[None]
    blob = io.BytesIO()
    Image.fromarray(rgba).save(blob, "PNG")
    share = alpha / 255
    want = np.floor(rgba[..., :3] * share + 255 * (1 - share) + 0.5)
    assert np.array_equal(pixels.decode(blob.getvalue()), want.astype(np.uint8))


@pytest.mark.parametrize("blob", [b"", b"no picture", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_picture_is_refused(blob: bytes) -> None:
    with pytest.raises(DataError, match="cannot be decoded"):
        pixels.decode(blob)
