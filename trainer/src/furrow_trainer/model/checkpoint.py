"""Checkpoints in the Hugging Face layout: config.json, safetensors (one file or shards with an index),
tokenizer and template beside them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import CheckpointError
from .config import ModelConfig, read_config
from .policy import Policy, Sizes

SHARD_BYTES_MAX = 5_000_000_000
# Tokenizers of 131,072 entries have 17 MB.
SIDE_FILE_BYTES_MAX = 64 << 20
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# Names that some checkpoints hold and no loader of this architecture uses.
_IGNORED = re.compile(
    r"^(language_model\.)?mtp\.|input_conditioner\.|summary_idxs$|video_embedder|\.ls[12]\.|^vision_model\.(?!radio_model\.model\.(patch_generator|blocks)\.)"
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A policy with all that writing it back as it was stored needs."""

    policy: Policy
    config: ModelConfig
    folder: Path
    names: dict[str, str]
    """Parameter to its name on disk."""
    dtypes: dict[str, torch.dtype]
    """Parameter to its type on disk."""
    others: dict[str, Tensor]
    """Tensors that are not used, kept so that they can be written back."""
    files: dict[str, bytes]
    """Everything beside the weights: config, tokenizer, template. Held here because the directory may be gone
    when the next one is written."""


def load(
    folder: Path | str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> Checkpoint:
    """Reads a checkpoint directory.

    Args:
        folder: with config.json and safetensors files.
        device: where the parameters are put.
        dtype: what they are computed in; float32 is what log-probs are compared at.

    Raises:
        CheckpointError: when a file cannot be read, a tensor is missing, unknown or has another shape.
    """
    folder = Path(folder)
    config = read_config(folder)
    stored = read_tensors(folder)
    used, others = {}, {}
    names: dict[str, str] = {}
    for name, tensor in stored.items():
        key = canonical(name)
        if _IGNORED.search(name):
            others[name] = tensor
        elif key in names:
            raise CheckpointError(f"{folder}: {name} and {names[key]} are the same parameter")
        else:
            names[key], used[key] = name, tensor
    policy = Policy(config, _sizes(folder, config, used))
    missing, unexpected = policy.load_state_dict({}, strict=False)
    expected = set(missing) | set(unexpected)
    problems = [f"there is no {name}" for name in sorted(expected - set(used))]
    problems += [
        f"{names[name]} is not a tensor of this architecture" for name in sorted(set(used) - expected)
    ]
    shapes = {name: parameter.shape for name, parameter in policy.state_dict().items()}
    problems += [
        f"{names[name]} has shape {list(used[name].shape)}, this config makes it {list(shapes[name])}"
        for name in sorted(expected & set(used))
        if used[name].shape != shapes[name]
    ]
    if problems:
        more = f" (and {len(problems) - 8} more)" if len(problems) > 8 else ""
        raise CheckpointError(f"{folder}: {'; '.join(problems[:8])}{more}")
    dtypes = {name: tensor.dtype for name, tensor in used.items()}
    policy.load_state_dict({name: tensor.to(dtype) for name, tensor in used.items()}, assign=False)
    return Checkpoint(
        policy.to(device=device, dtype=dtype), config, folder, names, dtypes, others, _side_files(folder)
    )


def save(
    checkpoint: Checkpoint,
    folder: Path | str,
    dtype: torch.dtype | None = None,
    shard_bytes_max: int = SHARD_BYTES_MAX,
) -> Path:
    """Writes a whole checkpoint directory under a temporary name, then renames it: it is there whole or not
    at all.

    Tensors keep the types they were stored in unless `dtype` says otherwise; every file of the source
    directory that holds no weights (config, tokenizer, template) comes along unchanged.

    Raises:
        CheckpointError: when something is at `folder` already.
    """
    folder = Path(folder)
    if folder.exists():
        raise CheckpointError(f"{folder} exists; a checkpoint is never written over another")
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    tensors = {
        checkpoint.names[name]: tensor.detach()
        .to(device="cpu", dtype=dtype or checkpoint.dtypes[name])
        .contiguous()
        for name, tensor in checkpoint.policy.state_dict().items()
    }
    tensors.update(checkpoint.others)
    _write_tensors(draft, tensors, shard_bytes_max)
    for name, data in checkpoint.files.items():
        (draft / name).write_bytes(data)
    _sync(draft)
    os.rename(draft, folder)
    _sync_dir(folder.parent)
    return folder


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a directory, as stored, by the names on disk."""
    index = folder / _INDEX
    try:
        names = (
            sorted(set(json.loads(index.read_text("utf8"))["weight_map"].values()))
            if index.exists()
            else [_SINGLE]
        )
        tensors: dict[str, Tensor] = {}
        for name in names:
            if Path(name).name != name:
                raise CheckpointError(f"{index} names {name!r}, which is not a file beside it")
            with safe_open(str(folder / name), framework="pt") as file:
                tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        return tensors
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the weights cannot be read: {error}") from error


def _side_files(folder: Path) -> dict[str, bytes]:
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.endswith((".safetensors", _INDEX))
    ]
    large = [path for path in files if path.stat().st_size > SIDE_FILE_BYTES_MAX]
    # An archive or a picture that lies there by chance is not part of the layout.
    return {path.name: path.read_bytes() for path in files if path not in large}


def canonical(name: str) -> str:
    """A text checkpoint has no outer prefix; `model.` is an alias of `backbone.`."""
    if name.startswith(("vision_model.", "mlp1.")):
        return name
    inner = name.removeprefix("language_model.")
    if inner.startswith("model."):
        inner = "backbone." + inner.removeprefix("model.")
    return "language_model." + inner


def _sizes(folder: Path, config: ModelConfig, used: Mapping[str, Tensor]) -> Sizes:
    def rows(name: str, axis: int = 0) -> int:
        if name not in used:
            raise CheckpointError(f"{folder}: there is no {name}")
        return int(used[name].shape[axis])

    embedding, head = rows("language_model.backbone.embeddings.weight"), rows("language_model.lm_head.weight")
    if config.vision is None:
        return Sizes(config, embedding, head)
    generator = "vision_model.radio_model.model.patch_generator."
    side = round(rows(generator + "pos_embed", 1) ** 0.5)
    return Sizes(config, embedding, head, rows(generator + "cls_token.token"), side)


def _write_tensors(folder: Path, tensors: dict[str, Tensor], shard_bytes_max: int) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    size = total = 0
    for name in sorted(tensors):
        count = tensors[name].numel() * tensors[name].element_size()
        if shards[-1] and size + count > shard_bytes_max:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name]
        size, total = size + count, total + count
    if len(shards) == 1:
        save_file(shards[0], folder / _SINGLE, metadata={"format": "pt"})
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf8")


def _sync(folder: Path) -> None:
    for file in folder.iterdir():
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
    _sync_dir(folder)


def _sync_dir(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
