"""The decoder: every layer holds one mixer (Mamba-2, MLP, attention or experts). Modules are named as the
published tensors are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from .config import ExpertsConfig, TextConfig
from .scan import chunked_scan


@dataclass(slots=True)
class State:
    """What a sequence leaves behind, by layer: the last conv inputs [batch, conv - 1, width], the SSM state
    [batch, heads, size, n], keys and values [batch, kv heads, time, size]."""

    conv: dict[int, Tensor] = field(default_factory=dict)
    ssm: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def expand(self, batch: int) -> State:
        """The state of one sequence as that of `batch` that go on from it; gradients of all of them flow back
        into it."""
        parts = (
            {layer: tensor.expand(batch, *tensor.shape[1:]) for layer, tensor in part.items()}
            for part in (self.conv, self.ssm, self.keys, self.values)
        )
        return State(*parts)


@dataclass(slots=True)
class Span:
    """What a pass over [batch, time] needs to know besides its rows."""

    segments: Tensor | None = None
    """[batch, time]: sequences packed side by side; where the number changes, another sequence begins."""
    before: State | None = None
    """State before the pass; not with `segments`."""
    after: State | None = None
    """State that the pass fills in, if given; then no sequence may be padded."""
    chunk: int = 64
    mask: Tensor | None = None
    """[batch, 1, time, past + time], made once for all layers."""


def widened(x: Tensor) -> Tensor:
    """In float32 at least: norms, the scan and scores are never computed in fewer bits."""
    return x if x.dtype == torch.float64 else x.float()


class RmsNorm(nn.Module):
    """w x / sqrt(mean(x^2) + epsilon) over the last axis, statistics in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(widened(x), self.weight.shape, widened(self.weight), self.epsilon).to(x.dtype)


class GroupNorm(nn.Module):
    """The gated norm of a Mamba mixer: gate first, then RMS over each group apart."""

    def __init__(self, width: int, groups: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.groups, self.epsilon = groups, epsilon

    def forward(self, y: Tensor, gate: Tensor) -> Tensor:
        gated = widened(y) * F.silu(widened(gate))
        grouped = gated.unflatten(-1, (self.groups, -1))
        normed = F.rms_norm(grouped, grouped.shape[-1:], None, self.epsilon).flatten(-2)
        return (normed * widened(self.weight)).to(gate.dtype)


class CausalConv(nn.Module):
    """Depthwise over time, the last tap being the present token, then SiLU."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, 1, taps))
        self.bias = nn.Parameter(torch.zeros(width))
        self.taps = taps

    def forward(self, x: Tensor, span: Span, layer: int) -> Tensor:
        batch, time, width = x.shape
        past = x.new_zeros(batch, self.taps - 1, width) if span.before is None else span.before.conv[layer]
        window = torch.cat([past, x], dim=1)
        if span.after is not None:
            span.after.conv[layer] = window[:, time:]
        mixed = self.bias.expand_as(x)
        for tap in range(self.taps):
            inputs = window[:, tap : tap + time]
            back = self.taps - 1 - tap
            if span.segments is not None and back:
                same = span.segments[:, back:] == span.segments[:, :-back]
                inputs = inputs * F.pad(same, (back, 0)).unsqueeze(-1).to(x.dtype)
            mixed = mixed + inputs * self.weight[:, 0, tap]
        return F.silu(mixed)


class Mamba(nn.Module):
    """A Mamba-2 mixer: gate, x, B, C and dt out of one projection, in this order."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.c = config
        self.in_proj = nn.Linear(
            config.hidden, config.inner + config.conv_width + config.mamba_heads, bias=False
        )
        self.conv1d = CausalConv(config.conv_width, config.conv)
        self.A_log = nn.Parameter(torch.zeros(config.mamba_heads))
        self.D = nn.Parameter(torch.ones(config.mamba_heads))
        self.dt_bias = nn.Parameter(torch.zeros(config.mamba_heads))
        self.norm = GroupNorm(config.inner, config.groups, config.epsilon)
        self.out_proj = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, u: Tensor, span: Span, layer: int) -> Tensor:
        c = self.c
        gate, wide, dt = self.in_proj(u).split([c.inner, c.conv_width, c.mamba_heads], dim=-1)
        wide = widened(self.conv1d(wide, span, layer))
        x, b, cc = wide.split([c.inner, c.groups * c.state, c.groups * c.state], dim=-1)
        x = x.unflatten(-1, (c.mamba_heads, c.mamba_head_dim))
        b, cc = (part.unflatten(-1, (c.groups, c.state)) for part in (b, cc))
        dt = F.softplus(widened(dt) + widened(self.dt_bias))
        past = None if span.before is None else span.before.ssm[layer]
        y, state = chunked_scan(x, dt, -widened(self.A_log).exp(), b, cc, span.chunk, span.segments, past)
        if span.after is not None:
            span.after.ssm[layer] = state
        y = (y + widened(self.D).unsqueeze(-1) * x).flatten(-2)
        return self.out_proj(self.norm(y, gate).to(u.dtype))


class Attention(nn.Module):
    """Grouped queries, causal, no positions."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.c = config
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)

    def forward(self, u: Tensor, span: Span, layer: int) -> Tensor:
        q, k, v = (
            proj(u).unflatten(-1, (-1, self.c.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if span.before is not None:
            k = torch.cat([span.before.keys[layer], k], dim=2)
            v = torch.cat([span.before.values[layer], v], dim=2)
        if span.after is not None:
            span.after.keys[layer], span.after.values[layer] = k, v
        each = self.c.heads // self.c.kv_heads
        k, v = (part.repeat_interleave(each, dim=1) for part in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=span.mask, is_causal=span.mask is None)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    """Squared ReLU, no gate."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, u: Tensor, span: Span | None = None, layer: int = 0) -> Tensor:
        return self.down_proj(F.relu(self.up_proj(u)).square())


class Gate(nn.Module):
    """The router's matrix and the correction that balances the choice."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, hidden))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(experts), requires_grad=False)


class Experts(nn.Module):
    """Sigmoid router: experts are chosen by the corrected score and weighted by the uncorrected one; a shared
    expert is always added."""

    def __init__(self, config: TextConfig, experts: ExpertsConfig) -> None:
        super().__init__()
        self.e = experts
        width = experts.latent or config.hidden
        self.gate = Gate(config.hidden, experts.experts)
        self.experts = nn.ModuleList(Mlp(width, experts.width) for _ in range(experts.experts))
        self.shared_experts = Mlp(config.hidden, experts.shared_width)
        if experts.latent:
            self.fc1_latent_proj = nn.Linear(config.hidden, experts.latent, bias=False)
            self.fc2_latent_proj = nn.Linear(experts.latent, config.hidden, bias=False)

    def forward(self, u: Tensor, span: Span, layer: int) -> Tensor:
        flat = u.flatten(0, -2)
        chosen, share = self.route(flat)
        low = self.fc1_latent_proj(flat) if self.e.latent else flat
        out = torch.zeros_like(low)
        for index, expert in enumerate(self.experts):
            row, column = (chosen == index).nonzero(as_tuple=True)
            if len(row):
                out = out.index_add(0, row, expert(low[row]) * share[row, column].unsqueeze(-1).to(low.dtype))
        if self.e.latent:
            out = self.fc2_latent_proj(out)
        return (out + self.shared_experts(flat)).view_as(u)

    def route(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Experts [rows, per token] and their weights."""
        e = self.e
        scores = F.linear(widened(flat), widened(self.gate.weight)).sigmoid()
        choice = scores + widened(self.gate.e_score_correction_bias)
        if e.groups > 1:
            by_group = choice.unflatten(-1, (e.groups, -1))
            rating = by_group.topk(2, dim=-1).values.sum(-1)
            kept = (
                torch.zeros_like(rating).scatter(-1, rating.topk(e.groups_kept, dim=-1).indices, 1.0).bool()
            )
            choice = by_group.masked_fill(~kept.unsqueeze(-1), -math.inf).flatten(-2)
        chosen = choice.topk(e.per_token, dim=-1).indices
        share = scores.gather(-1, chosen)
        if e.normalise:
            share = share / (share.sum(-1, keepdim=True) + 1e-20)
        return chosen, share * e.scale


class Layer(nn.Module):
    """h + mixer(norm(h))."""

    def __init__(self, config: TextConfig, kind: str) -> None:
        super().__init__()
        self.norm = RmsNorm(config.hidden, config.epsilon)
        self.mixer: nn.Module
        if kind == "M":
            self.mixer = Mamba(config)
        elif kind == "*":
            self.mixer = Attention(config)
        elif kind == "-":
            self.mixer = Mlp(config.hidden, config.mlp_width)
        else:
            assert config.experts is not None
            self.mixer = Experts(config, config.experts)

    def forward(self, h: Tensor, span: Span, layer: int) -> Tensor:
        out: Tensor = h + self.mixer(self.norm(h), span, layer)
        return out


class Backbone(nn.Module):
    """Embeddings, layers, the last norm."""

    def __init__(self, config: TextConfig, embedding_rows: int) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(embedding_rows, config.hidden)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config.layers)
        self.norm_f = RmsNorm(config.hidden, config.epsilon)


class Language(nn.Module):
    """The whole decoder. The head's rows may be fewer than the ids that can be embedded."""

    def __init__(
        self, config: TextConfig, embedding_rows: int | None = None, head_rows: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config, embedding_rows or config.vocabulary)
        self.lm_head = nn.Linear(config.hidden, head_rows or config.vocabulary, bias=False)
        self.recompute = False
        """Trades time for memory: a layer's inner values are computed again when gradients flow back."""

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the table; an id outside it (an image's placeholder) gets row 0, which is then replaced."""
        return self.backbone.embeddings(torch.where(ids < self.backbone.embeddings.num_embeddings, ids, 0))

    def forward(self, h: Tensor, span: Span | None = None) -> Tensor:
        """Rows [batch, time, hidden] become the last norm's output, of the same shape; `logits` turns it into
        scores."""
        span = span or Span(chunk=self.config.chunk)
        assert span.segments is None or (span.before is None and span.after is None), (
            "a packed row has no state"
        )
        span.mask = self._mask(h, span)
        for index, layer in enumerate(self.backbone.layers):
            if self.recompute and torch.is_grad_enabled() and span.after is None:
                h = torch.utils.checkpoint.checkpoint(layer, h, span, index, use_reentrant=False)
            else:
                h = layer(h, span, index)
        out: Tensor = self.backbone.norm_f(h)
        return out

    def logits(self, h: Tensor) -> Tensor:
        """Scores of rows [.., hidden], in float32."""
        return widened(self.lm_head(h))

    def _mask(self, h: Tensor, span: Span) -> Tensor | None:
        """`None`: plain causal. Padding stands behind its sequence, so no token of a sequence attends to
        it."""
        time = h.shape[1]
        if span.segments is not None:
            same = span.segments.unsqueeze(-1) == span.segments.unsqueeze(-2)
            return (same & torch.ones(time, time, dtype=torch.bool, device=h.device).tril()).unsqueeze(1)
        if span.before is None or not span.before.keys:
            return None
        past = next(iter(span.before.keys.values())).shape[2]
        return torch.ones(time, past + time, dtype=torch.bool, device=h.device).tril(past)[None, None]
