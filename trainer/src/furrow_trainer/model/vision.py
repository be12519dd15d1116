"""The RADIO encoder and the projector: a tile of pixels becomes rows of the decoder's input. Modules are
named as the published tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import VisionConfig
from .language import RmsNorm

PROJECTOR_EPSILON = 1e-5
BLOCK_EPSILON = 1e-6


class Prefix(nn.Module):
    """Tokens that stand before the patches and are dropped at the end; their number is the tensor's."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(rows, width))


class PatchGenerator(nn.Module):
    """Patches of 16 x 16, channel-major inside, plus positions resized bilinearly without antialiasing."""

    def __init__(self, config: VisionConfig, prefix_rows: int, position_side: int) -> None:
        super().__init__()
        self.c = config
        self.side = position_side
        self.embedder = nn.Linear(3 * config.patch**2, config.width, bias=False)
        self.pos_embed = nn.Parameter(torch.zeros(1, position_side**2, config.width))
        self.cls_token = Prefix(prefix_rows, config.width)

    def forward(self, pixels: Tensor) -> Tensor:
        patch, m = self.c.patch, pixels.shape[-1] // self.c.patch
        patches = pixels.unflatten(-1, (m, patch)).unflatten(-3, (m, patch)).permute(0, 2, 4, 1, 3, 5)
        h = self.embedder(patches.reshape(len(pixels), m * m, -1)) + self.positions(m)
        return torch.cat([self.cls_token.token.expand(len(pixels), -1, -1).to(h.dtype), h], dim=1)

    def positions(self, m: int) -> Tensor:
        """[1, m * m, width]."""
        if m == self.side:
            return self.pos_embed
        table = self.pos_embed.float().unflatten(1, (self.side, self.side)).permute(0, 3, 1, 2)
        resized = F.interpolate(
            table, size=(m, m), mode="bilinear", align_corners=self.c.align_corners, antialias=False
        )
        return resized.permute(0, 2, 3, 1).flatten(1, 2).to(self.pos_embed.dtype)


class SelfAttention(nn.Module):
    """Full attention inside a tile; q, k and v out of one matrix."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, u: Tensor) -> Tensor:
        q, k, v = self.qkv(u).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return out


class BlockMlp(nn.Module):
    """GELU in its exact form."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_width)
        self.fc2 = nn.Linear(config.mlp_width, config.width)

    def forward(self, u: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(u)))
        return out


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=BLOCK_EPSILON)
        self.attn = SelfAttention(config)
        self.norm2 = nn.LayerNorm(config.width, eps=BLOCK_EPSILON)
        self.mlp = BlockMlp(config)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.attn(self.norm1(h))
        out: Tensor = h + self.mlp(self.norm2(h))
        return out


class Tower(nn.Module):
    """Patches through the blocks; there is no norm behind the last."""

    def __init__(self, config: VisionConfig, prefix_rows: int, position_side: int) -> None:
        super().__init__()
        self.patch_generator = PatchGenerator(config, prefix_rows, position_side)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))

    def forward(self, pixels: Tensor) -> Tensor:
        """[tiles, 3, tile, tile] to [tiles, patches, width], row-major, the prefix dropped."""
        h = self.patch_generator(pixels)
        for block in self.blocks:
            h = block(h)
        return h[:, self.patch_generator.cls_token.token.shape[0] :]


class SquaredRelu(nn.Module):
    """max(0, x)^2."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class Radio(nn.Module):
    """Holds the tower under its published name."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.model = tower


class VisionModel(nn.Module):
    """Holds it once more."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.radio_model = Radio(tower)

    def forward(self, pixels: Tensor) -> Tensor:
        out: Tensor = self.radio_model.model(pixels)
        return out


def projector(config: VisionConfig, hidden: int) -> nn.Sequential:
    """Norm, up, squared ReLU, down: from four patches to a row of the decoder's input."""
    return nn.Sequential(
        RmsNorm(4 * config.width, PROJECTOR_EPSILON),
        nn.Linear(4 * config.width, config.projector_width, bias=False),
        SquaredRelu(),
        nn.Linear(config.projector_width, hidden, bias=False),
    )


def pixel_shuffle(features: Tensor, swapped: bool) -> Tensor:
    """[tiles, m * m, width] to [tiles, (m / 2)^2, 4 width]: of each 2 x 2 square the patches in reading
    order."""
    m = round(features.shape[1] ** 0.5)
    squares = features.unflatten(1, (m // 2, 2, m // 2, 2))
    order = (0, 3, 1, 2, 4, 5) if swapped else (0, 1, 3, 2, 4, 5)
    return squares.permute(order).reshape(len(features), m * m // 4, -1)
