"""The Mamba-2 recurrence over a whole sequence, in chunks: matrix products that give what the recurrence
gives, token by token.

```text
S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t + D x_t

Within a chunk that begins with state S, L_t = sum_{r<=t} dt_r A:

y_t = sum_{s<=t} exp(L_t - L_s) dt_s (C_t . B_s) x_s  +  exp(L_t) S C_t  +  D x_t
S'  = exp(L_Q) S + sum_s exp(L_Q - L_s) dt_s x_s B_s^T
```

All exponents are <= 0. dt has no floor: transformers' chunked path lifts dt to `time_step_min`, and then
prefill and decode differ.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def chunked_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    chunk: int,
    segments: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Runs the recurrence (without `D x`).

    Args:
        x: [batch, time, heads, size].
        dt: [batch, time, heads], after softplus; 0 at padding, which then leaves the state alone.
        a: [heads], negative.
        b, c: [batch, time, groups, state]; head h uses group h // (heads / groups).
        chunk: tokens a chunk; does not change the result.
        segments: [batch, time]; where the number changes, the state begins anew.
        state: [batch, heads, size, state] before the first token; zeros where absent.

    Returns:
        y as x, and the state behind the last token.
    """
    batch, time, heads, size = x.shape
    groups, n = b.shape[2:]
    each = heads // groups
    chunk = min(chunk, time)
    count = -(-time // chunk)
    pad = count * chunk - time
    if pad:
        x, b, c = (F.pad(v, (0, 0, 0, 0, 0, pad)) for v in (x, b, c))
        dt = F.pad(dt, (0, 0, 0, pad))
        if segments is not None:
            segments = torch.cat([segments, segments[:, -1:].expand(batch, pad)], dim=1)

    # [batch, chunks, groups, heads of a group, time in the chunk, ..]
    log_decay = (dt * a).view(batch, count, chunk, groups, each).permute(0, 1, 3, 4, 2).cumsum(-1)
    inputs = (x * dt.unsqueeze(-1)).view(batch, count, chunk, groups, each, size).permute(0, 1, 3, 4, 2, 5)
    b = b.view(batch, count, chunk, groups, 1, n).permute(0, 1, 3, 4, 2, 5)
    c = c.view(batch, count, chunk, groups, 1, n).permute(0, 1, 3, 4, 2, 5)

    sees = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    to_end = log_decay[..., -1:] - log_decay
    from_start = log_decay.exp()
    end_decay = log_decay[..., -1].exp()
    if segments is not None:
        seg = segments.view(batch, count, chunk)
        sees = sees & (seg.unsqueeze(-1) == seg.unsqueeze(-2))[:, :, None, None]
        before = torch.cat([seg[:, :1, 0], seg[:, :-1, -1]], dim=1)
        from_start = from_start * (seg == before.unsqueeze(-1))[:, :, None, None].to(x.dtype)
        to_end = to_end.masked_fill((seg != seg[..., -1:])[:, :, None, None], -torch.inf)
        end_decay = end_decay * (seg[..., -1] == before)[:, :, None, None].to(x.dtype)

    weights = (log_decay.unsqueeze(-1) - log_decay.unsqueeze(-2)).masked_fill(~sees, -torch.inf).exp()
    y = (weights * (c @ b.transpose(-1, -2))) @ inputs

    added = (inputs * to_end.exp().unsqueeze(-1)).transpose(-1, -2) @ b
    now = (
        x.new_zeros(batch, groups, each, size, n)
        if state is None
        else state.view(batch, groups, each, size, n)
    )
    starts = []
    for index in range(count):
        starts.append(now)
        now = end_decay[:, index, ..., None, None] * now + added[:, index]
    y = y + from_start.unsqueeze(-1) * (c @ torch.stack(starts, dim=1).transpose(-1, -2))
    y = y.permute(0, 1, 4, 2, 3, 5).reshape(batch, count * chunk, heads, size)[:, :time]
    return y, now.reshape(batch, heads, size, n)
