"""A second version of a checkpoint: every file a hard link but one shard, in which the signs of large
matrices are turned round.

Turned signs keep every value finite and every shape as it is, and change what the model says. One shard of a
checkpoint of 26 GB is written instead of all."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import struct
from typing import Any

from machine import write_json

HEADER_MAX = 100 << 20
CHUNK = 8 << 20
# The byte of a little-endian value that holds its sign.
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}
# Each byte with its highest bit turned.
FLIP = bytes(value ^ 0x80 for value in range(256))


def header_of(path: pathlib.Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's header and the offset at which data begin. Raises ValueError where it is not such
    a file."""
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= HEADER_MAX:
            raise ValueError(f"{path}: a header of {length} bytes; this is not a safetensors file")
        return json.loads(file.read(length)), 8 + length


def matrices(header: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Offsets (from, to) in the data, and bytes a value, of every matrix that may be changed."""
    found = []
    for name, tensor in header.items():
        if name == "__metadata__" or tensor["dtype"] not in WIDTHS:
            continue
        if sum(size > 1 for size in tensor["shape"]) >= 2:
            found.append((*tensor["data_offsets"], WIDTHS[tensor["dtype"]]))
    return found


def turn_signs(source: pathlib.Path, target: pathlib.Path) -> int:
    """Copies a safetensors file with the signs of its matrices turned round; the bytes that were changed
    tensors."""
    header, data = header_of(source)
    shutil.copyfile(source, target)
    changed = 0
    with open(target, "r+b") as file:
        for begin, end, width in matrices(header):
            changed += end - begin
            for at in range(begin, end, CHUNK):
                length = min(CHUNK, end - at)
                file.seek(data + at)
                block = bytearray(file.read(length))
                if len(block) != length:
                    raise ValueError(f"{source}: ends inside a tensor, at byte {data + at + len(block)}")
                block[width - 1 :: width] = block[width - 1 :: width].translate(FLIP)
                file.seek(data + at)
                file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return changed


def make(first: pathlib.Path, second: pathlib.Path) -> dict[str, Any]:
    """Makes `second` beside `first`, whole or not at all; a folder that is there is left as it is.

    Returns the rewritten file, its bytes, and how many files are links.
    """
    mark = second.with_name(f"{second.name}.json")
    known = mark.is_file() and second.is_dir()
    if known:
        return json.loads(mark.read_text())
    shards = sorted(first.glob("*.safetensors"), key=lambda path: (path.stat().st_size, path.name))
    chosen = next((path for path in shards if matrices(header_of(path)[0])), None)
    if chosen is None:
        raise ValueError(
            f"{first}: no .safetensors file with a matrix in it; make the checkpoint first (farm.py start "
            "init)"
        )
    partial = second.with_name(f".{second.name}.partial")
    for folder in (partial, second):
        shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir(parents=True)
    links = 0
    for path in sorted(first.iterdir()):
        if path.is_file() and path != chosen:
            os.link(path, partial / path.name)
            links += 1
    changed = turn_signs(chosen, partial / chosen.name)
    os.replace(partial, second)
    summary = {
        "rewritten": chosen.name,
        "bytes": chosen.stat().st_size,
        "changed_bytes": changed,
        "links": links,
    }
    write_json(mark, summary)
    return summary
