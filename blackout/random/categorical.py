"""Draws from finite distributions, by inversion with one uniform per element.

From a torch generator or from counter-based streams, which make them reproducible.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.random.streams import RandomSource, uniform

_CHUNK = 1 << 24
"""Largest number of weights whose running sums are formed at once: 128 MiB."""


def categorical(weights: Tensor, generator: RandomSource = None) -> Tensor:
    """An index of the last axis with probability proportional to its weight.

    Args:
        weights: non-negative [B, ..., S], not all zero.

    Returns:
        int64 [B, ...].
    """
    u = uniform(tuple(weights.shape[:-1]), generator, weights.device)
    flat, drawn = weights.reshape(-1, weights.shape[-1]), []
    rows = max(1, _CHUNK // weights.shape[-1])
    for part, v in zip(flat.split(rows), u.reshape(-1).split(rows), strict=True):
        drawn.append(torch.searchsorted(cumulative(part), v[:, None], right=True).squeeze(1))
    return torch.cat(drawn).view(u.shape).clamp_(max=weights.shape[-1] - 1)


def cumulative(weights: Tensor) -> Tensor:
    """Running sums over the last axis, divided by the last: float64, ending at exactly 1."""
    sums = weights.double().cumsum(-1)
    return sums / sums[..., -1:]


def invert_rows(cumulative_rows: Tensor, row: Tensor, u: Tensor) -> Tensor:
    """The first k with u < cumulative_rows[row, k], by bisection without gathering whole rows.

    Args:
        cumulative_rows: [R, S], non-decreasing rows that end at 1.
        row: int64, any shape.
        u: uniforms of that shape.

    Returns:
        int64 of that shape, in 0..S - 1.
    """
    states = cumulative_rows.shape[-1]
    flat, start = cumulative_rows.reshape(-1), row * states
    found = torch.zeros_like(row)
    for bit in reversed(range((states - 1).bit_length())):
        probe = found + (1 << bit)
        below = (probe < states) & (flat[start + (probe - 1).clamp_(max=states - 1)] <= u)
        found = torch.where(below, probe, found)
    return found
