"""How far samples of a posterior can be trusted: mixing of chains, calibration, and what they say about the truth."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from blackout.posterior.noise import Noise
from blackout.random import SampleStreams

FIELDS = ("log_likelihood", "moved", "acceptance", "total")
"""What is kept of every chain and sweep, in this order; `moved` is the share of elements in which z differs from x,
`total` the sum of x. Projections of x follow, see `projections`."""
_PROJECTIONS = 16
_BINS = 10
_LEAST = 4
"""Sweeps of a chain that anything can be said of."""
_RESOLUTION = 1e-15


def split(chains: np.ndarray) -> np.ndarray:
    """Both halves of chains [C, T] as chains of their own, [2 C, T // 2]; a middle value is left out.

    [Vehtari 2021, section 4], see `r_hat`.
    """
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks of all values, of any shape, equal values sharing theirs [Vehtari 2021, eq. 14]."""
    rank = stats.rankdata(values, method="average").reshape(values.shape)
    return np.asarray(stats.norm.ppf((rank - 0.375) / (values.size + 0.25)))


def _finite(chains: np.ndarray) -> np.ndarray:
    """Chains [C, T] in which -inf and NaN are the lowest value instead, by a little: what counts is their rank.

    Ours (tests/posterior/test_parts.py).
    """
    good = chains[np.isfinite(chains)]
    lowest = float(good.min()) - max(1.0, float(np.ptp(good))) if good.size else 0.0
    return np.where(np.isfinite(chains), chains, lowest)


def _disagreement(chains: np.ndarray) -> float:
    """R-hat of chains [C, T] as they are, a number: the root of total over mean variance within
    [Gelman 1992; Vehtari 2021, eqs. 1 to 4].
    """
    length = chains.shape[1]
    within, between = chains.var(1, ddof=1).mean(), length * chains.mean(1).var(ddof=1)
    return float(np.sqrt((between / within + length - 1) / length)) if within > 0 else math.inf


def r_hat(chains: np.ndarray) -> float:
    """Rank-normalised split R-hat of chains [C, T], the larger one of values and of their distance from the median
    [Vehtari 2021, section 4]: 1 where they agree. Ours are -inf as the lowest value, and 1 where nothing varies.

    NaN of fewer than two chains or four values.
    """
    if len(chains) < 2 or chains.shape[1] < _LEAST:
        return math.nan
    parts = split(_finite(chains))
    both = (parts, np.abs(parts - np.median(parts)))
    return max(1.0 if np.ptp(one) < _RESOLUTION else _disagreement(_normal_scores(one)) for one in both)


def _effective(chains: np.ndarray) -> float:
    """Effective number of draws in chains [C, T]: Geyer's initial monotone sequence of correlations, which count what
    chains differ by [Vehtari 2021, eq. 10 to 13; Geyer 1992, section 3.3].
    """
    count, length = chains.shape
    if np.ptp(chains) < _RESOLUTION:
        return float(chains.size)
    spectrum = np.fft.rfft(chains - chains.mean(1, keepdims=True), 2 * length)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[:, :length].mean(0) / length
    within = covariance[0] * length / (length - 1)
    total = covariance[0] + (chains.mean(1).var(ddof=1) if count > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[0] = 1.0
    pairs = rho[: length // 2 * 2].reshape(-1, 2).sum(1)[: max(0, (length - 3) // 2) + 1]
    end = int(np.argmax(pairs <= 0)) if bool((pairs <= 0).any()) else len(pairs) - 1
    last = rho[2 * end] if pairs[end] >= 0 else max(rho[2 * end], 0.0)
    tau = 2 * np.minimum.accumulate(pairs[:end]).sum() - 1 + last
    return float(chains.size / max(tau, 1 / math.log10(chains.size)))


def effective_size(chains: np.ndarray) -> float:
    """How many independent draws chains [C, T] are worth for the bulk of the law, rank-normalised
    [Vehtari 2021, section 4.2]; NaN of fewer than four values.
    """
    return _effective(_normal_scores(split(_finite(chains)))) if chains.shape[1] >= _LEAST else math.nan


def tail_size(chains: np.ndarray) -> float:
    """How many chains [C, T] are worth for its tails: the smaller one of the shares below the 5 % and the 95 % quantile
    [Vehtari 2021, section 4.3]; NaN of fewer than four values.
    """
    if chains.shape[1] < _LEAST:
        return math.nan
    chains = _finite(chains)
    return min(_effective(split((chains <= np.quantile(chains, share)).astype(float))) for share in (0.05, 0.95))


_REPLICAS, _DOUBTFUL, _AT_ONCE, _PART = (1_000, 10_000), 0.05, 1 << 20, 4
"""Of a measurement at first, and where they leave doubt; numbers drawn at once; one sample in so many must be bad."""


def residuals(noise: Noise, y: Tensor, m: Tensor, seen: Tensor | None) -> Tensor:
    """(y - E[y | m]) / sd[y | m], float64 [n, K], 0 where nothing is seen; infinite where y is impossible.

    Args:
        noise: of the measurement.
        y, m: measurements and noiseless values [n or 1, *measured] and [n, *measured].
        seen: bool [*measured].

    Standardised residuals by definition (tests/posterior/test_parts.py).
    """
    error, deviation = y - noise.mean(m), noise.variance(m).sqrt()
    found = torch.where(deviation > 0, error / deviation.clamp(min=1e-12), torch.where(error == 0, 0.0, math.inf))
    return (found if seen is None else torch.where(seen, found, 0.0)).flatten(1)


def discrepancies(r: Tensor) -> Tensor:
    """What residuals [n, K] are judged by, float64 [n, 5]; large values are bad.

    Their chi-square and its negative (noise that is smaller than it was said to be), the largest one (an outlier),
    their sum, and how neighbours go together (another operator). The choice is ours (tests/posterior/test_parts.py).
    """
    chi_square = (r**2).sum(1)
    together = (r[:, 1:] * r[:, :-1]).sum(1)
    return torch.stack([chi_square, -chi_square, r.abs().amax(1), r.sum(1).abs(), together.nan_to_num(math.inf)], 1)


def predictive_p_value(noise: Noise, y: Tensor, m: Tensor, seen: Tensor | None, seed: int) -> float:
    """How often measurements simulated from the samples are as far off as y, the least over the five `discrepancies`.

    Of a right sampler the share of every sample is uniform, as y and it are a draw of their joint law [Johnson 2007].
    Two figures are made of all: the mean, a p-value if doubled [Gelman 2013, section 6.3; Meng 1994], and four times
    the share that a quarter of the samples lies below [Rueger 1978], which sees that some explain y
    and others do not. The second compares with what all samples give, whose residuals are nearly of one law. So it is
    below a for about 15 a of all right models at most, and for far fewer where samples follow y closely.

    NaN of a noise without variance.

    Args:
        noise, seen: see `residuals`.
        y: one measurement, [1, *measured].
        m: noiseless values of its samples, [S, *measured].
        seed: of the simulated ones.
    """
    if not bool((noise.variance(m) > 0).any()):
        return math.nan
    found, p = discrepancies(residuals(noise, y, m, seen)), math.nan
    limit, worst = found - 1e-9 * found.abs(), math.ceil(len(m) / _PART)
    for turn, number in enumerate(_REPLICAS):
        copies = -(-number // len(m))
        at_once = max(1, min(copies, _AT_ONCE // m.numel()))
        many = m.repeat(at_once, *[1] * (m.ndim - 1))
        streams = SampleStreams(seed, torch.arange(len(many))).fold_in(turn)
        draws = (noise.draw(many, streams.step(k)) for k in range(-(-copies // at_once)))
        every = torch.cat([discrepancies(residuals(noise, again, many, seen)) for again in draws])
        own = (every.view(-1, *found.shape) >= limit).sum((0, 1))
        bad = torch.stack([(every >= one).sum(0) for one in limit]).sort(0).values[worst - 1]
        p = float(((torch.minimum(own, bad * len(m) / worst) + 1) / (len(every) + 1)).min())
        if p > _DOUBTFUL:
            break
    return p


FEWEST, _FREEDOM = 16, 20
"""Measurements of the model's own that one is compared with, at least; degrees of freedom."""


def surprises(y: Tensor, simulated: Tensor) -> Tensor:
    """In what measurements are unlike simulated ones, float64 [n, 3], by the rank of every element among these.

    How far ranks lie in the tails (large where elements are not what others of the measurement let expect), how they go
    with the mean (a gain, a background, saturation), of length 1 so that dim and bright measurements are alike, and
    with their neighbour's (a region). The choice is ours (tests/posterior/test_parts.py).

    Args:
        y: float64 [n, K].
        simulated: for each of them, float64 [G, n, K].
    """
    u = ((simulated < y).sum(0) + 0.5 * ((simulated == y).sum(0) + 1)) / (len(simulated) + 1)
    off, tails = u - 0.5, -(2 * torch.minimum(u, 1 - u)).log()
    with_mean = (off * F.normalize(simulated.mean(0), dim=1)).sum(1)
    return torch.stack([tails.sum(1), with_mean, (off[:, 1:] * off[:, :-1]).sum(1)], 1)


def prior_p_value(found: Tensor, own: Tensor, numbers: int) -> float:
    """How often a measurement that the model itself could have given is as surprising as one is [cf. Box 1980].

    Twice the lesser of two: of all surprises together [Hotelling 1931], and of the one that goes with the mean. They
    are not normal, the less so the fewer numbers y has, so that there are as few degrees of freedom, and at most 20:
    ours (tests/posterior/test_parts.py).

    A kind in which the model's own do not differ is left out, as one number has no neighbours. NaN of fewer than 16 of
    the model's own, or where none differ with the mean.

    Args:
        found: `surprises` of one, float64 [3], averaged over what is known of its data.
        own: of measurements of draws of the model, float64 [N, 3].
        numbers: in a measurement.
    """
    number, variance, off = len(own), own.var(0), found - own.mean(0)
    if number < FEWEST or float(variance[1]) <= 0:
        return math.nan
    covariance, kinds = torch.cov(own.T) * (1 + 1 / number), int((variance > 0).sum())
    together = float(off @ torch.linalg.pinv(covariance) @ off) * (number - kinds) / (kinds * (number - 1))
    alone = float(off[1] ** 2 / covariance[1, 1])
    return min(1.0, 2 * float(stats.f.sf([together, alone], [kinds, 1], min(number - kinds, numbers, _FREEDOM)).min()))


def log_mean(logarithms: np.ndarray) -> tuple[float, float]:
    """The logarithm of the mean of numbers with logarithms [S], and its standard error, two floats.

    By the delta method, to first order; tested in tests/posterior/test_laws.py. NaN for fewer than two.
    """
    top = logarithms.max()
    if np.isneginf(top):
        return -math.inf, math.nan
    numbers = np.exp(logarithms - top)
    error = numbers.std(ddof=1) / numbers.mean() / math.sqrt(len(numbers)) if len(numbers) > 1 else math.nan
    return float(top + math.log(numbers.mean())), float(error)


SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the quantiles that are written."""


def quantiles(samples: Tensor) -> Tensor:
    """Below which the next draw of the same law lies with these probabilities, float64 [shares, ...]; of fewer than 19
    samples [S, ...] the outer ones are their least and largest [Hyndman 1996, definition 6].
    """
    return torch.from_numpy(np.quantile(samples.double().numpy(), SHARES, axis=0, method="weibull"))


def psnr(x: Tensor, truth: Tensor, max_count: int) -> Tensor:
    """Peak signal-to-noise ratio in dB of samples and truths [n, *shape], float64 [n]; at most 100.

    -10 log10 of the mean squared error over max_count^2, by definition; [Chu 2025, section 4.4] report it.
    """
    error = ((x.double() - truth.double()) ** 2).flatten(1).mean(1) / max_count**2
    return -10 * error.clamp(min=1e-10).log10()


def positions(samples: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Where truths lie among samples, in (0, 1): uniform if both are of one law, ties being broken at random
    [Talts 2018, theorem 1].

    Args:
        samples: [S, ...], axis 0 the samples.
        truth: [...].
        rng: breaks ties.
    """
    below, equal = (samples < truth).sum(0), (samples == truth).sum(0)
    return (below + rng.random(truth.shape) * (equal + 1)) / (len(samples) + 1)


@lru_cache(maxsize=8)
def projections(elements: int) -> Tensor:
    """Weights of 16 fixed random projections of so many elements, standard normal, float64 [elements, 16]."""
    return torch.from_numpy(np.random.default_rng(_PROJECTIONS).normal(size=(_PROJECTIONS, elements)).T.copy())


def statistics(x: np.ndarray, log_likelihood: np.ndarray, hidden: np.ndarray | None) -> dict[str, np.ndarray]:
    """What ranks are taken of: total count, that of hidden elements, log-likelihood, and 16 fixed random projections.

    [...] each. Ours (tests/cli/test_posterior.py); ranks are those of [Talts 2018].

    Args:
        x: [..., D].
        log_likelihood: [...].
        hidden: bool [D], if some elements are.
    """
    named = {"total": x.sum(-1), "log_likelihood": log_likelihood}
    if hidden is not None:
        named["hidden total"] = (x * hidden).sum(-1)
    projected = x @ projections(x.shape[-1]).numpy()
    return named | {f"projection {number}": projected[..., number] for number in range(_PROJECTIONS)}


def rank_p_value(found: dict[str, np.ndarray]) -> float:
    """Bonferroni's p-value of the least of the chi-square tests that positions [M] of each statistic are uniform.

    A number; NaN of fewer than ten positions. Ours (tests/posterior/test_parts.py).
    """
    p = []
    for values in found.values():
        bins = int(min(_BINS, len(values) // 5))
        if bins < 2:
            return math.nan
        p.append(float(stats.chisquare(np.histogram(values, bins, (0, 1))[0]).pvalue))
    return min(1.0, min(p) * len(p))


def coverage(at: np.ndarray, share: float) -> float:
    """Share of positions [...], see `positions`, within the central interval of that share: a number
    (tests/posterior/test_parts.py).
    """
    return float((np.abs(at - 0.5) <= share / 2).mean())
