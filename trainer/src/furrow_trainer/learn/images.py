"""Screenshots of a batch, each decoded and cut once, and compared with the hash of the policy's pixels."""

from __future__ import annotations

import hashlib
from collections import Counter

from ..data import pixels
from ..data.pixels import Pixels, Tiling
from ..data.rows import ImageSpan, Step
from ..errors import DataError

Key = bytes
# Tiles kept from one batch to the next: each epoch uses the same demonstrations, and decoding one takes as
# long as training on it.
TILES_BYTES_MAX = 256 << 20


class Images:
    """Tiles [n, tile, tile, 3] of 8-bit pixels, by the screenshot's `blob_sha256`.

    Decoders of JPEG differ in single pixels: such a picture whose hash is not the recorded one is counted and
    used. A PNG whose hash differs is an error: its pixels have only one reading.
    """

    def __init__(self, tiling: Tiling, rows_per_tile: int) -> None:
        self.tiling, self.rows_per_tile = tiling, rows_per_tile
        self.counts: Counter[str] = Counter()
        self._tiles: dict[Key, Pixels] = {}

    def add(self, step: Step, span: ImageSpan) -> Key:
        """Adds the screenshot of `step`, which `span` describes; returns its key.

        Raises:
            DataError: when its bytes, pixels, grid or rows are not those of the span.
        """
        where = f"{step.trajectory_id} step {step.step}"
        if hashlib.sha256(step.screenshot).digest() != span.blob_sha256:
            raise DataError(f"{where}: blob_sha256 is not that of the screenshot")
        key = span.blob_sha256
        if key not in self._tiles:
            self._tiles[key] = self._cut(step, span, where)
        count = len(self._tiles[key]) * self.rows_per_tile
        if span.token_len != count:
            raise DataError(f"{where}: a picture of {count} rows has {span.token_len} placeholders")
        return key

    def demonstrated(self, step: Step) -> tuple[Key, int]:
        """Adds the screenshot of a step without tokens; returns its key and its number of rows."""
        key = hashlib.sha256(step.screenshot).digest()
        if key not in self._tiles:
            self._tiles[key], _ = pixels.tiles(pixels.decode(step.screenshot), self.tiling)
        return key, len(self._tiles[key]) * self.rows_per_tile

    def tiles(self, key: Key) -> Pixels:
        """Tiles of a screenshot that was added."""
        return self._tiles[key]

    def rows(self, key: Key) -> int:
        """Number of rows of the language model's input that a screenshot becomes."""
        return len(self._tiles[key]) * self.rows_per_tile

    def forget(self) -> None:
        """Drops the oldest tiles until the others fit in TILES_BYTES_MAX."""
        total = sum(cut.nbytes for cut in self._tiles.values())
        for key in list(self._tiles):
            if total <= TILES_BYTES_MAX:
                break
            total -= self._tiles.pop(key).nbytes

    def _cut(self, step: Step, span: ImageSpan, where: str) -> Pixels:
        decoded = pixels.decode(step.screenshot)
        self.counts["pictures"] += 1
        if pixels.rgb_sha256(decoded) != span.rgb_sha256:
            if step.image_format != "jpeg":
                raise DataError(
                    f"{where}: the pixels of a {step.image_format} are not those that the policy saw"
                )
            self.counts["JPEG pictures that decode to other pixels here"] += 1
        cut, grid = pixels.tiles(decoded, self.tiling)
        if grid != (span.tiles_x, span.tiles_y):
            raise DataError(
                f"{where}: a grid of {grid}, the policy cut it into {(span.tiles_x, span.tiles_y)}"
            )
        return cut
