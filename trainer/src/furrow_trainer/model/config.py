"""`config.json` of a checkpoint, checked: what this architecture does not have is refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.pixels import Tiling
from ..errors import CheckpointError

CONFIG_BYTES_MAX = 4 << 20
_LAYER_LETTERS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}
# Width, blocks, heads and MLP of the towers that RADIO's configs name.
_TOWERS = {
    "vit_small_patch16_224": (384, 12, 6, 1536),
    "vit_base_patch16_224": (768, 12, 12, 3072),
    "vit_large_patch16_224": (1024, 24, 16, 4096),
    "vit_huge_patch16_224": (1280, 32, 16, 5120),
}


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Mixture-of-experts layers."""

    experts: int
    per_token: int
    width: int
    shared_width: int
    groups: int
    groups_kept: int
    normalise: bool
    scale: float
    latent: int | None


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The decoder. `layers` has a letter a layer: `M` Mamba-2, `-` MLP, `*` attention, `E` experts."""

    layers: str
    hidden: int
    mlp_width: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    mamba_heads: int
    mamba_head_dim: int
    state: int
    groups: int
    conv: int
    chunk: int
    epsilon: float
    positions_max: int
    experts: ExpertsConfig | None

    @property
    def inner(self) -> int:
        """Width of a Mamba mixer: heads x head size (`expand` is not used for it)."""
        return self.mamba_heads * self.mamba_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of x, B and C together."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The encoder and the projector."""

    tiling: Tiling
    patch: int
    width: int
    blocks: int
    heads: int
    mlp_width: int
    position_side: int
    align_corners: bool
    swapped: bool
    """`ps_version` v1, which leaves rows and columns of the pixel shuffle swapped."""
    projector_width: int
    image_token: int
    image_marks: tuple[str, str]

    @property
    def rows_per_tile(self) -> int:
        """Rows of the language model's input that a tile becomes."""
        return (self.tiling.tile // self.patch // 2) ** 2


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A text model, and an encoder where there is one."""

    text: TextConfig
    vision: VisionConfig | None


def read_config(folder: Path) -> ModelConfig:
    """Reads config.json of a checkpoint directory; a bare `Infinity`, which older files hold, is taken.

    Raises:
        CheckpointError: when a key is missing or has a value this architecture does not have.
    """
    path = folder / "config.json"
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise CheckpointError(f"{path} has more than {CONFIG_BYTES_MAX} bytes")
        raw = json.loads(path.read_text("utf8"))
        return parse(raw)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except KeyError as error:
        raise CheckpointError(f"{path} has no key {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def parse(raw: dict[str, Any]) -> ModelConfig:
    """The model of a decoded config.json."""
    text = raw.get("llm_config") or raw.get("text_config") or raw
    return ModelConfig(_text(text), _vision(raw) if "vision_config" in raw else None)


def _text(raw: dict[str, Any]) -> TextConfig:
    for key, only in (
        ("use_bias", False),
        ("mlp_bias", False),
        ("attention_bias", False),
        ("mamba_proj_bias", False),
        ("tie_word_embeddings", False),
        ("use_conv_bias", True),
    ):
        if raw.get(key, only) is not only:
            raise ValueError(f"{key} is {raw[key]!r}; only {only!r} is implemented")
    layers = raw.get("hybrid_override_pattern") or "".join(
        _LAYER_LETTERS[name] for name in raw["layers_block_type"]
    )
    if set(layers) - set("M-*E") or len(layers) != raw.get("num_hidden_layers", len(layers)):
        raise ValueError(
            f"the layer pattern {layers!r} does not fit num_hidden_layers or has letters other than M - * E"
        )
    return TextConfig(
        layers=layers,
        hidden=int(raw["hidden_size"]),
        mlp_width=int(raw.get("intermediate_size") or 0),
        vocabulary=int(raw["vocab_size"]),
        heads=int(raw["num_attention_heads"]),
        kv_heads=int(raw["num_key_value_heads"]),
        head_dim=int(raw.get("head_dim") or raw["attention_head_dim"]),
        mamba_heads=int(raw["mamba_num_heads"]),
        mamba_head_dim=int(raw["mamba_head_dim"]),
        state=int(raw["ssm_state_size"]),
        groups=int(raw["n_groups"]),
        conv=int(raw["conv_kernel"]),
        chunk=int(raw.get("chunk_size", 128)),
        epsilon=float(
            raw.get("layer_norm_epsilon") or raw.get("rms_norm_eps") or raw.get("norm_eps") or 1e-5
        ),
        positions_max=int(raw.get("max_position_embeddings", 131_072)),
        experts=_experts(raw) if "E" in layers else None,
    )


def _experts(raw: dict[str, Any]) -> ExpertsConfig:
    width = int(raw["moe_intermediate_size"])
    shared = raw.get("moe_shared_expert_intermediate_size") or width * int(raw.get("n_shared_experts", 1))
    latent = raw.get("moe_latent_size")
    return ExpertsConfig(
        experts=int(raw["n_routed_experts"]),
        per_token=int(raw["num_experts_per_tok"]),
        width=width,
        shared_width=int(shared),
        groups=int(raw.get("n_group") or 1),
        groups_kept=int(raw.get("topk_group") or 1),
        normalise=bool(raw.get("norm_topk_prob", True)),
        scale=float(raw.get("routed_scaling_factor", 1.0)),
        latent=int(latent) if latent else None,
    )


def _vision(raw: dict[str, Any]) -> VisionConfig:
    tower = raw["vision_config"]
    known = _TOWERS.get(str(tower.get("args", {}).get("model")), (0, 0, 0, 0))
    width, blocks, heads, mlp = (
        int(tower.get(key, fallback))
        for key, fallback in zip(
            ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
            known,
            strict=True,
        )
    )
    if not width:
        raise ValueError("vision_config names no known tower and has no hidden_size")
    patch = int(raw["patch_size"])
    ratio = float(raw.get("downsample_ratio", 0.5))
    if ratio != 0.5:
        raise ValueError(f"downsample_ratio is {ratio}; only 0.5 is implemented")
    side = int(tower.get("args", {}).get("cpe_max_size") or tower["max_resolution"])
    image_token = raw.get("img_context_token_id", raw.get("image_context_token_id"))
    if image_token is None:
        raise ValueError("there is neither img_context_token_id nor image_context_token_id")
    mean = tuple(raw.get("norm_mean", (0.48145466, 0.4578275, 0.40821073)))
    std = tuple(raw.get("norm_std", (0.26862954, 0.26130258, 0.27577711)))
    if len(mean) != 3 or len(std) != 3 or not all(math.isfinite(value) and value > 0 for value in std):
        raise ValueError(f"norm_mean {mean} and norm_std {std} are not three numbers each")
    return VisionConfig(
        tiling=Tiling(
            tile=int(raw["force_image_size"]),
            tiles_max=int(raw.get("max_num_tiles", 12)),
            thumbnail=bool(raw.get("use_thumbnail", True)),
            mean=(float(mean[0]), float(mean[1]), float(mean[2])),
            std=(float(std[0]), float(std[1]), float(std[2])),
        ),
        patch=patch,
        width=width,
        blocks=blocks,
        heads=heads,
        mlp_width=mlp,
        position_side=side // patch,
        align_corners=bool(raw.get("cpe_align_corners", False)),
        swapped=raw.get("ps_version", "v2") == "v1",
        projector_width=int(raw["projector_hidden_size"]),
        image_token=int(image_token),
        image_marks=(str(raw.get("img_start_token", "<img>")), str(raw.get("img_end_token", "</img>"))),
    )
