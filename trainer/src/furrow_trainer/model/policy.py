"""Decoder and encoder as one module: tokens and tiles in, log-probabilities out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import ModelConfig
from .language import Language, Span, State
from .vision import Tower, VisionModel, pixel_shuffle, projector


class Sizes:
    """Numbers of rows that only a checkpoint's tensors know: of the embedding table, the head, the encoder's
    prefix and positions."""

    def __init__(
        self,
        config: ModelConfig,
        embedding_rows: int = 0,
        head_rows: int = 0,
        prefix_rows: int = 8,
        position_side: int = 0,
    ) -> None:
        self.embedding_rows = embedding_rows or config.text.vocabulary
        self.head_rows = head_rows or config.text.vocabulary
        self.prefix_rows = prefix_rows
        self.position_side = position_side or (config.vision.position_side if config.vision else 0)


class Policy(nn.Module):
    """The policy. Parameters carry the names of the published VL checkpoint; a text model has only those of
    `language_model.`."""

    def __init__(self, config: ModelConfig, sizes: Sizes | None = None) -> None:
        super().__init__()
        sizes = sizes or Sizes(config)
        self.config = config
        self.language_model = Language(config.text, sizes.embedding_rows, sizes.head_rows)
        self.vision_model: VisionModel | None = None
        self.mlp1: nn.Sequential | None = None
        if config.vision:
            self.vision_model = VisionModel(Tower(config.vision, sizes.prefix_rows, sizes.position_side))
            self.mlp1 = projector(config.vision, config.text.hidden)

    def image_rows(self, pixels: Tensor) -> Tensor:
        """Normalised tiles [tiles, 3, tile, tile] to [tiles, rows a tile, hidden]."""
        assert self.vision_model is not None and self.mlp1 is not None and self.config.vision is not None, (
            "a text model reads no images"
        )
        out: Tensor = self.mlp1(pixel_shuffle(self.vision_model(pixels), self.config.vision.swapped))
        return out

    def embed(self, ids: Tensor, rows: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """[batch, time] to [batch, time, hidden].

        Args:
            ids: tokens.
            rows: [placements, hidden] of images.
            positions: [placements] indices into the flattened ids, in the order of `rows`; without them, all
                placeholders.

        Raises:
            ValueError: when there are not as many rows as positions.
        """
        h = self.language_model.embed(ids)
        if self.config.vision is None or rows is None:
            return h
        if positions is None:
            positions = (ids.flatten() == self.config.vision.image_token).nonzero().squeeze(-1)
        if len(positions) != len(rows):
            raise ValueError(f"{len(positions)} placeholders for {len(rows)} rows of images")
        return h.flatten(0, 1).index_copy(0, positions, rows.to(h.dtype)).view_as(h)

    def forward(
        self,
        ids: Tensor,
        rows: Tensor | None = None,
        span: Span | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Hidden rows [batch, time, hidden] behind the last norm; row t scores what follows token t."""
        out: Tensor = self.language_model(self.embed(ids, rows, positions), span)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 scores over the vocabulary."""
        return self.language_model.logits(hidden)

    @torch.no_grad()
    def generate(self, ids: Tensor, count: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The greedy continuation of one sequence [1, time], token by token: ids [count] and logits [count,
        vocabulary]."""
        chunk = self.config.text.chunk
        state = State()
        hidden = self(ids, rows, Span(chunk=chunk, after=state))[:, -1:]
        chosen, scores = [], []
        for _ in range(count):
            logits = self.logits(hidden)[0, -1]
            scores.append(logits)
            chosen.append(logits.argmax())
            after = State()
            hidden = self(chosen[-1].view(1, 1), None, Span(chunk=chunk, before=state, after=after))
            state = after
        return torch.stack(chosen), torch.stack(scores)
