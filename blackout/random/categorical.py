"""Draws from finite distributions, by inversion with one uniform per element, and Gamma and negative binomial draws.

From a torch generator or from counter-based streams, which make them reproducible.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blackout.random.counts import first_accepted, poisson
from blackout.random.streams import RandomSource, can_look, next_draw, uniform

_CHUNK = 1 << 24
"""Largest number of weights whose running sums are formed at once: 128 MiB."""
_ATTEMPTS = 16
"""At most 5 % of the proposals of a Gamma draw are refused, and 0.05^16 < 2^-69."""


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


def negative_binomial(size: Tensor, mean: Tensor, generator: RandomSource = None) -> Tensor:
    """Negative binomial counts of the given mean and variance mean + mean^2 / size, elementwise.

    A Poisson count whose rate is Gamma distributed.

    Args:
        size: float64, positive, any shape [B, ...].
        mean: float64, non-negative, the same shape.

    Returns:
        Float64 whole numbers of the same shape.
    """
    return poisson(gamma(size, generator) * (mean / size), generator)


def gamma(shape: Tensor, generator: RandomSource = None) -> Tensor:
    """Gamma(shape, scale 1), elementwise, float64, by rejection [Marsaglia 2000].

    Args:
        shape: float64, positive, any shape [B, ...]. Below 1 the draw is that of shape + 1 times U^(1 / shape).

    Returns:
        Float64 of the same shape.
    """
    draw = next_draw(generator, shape.device)
    alpha = shape.to(torch.float64).reshape(-1)
    if can_look(alpha) and not bool(torch.isfinite(alpha).all()):  # it would be tried for ever
        raise ValueError("a shape of a Gamma distribution is not finite")
    d = torch.where(alpha < 1, alpha + 1, alpha) - 1 / 3

    def numbers(attempt: int, where: Tensor | None) -> Tensor:
        """Uniforms above 0, one for each of the elements at flat indices `where`; None for all."""
        return draw.uniform(tuple(shape.shape), attempt, where).view(-1).clamp_(min=2.0**-54)

    def proposed(attempt: int, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """(proposals, whether each is accepted)."""
        u, v, height = (numbers(1 + 3 * attempt + i, where) for i in range(3))
        x = torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * math.pi * v)  # standard normal [Box and Muller 1958]
        scale = d if where is None else d[where]
        cube = (1 + 1 / torch.sqrt(9 * scale) * x) ** 3
        # accept where log U < x^2 / 2 + d (1 - v + log v): then d v is Gamma(d + 1/3)
        log_ratio = 0.5 * x**2 + scale * (1 - cube + torch.log(cube.clamp(min=1e-300)))
        return scale * cube, (cube > 0) & (torch.log(height) < log_ratio)

    drawn = first_accepted(proposed, alpha, _ATTEMPTS)
    small = (alpha < 1).nonzero().squeeze(1) if can_look(alpha) else None
    if small is None:
        drawn = torch.where(alpha < 1, drawn * torch.exp(torch.log(numbers(0, None)) / alpha), drawn)
    elif small.numel():
        drawn[small] *= torch.exp(torch.log(numbers(0, small)) / alpha[small])
    return drawn.view(shape.shape)
