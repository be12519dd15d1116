"""Rows of the data set as Python values. Columns keep their names; the schema is Furrow's
`crates/records/src/schema.rs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import DataError

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

TRAJECTORY_COLUMNS = [
    "run_id", "trajectory_id", "attempt", "group_id", "sample_index", "group_size", "task_id", "suite",
    "split", "policy_kind", "status", "end", "reward", "success", "goal", "num_steps", "num_prompt_tokens",
    "num_response_tokens", "num_invalid_actions", "policy_version_min", "policy_version_max", "hashes",
    "session",
]  # fmt: skip
# Columns that came after schema version 1: a file that lacks one reads as null.
LATER_COLUMNS = {"success": pa.bool_()}
GROUP_COLUMNS = [
    "run_id", "group_id", "task_id", "suite", "split", "seed", "planned", "valid", "mean", "std",
    "zero_variance", "policy_version_min", "policy_version_max",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A row of `trajectories`, without its evidence."""

    run_id: str
    trajectory_id: str
    attempt: int
    group_id: str
    sample_index: int
    group_size: int
    task_id: str
    suite: str
    split: str
    policy_kind: str
    status: str
    end: str
    reward: float | None
    success: bool | None
    goal: str
    num_steps: int
    num_prompt_tokens: int
    num_response_tokens: int
    num_invalid_actions: int
    policy_version_min: int | None
    policy_version_max: int | None
    hashes: dict[str, str | None]
    session: dict[str, Any]

    @property
    def context(self) -> str:
        """`append`, `last_image`, `window` or `fresh`."""
        return str(self.session["context"])


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A row of `groups`: `mean` and `std` (the population's) are of the scored attempts' rewards."""

    run_id: str
    group_id: str
    task_id: str
    suite: str
    split: str
    seed: int
    planned: int
    valid: int
    mean: float | None
    std: float | None
    zero_variance: bool | None
    policy_version_min: int | None
    policy_version_max: int | None


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Where a screenshot's rows are in the whole prompt `K_t ++ prompt_token_ids`."""

    step: int
    token_start: int
    token_len: int
    tiles_x: int
    tiles_y: int
    blob_sha256: bytes
    rgb_sha256: bytes


@dataclass(frozen=True, slots=True)
class Step:
    """A row of `steps`. Token columns are `None` where the policy returned no tokens; a null number inside a
    list is NaN."""

    trajectory_id: str
    step: int
    is_last: bool
    is_terminal: bool
    is_truncated: bool
    trainable_rl: bool
    trainable_sft: bool
    reward: float | None
    screenshot: bytes
    image_format: str
    url: str
    title: str
    action: dict[str, Any]
    outcome: dict[str, str]
    sampling: dict[str, Any]
    prompt_token_ids: Ids | None
    image_spans: tuple[ImageSpan, ...]
    response_token_ids: Ids | None
    response_mask: Flags | None
    forced: Flags | None
    finish_reason: str | None
    commit_token_ids: Ids | None
    prefix_len: int | None
    prefix_hash: bytes | None
    prompt_hash: bytes | None
    logprobs: Floats | None
    sampled_logprobs: Floats | None
    kept_count: Floats | None
    kept_token_ids: Ids | None
    kept_offsets: Ids | None
    entropy: Floats | None
    policy_versions: Ids | None
    state_version_min: int | None
    state_origin: str | None

    @property
    def temperature(self) -> float:
        """The temperature of the recorded log-probs: that of sampling, and 1 for a greedy policy."""
        temperature = float(self.sampling["temperature"])
        return temperature if temperature > 0 else 1.0

    def kept_ids(self, index: int) -> Ids | None:
        """Ids that response token `index` was sampled from; `None` where it was sampled from all, or where
        they are not listed."""
        if self.kept_count is None or self.kept_token_ids is None or self.kept_offsets is None:
            return None
        count = self.kept_count[index]
        if np.isnan(count) or len(self.kept_offsets) <= index + 1:
            return None
        ids = self.kept_token_ids[self.kept_offsets[index] : self.kept_offsets[index + 1]]
        return ids if len(ids) == count else None


STEP_COLUMNS = [
    "trajectory_id", "step", "is_last", "is_terminal", "is_truncated", "trainable_rl", "trainable_sft",
    "reward", "observation", "action", "outcome", "sampling", "prompt_token_ids", "image_spans",
    "response_token_ids", "response_mask", "forced", "finish_reason", "commit_token_ids", "prefix_len",
    "prefix_hash", "prompt_hash", "logprobs", "sampled_logprobs", "kept_count", "kept_token_ids",
    "kept_offsets", "entropy", "policy_versions", "state_version_min", "engine",
]  # fmt: skip


def trajectories(table: pa.Table) -> list[Trajectory]:
    """Rows of a table that has `TRAJECTORY_COLUMNS`."""
    return [Trajectory(**row) for row in table.select(TRAJECTORY_COLUMNS).to_pylist()]


def group_rows(table: pa.Table) -> list[GroupRow]:
    """Rows of a table that has `GROUP_COLUMNS`."""
    return [GroupRow(**row) for row in table.select(GROUP_COLUMNS).to_pylist()]


def steps(table: pa.Table) -> list[Step]:
    """Rows of a table that has `STEP_COLUMNS`.

    Raises:
        DataError: when the lists of a row differ in length.
    """
    table = table.combine_chunks()
    columns = {name: _chunk(table, name) for name in STEP_COLUMNS}
    observation = columns["observation"]
    plain = {
        name: _plain(columns[name])
        for name in (
            "trajectory_id",
            "step",
            "is_last",
            "is_terminal",
            "is_truncated",
            "trainable_rl",
            "trainable_sft",
            "reward",
            "action",
            "outcome",
            "sampling",
            "finish_reason",
            "prefix_len",
            "prefix_hash",
            "prompt_hash",
            "state_version_min",
        )
    }
    plain |= {
        "screenshot": _plain(observation.field("screenshot").field("bytes")),
        "image_format": _plain(observation.field("format")),
        "url": _plain(observation.field("url")),
        "title": _plain(observation.field("title")),
        "image_spans": _spans(columns["image_spans"]),
        "state_origin": _plain(columns["engine"].field("state_origin")),
    }
    lists = {
        name: _Lists(columns[name], dtype)
        for name, dtype in (
            ("prompt_token_ids", np.int32),
            ("response_token_ids", np.int32),
            ("response_mask", np.bool_),
            ("forced", np.bool_),
            ("commit_token_ids", np.int32),
            ("logprobs", np.float32),
            ("sampled_logprobs", np.float32),
            ("kept_count", np.float32),
            ("kept_token_ids", np.int32),
            ("kept_offsets", np.int32),
            ("entropy", np.float32),
            ("policy_versions", np.int32),
        )
    }
    plain |= {name: values.all() for name, values in lists.items()}
    names = list(plain)
    rows = []
    for values in zip(*plain.values(), strict=True):
        row = Step(**dict(zip(names, values, strict=True)))
        _check(row)
        rows.append(row)
    return rows


def _plain(column: pa.Array) -> list[Any]:
    """A column as Python values, converted by columns: converting a struct's values one by one takes ten
    times as long."""
    if pa.types.is_struct(column.type):
        names = [member.name for member in column.type]
        rows = zip(*(_plain(column.field(name)) for name in names), strict=True)
        found = [dict(zip(names, row, strict=True)) for row in rows]
        # The members of a null row hold no values.
        return (
            found
            if not column.null_count
            else [one if there else None for one, there in zip(found, _valid(column), strict=True)]
        )
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if pa.types.is_nested(column.type) or (is_number and column.null_count):
        return list(column.to_pylist())
    return list(column.to_numpy(zero_copy_only=False).tolist())


def _valid(column: pa.Array) -> list[bool]:
    return list(column.is_valid().to_numpy(zero_copy_only=False).tolist())


def _spans(column: pa.Array) -> list[tuple[ImageSpan, ...]]:
    """Image spans of each row; empty where it has none."""
    spans = [ImageSpan(**span) for span in _plain(column.values)]
    offsets = column.offsets.to_pylist()
    ends = zip(offsets, offsets[1:], _valid(column), strict=False)
    return [tuple(spans[start:stop]) if there else () for start, stop, there in ends]


class _Lists:
    """A list column as slices of one flat array."""

    def __init__(self, column: pa.Array, dtype: type[np.generic]) -> None:
        self.valid = column.is_valid().to_numpy(zero_copy_only=False)
        self.offsets = column.offsets.to_numpy()
        values = column.values
        if dtype is np.float32:
            # Nulls become NaN.
            self.values = values.cast(pa.float32()).to_numpy(zero_copy_only=False)
        else:
            if values.null_count:
                raise DataError("a list of ids, flags or versions holds a null")
            self.values = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)

    def all(self) -> list[Any]:
        """A slice per row, `None` for a null."""
        offsets = self.offsets.tolist()
        return [
            self.values[start:stop] if there else None
            for start, stop, there in zip(offsets, offsets[1:], self.valid, strict=False)
        ]


def _chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _check(row: Step) -> None:
    if row.response_token_ids is None:
        return
    length = len(row.response_token_ids)
    for name in (
        "response_mask",
        "forced",
        "policy_versions",
        "logprobs",
        "sampled_logprobs",
        "kept_count",
        "entropy",
    ):
        values = getattr(row, name)
        if values is not None and len(values) != length:
            raise DataError(
                f"{row.trajectory_id} step {row.step}: {name} has {len(values)} entries for {length} "
                "response tokens"
            )
    if row.kept_offsets is not None and len(row.kept_offsets) not in (0, length + 1):
        raise DataError(
            f"{row.trajectory_id} step {row.step}: kept_offsets has {len(row.kept_offsets)} entries for "
            f"{length} response tokens"
        )
