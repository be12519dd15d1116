"""A policy's log-probabilities from a checkpoint's files, one layer of weights on the device at a time, in
float32.

The modules are the trainer's (`trainer/src/furrow_trainer/model`); no code of Furrow's engine takes part.
What is added here:

  * **Weights** come from memory-mapped safetensors files, a layer at a time, and every sequence passes that
    layer before the next one is read: a checkpoint of 26 GB takes two layers of device memory (0.8 GB in
    float32 for the 12B's widest), and is read once.
  * **Products** (`Reference`) are those of float32 at the rate of tensor cores. A GPU multiplies float32 at
    60 TFLOP/s and TF32 at some 400, but TF32 keeps 11 of 24 bits. A number is therefore split into two of 11
    and 13 bits; products of the parts are summed in float32, and what is dropped is 2^-21 of the result. A
    weight of bfloat16 has 8 bits and is its own first part, so a product is taken twice, not three times.
  * **Attention** goes by blocks of queries: memory grows with the context, not with its square.

The same layers can be run in bfloat16 beside it, as PyTorch would serve the model: the distance of the two is
what bfloat16 alone does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from furrow_trainer.data.pixels import Pixels, normalise
from furrow_trainer.errors import CheckpointError
from furrow_trainer.model.checkpoint import canonical
from furrow_trainer.model.config import ModelConfig, VisionConfig, read_config
from furrow_trainer.model.language import Layer, RmsNorm, Span
from furrow_trainer.model.vision import Tower, pixel_shuffle, projector

# float32 has 23 bits of mantissa behind the point and TF32 10: these are the other 13.
_LOW_BITS = 0x1FFF
# Rows of a product, tiles of the encoder and elements of a block of scores that are computed at once: each
# some 2 GB of float32 at the 12B's widths.
_ROWS = 16_384
_TILES = 16
_SCORES = 1 << 29


Module = TypeVar("Module", bound=nn.Module)


# -- arithmetic ---------------------------------------------------------------------------------------------


def split(x: Tensor) -> list[Tensor]:
    """`x` (float32) as a sum of at most two tensors of float32, the first exact in TF32; one where that is
    all.
    """
    first = (x.view(torch.int32) & ~_LOW_BITS).view(torch.float32)
    rest = x - first
    return [first, rest] if bool(rest.any()) else [first]


def product(
    a: Sequence[Tensor], b: Sequence[Tensor], multiply: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> Tensor:
    """a @ b of two sums of parts, without the product of both second parts (2^-22 of the whole)."""
    out = multiply(a[0], b[0])
    if len(a) > 1:
        out += multiply(a[1], b[0])
    if len(b) > 1:
        out += multiply(a[0], b[1])
    return out


@contextmanager
def tf32() -> Iterator[None]:
    """Lets products of float32 run in TF32 inside; they do not outside."""
    switch = torch.backends.cuda.matmul
    switch.fp32_precision = "tf32"
    try:
        yield
    finally:
        switch.fp32_precision = "ieee"


class Reference(TorchFunctionMode):
    """Inside it, linear layers and attention of float32 tensors are computed as the module's documentation
    says.

    Args:
        is_split: products by parts in TF32, for a GPU; else in plain float32.
    """

    def __init__(self, is_split: bool) -> None:
        super().__init__()
        self.is_split = is_split

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return self.linear(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self.attention(*args, **kwargs)
        return func(*args, **kwargs)

    def parts(self, x: Tensor) -> list[Tensor]:
        return split(x) if self.is_split else [x]

    def product(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        with tf32() if self.is_split else nullcontext():
            return product(a, b)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """[.., K] and [N, K] to [.., N]."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        turned = [part.T for part in self.parts(weight)]
        out = rows.new_empty(len(rows), len(weight))
        for begin in range(0, len(rows), _ROWS):
            out[begin : begin + _ROWS] = self.product(self.parts(rows[begin : begin + _ROWS]), turned)
        return (out if bias is None else out + bias).view(*x.shape[:-1], len(weight))

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """[batch, heads, time, size]; only what the modules ask for: all, or all up to the query."""
        if attn_mask is not None:
            raise NotImplementedError("a mask other than the causal one")
        batch, heads, time, size = q.shape
        keys = [part.transpose(-1, -2) for part in self.parts(k.contiguous())]
        values = self.parts(v.contiguous())
        out = torch.empty_like(q)
        block = max(16, _SCORES // (batch * heads * k.shape[2]))
        for begin in range(0, time, block):
            end = min(begin + block, time)
            visible = end if is_causal else k.shape[2]
            queries = self.parts((q[:, :, begin:end] / math.sqrt(size)).contiguous())
            scores = self.product(queries, [part[..., :visible] for part in keys])
            if is_causal:
                later = torch.ones(end - begin, end - begin, dtype=torch.bool, device=q.device).triu(1)
                scores[..., begin:end].masked_fill_(later, -math.inf)
            out[:, :, begin:end] = self.product(
                self.parts(scores.softmax(-1)), [part[..., :visible, :] for part in values]
            )
        return out


# -- the files ----------------------------------------------------------------------------------------------


class Weights:
    """The tensors of a checkpoint directory, read when they are asked for.

    Raises:
        CheckpointError: when config.json, the index or a file cannot be read, or a tensor is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: ModelConfig = read_config(folder)
        index = folder / "model.safetensors.index.json"
        try:
            files = (
                set(json.loads(index.read_text("utf8"))["weight_map"].values())
                if index.exists()
                else {"model.safetensors"}
            )
            self._open = {
                name: safe_open(str(folder / name), framework="pt")
                for name in sorted(files)
                if Path(name).name == name
            }
            if len(self._open) != len(files):
                raise CheckpointError(f"{index} names a file that is not beside it")
            self._where = {
                canonical(name): (file, name)
                for file, opened in self._open.items()
                for name in opened.keys()  # noqa: SIM118 - it is not a dict
            }
        except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
            raise CheckpointError(f"{folder}: the weights cannot be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def names(self, prefix: str) -> set[str]:
        """What lies below a prefix, without it."""
        return {name[len(prefix) :] for name in self._where if name.startswith(prefix)}

    def tensor(self, name: str) -> Tensor:
        """As stored, in memory that is mapped from the file."""
        if name not in self._where:
            raise CheckpointError(f"{self.folder} has no tensor {name}")
        file, stored = self._where[name]
        return self._open[file].get_tensor(stored)

    def shape(self, name: str) -> list[int]:
        if name not in self._where:
            raise CheckpointError(f"{self.folder} has no tensor {name}")
        file, stored = self._where[name]
        return list(self._open[file].get_slice(stored).get_shape())

    @property
    def is_bfloat16(self) -> bool:
        """Whether most of the decoder's matrices are stored so (it is what a GPU then computes in)."""
        names = [
            name
            for name in self._where
            if name.startswith("language_model.backbone.layers.") and name.endswith("_proj.weight")
        ]
        count = sum(
            self._open[file].get_slice(stored).get_dtype() == "BF16"
            for file, stored in (self._where[name] for name in names)
        )
        return 2 * count > len(names)

    def fill(self, module: Module, prefix: str, device: torch.device, all_of_it: bool = True) -> Module:
        """Gives a module made on the `meta` device its tensors, in float32.

        Args:
            all_of_it: an unknown tensor below the prefix is an error.
        """
        wanted = set(module.state_dict())
        if all_of_it and (unknown := self.names(prefix) - wanted):
            raise CheckpointError(f"{self.folder}: {prefix}{min(unknown)} has no place in this architecture")
        state = {name: self.tensor(prefix + name).to(device).float() for name in wanted}
        try:
            module.load_state_dict(state, assign=True)
        except RuntimeError as error:
            raise CheckpointError(f"{self.folder}: {prefix}: {error}") from error
        return module.eval().requires_grad_(False)

    def layer(self, index: int, device: torch.device) -> Layer:
        with torch.device("meta"):
            layer = Layer(self.config.text, self.config.text.layers[index])
        return self.fill(layer, f"language_model.backbone.layers.{index}.", device)

    def tower(self, device: torch.device) -> tuple[Tower, nn.Module]:
        """The encoder and the projector."""
        vision = self.vision
        base = "vision_model.radio_model.model."
        side = round(self.shape(base + "patch_generator.pos_embed")[1] ** 0.5)
        with torch.device("meta"):
            tower = Tower(vision, self.shape(base + "patch_generator.cls_token.token")[0], side)
            head = projector(vision, self.config.text.hidden)
        # Published towers hold tensors beside, of other uses of RADIO.
        return self.fill(tower, base, device, all_of_it=False), self.fill(head, "mlp1.", device)

    @property
    def vision(self) -> VisionConfig:
        if self.config.vision is None:
            raise CheckpointError(f"{self.folder} is a text model: it cannot have read screenshots")
        return self.config.vision


# -- the pass -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Picture:
    """An image's rows in a sequence."""

    start: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the model reads in one pass, and the positions whose logits are wanted."""

    ids: Sequence[int]
    pictures: tuple[Picture, ...]
    wanted: Sequence[int]
    """Position p: the logits that score what follows token p."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Logits of a sequence's wanted positions, [wanted, vocabulary] in float32."""

    reference: Tensor
    bfloat16: Tensor | None


def rounded(module: nn.Module) -> nn.Module:
    """The module with its matrices in bfloat16, and its vectors as they are: norms, dt and A are computed in
    float32 by whatever serves it.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.to(torch.bfloat16)
    return module


@dataclass(slots=True)
class Rows:
    """Rows [tiles x rows a tile, hidden] of each picture."""

    reference: dict[bytes, Tensor]
    bfloat16: dict[bytes, Tensor]


def picture_rows(
    weights: Weights, tiles: Mapping[bytes, Pixels], device: torch.device, is_split: bool, with_bfloat16: bool
) -> Rows:
    """Of each picture's tiles [n, tile, tile, 3]."""
    if not tiles:
        return Rows({}, {})
    vision = weights.vision
    tower, head = weights.tower(device)
    every = [(key, index) for key, cut in tiles.items() for index in range(len(cut))]

    def encode(dtype: torch.dtype) -> dict[bytes, Tensor]:
        rows: dict[bytes, list[Tensor]] = {key: [] for key in tiles}
        for begin in range(0, len(every), _TILES):
            part = every[begin : begin + _TILES]
            pixels = torch.cat(
                [
                    torch.from_numpy(normalise(tiles[key][index : index + 1], vision.tiling))
                    for key, index in part
                ]
            )
            encoded = head(pixel_shuffle(tower(pixels.to(device=device, dtype=dtype)), vision.swapped))
            for (key, _), one in zip(part, encoded, strict=True):
                rows[key].append(one)
        return {key: torch.cat(parts) for key, parts in rows.items()}

    with Reference(is_split):
        found = Rows(encode(torch.float32), {})
    if with_bfloat16:
        tower, head = tower.bfloat16(), rounded(head)
        found.bfloat16 = encode(torch.bfloat16)
    return found


@torch.inference_mode()
def logits(
    weights: Weights,
    sequences: Sequence[Tokens],
    tiles: Mapping[bytes, Pixels],
    device: torch.device,
    with_bfloat16: bool = False,
    is_split: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Computed]:
    """All sequences through all layers, each layer's weights loaded once.

    Args:
        sequences: at most some 600,000 tokens together (20 kB a token stay on the device for the 12B).
        tiles: of every picture that a sequence shows.
        with_bfloat16: also as PyTorch computes in bfloat16, the encoder included; logits are float32 of rows
            in bfloat16, as the engine's.
        is_split: see `Reference`; by the device where absent.

    Raises:
        CheckpointError: when the files are not those of this architecture.
    """
    is_split = device.type == "cuda" if is_split is None else is_split
    text = weights.config.text
    rows = picture_rows(weights, tiles, device, is_split, with_bfloat16)
    say(f"{sum(map(len, tiles.values()))} tiles of {len(tiles)} pictures encoded")
    table = weights.tensor("language_model.backbone.embeddings.weight")
    reference = [_embedded(table, one, rows.reference, device) for one in sequences]
    other = (
        [_embedded(table, one, rows.bfloat16, device).bfloat16() for one in sequences]
        if with_bfloat16
        else []
    )
    del rows
    with ThreadPoolExecutor(1) as ahead:
        following: Future[Layer] = ahead.submit(weights.layer, 0, device)
        for index in range(len(text.layers)):
            layer: torch.nn.Module = following.result()
            if index + 1 < len(text.layers):
                following = ahead.submit(weights.layer, index + 1, device)
            with Reference(is_split):
                for number, h in enumerate(reference):
                    reference[number] = layer(h, Span(chunk=text.chunk), index)
            if with_bfloat16:
                layer = rounded(layer)
                for number, h in enumerate(other):
                    other[number] = layer(h, Span(chunk=text.chunk), index)
    with torch.device("meta"):
        norm = RmsNorm(text.hidden, text.epsilon)
    weights.fill(norm, "language_model.backbone.norm_f.", device)
    head = weights.tensor("language_model.lm_head.weight").to(device).float()
    say(f"{sum(len(one.ids) for one in sequences):,} tokens through {len(text.layers)} layers")
    found = []
    for number, one in enumerate(sequences):
        at = torch.tensor(one.wanted, device=device)
        with Reference(is_split):
            own = F.linear(norm(reference[number][0, at]), head)
            theirs = F.linear(norm(other[number][0, at]).float(), head) if with_bfloat16 else None
        found.append(Computed(own, theirs))
    return found


def _embedded(table: Tensor, one: Tokens, rows: Mapping[bytes, Tensor], device: torch.device) -> Tensor:
    """[1, time, hidden] in float32; a placeholder's row of the table is overwritten, and its id may lie
    outside of it.
    """
    ids = torch.tensor(one.ids, dtype=torch.long)
    h = table[torch.where(ids < len(table), ids, 0)].to(device).float()
    for picture in one.pictures:
        part = rows[picture.key]
        h[picture.start : picture.start + len(part)] = part
    return h.unsqueeze(0)
