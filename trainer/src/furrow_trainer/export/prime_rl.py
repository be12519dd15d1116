"""prime-rl: MessagePack of a list of training samples, each an array of its struct's fields in order.

Source: PrimeIntellect-ai/prime-rl a608ad9, src/prime_rl/transports/rollouts/types.py, `TrainingSample` (a
msgspec Struct, array-like, defaults at the end left out): token_ids, mask, logprobs, temperatures, env_name,
ref_logprobs, mm_refs, routed_experts, mm_token_type_ids, rl_weights, ce_weights, ref_kl_weights, advantages.
All per-token lists have the length of token_ids. `mm_refs` is `[[[url, offset, length], ..]]`; the urls are
data URIs. `advantages` is the attempt's reward less its group's mean over its sampled tokens, 0 elsewhere.

Lost: versions, kept ids, the group itself (its mean is in the advantages).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

from .common import Exporter, Taken, tokens

FIELDS = (
    "token_ids", "mask", "logprobs", "temperatures", "env_name", "ref_logprobs", "mm_refs", "routed_experts",
    "mm_token_type_ids", "rl_weights", "ce_weights", "ref_kl_weights", "advantages",
)  # fmt: skip


def samples(found: Iterator[Taken]) -> Iterator[list[object]]:
    """A sample per sequence."""
    for one in found:
        mean = one.group.row.mean
        advantage = 0.0 if mean is None or one.trajectory.reward is None else one.trajectory.reward - mean
        for sequence in tokens(one):
            before = len(sequence.prompt)
            count = before + len(sequence.response)
            mask = [False] * before + [bool(sampled) for sampled in sequence.mask]
            kinds = [0] * count
            refs = []
            for (start, length), blob in zip(sequence.placements, sequence.screenshots, strict=True):
                kinds[start : start + length] = [1] * length
                mime = "image/jpeg" if blob[:2] == b"\xff\xd8" else "image/png"
                refs.append([f"data:{mime};base64,{base64.b64encode(blob).decode()}", start, length])
            yield [
                sequence.prompt + sequence.response,
                mask,
                [0.0] * before + sequence.logprobs,
                [sequence.temperature] * count,
                one.trajectory.suite,
                None,
                [refs],
                None,
                kinds,
                None,
                None,
                None,
                [advantage if sampled else 0.0 for sampled in mask],
            ]


def write(found: Iterator[Taken], path: Path, _: Path | None) -> int:
    """Writes the file."""
    count = 0
    with open(path, "wb") as file:
        # The number of samples is known at the end: an array32 header has a fixed length.
        file.write(b"\xdd\0\0\0\0")
        for sample in samples(found):
            file.write(packed(sample))
            count += 1
        file.seek(1)
        file.write(struct.pack(">I", count))
    return count


def packed(value: object) -> bytes:
    """MessagePack (github.com/msgpack/msgpack/blob/master/spec.md) of the few types a sample holds."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack("B", value) if 0 <= value < 128 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return b"\xdb" + struct.pack(">I", len(data)) + data
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(packed, value))
    raise TypeError(f"a sample cannot hold a {type(value)}")


EXPORTER = Exporter("rl", write)
