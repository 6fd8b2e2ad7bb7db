"""The Kolmogorov forward equation: its residual at a state, and the integral of it that weights are made of.

Rates out of x are [G]_+, rates into x from its neighbours [-G]_+ by local equivariance; no evaluation elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor


def outgoing(scores: Tensor) -> Tensor:
    """Rates R(tau, i | x) = [G(tau, i | x)]_+, [B, d, S]."""
    return scores.clamp(min=0)


def incoming(scores: Tensor) -> Tensor:
    """Rates R(x_i, i | Swap(x, i, tau)) = [-G(tau, i | x)]_+, [B, d, S]."""
    return (-scores).clamp(min=0)


def stein(scores: Tensor, log_ratios: Tensor) -> Tensor:
    """g = sum_y R(x, y) p(y) / p(x), the Stein control variate: its mean under p_t is 0 for any rates.

    Args:
        scores: G, [B, d, S].
        log_ratios: log p_t(y) / p_t(x), of that shape.

    Returns:
        [B].
    """
    return (incoming(scores) * log_ratios.exp() - outgoing(scores)).sum((-1, -2))


def residual(slopes: Tensor, scores: Tensor, log_ratios: Tensor) -> Tensor:
    """xi = f - g; constant in x, and equal to d log Z_t / dt, if and only if the rates carry p_t. [B]."""
    return slopes - stein(scores, log_ratios)


def integrated_residual(slopes: Tensor, scores: Tensor, ratios: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The integral of xi over [a, b] while neither state nor G changes and log-ratios grow as t Delta.

    Args:
        slopes: f, [B].
        scores: G, [B, d, S].
        ratios: Delta, the log-ratios at t = 1, of that shape.
        a, b: times [B].

    Returns:
        [B], float64.
    """
    length = b - a
    growth = exponential_integral(ratios, a[:, None, None], length[:, None, None])
    return (slopes + outgoing(scores).sum((-1, -2))) * length - (incoming(scores) * growth).sum((-1, -2))


def exponential_integral(ratios: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """The integral of e^(s Delta) over [start, start + length]; `length` itself where Delta is 0."""
    safe = torch.where(ratios == 0, 1.0, ratios)
    return torch.where(ratios == 0, length, (start * safe).exp() * torch.expm1(length * safe) / safe)
