"""Importance weights of chains, and what is estimated from them: log Z, ESS and means, with errors."""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from blackout.confidence_intervals import interval
from blackout.flows.targets import Target, exact_values

NORMAL = 1.96
"""Errors on either side of an estimate that make an interval of 95 %."""


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(sum e^w)^2 / (N sum e^2w), a share of N in (0, 1]: [..., N] -> [...] [Ou 2025, eq. 38]."""
    total = 2 * torch.logsumexp(log_weights, -1) - torch.logsumexp(2 * log_weights, -1)
    return total.exp() / log_weights.shape[-1]


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """log of the mean of e^w, [..., N] -> [...]: the estimate of log Z [Ou 2025, eq. 30, the denominator]."""
    return torch.logsumexp(log_weights, -1) - math.log(log_weights.shape[-1])


def jackknife(log_weights: Tensor, groups: Tensor | None = None, values: Tensor | None = None) -> float:
    """An error of log-mean-exp(w): the estimate +- 1.96 of it is an interval of at least 95 %. Or of sum softmax(w) h,
    whose interval holds the truth less often where h is skewed; `_ends` knows that.

    The standard error by leaving out one independent group after the other [Efron 1981], times what Student's t of so
    few groups asks for, and for log Z the skewness of their sums [Johnson 1978]; the laws of flows count how often
    intervals hold the truth.

    Args:
        log_weights: [N].
        groups: int64 [N], which group each is of: those resampled together; None where all are independent.
        values: h, [N]; None for log Z.

    Returns:
        A number; infinity for a single group.
    """
    without, share, size = _without(log_weights, groups, values)
    if (number := len(size)) < 2:
        return math.inf
    error = float(((number - 1) / number * (without - without.mean()).square().sum()).sqrt())
    # groups are too few to show how skewed they are: theirs is the quantile of an interval of 98 %
    quantile = float(stats.t.ppf(0.975 if groups is None else 0.99, number - 1))
    if values is None:
        apart = share / size - (share / size).mean()
        skewness = float((apart**3).mean() / apart.square().mean().pow(1.5).clamp(min=1e-300))
        quantile += max(0.0, skewness) * (1 + 2 * quantile**2) / (6 * math.sqrt(number))
    return error * quantile / NORMAL


def _without(log_weights: Tensor, groups: Tensor | None, values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Log-mean-exp or weighted mean without one group after the other, the groups' shares of the weight, and sizes.

    [G] each; as `jackknife` takes them [Efron 1981], of weights, groups and values [N]; without groups G is N.
    """
    share = torch.softmax(log_weights.double(), 0)
    numerator, size = share if values is None else share * values.double(), torch.ones_like(share)
    if groups is not None:
        names, groups = groups.unique(return_inverse=True)
        empty = torch.zeros(len(names), dtype=share.dtype, device=share.device)
        share, numerator, size = (empty.index_add(0, groups, part) for part in (share, numerator, size))
    # what rounding leaves of a sum whose one great term is taken away is no weight
    others = (share.sum() - share).clamp(min=1e-300)
    without = (others / (size.sum() - size)).log() if values is None else (numerator.sum() - numerator) / others
    return without, share, size


def potential_scale_reduction(values: Tensor, groups: Tensor) -> float:
    """R-hat of values [N] over groups, int64 [N]: near 1 where all groups tell the same [Gelman 1992]."""
    parts = [values[groups == name].double() for name in groups.unique()]
    parts = [part for part in parts if len(part) == len(parts[0]) > 1]  # what is left over is no whole group
    within = torch.stack([part.var() for part in parts]).mean() if parts else torch.zeros(())
    if len(parts) < 2 or not float(within):
        return math.nan
    size, between = len(parts[0]), torch.stack([part.mean() for part in parts]).var()
    return float(((size - 1) / size + between / within).sqrt())


def pareto_shape(log_weights: Tensor) -> float:
    """Shape of the generalised Pareto law of the largest weights: above 0.7 their variance is as good as infinite.

    Of log-weights [N], by the fit of [Zhang 2009] with the prior of [Vehtari 2024]; a number, minus infinity for fewer
    than 25 weights, or equal ones.
    """
    number = len(log_weights)
    most = math.ceil(min(number / 5, 3 * math.sqrt(number)))
    tail = log_weights.double().cpu().sort().values[-most - 1 :]
    excess = torch.expm1(tail[1:] - tail[0])
    quartile = float(excess[int(most / 4 + 0.5) - 1]) if most >= 5 else 0.0
    if not quartile > 0 or not bool(torch.isfinite(excess).all()):
        return -math.inf
    points = torch.arange(1, 31 + int(math.sqrt(most)), dtype=torch.float64)
    scale = 1 / excess[-1] + (1 - (len(points) / (points - 0.5)).sqrt()) / (3 * quartile)
    shape = torch.log1p(-scale[:, None] * excess).mean(1)
    likelihood = most * ((-scale / shape).log() - shape - 1)
    best = torch.softmax(likelihood, 0) @ scale
    return float((most * torch.log1p(-best * excess).mean() + 5) / (most + 10))


def weighted_mean(values: Tensor, log_weights: Tensor, groups: Tensor | None = None) -> tuple[float, float]:
    """sum softmax(w) h and its error (`jackknife`), of values and weights [N] [Ou 2025, eq. 39]."""
    mean = torch.softmax(log_weights.double(), 0) @ values.double()
    return float(mean), jackknife(log_weights, groups, values)


def estimates(
    target: Target,
    x: Tensor,
    log_weights: Tensor,
    log_density: Tensor,
    groups: Tensor | None = None,
    log_z_error: float | None = None,
) -> dict[str, float]:
    """log Z with error, ends of its interval and lower bound, ESS, and weighted means with errors and ends.

    Self-normalised importance sampling [Ou 2025, eq. 30], with errors of ours (tests/flows/test_weights.py).
    The ESS of chains that were resampled is that of as many independent ones whose log Z has the same standard error;
    one group has none.

    Args:
        x: states, integers [N, d].
        log_weights, log_density: [N].
        groups: int64 [N], which chains were resampled together; None where none were.
        log_z_error: of states without weights of their own, in sets: their ESS is that of as many independent ones
            whose mean energy has the same error.
    """
    return estimated({"energy": -log_density, **target.statistics(x)}, log_weights, groups, log_z_error)


def estimated(
    quantities: dict[str, Tensor], log_weights: Tensor, groups: Tensor | None, log_z_error: float | None = None
) -> dict[str, float]:
    """`estimates` [Ou 2025, eq. 30] of the means of quantities, name -> [N]; log-weights and groups are [N]."""
    w = log_weights.double()
    error = jackknife(w, groups) if log_z_error is None else log_z_error
    values = {"log_z": float(log_mean_exp(w)), "log_z_error": error, "log_z_lower": float(w.mean())}
    values |= {"ess": float(effective_sample_size(w)), "pareto_k": pareto_shape(w)}
    values |= _ends("log_z", values, w, groups)
    if groups is not None:
        sums = torch.stack([log_mean_exp(w[groups == name]) for name in groups.unique()])
        spread = 1 / float(effective_sample_size(sums)) - 1  # relative variance of a group's estimate of Z
        values["ess"] = min(values["ess"], 1 / (1 + spread * len(w) / len(sums))) if len(sums) > 1 else math.nan
        values["r_hat"] = potential_scale_reduction(quantities["energy"], groups)
        del values["pareto_k"]
    for name, value in quantities.items():
        values[f"mean_{name}"], values[f"mean_{name}_error"] = weighted_mean(value, w, groups)
        values |= _ends(f"mean_{name}", values, w, groups, value)
    if log_z_error is not None:
        energy = quantities["energy"].double()
        values["ess"] = float(energy.var()) / len(energy) / max(values["mean_energy_error"] ** 2, 1e-300)
    return values


def _ends(
    name: str, values: dict[str, float], w: Tensor, groups: Tensor | None, of: Tensor | None = None
) -> dict[str, float]:
    """The ends of a 95 % interval, 2.5 % on either side where weights are independent.

    Of log Z those of the mean weight; of a mean those of its jackknife's pseudo-values N h - (N - 1) h_-i. Groups are
    too few for either: 1.96 errors.

    Ours (tests/test_confidence_intervals.py), of weights and values [N].
    """
    estimate, reach = values[name], NORMAL * values[f"{name}_error"]
    low, high = estimate - reach, estimate + reach
    if groups is None and of is None:
        low, high = (math.log(end) + float(w.max()) if end > 0 else -math.inf for end in interval((w - w.max()).exp()))
    elif groups is None:
        low, high = interval(len(w) * estimate - (len(w) - 1) * _without(w, None, of)[0])
    return {f"{name}_low": low, f"{name}_high": high}


def known_values(target: Target) -> dict[str, float]:
    """The exact values of what `estimates` estimates, as far as they are within reach."""
    return {f"{name}_exact": value for name, value in (exact_values(target) or {}).items()}
