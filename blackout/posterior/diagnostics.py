"""Diagnostics of posterior samples: mixing of chains, fit to the measurement, and calibration."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from blackout.confidence_intervals import CONFIDENCE_QUANTILE, ROUNDING, unseen_share
from blackout.posterior.noise import Noise
from blackout.random import SampleStreams

# statistics of every chain and sweep, in this order; `mismatch` is the share of elements in which z
# differs from x, `total` the sum of x. Projections of x follow, see `projection_weights`
CHAIN_STATISTICS = ("log_likelihood", "mismatch", "acceptance", "total")
NUM_PROJECTIONS = 16

# convergence of chains
MIN_CHAIN_LENGTH = 4  # sweeps
MIN_RANGE = 1e-15  # chains whose values differ by less are constant
TAIL_PROBABILITIES = (0.05, 0.95)  # quantiles of the tail ESS

# posterior predictive p-values
NUM_REPLICATES = (1_000, 10_000)  # simulated measurements at first, and if p is small
SMALL_P_VALUE = 0.05  # p-values below it are computed again with more simulated measurements
MAX_BATCH_VALUES = 1 << 20  # values simulated at once, 8 MB
MISFIT_DIVISOR = 4  # the second p-value is that of the worst quarter of the samples

# prior predictive p-values
MIN_MODEL_DRAWS = 16  # measurements of draws of the model that one is compared with
MAX_DEGREES_OF_FREEDOM = 20

# calibration
QUANTILE_PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
MAX_RANK_BINS = 10
MIN_RANKS_PER_BIN = 5
MIN_MEAN_SQUARED_ERROR = 1e-10  # relative to max_count^2; PSNR is at most 100 dB


def split_chains(chains: np.ndarray) -> np.ndarray:
    """Return both halves of chains [C, T] as chains, [2 C, T // 2]; a middle value is left out.

    References: Vehtari et al. 2021, section 4.
    """
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Return normal quantiles of the ranks of all values, of their shape; ties share a rank.

    References: Vehtari et al. 2021, eq. 14.
    """
    rank = stats.rankdata(values, method="average").reshape(values.shape)
    return np.asarray(stats.norm.ppf((rank - 0.375) / (values.size + 0.25)))


def _replace_infinite(chains: np.ndarray) -> np.ndarray:
    """Return chains [C, T] with -inf and NaN replaced by a value slightly below all others.

    Only ranks matter to the diagnostics.

    References: this project; checked in tests/posterior/test_diagnostics.py.
    """
    finite = chains[np.isfinite(chains)]
    lowest = 0.0
    if finite.size:
        lowest = float(finite.min()) - max(1.0, float(np.ptp(finite)))
    return np.where(np.isfinite(chains), chains, lowest)


def _r_hat(chains: np.ndarray) -> float:
    """Return R-hat of chains [C, T]: the root of total over within-chain variance.

    References: Gelman and Rubin 1992; Vehtari et al. 2021, eq. 1 to 4.
    """
    length = chains.shape[1]
    variance_within = chains.var(1, ddof=1).mean()
    variance_between = length * chains.mean(1).var(ddof=1)
    if variance_within <= 0:
        return math.inf
    return float(np.sqrt((variance_between / variance_within + length - 1) / length))


def r_hat(chains: np.ndarray) -> float:
    """Return the rank-normalised split R-hat of chains [C, T]; 1 if they agree.

    It is the larger one of the values and of their distances from the median. Values of -inf count
    as the lowest. It is 1 for constant chains, and NaN for fewer than two chains or four sweeps.

    References: Vehtari et al. 2021, section 4; infinite and constant values: this project, checked
        in tests/posterior/test_diagnostics.py.
    """
    if len(chains) < 2 or chains.shape[1] < MIN_CHAIN_LENGTH:
        return math.nan
    halves = split_chains(_replace_infinite(chains))
    folded = np.abs(halves - np.median(halves))
    values = []
    for part in (halves, folded):
        is_constant = np.ptp(part) < MIN_RANGE
        values.append(1.0 if is_constant else _r_hat(_normal_scores(part)))
    return max(values)


def r_hat_limit(
    num_chains: int, length: int, num_statistics: int, false_alarm_rate: float
) -> float:
    """Return the limit that the largest R-hat of perfect chains exceeds with a given probability.

    Of independent normal values, the ratio of variances between and within the m = 2 C half-chains
    of n = T / 2 values has an F distribution with m - 1 and m (n - 1) degrees of freedom, and

        R-hat = sqrt((F + n - 1) / n).

    Each of the statistics is tested twice, as it is and folded, with Bonferroni's correction.

    Args:
        num_chains: C, at least 2.
        length: T, sweeps, at least 4.
        num_statistics: whose largest R-hat is compared with the limit.
        false_alarm_rate: above 0 and below 1.

    References: Gelman and Rubin 1992, section 3.7 (F distribution); for rank-normalised values this
        project, checked in tests/posterior/test_diagnostics.py.

    Example:
        >>> round(r_hat_limit(4, 30, 18, 0.05), 2)
        1.08
    """
    num_halves = 2 * num_chains
    size = length // 2
    rate = false_alarm_rate / (2 * num_statistics)
    ratio = stats.f.isf(rate, num_halves - 1, num_halves * (size - 1))
    return float(math.sqrt((ratio + size - 1) / size))


def _effective_sample_size(chains: np.ndarray) -> float:
    """Return the effective sample size of chains [C, T] by Geyer's initial monotone sequence.

    References: Vehtari et al. 2021, eq. 10 to 13; Geyer 1992, section 3.3.
    """
    num_chains, length = chains.shape
    if np.ptp(chains) < MIN_RANGE:
        return float(chains.size)

    # 1. Autocovariances, averaged over chains, by the Fourier transform.
    spectrum = np.fft.rfft(chains - chains.mean(1, keepdims=True), 2 * length)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[:, :length].mean(0) / length

    # 2. Autocorrelations, which include differences between chains.
    variance_within = covariance[0] * length / (length - 1)
    variance_between = chains.mean(1).var(ddof=1) if num_chains > 1 else 0.0
    total = covariance[0] + variance_between
    rho = 1 - (variance_within - covariance) / total
    rho[0] = 1.0

    # 3. Sums of pairs, up to the first that is not positive, made monotone.
    pairs = rho[: length // 2 * 2].reshape(-1, 2).sum(1)[: max(0, (length - 3) // 2) + 1]
    end = len(pairs) - 1
    if bool((pairs <= 0).any()):
        end = int(np.argmax(pairs <= 0))
    last = rho[2 * end]
    if pairs[end] < 0:
        last = max(last, 0.0)
    tau = 2 * np.minimum.accumulate(pairs[:end]).sum() - 1 + last
    return float(chains.size / max(tau, 1 / math.log10(chains.size)))


def ess_bulk(chains: np.ndarray) -> float:
    """Return the bulk effective sample size of chains [C, T]; NaN for fewer than four sweeps.

    References: Vehtari et al. 2021, section 4.2.
    """
    if chains.shape[1] < MIN_CHAIN_LENGTH:
        return math.nan
    return _effective_sample_size(_normal_scores(split_chains(_replace_infinite(chains))))


def ess_tail(chains: np.ndarray) -> float:
    """Return the tail effective sample size of chains [C, T]; NaN for fewer than four sweeps.

    It is the smaller one of the shares of values below the 5 % and the 95 % quantile.

    References: Vehtari et al. 2021, section 4.3.
    """
    if chains.shape[1] < MIN_CHAIN_LENGTH:
        return math.nan
    chains = _replace_infinite(chains)
    sizes = []
    for probability in TAIL_PROBABILITIES:
        is_below = (chains <= np.quantile(chains, probability)).astype(float)
        sizes.append(_effective_sample_size(split_chains(is_below)))
    return min(sizes)


def standardised_residuals(noise: Noise, y: Tensor, m: Tensor, mask: Tensor | None) -> Tensor:
    """Return (y - E[y | m]) / sd[y | m], float64 [n, K]; 0 where nothing is observed.

    It is infinite where the variance is 0 and y differs from its mean.

    Args:
        noise: of the measurement.
        y: measurements [n or 1, *measurement].
        m: noiseless values [n, *measurement].
        mask: observed elements, bool [*measurement]; None for all.

    References: definition; checked in tests/posterior/test_diagnostics.py.
    """
    error = y - noise.mean(m)
    deviation = noise.variance(m).sqrt()
    without_variance = torch.where(error == 0, 0.0, math.inf)
    residuals = torch.where(deviation > 0, error / deviation.clamp(min=1e-12), without_variance)
    if mask is not None:
        residuals = torch.where(mask, residuals, 0.0)
    return residuals.flatten(1)


def discrepancies(residuals: Tensor) -> Tensor:
    """Return five discrepancies of standardised residuals [n, K], float64 [n, 5]; large is bad.

    - chi-square, and its negative (less noise than specified);
    - the largest residual (an outlier);
    - the absolute sum (a background or gain);
    - the sum of products of neighbours (another operator).

    References: this project; checked in tests/posterior/test_diagnostics.py.
    """
    chi_square = (residuals**2).sum(1)
    largest = residuals.abs().amax(1)
    total = residuals.sum(1).abs()
    neighbours = (residuals[:, 1:] * residuals[:, :-1]).sum(1).nan_to_num(math.inf)
    return torch.stack([chi_square, -chi_square, largest, total, neighbours], 1)


def posterior_predictive_p_value(
    noise: Noise, y: Tensor, m: Tensor, mask: Tensor | None, seed: int
) -> float:
    """Return the posterior predictive p-value of a measurement, the smallest of ten.

    For samples of the true posterior the p-value of each sample is uniform, because y and the
    sample are a draw from their joint distribution. Two numbers are computed for each of the five
    `discrepancies`, and the smallest of the ten is returned:

    - the mean over samples, which is a p-value if doubled;
    - four times the largest p-value of the worst quarter of the samples, which detects that only
      some samples explain y. Its simulated measurements are those of all samples, whose residuals
      have nearly the same distribution.

    For a correct model, the result is below a with a probability of at most about 15 a, and much
    less if the samples follow y closely. NaN for a noise without variance.

    Args:
        noise: of the measurement.
        y: one measurement, [1, *measurement].
        m: noiseless values of its samples, [S, *measurement].
        mask: observed elements, bool [*measurement]; None for all.
        seed: of the simulated measurements.

    References: Johnson 2007 (uniformity); Gelman et al. 2013, section 6.3, and Meng 1994 (mean);
        Rueger 1978 (worst quarter).
    """
    if not bool((noise.variance(m) > 0).any()):
        return math.nan
    num_samples = len(m)
    num_worst = math.ceil(num_samples / MISFIT_DIVISOR)
    observed = discrepancies(standardised_residuals(noise, y, m, mask))  # [S, 5]
    threshold = observed - 1e-9 * observed.abs()  # equal values must not differ by rounding
    p_value = math.nan
    for turn, min_replicates in enumerate(NUM_REPLICATES):
        # 1. Simulate measurements of every sample.
        num_copies = -(-min_replicates // num_samples)
        copies_per_batch = max(1, min(num_copies, MAX_BATCH_VALUES // m.numel()))
        repeated_m = m.repeat(copies_per_batch, *[1] * (m.ndim - 1))
        streams = SampleStreams(seed, torch.arange(len(repeated_m))).fold_in(turn)
        batches = []
        for batch in range(-(-num_copies // copies_per_batch)):
            replicate = noise.draw(repeated_m, streams.step(batch))
            residuals = standardised_residuals(noise, replicate, repeated_m, mask)
            batches.append(discrepancies(residuals))
        simulated = torch.cat(batches)  # [replicates, 5]

        # 2. Count those that are as large as that of their own sample, and as any sample's.
        of_samples = simulated.view(-1, *observed.shape)
        count = (of_samples >= threshold).sum((0, 1))
        counts_per_sample = torch.stack([(simulated >= limit).sum(0) for limit in threshold])
        worst_count = counts_per_sample.sort(0).values[num_worst - 1]

        # 3. The smaller p-value of the two.
        smallest = torch.minimum(count, worst_count * num_samples / num_worst)
        p_value = float(((smallest + 1) / (len(simulated) + 1)).min())
        if p_value > SMALL_P_VALUE:
            break
    return p_value


def rank_discrepancies(y: Tensor, simulated: Tensor) -> Tensor:
    """Return how measurements differ from simulated ones, by the ranks of their elements.

    - How far ranks are in the tails: elements that the rest of the measurement does not predict.
    - Product with the mean, normalised so that brightness does not matter: gain, background,
      saturation.
    - Product with the neighbour's: a region.

    Args:
        y: float64 [n, K].
        simulated: for each of them, float64 [G, n, K].

    Returns:
        float64 [n, 3].

    References: this project; checked in tests/posterior/test_diagnostics.py.
    """
    num_below = (simulated < y).sum(0)
    num_equal = (simulated == y).sum(0)
    rank = (num_below + 0.5 * (num_equal + 1)) / (len(simulated) + 1)
    centred = rank - 0.5
    tails = -(2 * torch.minimum(rank, 1 - rank)).log()
    with_mean = (centred * F.normalize(simulated.mean(0), dim=1)).sum(1)
    with_neighbour = (centred[:, 1:] * centred[:, :-1]).sum(1)
    return torch.stack([tails.sum(1), with_mean, with_neighbour], 1)


def prior_predictive_p_value(observed: Tensor, simulated: Tensor, num_values: int) -> float:
    """Return the share of simulated measurements that are as unusual as the observed one.

    Twice the smaller of two p-values: of all discrepancies together, and of the one with the mean.
    Discrepancies are not normal, the less so the fewer values y has; the degrees of freedom are
    therefore at most the number of values, and at most 20. A discrepancy that does not vary among
    the simulated measurements is left out, as that of neighbours for a single value.

    Args:
        observed: `rank_discrepancies` of one measurement, float64 [3], averaged over what is
            unknown about its data.
        simulated: those of measurements of draws of the model, float64 [N, 3].
        num_values: values of a measurement.

    Returns:
        A p-value; NaN for fewer than 16 simulated measurements, or if none differ with the mean.

    References: Hotelling 1931; compare Box 1980; degrees of freedom: this project, checked in
        tests/posterior/test_diagnostics.py.
    """
    num_draws = len(simulated)
    variance = simulated.var(0)
    if num_draws < MIN_MODEL_DRAWS or float(variance[1]) <= 0:
        return math.nan
    difference = observed - simulated.mean(0)
    covariance = torch.cov(simulated.T) * (1 + 1 / num_draws)
    num_varying = int((variance > 0).sum())
    t_square = float(difference @ torch.linalg.pinv(covariance) @ difference)
    f_together = t_square * (num_draws - num_varying) / (num_varying * (num_draws - 1))
    f_with_mean = float(difference[1] ** 2 / covariance[1, 1])
    degrees_of_freedom = min(num_draws - num_varying, num_values, MAX_DEGREES_OF_FREEDOM)
    p_values = stats.f.sf([f_together, f_with_mean], [num_varying, 1], degrees_of_freedom)
    return min(1.0, 2 * float(p_values.min()))


def log_mean_exp(logs: np.ndarray) -> tuple[float, float]:
    """Return the log of the mean of exp(logs) [S], and its standard error.

    The error is to first order (delta method); NaN for fewer than two logs. It holds where the
    particles reach the mass. The spread of equal logs says nothing: their error allows for an
    unseen share of numbers that are 0 or twice the mean, see
    `blackout.confidence_intervals.unseen_share`.

    References: delta method; checked in tests/posterior/test_samples.py; equal logs: this project,
        checked in tests/posterior/test_diagnostics.py.
    """
    largest = logs.max()
    if np.isneginf(largest):
        return -math.inf, math.nan
    numbers = np.exp(logs - largest)
    mean = numbers.mean()
    error = math.nan
    if len(numbers) > 1:
        error = numbers.std(ddof=1) / mean / math.sqrt(len(numbers))
        if error <= ROUNDING:
            error = unseen_share(len(numbers)) / stats.norm.ppf(CONFIDENCE_QUANTILE)
    return float(largest + math.log(mean)), float(error)


def predictive_quantiles(samples: Tensor) -> Tensor:
    """Return `QUANTILE_PROBABILITIES` quantiles of samples [S, ...], float64 [probabilities, ...].

    The next draw of the same distribution lies below each with its probability. For fewer than 19
    samples the outer ones are the smallest and the largest sample.

    References: Hyndman and Fan 1996, definition 6.
    """
    values = samples.double().numpy()
    quantiles = np.quantile(values, QUANTILE_PROBABILITIES, axis=0, method="weibull")
    return torch.from_numpy(quantiles)


def psnr(x: Tensor, truth: Tensor, max_count: int) -> Tensor:
    """Return the peak signal-to-noise ratio in dB, float64 [n], at most 100; higher is better.

    Args:
        x: samples [n, *shape].
        truth: [n, *shape].
        max_count: the peak.

    References: definition, -10 log10(MSE / max_count^2); reported by Chu et al. 2025, section 4.4.
    """
    squared_error = ((x.double() - truth.double()) ** 2).flatten(1).mean(1) / max_count**2
    return -10 * squared_error.clamp(min=MIN_MEAN_SQUARED_ERROR).log10()


def normalised_ranks(
    samples: np.ndarray, truth: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return ranks of truths among samples, in (0, 1), of the shape of `truth`.

    They are uniform if truths and samples have the same distribution. Ties are broken at random.

    Args:
        samples: [S, ...], samples along the first axis.
        truth: [...].
        rng: breaks ties.

    References: Talts et al. 2018, theorem 1.
    """
    num_below = (samples < truth).sum(0)
    num_equal = (samples == truth).sum(0)
    return (num_below + rng.random(truth.shape) * (num_equal + 1)) / (len(samples) + 1)


@lru_cache(maxsize=8)
def projection_weights(num_elements: int) -> Tensor:
    """Return the weights of 16 fixed random projections, standard normal float64 [elements, 16]."""
    rng = np.random.default_rng(NUM_PROJECTIONS)
    weights = rng.normal(size=(NUM_PROJECTIONS, num_elements))
    return torch.from_numpy(weights.T.copy())


def rank_statistics(
    x: np.ndarray, log_likelihood: np.ndarray, hidden: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return the statistics for simulation-based calibration, [...] each.

    They are the total count, the total of hidden elements, the log-likelihood, and 16 fixed random
    projections.

    Args:
        x: [..., D].
        log_likelihood: [...].
        hidden: hidden elements, bool [D]; None if there are none.

    References: Talts et al. 2018 (ranks); the statistics: this project, checked in
        tests/cli/test_posterior.py.
    """
    named = {"total": x.sum(-1), "log_likelihood": log_likelihood}
    if hidden is not None:
        named["hidden total"] = (x * hidden).sum(-1)
    projections = x @ projection_weights(x.shape[-1]).numpy()
    for number in range(NUM_PROJECTIONS):
        named[f"projection {number}"] = projections[..., number]
    return named


def rank_p_value(ranks: dict[str, np.ndarray]) -> float:
    """Return a p-value of the hypothesis that the ranks [M] of each statistic are uniform.

    The smallest of chi-square tests, with Bonferroni's correction; NaN for fewer than ten ranks.

    References: this project; checked in tests/posterior/test_diagnostics.py.
    """
    p_values = []
    for values in ranks.values():
        num_bins = int(min(MAX_RANK_BINS, len(values) // MIN_RANKS_PER_BIN))
        if num_bins < 2:
            return math.nan
        counts = np.histogram(values, num_bins, (0, 1))[0]
        p_values.append(float(stats.chisquare(counts).pvalue))
    return min(1.0, min(p_values) * len(p_values))


def coverage(ranks: np.ndarray, level: float) -> float:
    """Return the share of `normalised_ranks` [...] in the central interval of a level, 0 to 1.

    References: checked in tests/posterior/test_diagnostics.py.
    """
    return float((np.abs(ranks - 0.5) <= level / 2).mean())
