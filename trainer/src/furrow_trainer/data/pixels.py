"""Screenshots in the policy's form: decoded, cut into tiles, resampled in the fixed-point arithmetic that
these models were trained with.

The resampling is implemented here because libraries changed it: Pillow 13 runs the vertical pass first for
some shapes, which moves single pixels by up to 24 of 255; the models' training and serving environments, and
Furrow, run the horizontal pass first.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..errors import DataError

Pixels = npt.NDArray[np.uint8]

# Furrow refuses larger screenshots too.
SIDE_MAX = 16_384
PIXELS_MAX = 16_384 * 4_096


@dataclass(frozen=True, slots=True)
class Tiling:
    """How an image becomes tiles."""

    tile: int
    """Side of a tile, in pixels."""
    tiles_max: int
    """Most tiles of a grid; a thumbnail comes on top."""
    thumbnail: bool
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def decode(blob: bytes) -> Pixels:
    """[height, width, 3] of a PNG or JPEG; transparent pixels are blended with white, `colour a + white (1 -
    a)` rounded to the nearest.

    Raises:
        DataError: when the bytes are not such a picture, or one larger than any screenshot.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(blob), formats=("PNG", "JPEG", "WEBP")) as image:
            if max(image.size) > SIDE_MAX or image.size[0] * image.size[1] > PIXELS_MAX:
                raise DataError(
                    f"a picture of {image.size[0]} x {image.size[1]} pixels is larger than any screenshot"
                )
            if "A" not in image.getbands() and "transparency" not in image.info:
                return np.asarray(image.convert("RGB"))
            rgba = np.asarray(image.convert("RGBA")).astype(np.uint32)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"a screenshot of {len(blob)} bytes cannot be decoded: {error}") from error
    colour, alpha = rgba[..., :3], rgba[..., 3:]
    # 255 is odd, so no sum is half way between two.
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def rgb_sha256(pixels: Pixels) -> bytes:
    """SHA-256 over the pixels as RGB, 8 bits each, row by row."""
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).digest()


def choose_grid(width: int, height: int, tile: int, tiles_max: int) -> tuple[int, int]:
    """(columns, rows): the grid whose shape is nearest to the image's; on a tie the later one, if the image
    is large enough for it.

    The rule of InternVL's dynamic tiling, which the published checkpoint's own image_processing.py holds.
    """
    best, grid = math.inf, (1, 1)
    for count in range(1, tiles_max + 1):
        for cols in (cols for cols in range(1, count + 1) if count % cols == 0):
            off = abs(width / height - cols / (count // cols))
            if off < best or (off == best and width * height > 0.5 * tile * tile * count):
                best, grid = off, (cols, count // cols)
    return grid


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """8-bit bicubic with antialiasing: horizontal first, rounded to 8 bit, then vertical; a side that keeps
    its size is not resampled."""
    wide = _resample_rows(pixels, width)
    return np.ascontiguousarray(_resample_rows(wide.transpose(1, 0, 2), height).transpose(1, 0, 2))


def tiles(pixels: Pixels, tiling: Tiling) -> tuple[Pixels, tuple[int, int]]:
    """[n, tile, tile, 3] in reading order, the thumbnail last, and the grid (columns, rows). The aspect is
    not kept."""
    height, width = pixels.shape[:2]
    side = tiling.tile
    cols, lines = choose_grid(width, height, side, tiling.tiles_max)
    canvas = resize(pixels, cols * side, lines * side)
    cut = [
        canvas[r * side : (r + 1) * side, c * side : (c + 1) * side]
        for r in range(lines)
        for c in range(cols)
    ]
    if cols * lines > 1 and tiling.thumbnail:
        cut.append(resize(pixels, side, side))
    return np.stack(cut), (cols, lines)


def normalise(cut: Pixels, tiling: Tiling) -> npt.NDArray[np.float32]:
    """(value / 255 - mean) / std as float32 [n, 3, tile, tile]."""
    mean, std = np.array(tiling.mean, np.float32), np.array(tiling.std, np.float32)
    values = (cut.astype(np.float32) / np.float32(255) - mean) / std
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2))


def _cubic(distance: float) -> float:
    """The cubic convolution kernel with a = -0.5."""
    a, t = -0.5, abs(distance)
    if t < 1:
        return ((a + 2) * t - (a + 3)) * t * t + 1
    if t < 2:
        return (((t - 5) * t + 8) * t - 4) * a
    return 0.0


@lru_cache(maxsize=64)
def _weights(before: int, after: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """For each output: the first input [after] and the inputs' weights in units of 2^-22 [after, taps], zeros
    after the last."""
    scale = before / after
    filter_scale = max(scale, 1.0)
    support = 2 * filter_scale
    begins: list[int] = []
    weights: list[Sequence[int]] = []
    for output in range(after):
        centre = (output + 0.5) * scale
        low = max(int(centre - support + 0.5), 0)
        high = min(int(centre + support + 0.5), before)
        values = [_cubic((k + low - centre + 0.5) * (1 / filter_scale)) for k in range(high - low)]
        total = sum(values)
        shares = [value / total * (1 << 22) for value in values]
        begins.append(low)
        weights.append([math.trunc(share + (0.5 if share >= 0 else -0.5)) for share in shares])
    taps = max(map(len, weights))
    padded = np.array([[*row, *[0] * (taps - len(row))] for row in weights], np.int32)
    return np.array(begins, np.int32), padded


def _resample_rows(pixels: Pixels, after: int) -> Pixels:
    """Resamples the second axis."""
    before = pixels.shape[1]
    if before == after:
        return pixels
    begins, weights = _weights(before, after)
    # 255 x the weights' absolute sum, at most 1.6 x 2^22, stays below 2^31.
    total = np.full((pixels.shape[0], after, pixels.shape[2]), 1 << 21, np.int32)
    for tap in range(weights.shape[1]):
        inputs = pixels[:, np.minimum(begins + tap, before - 1)].astype(np.int32)
        total += inputs * weights[:, tap][None, :, None]
    return np.clip(total >> 22, 0, 255).astype(np.uint8)
