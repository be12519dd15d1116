"""The hash that identifies the tokens and pixels of a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from .rows import Ids, ImageSpan


def token_hash(ids: Ids, spans: Iterable[ImageSpan]) -> bytes:
    """First 16 bytes of SHA-256 over ids as u32 little-endian, each image's placeholders followed by its
    `rgb_sha256`."""
    digest, at = hashlib.sha256(), 0
    raw = np.ascontiguousarray(ids, dtype="<u4")
    for span in sorted(spans, key=lambda span: span.token_start):
        end = span.token_start + span.token_len
        if end > len(raw):
            break
        digest.update(raw[at:end].tobytes())
        digest.update(span.rgb_sha256)
        at = end
    digest.update(raw[at:].tobytes())
    return digest.digest()[:16]
