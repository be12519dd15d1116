"""verl: one Parquet row per sequence, with the fields of its agent loop's output.

Source: verl-project/verl 02dd715, verl/experimental/agent_loop/agent_loop.py, `AgentLoopOutput`: prompt_ids,
response_ids, response_mask, response_logprobs, multi_modal_data, reward_score, num_turns, metrics,
extra_fields; `as_dict` puts the reward on the last response token. A group is what shares `uid`. Read a row
back with `AgentLoopOutput(**row)` after popping `uid` and turning `multi_modal_data.images` into pictures.
Under `last_image` a trajectory is several rows, each with the trajectory's reward and its own part of
`extra_fields`.

Lost: kept ids, entropies and per-token versions are only in extra_fields, which verl carries and does not
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from .common import Exporter, Row, Taken, tokens, write_parquet

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema(
    [
        ("uid", pa.string()),
        ("prompt_ids", pa.list_(pa.int64())),
        ("response_ids", pa.list_(pa.int64())),
        ("response_mask", pa.list_(pa.int64())),
        ("response_logprobs", pa.list_(pa.float32())),
        ("multi_modal_data", pa.struct([("images", pa.list_(IMAGE))])),
        ("reward_score", pa.float64()),
        ("num_turns", pa.int64()),
        (
            "metrics",
            pa.struct(
                [
                    ("generate_sequences", pa.float64()),
                    ("tool_calls", pa.float64()),
                    ("compute_score", pa.float64()),
                ]
            ),
        ),
        (
            "extra_fields",
            pa.struct(
                [
                    ("trajectory_id", pa.string()),
                    ("task_id", pa.string()),
                    ("step_first", pa.int64()),
                    ("step_last", pa.int64()),
                    ("min_global_steps", pa.int64()),
                    ("max_global_steps", pa.int64()),
                    ("versions", pa.list_(pa.int64())),
                ]
            ),
        ),
    ]
)


def rows(found: Iterator[Taken]) -> Iterator[Row]:
    """A row per sequence."""
    for one in found:
        for sequence in tokens(one):
            turns = sequence.steps[1] - sequence.steps[0] + 1
            versions = [version for version in sequence.versions if version >= 0]
            yield {
                "uid": one.group.group_id,
                "prompt_ids": sequence.prompt,
                "response_ids": sequence.response,
                "response_mask": sequence.mask,
                "response_logprobs": sequence.logprobs,
                "multi_modal_data": {
                    "images": [{"bytes": blob, "path": None} for blob in sequence.screenshots]
                },
                "reward_score": one.trajectory.reward,
                # A user and an assistant turn each, and the system's.
                "num_turns": 2 * turns + 1,
                "metrics": {"generate_sequences": 0.0, "tool_calls": 0.0, "compute_score": 0.0},
                "extra_fields": {
                    "trajectory_id": one.trajectory.trajectory_id,
                    "task_id": one.trajectory.task_id,
                    "step_first": sequence.steps[0],
                    "step_last": sequence.steps[1],
                    "min_global_steps": min(versions, default=None),
                    "max_global_steps": max(versions, default=None),
                    "versions": sequence.versions,
                },
            }


def write(found: Iterator[Taken], path: Path, _: Path | None) -> int:
    """Writes the Parquet file."""
    return write_parquet(rows(found), SCHEMA, path)


EXPORTER = Exporter("rl", write)
