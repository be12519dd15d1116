"""Common parts of all exporters: rebuilding sequences and chats, writing rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..data import Group
from ..data.rows import Floats, Ids, Step, Trajectory
from ..errors import DataError

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Taken:
    """A trajectory with its group and its steps."""

    group: Group
    trajectory: Trajectory
    steps: list[Step]


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sequence in the form of most trainers: a prompt, and a response with a mask that begins at the first
    sampled token."""

    taken: Taken
    steps: tuple[int, int]
    """First and last step whose responses it trains."""
    prompt: list[int]
    response: list[int]
    mask: list[int]
    """1 where the policy sampled the token."""
    logprobs: list[float]
    """Log-prob that each was sampled with; 0 where the mask is 0, since these formats have no null."""
    versions: list[int]
    """-1 where the mask is 0."""
    temperature: float
    screenshots: list[bytes]
    """Pictures of the whole sequence, in order."""
    placements: list[tuple[int, int]]
    """Placeholders of each picture: the first, and their number."""
    is_last: bool
    """It holds the trajectory's last step."""
    finish: str


class Exporter:
    """Writes one format; each module of a format holds its own as `EXPORTER`."""

    def __init__(
        self, trainable: str | None, write: Callable[[Iterator[Taken], Path, Path | None], int]
    ) -> None:
        self.trainable, self.write = trainable, write


def tokens(one: Taken) -> list[Tokens]:
    """Sequences of a trajectory with tokens: one under `append`, else one per step.

    Raises:
        DataError: when the trajectory has no tokens.
    """
    found: list[Tokens] = []
    kept = np.zeros(0, np.int32)
    growing: list[Step] = []
    for step in one.steps:
        if step.prompt_token_ids is None or step.response_token_ids is None:
            raise DataError(
                f"{one.trajectory.trajectory_id} has no tokens: only a model's trajectories can be exported "
                "so"
            )
        whole = np.concatenate([kept, step.prompt_token_ids, step.response_token_ids])
        growing.append(step)
        if step.commit_token_ids is None:
            kept = whole
            if not step.is_last:
                continue
        else:
            kept = np.concatenate([kept, step.commit_token_ids])
        found.append(_tokens(one, growing, whole))
        growing = []
    return found


def _tokens(one: Taken, steps: list[Step], whole: Ids) -> Tokens:
    mask, logprobs = np.zeros(len(whole), np.int32), np.zeros(len(whole), np.float32)
    versions = np.full(len(whole), -1, np.int32)
    end = len(whole)
    first = end
    for step in reversed(steps):
        assert step.response_token_ids is not None and step.prompt_token_ids is not None
        first = end - len(step.response_token_ids)
        sampled = step.response_mask if step.response_mask is not None else np.ones(end - first, np.bool_)
        mask[first:end] = sampled
        logprobs[first:end] = np.where(sampled, _recorded(step), 0.0)
        versions[first:end] = np.where(
            sampled, step.policy_versions if step.policy_versions is not None else -1, -1
        )
        end = first - len(step.prompt_token_ids)
    spans = steps[-1].image_spans
    return Tokens(
        taken=one,
        steps=(steps[0].step, steps[-1].step),
        prompt=whole[:first].tolist(),
        response=whole[first:].tolist(),
        mask=mask[first:].tolist(),
        logprobs=logprobs[first:].tolist(),
        versions=versions[first:].tolist(),
        temperature=steps[-1].temperature,
        screenshots=[one.steps[span.step].screenshot for span in spans],
        placements=[(span.token_start, span.token_len) for span in spans],
        is_last=steps[-1].is_last,
        finish=str(steps[-1].finish_reason),
    )


def _recorded(step: Step) -> Floats:
    """Log-prob that each token was sampled with; over the whole vocabulary where the policy recorded only
    that."""
    values = step.sampled_logprobs if step.sampled_logprobs is not None else step.logprobs
    if values is None:
        raise DataError(f"{step.trajectory_id} step {step.step} has no log-probs")
    return np.nan_to_num(values, nan=0.0)


def messages(one: Taken) -> list[Row]:
    """The trajectory as a chat with a picture per turn, its parts typed as in Hugging Face's chat
    templates."""
    found: list[Row] = [{"role": "system", "content": [_text(str(one.trajectory.session["instructions"]))]}]
    for step in one.steps:
        text = one.trajectory.goal if step.step == 0 else outcome_text(one.steps[step.step - 1])
        found.append({"role": "user", "content": [_text(text), {"type": "image", "text": None}]})
        found.append({"role": "assistant", "content": [_text(str(step.action["raw_text"]))]})
    return found


def outcome_text(step: Step) -> str:
    """The outcome of a step's action as text."""
    name, detail = step.outcome["name"], step.outcome["detail"]
    return f"{name}: {detail}" if detail else name


def image(step: Step) -> Row:
    """A screenshot in the Hugging Face convention."""
    return {"bytes": step.screenshot, "path": None}


def write_parquet(rows: Iterable[Row], schema: pa.Schema, path: Path) -> int:
    """Writes rows in row groups of some hundred; returns their number."""
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        part: list[Row] = []
        for row in rows:
            part.append(row)
            if len(part) == 200:
                writer.write_table(pa.Table.from_pylist(part, schema))
                count, part = count + len(part), []
        if part:
            writer.write_table(pa.Table.from_pylist(part, schema))
    return count + len(part)


def write_jsonl(rows: Iterable[Row], path: Path) -> int:
    """Writes a line per row; bytes are not JSON and must be text by now."""
    count = 0
    with open(path, "w", encoding="utf8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _text(text: str) -> Row:
    return {"type": "text", "text": text}
