"""Reads PNG files with the standard library alone: enough to see what a browser drew."""

from __future__ import annotations

import struct
import zlib

_CHANNELS = {2: 3, 6: 4}
# A screenshot that a probe takes is far smaller.
_BYTES_MAX = 64 << 20


def decode(data: bytes) -> tuple[int, int, list[bytes]]:
    """Width and height in pixels, and the rows as bytes of RGB. Raises `ValueError` for what is not a PNG of
    8-bit RGB or RGBA without interlacing.
    """
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("no PNG signature")
    position, head, packed = 8, None, []
    while position + 12 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + size]
        if len(body) != size:
            raise ValueError("the PNG ends in the middle of a chunk")
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed.append(body)
        elif kind == b"IEND":
            break
        position += 12 + size
    if head is None or head[2] != 8 or head[3] not in _CHANNELS or head[6]:
        raise ValueError(f"no PNG of 8-bit RGB or RGBA without interlacing: {head}")
    width, height, channels = head[0], head[1], _CHANNELS[head[3]]
    stride = width * channels
    if (stride + 1) * height > _BYTES_MAX:
        raise ValueError(f"{width}x{height} pixels are more than are read")
    try:
        raw = zlib.decompress(b"".join(packed))
    except zlib.error as error:
        raise ValueError(f"the PNG's data are damaged: {error}") from error
    if len(raw) != (stride + 1) * height:
        raise ValueError(f"{len(raw)} bytes of pixels, wanted {(stride + 1) * height}")
    rows, above = [], bytearray(stride)
    for index in range(height):
        begin = index * (stride + 1)
        row = _unfiltered(raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride]), above, channels)
        rows.append(
            bytes(row) if channels == 3 else bytes(value for at, value in enumerate(row) if at % 4 != 3)
        )
        above = row
    return width, height, rows


def colours(rows: list[bytes]) -> dict[tuple[int, int, int], int]:
    """How many pixels have each colour."""
    counts: dict[tuple[int, int, int], int] = {}
    for row in rows:
        for at in range(0, len(row), 3):
            colour = (row[at], row[at + 1], row[at + 2])
            counts[colour] = counts.get(colour, 0) + 1
    return counts


def _unfiltered(kind: int, row: bytearray, above: bytearray, channels: int) -> bytearray:
    if kind > 4:
        raise ValueError(f"filter {kind} is none")
    for at in range(len(row)) if kind else ():
        left = row[at - channels] if at >= channels else 0
        up = above[at]
        corner = above[at - channels] if at >= channels else 0
        if kind == 1:
            add = left
        elif kind == 2:
            add = up
        elif kind == 3:
            add = (left + up) // 2
        else:
            guess = left + up - corner
            by_left, by_up, by_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
            add = left if by_left <= by_up and by_left <= by_corner else up if by_up <= by_corner else corner
        row[at] = (row[at] + add) & 255
    return row
