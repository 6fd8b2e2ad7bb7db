"""Poisson and binomial draws from streams, written with PyTorch's operations for any device.

Counts with a mean below 10 are drawn by sequential search, others by transformed rejection with
squeeze. Everything is computed in float64. `numba_draws` and `triton_draws` are compiled versions,
which must give the same counts.

On a CPU, a loop ends with the last element that needs it. Elsewhere the host would have to wait for
the device to know when that is, so loops have a fixed length, to the same result.

References: Hoermann 1993, "The transformed rejection method for generating Poisson random
variables" (PTRS) and "The generation of binomial random variates" (BTRS).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.random.streams import INVERSION_LIMIT, SEARCH_LIMIT, Draw, can_read_values

MAX_ATTEMPTS = 36  # at most 30 % of the proposals are rejected, and 0.3^36 < 2^-62
SQUEEZE_EDGE = 0.07  # distance of U from +-1/2 from which the squeeze applies (Hoermann 1993)


@dataclass(frozen=True)
class Hat:
    """Hat function of transformed rejection; all tensors are float64 of one shape [B, ...].

    A proposal is k = floor((2 a / (1/2 - |U|) + b) U + center) for a uniform U in (-1/2, 1/2).
    """

    a: Tensor
    b: Tensor
    center: Tensor
    squeeze: Tensor  # proposals with V below this are accepted immediately
    log_ratio: Callable[[Tensor], Tensor]  # log of pmf(k) / hat, for whole numbers k [B, ...]
    max_count: Tensor | None = None  # largest possible count; None for no limit


def poisson(draw: Draw, rate: Tensor) -> Tensor:
    """Draw Poisson(rate).

    Args:
        draw: random numbers.
        rate: non-negative, float64 [B, ...].

    Returns:
        Whole numbers, float64 [B, ...].

    Raises:
        ValueError: a rate is not finite.

    References: Hoermann 1993, algorithm PTRS, with its constants.
    """
    is_small = rate < INVERSION_LIMIT
    prob_zero = torch.where(is_small, torch.exp(-rate), 1.0)
    counts = _sequential_search(draw, prob_zero, lambda k: rate / (k + 1))
    if can_read_values(counts) and bool(is_small.all()):
        return counts

    b = 0.931 + 2.53 * torch.sqrt(rate)
    log_hat = torch.log(1.1239 + 1.1328 / (b - 3.4))
    log_rate = torch.log(rate)

    def log_ratio(k: Tensor) -> Tensor:
        return k * log_rate - rate - torch.lgamma(k + 1) - log_hat

    hat = Hat(
        a=-0.059 + 0.02483 * b,
        b=b,
        center=rate + 0.43,
        squeeze=0.9277 - 3.6224 / (b - 2),
        log_ratio=log_ratio,
    )
    return _transformed_rejection(draw, hat, counts, ~is_small)


def binomial(draw: Draw, n: Tensor, p: Tensor) -> Tensor:
    """Draw Binomial(n, p).

    Args:
        draw: random numbers.
        n: non-negative whole numbers, float64 [B, ...].
        p: at most 1/2, float64 [B, ...].

    Returns:
        Whole numbers, float64 [B, ...].

    Raises:
        ValueError: a probability is not finite.

    References: Hoermann 1993, algorithm BTRS, with its constants.
    """
    is_small = n * p < INVERSION_LIMIT
    odds = p / (1 - p)
    prob_zero = torch.where(is_small, torch.exp(n * torch.log1p(-p)), 1.0)
    # P(k + 1) / P(k) = (n - k) / (k + 1) * p / (1 - p)
    counts = _sequential_search(draw, prob_zero, lambda k: (n - k).mul_(odds).div_(k + 1))
    if can_read_values(counts) and bool(is_small.all()):
        return counts

    std = torch.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * std
    log_hat = torch.log((2.83 + 5.1 / b) * std)
    log_odds = torch.log(p) - torch.log1p(-p)
    mode = torch.floor((n + 1) * p)
    log_mode = torch.lgamma(mode + 1) + torch.lgamma(n - mode + 1)

    def log_ratio(k: Tensor) -> Tensor:
        log_factorials = torch.lgamma(k + 1)
        return log_mode - log_factorials - torch.lgamma(n - k + 1) + (k - mode) * log_odds - log_hat

    hat = Hat(
        a=-0.0873 + 0.0248 * b + 0.01 * p,
        b=b,
        center=n * p + 0.5,
        squeeze=0.92 - 4.2 / b,
        log_ratio=log_ratio,
        max_count=n,
    )
    return _transformed_rejection(draw, hat, counts, ~is_small)


def _sequential_search(draw: Draw, prob_zero: Tensor, ratio: Callable[[int], Tensor]) -> Tensor:
    """Draw counts by inversion: subtract P(0), P(1), ... from a uniform until it is used up.

    Args:
        draw: random numbers.
        prob_zero: P(0), float64 [B, ...]; where it is 1 the count is 0.
        ratio: maps k to P(k + 1) / P(k), [B, ...].

    Returns:
        Whole numbers, float64 [B, ...].
    """
    counts = torch.zeros_like(prob_zero)
    mass = prob_zero.clone()
    remainder = draw.uniform(tuple(prob_zero.shape))
    for k in range(SEARCH_LIMIT):
        # An element that has stopped stays so: its remainder is at most its mass, hence then <= 0.
        # Where mass is 0 the support has ended, and the remainder is rounding.
        continues = (remainder > mass) & (mass > 0)
        if can_read_values(prob_zero) and not bool(continues.any()):
            break
        counts.add_(continues)
        remainder.sub_(mass)
        mass.mul_(ratio(k))
    return counts


def _transformed_rejection(draw: Draw, hat: Hat, counts: Tensor, pending: Tensor) -> Tensor:
    """Replace counts where `pending` by the first accepted proposal; float64 and bool [B, ...].

    Attempt 0 of the draw belongs to the sequential search, so proposals use attempts from 1 on.
    """
    # a proposal that is not finite would never be accepted
    if can_read_values(counts) and not bool(torch.isfinite(hat.center).all()):
        raise ValueError("a rate or probability is not finite")

    shape = tuple(counts.shape)
    counts = torch.where(pending, torch.nan, counts)
    for attempt in range(MAX_ATTEMPTS):
        u = draw.uniform(shape, 1 + 2 * attempt).sub_(0.5)
        v = draw.uniform(shape, 2 + 2 * attempt)
        edge = 0.5 - u.abs()
        k = torch.floor((2 * hat.a / edge + hat.b) * u + hat.center)

        is_possible = k >= 0
        if hat.max_count is not None:
            is_possible &= k <= hat.max_count
        log_height = torch.log(v) - torch.log(hat.a / edge**2 + hat.b)
        is_below = log_height <= hat.log_ratio(k)
        in_squeeze = (edge >= SQUEEZE_EDGE) & (v <= hat.squeeze)
        accepted = in_squeeze | (is_possible & is_below)

        counts = torch.where(pending & accepted, k, counts)
        pending = pending & ~accepted
        if can_read_values(counts) and not bool(pending.any()):
            break
    return counts
