"""Importance weights of chains, and estimates from them: log Z, ESS and means, with errors."""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from blackout.confidence_intervals import ROUNDING, interval, unseen_share
from blackout.flows.targets import Target, exact_values

Z_95 = 1.96  # standard errors on either side of a 95 % interval
QUANTILE = 0.975  # quantile of Student's t for independent weights
GROUP_QUANTILE = 0.99  # the same for groups, which are too few to show how skewed they are
TINY = 1e-300  # smallest divisor


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """Return (sum e^w)^2 / (N sum e^2w), a fraction in (0, 1]: [..., N] -> [...].

    References: Ou et al. 2025, eq. 38.

    Example:
        >>> effective_sample_size(torch.zeros(4)).item()
        1.0
    """
    log_ratio = 2 * torch.logsumexp(log_weights, -1) - torch.logsumexp(2 * log_weights, -1)
    return log_ratio.exp() / log_weights.shape[-1]


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """Return log of the mean of e^w, the estimate of log Z: [..., N] -> [...].

    References: Ou et al. 2025, eq. 30, the denominator.
    """
    return torch.logsumexp(log_weights, -1) - math.log(log_weights.shape[-1])


def jackknife_error(
    log_weights: Tensor,
    groups: Tensor | None = None,
    values: Tensor | None = None,
) -> float:
    """Return the error of log-mean-exp(w), or of the weighted mean of values.

    The estimate ± 1.96 errors is an interval of at least 95 % for log Z, as far as the chains
    reach the mass: weights cannot show a mode that no chain has found. For means it covers less
    where the values are skewed; `_confidence_interval` corrects that.

    It is at least `error_floor`, so that equal weights or values have no error of 0. Otherwise it
    is the standard error of the jackknife over independent groups, times the ratio of the
    quantiles of Student's t and the normal distribution, and for log Z a correction for the
    skewness of the groups' sums.

    References: Efron 1981; Johnson 1978; coverage is checked in tests/flows/test_weights.py.

    Args:
        log_weights: [N].
        groups: int64 [N], chains that were resampled together; None if all are independent.
        values: [N]; None for log Z.

    Returns:
        The error, above 0; infinity for a single group.
    """
    estimates, weights, sizes = _leave_one_out(log_weights, groups, values)
    num_groups = len(sizes)
    if num_groups < 2:
        return math.inf
    sum_of_squares = (estimates - estimates.mean()).square().sum()
    error = float(((num_groups - 1) / num_groups * sum_of_squares).sqrt())
    probability = QUANTILE if groups is None else GROUP_QUANTILE
    quantile = float(stats.t.ppf(probability, num_groups - 1))
    if values is None:
        deviations = weights / sizes - (weights / sizes).mean()
        variance = deviations.square().mean()
        skewness = float((deviations**3).mean() / variance.pow(1.5).clamp(min=TINY))
        quantile += max(0.0, skewness) * (1 + 2 * quantile**2) / (6 * math.sqrt(num_groups))
    return max(error * quantile / Z_95, error_floor(len(log_weights), values))


def error_floor(num_chains: int, values: Tensor | None = None) -> float:
    """Return the smallest error that an estimate from so many chains can have.

    A share of 1 - 0.025^(1 / N) of all chains goes unseen among N with a probability of 2.5 %.

    - log Z: the least error allows for weights of 0, or of twice the mean, in this share.
    - The mean of values that differ: 0. They show their own error.
    - The mean of equal values: the least error allows for values that differ by the mean itself,
      or by 1 if that is more, in this share.

    References: this project; see `blackout.confidence_intervals.unseen_share`.
    """
    share = unseen_share(num_chains) / Z_95
    if values is None:
        return share
    scale = max(1.0, float(values.double().abs().max()))
    range_of_values = float(values.double().max() - values.double().min())
    return share * scale if range_of_values <= ROUNDING * scale else 0.0


def _leave_one_out(
    log_weights: Tensor,
    groups: Tensor | None,
    values: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return estimates without each group, the weights of the groups, and their sizes, [G] each.

    Without groups every weight is a group, G = N.

    References: Efron 1981.

    Args:
        log_weights: [N].
        groups: int64 [N]; None if all are independent.
        values: [N], whose weighted mean is estimated; None for log-mean-exp.
    """
    weights = torch.softmax(log_weights.double(), 0)
    numerators = weights if values is None else weights * values.double()
    sizes = torch.ones_like(weights)
    if groups is not None:
        names, group_numbers = groups.unique(return_inverse=True)
        zeros = torch.zeros(len(names), dtype=weights.dtype, device=weights.device)
        weights = zeros.index_add(0, group_numbers, weights)
        numerators = zeros.index_add(0, group_numbers, numerators)
        sizes = zeros.index_add(0, group_numbers, sizes)
    # where one weight dominates, rounding may leave a negative rest
    other_weights = (weights.sum() - weights).clamp(min=TINY)
    if values is None:
        estimates = (other_weights / (sizes.sum() - sizes)).log()
    else:
        estimates = (numerators.sum() - numerators) / other_weights
    return estimates, weights, sizes


def potential_scale_reduction(values: Tensor, groups: Tensor) -> float:
    """Return R-hat of values [N] over groups, int64 [N]: near 1 if all groups agree.

    References: Gelman and Rubin 1992.
    """
    members = [values[groups == name].double() for name in groups.unique()]
    # the last group may be smaller and is left out
    members = [part for part in members if len(part) == len(members[0]) > 1]
    variance_within = torch.zeros(())
    if members:
        variance_within = torch.stack([part.var() for part in members]).mean()
    if len(members) < 2 or not float(variance_within):
        return math.nan
    size = len(members[0])
    variance_between = torch.stack([part.mean() for part in members]).var()
    return float(((size - 1) / size + variance_between / variance_within).sqrt())


def pareto_shape(log_weights: Tensor) -> float:
    """Return the shape k of the generalised Pareto distribution of the largest weights.

    Above 0.7 the variance of the weights is practically infinite.

    References: Zhang and Stephens 2009, with the prior of Vehtari et al. 2024.

    Args:
        log_weights: [N].

    Returns:
        The shape; minus infinity for fewer than 25 weights, or equal ones.
    """
    # 1. Excess of the largest weights over the next one.
    num_weights = len(log_weights)
    tail_size = math.ceil(min(num_weights / 5, 3 * math.sqrt(num_weights)))
    tail = log_weights.double().cpu().sort().values[-tail_size - 1 :]
    excess = torch.expm1(tail[1:] - tail[0])
    quartile = 0.0
    if tail_size >= 5:
        quartile = float(excess[int(tail_size / 4 + 0.5) - 1])
    if not quartile > 0 or not bool(torch.isfinite(excess).all()):
        return -math.inf

    # 2. Posterior mean of the scale on a grid of candidates.
    candidates = torch.arange(1, 31 + int(math.sqrt(tail_size)), dtype=torch.float64)
    offsets = (1 - (len(candidates) / (candidates - 0.5)).sqrt()) / (3 * quartile)
    scales = 1 / excess[-1] + offsets
    shapes = torch.log1p(-scales[:, None] * excess).mean(1)
    log_likelihood = tail_size * ((-scales / shapes).log() - shapes - 1)
    scale = torch.softmax(log_likelihood, 0) @ scales

    # 3. The shape, with a prior that is worth ten weights around 0.5.
    shape_sum = tail_size * torch.log1p(-scale * excess).mean()
    return float((shape_sum + 5) / (tail_size + 10))


def weighted_mean(
    values: Tensor,
    log_weights: Tensor,
    groups: Tensor | None = None,
) -> tuple[float, float]:
    """Return the self-normalised mean sum softmax(w) h and its error, of values h and w [N].

    References: Ou et al. 2025, eq. 39; see `jackknife_error`.
    """
    mean = torch.softmax(log_weights.double(), 0) @ values.double()
    return float(mean), jackknife_error(log_weights, groups, values)


def estimate_target(
    target: Target,
    x: Tensor,
    log_weights: Tensor,
    log_density: Tensor,
    groups: Tensor | None = None,
    log_z_error: float | None = None,
) -> dict[str, float]:
    """Estimate log Z, ESS, mean energy and mean statistics by importance sampling.

    The keys are `log_z`, `elbo` (the lower bound mean(w) of log Z), `ess`, `pareto_k` or `r_hat`,
    and `mean_<quantity>`; `_error`, `_ci_low` and `_ci_high` follow the name of an estimate. The
    ESS of resampled chains is that of as many independent chains whose log Z has the same error;
    of a single group it is not defined.

    References: Ou et al. 2025, eq. 30; the errors are this project's, checked in
    tests/flows/test_weights.py.

    Args:
        target: whose statistics are estimated.
        x: states, integers [N, d].
        log_weights: [N].
        log_density: log rho, [N].
        groups: int64 [N], chains that were resampled together; None for none.
        log_z_error: of states without weights of their own, such as replicas in independent sets.
            Their ESS is that of as many independent states whose mean energy has the same error.
    """
    quantities = {"energy": -log_density, **target.statistics(x)}
    return estimate_means(quantities, log_weights, groups, log_z_error)


def estimate_means(
    quantities: dict[str, Tensor],
    log_weights: Tensor,
    groups: Tensor | None,
    log_z_error: float | None = None,
) -> dict[str, float]:
    """Estimate log Z, ESS and the means of quantities, name -> [N]; see `estimate_target`.

    References: Ou et al. 2025, eq. 30.
    """
    w = log_weights.double()
    # 1. log Z and its lower bound.
    error = jackknife_error(w, groups) if log_z_error is None else log_z_error
    values = {
        "log_z": float(log_mean_exp(w)),
        "log_z_error": error,
        "elbo": float(w.mean()),
        "ess": float(effective_sample_size(w)),
        "pareto_k": pareto_shape(w),
    }
    values |= _confidence_interval("log_z", values, w, groups)

    # 2. Resampled chains: ESS from the variance between groups, and whether the groups agree.
    if groups is not None:
        group_log_z = torch.stack([log_mean_exp(w[groups == name]) for name in groups.unique()])
        values["ess"] = _ess_of_groups(group_log_z, len(w), values["ess"])
        values["r_hat"] = potential_scale_reduction(quantities["energy"], groups)
        del values["pareto_k"]

    # 3. Means.
    for name, quantity in quantities.items():
        mean, mean_error = weighted_mean(quantity, w, groups)
        values[f"mean_{name}"] = mean
        values[f"mean_{name}_error"] = mean_error
        values |= _confidence_interval(f"mean_{name}", values, w, groups, quantity)

    # 4. States without weights of their own: ESS from the error of the mean energy.
    if log_z_error is not None:
        energy = quantities["energy"].double()
        variance_of_mean = max(values["mean_energy_error"] ** 2, TINY)
        values["ess"] = float(energy.var()) / len(energy) / variance_of_mean
    return values


def _ess_of_groups(group_log_z: Tensor, num_chains: int, ess_of_weights: float) -> float:
    """Return the ESS of resampled chains from log Z of each group, [G]; at most that of weights."""
    if len(group_log_z) < 2:
        return math.nan
    # relative variance of a group's estimate of Z
    relative_variance = 1 / float(effective_sample_size(group_log_z)) - 1
    return min(ess_of_weights, 1 / (1 + relative_variance * num_chains / len(group_log_z)))


def _confidence_interval(
    name: str,
    values: dict[str, float],
    w: Tensor,
    groups: Tensor | None,
    quantity: Tensor | None = None,
) -> dict[str, float]:
    """Return the ends of a 95 % interval.

    With independent weights it misses 2.5 % on either side.

    Of log Z it is the interval of the mean weight; of a mean that of the jackknife's pseudo-values
    N h - (N - 1) h_-i. Groups are too few for either; their interval is ± 1.96 errors. No end is
    nearer than 1.96 of `error_floor`.

    References: this project; checked in tests/test_confidence_intervals.py.

    Args:
        name: of the estimate.
        values: with the estimate and its error.
        w: log-weights [N].
        groups: int64 [N], or None.
        quantity: [N], whose mean is estimated; None for log Z.
    """
    estimate = values[name]
    half_width = Z_95 * values[f"{name}_error"]
    low = estimate - half_width
    high = estimate + half_width
    if groups is None and quantity is None:
        largest = float(w.max())
        scaled = (w - w.max()).exp()
        scaled_ends = interval(scaled, bounds=(0.0, 2 * float(scaled.mean())))
        low, high = (math.log(end) + largest if end > 0 else -math.inf for end in scaled_ends)
    elif groups is None:
        leave_one_out = _leave_one_out(w, None, quantity)[0]
        # equal pseudo-values have no width here: `error_floor` below gives them one
        pseudo_values = len(w) * estimate - (len(w) - 1) * leave_one_out
        low, high = interval(pseudo_values, bounds=(estimate, estimate))
    if groups is None:
        min_width = Z_95 * error_floor(len(w), quantity)
        low = min(low, estimate - min_width)
        high = max(high, estimate + min_width)
    return {f"{name}_ci_low": low, f"{name}_ci_high": high}


def exact_references(target: Target) -> dict[str, float]:
    """Return the exact values of `estimate_target`'s estimates, where known: `log_z_exact`, ..."""
    return {f"{name}_exact": value for name, value in (exact_values(target) or {}).items()}
