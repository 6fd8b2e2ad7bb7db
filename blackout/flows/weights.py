"""What is estimated from chains: d log Z_t / dt from states of (about) p_t; log Z, ESS and means from weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from blackout.flows.targets import Target, exact_values
from blackout.random import cumulative

Estimator: TypeAlias = Literal["plain", "stein", "stein_optimal"]


def plain(dlogp_dt: Tensor, control: Tensor) -> Tensor:
    """E f, the plain Monte Carlo estimate: f [..., M], g [..., M] -> [...] [Ou 2025, section 3.1]."""
    return dlogp_dt.mean(-1)


def with_stein(dlogp_dt: Tensor, control: Tensor) -> Tensor:
    """E (f - g) = E xi: the Stein control variate with coefficient 1, best if the rates are right [Ou 2025, eq. 8]."""
    return (dlogp_dt - control).mean(-1)


def with_optimal_stein(dlogp_dt: Tensor, control: Tensor) -> Tensor:
    """E (f - beta g) with beta = Cov(f, g) / Var g, which leaves Var f (1 - Corr(f, g)^2) [Ou 2025, eqs. 16 and 17]."""
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
    """(sum e^w)^2 / (N sum e^2w), a share of N in (0, 1], over the last axis [Ou 2025, eq. 38]."""
    total = 2 * torch.logsumexp(log_weights, -1) - torch.logsumexp(2 * log_weights, -1)
    return total.exp() / log_weights.shape[-1]


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """log of the mean of e^w over the last axis: the estimate of log Z [Ou 2025, eq. 30, the denominator]."""
    return torch.logsumexp(log_weights, -1) - math.log(log_weights.shape[-1])


def relative_error(log_weights: Tensor) -> Tensor:
    """Standard error of the mean of e^w [N] relative to it, which is that of log Z; no use below an ESS of 0.05."""
    weights = (log_weights - log_weights.max()).exp()
    return weights.std() / (weights.mean() * math.sqrt(len(weights)))


def weighted_mean(values: Tensor, log_weights: Tensor) -> tuple[float, float]:
    """sum softmax(w) h and its standard error by the delta method, of values and weights [N] [Ou 2025, eq. 39]."""
    share = torch.softmax(log_weights.double(), 0)
    mean = share @ values.double()
    return float(mean), float((share * (values.double() - mean)).square().sum().sqrt())


def systematic_resample(log_weights: Tensor, uniform: Tensor) -> Tensor:
    """Indices of as many draws as there are weights, with probabilities softmax(w), from one uniform [Kitagawa 1996].

    Args:
        log_weights: [..., N].
        uniform: [...].

    Returns:
        int64 [..., N], non-decreasing.
    """
    number = log_weights.shape[-1]
    edges = cumulative(torch.softmax(log_weights.double(), -1))
    points = (torch.arange(number, device=edges.device) + uniform[..., None]) / number
    return torch.searchsorted(edges, points, right=True).clamp_(max=number - 1)


def estimates(target: Target, x: Tensor, log_weights: Tensor, log_density: Tensor) -> dict[str, float]:
    """log Z with error and lower bound, ESS, and weighted means with errors.

    Args:
        x: states, integers [N, d].
        log_weights, log_density: [N].
    """
    w = log_weights.double()
    values = {
        "log_z": float(log_mean_exp(w)),
        "log_z_error": float(relative_error(w)) if len(w) > 1 else math.nan,
        "log_z_lower": float(w.mean()),
        "ess": float(effective_sample_size(w)),
    }
    for name, value in {"energy": -log_density, **target.statistics(x)}.items():
        values[f"mean_{name}"], values[f"mean_{name}_error"] = weighted_mean(value, w)
    return values


def known_values(target: Target) -> dict[str, float]:
    """The exact values of what `estimates` estimates, as far as they are within reach."""
    known = dict(exact_values(target) or {})
    if "mean_log_density" in known:
        known["mean_energy"] = -known.pop("mean_log_density")
    return {f"{name}_exact": value for name, value in known.items()}
