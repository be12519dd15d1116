"""TRL: one Parquet row per step, for supervised training of a vision-language model.

Source: huggingface/trl, docs/source/dataset_formats.md and trl/trainer/sft_trainer.py: a conversational
prompt-completion row has `prompt` and `completion` (lists of messages) and `images`; the pictures take the
places of the `{"type": "image"}` parts in order. Here the prompt is the system's turn and everything up to a
step's screenshot, the completion that step's reply: one row per step, so that the loss is of replies alone
and only one picture per turn is needed.

Lost: tokens and log-probs. TRL renders and tokenises anew; for on-policy records use another format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from .common import Exporter, Row, Taken, image, messages, write_parquet

PART = pa.struct([("type", pa.string()), ("text", pa.string())])
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.list_(PART))])
_TEXT = {"dtype": "string", "_type": "Value"}
_CHAT = [{"role": _TEXT, "content": [{"type": _TEXT, "text": _TEXT}]}]
# The features that `datasets` decodes as pictures.
_FEATURES = {
    "prompt": _CHAT,
    "completion": _CHAT,
    "images": {"feature": {"_type": "Image"}, "_type": "List"},
    "trajectory_id": _TEXT,
    "step": {"dtype": "int64", "_type": "Value"},
    "reward": {"dtype": "float64", "_type": "Value"},
}
SCHEMA = pa.schema(
    [
        ("prompt", pa.list_(MESSAGE)),
        ("completion", pa.list_(MESSAGE)),
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
        ("trajectory_id", pa.string()),
        ("step", pa.int64()),
        ("reward", pa.float64()),
    ],
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)


def rows(found: Iterator[Taken]) -> Iterator[Row]:
    """A row per step."""
    for one in found:
        chat = messages(one)
        for step in one.steps:
            if not step.trainable_sft:
                continue
            # System, then user and assistant by turns: the user's turn of step t is 1 + 2 t.
            at = 1 + 2 * step.step
            yield {
                "prompt": chat[: at + 1],
                "completion": [chat[at + 1]],
                "images": [image(one.steps[index]) for index in range(step.step + 1)],
                "trajectory_id": one.trajectory.trajectory_id,
                "step": step.step,
                "reward": one.trajectory.reward,
            }


def write(found: Iterator[Taken], path: Path, _: Path | None) -> int:
    """Writes the Parquet file."""
    return write_parquet(rows(found), SCHEMA, path)


EXPORTER = Exporter("sft", write)
