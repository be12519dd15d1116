"""Sequences as tensors: padded side by side behind a prefix that all share, or packed into one row.

In a padded batch the longest common prefix of all sequences (instructions, often the task) is the *trunk*: it
is run once, and every sequence continues from a copy of its state. Gradients add up through the copies, so
this is exact. For `last_image` data with a prompt of 588 tokens of which 26 are a step's own it saves most of
the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data import pixels
from ..model.language import Span, State
from ..model.policy import Policy
from .images import Images, Key
from .sequence import Sequence

# A shorter trunk saves less than its separate pass costs.
TRUNK_MIN = 16
# Largest padding, as a share of a part's content.
PADDING_MAX = 0.25


@dataclass(frozen=True, slots=True)
class Targets:
    """Sampled tokens of a batch, flat; all but `kept` are [samples]."""

    row: Tensor
    """Row of the hidden states that the token was scored by."""
    position: Tensor
    """Position in that row: the one before the token's own."""
    token: Tensor
    logprob: Tensor
    """Log-prob that it was sampled with; NaN where the policy recorded none."""
    whole_logprob: Tensor
    entropy: Tensor
    temperature: Tensor
    kept: Tensor | None
    """[samples, most kept]: ids that it was sampled from, -1 behind the last; a row of only -1: all. `None`
    where every row is so."""
    unlisted: Tensor
    version: Tensor
    state_version: Tensor
    sequence: Tensor
    """Index into the batch's sequences."""

    def __len__(self) -> int:
        return len(self.token)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of some sequences."""

    sequences: tuple[Sequence, ...]
    trunk: Tensor | None
    """[1, trunk]: ids of the prefix that all sequences share."""
    ids: Tensor
    """[rows, time]: what follows the trunk, padded on the right with 0."""
    segments: Tensor | None
    """[1, time]: the sequence of each token of a packed row."""
    tiles: Tensor | None
    """[tiles, 3, side, side], normalised; each distinct screenshot once."""
    tile_order: Tensor | None
    """[placements]: indices into `tiles`, sequence by sequence, picture by picture."""
    image_positions: Tensor | None
    """[placements x rows per tile]: their positions in the flattened ids. A sampled token may happen to have
    the placeholder's id."""
    targets: Targets

    @property
    def tokens(self) -> int:
        """Number of tokens that are computed, padding included."""
        return self.ids.numel() + (0 if self.trunk is None else self.trunk.numel())

    @property
    def content_tokens(self) -> int:
        """Number of tokens of all sequences; a shared prefix counts for each."""
        return sum(map(len, self.sequences))

    def to(self, device: torch.device | str) -> Batch:
        """A copy on another device."""

        def moved(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.to(device)

        names = (
            "row",
            "position",
            "token",
            "logprob",
            "whole_logprob",
            "entropy",
            "temperature",
            "unlisted",
            "version",
            "state_version",
            "sequence",
        )
        targets = Targets(
            kept=moved(self.targets.kept), **{name: getattr(self.targets, name).to(device) for name in names}
        )
        return Batch(
            self.sequences,
            moved(self.trunk),
            self.ids.to(device),
            moved(self.segments),
            moved(self.tiles),
            moved(self.tile_order),
            moved(self.image_positions),
            targets,
        )


def padded(sequences: Items[Sequence], images: Images) -> Batch:
    """Sequences side by side, behind their trunk."""
    cut = _trunk(sequences)
    trunk = torch.from_numpy(sequences[0].ids[:cut].astype(np.int64))[None] if cut else None
    longest = max(map(len, sequences)) - cut
    ids = np.zeros((len(sequences), longest), np.int64)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence) - cut] = sequence.ids[cut:]
    offsets = [(index, -cut) for index in range(len(sequences))]
    return _batch(sequences, images, trunk, ids, None, offsets)


def packed(sequences: Items[Sequence], images: Images) -> Batch:
    """Sequences in one row, one behind the other; none attends to another."""
    ids = np.concatenate([sequence.ids for sequence in sequences]).astype(np.int64)[None]
    starts = np.cumsum([0, *map(len, sequences)])
    segments = np.repeat(np.arange(len(sequences)), [len(sequence) for sequence in sequences])[None]
    return _batch(
        sequences, images, None, ids, torch.from_numpy(segments), [(0, int(start)) for start in starts[:-1]]
    )


def split(sequences: Items[Sequence], tokens_max: int) -> Iterator[list[Sequence]]:
    """Cuts a list into parts that each fit `tokens_max` padded tokens beside their trunk; a single longer
    sequence is a part of its own.

    Neighbours share most: sequences are taken by group, then by length.
    """
    part: list[Sequence] = []
    for sequence in sorted(sequences, key=lambda one: (one.group_id, len(one), one.trajectory_id, one.steps)):
        grown = [*part, sequence]
        cut = _trunk(grown)
        cost = (max(map(len, grown)) - cut) * len(grown) + cut
        content = sum(map(len, grown)) - cut * (len(grown) - 1)
        # Another part runs the trunk again: padding may cost as much as that, or a quarter of the content,
        # and no more.
        if part and (cost > tokens_max or cost - content > max(cut, PADDING_MAX * content)):
            yield part
            part = [sequence]
        else:
            part = grown
    if part:
        yield part


def hidden_rows(policy: Policy, batch: Batch, chunk: int | None = None) -> Tensor:
    """[samples, hidden]: the rows that score the batch's sampled tokens."""
    rows = None
    if batch.tiles is not None and batch.tile_order is not None:
        rows = policy.image_rows(batch.tiles)[batch.tile_order].flatten(0, 1)
    chunk = chunk or policy.config.text.chunk
    before = None
    if batch.trunk is not None:
        state = State()
        policy(batch.trunk, None, Span(chunk=chunk, after=state))
        before = state.expand(len(batch.ids))
    hidden = policy(
        batch.ids, rows, Span(segments=batch.segments, before=before, chunk=chunk), batch.image_positions
    )
    return hidden[batch.targets.row, batch.targets.position]


def _trunk(sequences: Items[Sequence]) -> int:
    """Length of the common prefix, before the first picture and the row that scores the first sampled token;
    0 where it is too short."""
    if len(sequences) < 2:
        return 0
    first = sequences[0]
    limit = min(
        min(int(sequence.responses.position[0]) - 1, *(picture.start for picture in sequence.pictures))
        for sequence in sequences
    )
    for sequence in sequences[1:]:
        same = first.ids[:limit] == sequence.ids[:limit]
        limit = limit if same.all() else int(same.argmin())
    return limit if limit >= TRUNK_MIN else 0


def _batch(
    sequences: Items[Sequence],
    images: Images,
    trunk: Tensor | None,
    ids: np.ndarray,
    segments: Tensor | None,
    offsets: list[tuple[int, int]],
) -> Batch:
    tiles, order = _tiles(sequences, images)
    image_positions = None if tiles is None else _image_positions(sequences, offsets, ids.shape[1])
    return Batch(
        tuple(sequences),
        trunk,
        torch.from_numpy(ids),
        segments,
        tiles,
        order,
        image_positions,
        _targets(sequences, offsets),
    )


def _image_positions(sequences: Items[Sequence], offsets: list[tuple[int, int]], time: int) -> Tensor:
    found = [
        np.arange(picture.start, picture.start + picture.length) + offset + row * time
        for sequence, (row, offset) in zip(sequences, offsets, strict=True)
        for picture in sorted(sequence.pictures, key=lambda one: one.start)
    ]
    return torch.from_numpy(np.concatenate(found))


def _tiles(sequences: Items[Sequence], images: Images) -> tuple[Tensor | None, Tensor | None]:
    begins: dict[Key, int] = {}
    cut: list[np.ndarray] = []
    order: list[int] = []
    count = 0
    for sequence in sequences:
        for picture in sorted(sequence.pictures, key=lambda one: one.start):
            if picture.key not in begins:
                begins[picture.key] = count
                cut.append(pixels.normalise(images.tiles(picture.key), images.tiling))
                count += len(cut[-1])
            begin = begins[picture.key]
            order += range(begin, begin + picture.length // images.rows_per_tile)
    if not cut:
        return None, None
    return torch.from_numpy(np.concatenate(cut)), torch.tensor(order)


def _targets(sequences: Items[Sequence], offsets: list[tuple[int, int]]) -> Targets:
    columns: dict[str, list[np.ndarray]] = {}
    kept: list[np.ndarray | None] = []
    for index, (sequence, (row, offset)) in enumerate(zip(sequences, offsets, strict=True)):
        responses, is_sampled = sequence.responses, sequence.responses.sampled
        values = {
            "row": np.full(len(responses), row),
            "position": responses.position.astype(np.int64) + offset - 1,
            "token": sequence.ids[responses.position].astype(np.int64),
            "logprob": responses.logprob,
            "whole_logprob": responses.whole_logprob,
            "entropy": responses.entropy,
            "temperature": responses.temperature,
            "unlisted": responses.unlisted,
            "version": responses.version.astype(np.int64),
            "state_version": responses.state_version.astype(np.int64),
            "sequence": np.full(len(responses), index),
        }
        for name, array in values.items():
            columns.setdefault(name, []).append(array[is_sampled])
        kept += [responses.kept[at] for at in np.flatnonzero(is_sampled)]
    tensors = {name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in columns.items()}
    return Targets(kept=_kept(kept), **tensors)


def _kept(kept: list[np.ndarray | None]) -> Tensor | None:
    widest = max((len(ids) for ids in kept if ids is not None), default=0)
    if not widest:
        return None
    table = np.full((len(kept), widest), -1, np.int64)
    for index, ids in enumerate(kept):
        if ids is not None:
            table[index, : len(ids)] = ids
    return torch.from_numpy(table)
