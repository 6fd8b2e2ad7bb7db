"""Estimators of d log Z_t / dt from samples of (about) p_t, and of log Z from weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Estimator: TypeAlias = Literal["plain", "stein", "stein_optimal"]


def plain(dlogp_dt: Tensor, control: Tensor) -> Tensor:
    """E f, the plain Monte Carlo estimate: f [..., M], g [..., M] -> [...]."""
    return dlogp_dt.mean(-1)


def with_stein(dlogp_dt: Tensor, control: Tensor) -> Tensor:
    """E (f - g) = E xi: the Stein control variate with coefficient 1, best where the rates are right."""
    return (dlogp_dt - control).mean(-1)


def with_optimal_stein(dlogp_dt: Tensor, control: Tensor) -> Tensor:
    """E (f - beta g) with beta = Cov(f, g) / Var g, which leaves Var f (1 - Corr(f, g)^2)."""
    centred = control - control.mean(-1, keepdim=True)
    variance = centred.square().sum(-1)
    beta = (centred * dlogp_dt).sum(-1) / variance.clamp(min=1e-300)
    return dlogp_dt.mean(-1) - torch.where(variance > 0, beta, 0.0) * control.mean(-1)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": plain,
    "stein": with_stein,
    "stein_optimal": with_optimal_stein,
}


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(sum e^w)^2 / (N sum e^2w), a share of N in (0, 1], over the last axis."""
    total = 2 * torch.logsumexp(log_weights, -1) - torch.logsumexp(2 * log_weights, -1)
    return total.exp() / log_weights.shape[-1]


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """log of the mean of e^w over the last axis: the estimate of log Z."""
    return torch.logsumexp(log_weights, -1) - math.log(log_weights.shape[-1])


def relative_error(log_weights: Tensor) -> Tensor:
    """Standard error of the mean of e^w relative to it, which is that of log Z; no use below an ESS of 0.05."""
    weights = (log_weights - log_weights.max()).exp()
    return weights.std() / (weights.mean() * math.sqrt(len(weights)))


def weighted_mean(values: Tensor, log_weights: Tensor) -> tuple[float, float]:
    """sum softmax(w) h and its standard error by the delta method."""
    share = torch.softmax(log_weights.double(), 0)
    mean = share @ values.double()
    return float(mean), float((share * (values.double() - mean)).square().sum().sqrt())


def systematic_resample(log_weights: Tensor, uniform: Tensor) -> Tensor:
    """Indices of as many draws as there are weights, with probabilities softmax(w), from one uniform.

    Args:
        log_weights: [..., N].
        uniform: [...].

    Returns:
        int64 [..., N], non-decreasing.
    """
    number = log_weights.shape[-1]
    edges = torch.softmax(log_weights.double(), -1).cumsum(-1)
    points = (torch.arange(number, device=edges.device) + uniform[..., None]) / number
    return torch.searchsorted(edges / edges[..., -1:], points, right=True).clamp_(max=number - 1)
