"""Checkpoints of a training: weights, optimiser, cursor and random state, written by one rename.

    checkpoints/00000012/model/                  the Hugging Face layout, what is published
    checkpoints/00000012/optimizer.safetensors   AdamW's moments in float32, and the weights in full precision
                                                 where the model stores them in fewer bits
    checkpoints/00000012/state.json              step, version, cursor, random state

The directory is written under a name that begins with a dot and renamed: it is there whole or not at all, so
a cursor always matches the weights that were trained on the groups it has passed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..data import Cursor
from ..errors import CheckpointError
from ..model import Checkpoint
from ..model import checkpoint as hugging_face

_NAME = re.compile(r"\d{8}")


@dataclass(slots=True)
class State:
    """All that training continues from, besides tensors."""

    kind: str
    """`sft` or `rl`."""
    training: str = ""
    """Id of this training; its publications are named by it and their step."""
    step: int = 0
    """Steps of the optimiser so far."""
    version: int = 0
    """Number of the newest policy version that was or will be published; 0 is the checkpoint that training
    began with."""
    published: int = 0
    """Newest version that the farm took."""
    epoch: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    baselines: dict[str, float] = field(default_factory=dict)
    rng: dict[str, Any] = field(default_factory=dict)
    """State of numpy's generator."""
    counts: dict[str, int] = field(default_factory=dict)
    """What was read and left out since training began."""
    discarded: int = 0
    """Scored trajectories of groups that the cursor has passed and no step was made of."""


def save(folder: Path, checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, state: State) -> Path:
    """Writes `folder`/00000012 for step 12. An existing one is never replaced."""
    target = folder / f"{state.step:08}"
    draft = folder / f".{state.step:08}.tmp"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    hugging_face.save(checkpoint, draft / "model")
    save_file(_tensors(checkpoint, optimizer), draft / "optimizer.safetensors")
    raw = {name: getattr(state, name) for name in (one.name for one in dataclasses.fields(state))}
    raw["cursor"] = json.loads(state.cursor.to_json())
    (draft / "state.json").write_text(json.dumps(raw, indent=1) + "\n", "utf8")
    for path in (draft / "optimizer.safetensors", draft / "state.json", draft):
        _sync(path)
    if target.exists():
        raise CheckpointError(f"{target} exists; a checkpoint is never written over another")
    os.rename(draft, target)
    _sync(folder)
    return target


def newest(folder: Path) -> Path | None:
    """The newest checkpoint, `None` where there is none."""
    return next(iter(sorted(_all(folder), reverse=True)), None)


def prune(folder: Path, kept: int, keep_every: int) -> None:
    """Removes all but the newest ones, and those whose version is a multiple of `keep_every`; and the drafts
    that a killed training left."""
    for path in sorted(_all(folder), reverse=True)[kept:]:
        version = read_state(path).version
        if not keep_every or version % keep_every:
            shutil.rmtree(path)
    for path in folder.glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def read_state(checkpoint_dir: Path) -> State:
    """The state of a checkpoint.

    Raises:
        CheckpointError: when it cannot be read.
    """
    try:
        raw = json.loads((checkpoint_dir / "state.json").read_text("utf8"))
        cursor = Cursor.from_json(json.dumps(raw.pop("cursor")))
        return State(cursor=cursor, **raw)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{checkpoint_dir}: the state cannot be read: {error!r}") from error


def restore(checkpoint_dir: Path, checkpoint: Checkpoint, optimizer: torch.optim.Optimizer) -> None:
    """Restores weights (in full precision) and moments. `checkpoint` was loaded from
    `checkpoint_dir`/model."""
    tensors = load_file(checkpoint_dir / "optimizer.safetensors")
    names = _names(checkpoint)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[parameter]
            if f"weight.{name}" in tensors:
                with torch.no_grad():
                    parameter.copy_(tensors[f"weight.{name}"])
            if f"exp_avg.{name}" not in tensors:
                continue
            optimizer.state[parameter] = {
                "step": tensors[f"step.{name}"],
                "exp_avg": tensors[f"exp_avg.{name}"].to(parameter.device),
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(parameter.device),
            }


def _tensors(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = _names(checkpoint)
    tensors: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[parameter]
            if checkpoint.dtypes[name] != parameter.dtype:
                tensors[f"weight.{name}"] = parameter.detach().cpu().contiguous()
            moments = optimizer.state.get(parameter)
            if not moments:
                continue
            for key in ("step", "exp_avg", "exp_avg_sq"):
                tensors[f"{key}.{name}"] = moments[key].detach().cpu().contiguous()
    return tensors


def _names(checkpoint: Checkpoint) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in checkpoint.policy.named_parameters()}


def _all(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if _NAME.fullmatch(path.name)] if folder.is_dir() else []


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
