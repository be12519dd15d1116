"""Pixels against the oracle: decoding, the grid, tiles."""

import hashlib
import io
import json

import numpy as np
import pytest
from PIL import Image

from furrow_trainer.data import pixels
from furrow_trainer.data.pixels import Tiling
from furrow_trainer.errors import DataError
from paths import ORACLE_VL


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
