"""Baselines fitted to training data, whose scores a generative model should at least beat.

For likelihoods these are models of independent counts, for samples a Gaussian copula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.on_disk import DiskCounts

Array = npt.NDArray[Any]

MAX_FITTED_ELEMENTS = 2048  # elements to which independent counts are fitted
MIN_DISPERSION = 1e-3  # of a negative binomial, r = mean^2 / (variance - mean)
MAX_DISPERSION = 1e6
MAX_LOG_MEAN = 30.0  # bounds of the search for a negative binomial without zeros
MIN_LOG_DISPERSION = -7.0
MAX_LOG_DISPERSION = 14.0

COPULA_NAME = "gaussian_copula"
MAX_COPULA_TRAINING_SAMPLES = 2000
MAX_COPULA_TRAINING_VALUES = 1 << 24  # samples x elements, 64 MB of float32
MAX_COPULA_SAMPLES = 10_000  # samples of the copula that are scored


def copula_samples(train: Tensor | DiskCounts, num_samples: int, seed: int = 0) -> Tensor:
    """Draw counts from a Gaussian copula with the empirical distribution of every element.

    Ranks of training counts, with ties in random order, are made normal. Normal variables with
    their covariance are made ranks again, which select training counts. At most 2,000 evenly
    spaced training samples are used.

    Args:
        train: counts [N, *shape].
        num_samples: n.
        seed: of samples and ties.

    Returns:
        Counts [n, *shape] of the same dtype.

    References: Liu et al. 2009, section 3.

    Example:
        >>> train = torch.tensor([[0, 1], [2, 3], [4, 5]])
        >>> copula_samples(train, 4).shape
        torch.Size([4, 2])
    """
    from scipy.special import ndtr, ndtri

    # 1. The training counts.
    max_training_samples = max(2, MAX_COPULA_TRAINING_VALUES // train[0].numel())
    num_train = min(len(train), MAX_COPULA_TRAINING_SAMPLES, max_training_samples)
    rows = torch.linspace(0, len(train) - 1, num_train).long()
    counts: Array = train[rows].flatten(1).cpu().numpy()

    # 2. Normal scores of their ranks.
    rng = np.random.default_rng(seed)
    ranks = (counts + rng.random(counts.shape)).argsort(0).argsort(0)
    normal_scores = ndtri((ranks + 0.5) / num_train).astype(np.float32)

    # 3. Normal samples of the same covariance: random mixtures of the training samples.
    weights = rng.standard_normal((num_samples, num_train), dtype=np.float32)
    normal_samples = weights @ normal_scores / math.sqrt(num_train)
    probabilities = ndtr(normal_samples / normal_scores.std(0))

    # 4. Their quantiles of the training counts.
    rank = (probabilities * num_train).astype(np.int64).clip(0, num_train - 1)
    samples = np.take_along_axis(np.sort(counts, 0), rank, 0)
    return torch.from_numpy(samples).view(num_samples, *train.shape[1:])


def baseline_bits(train: Tensor, test: Tensor) -> dict[str, Tensor]:
    """Return bits per dimension of each held-out sample by independent counts, float64 [M] each.

    The models are `poisson`, `negative_binomial` and `zero_inflated`, a negative binomial with
    additional zeros. Every element of `fitted_elements` is fitted by maximum likelihood.

    Args:
        train: counts [N, *shape].
        test: counts [M, *shape].

    References: Mullahy 1986 (zeros); the choice is this project's, checked in
        tests/evaluation/test_baselines.py.
    """
    from scipy.special import gammaln

    elements = fitted_elements(train[0].numel())

    def to_columns(counts: Tensor) -> Array:
        """Return the fitted elements [D, n]."""
        columns = counts.flatten(1)[:, elements.to(counts.device)].T
        return np.asarray(columns.contiguous().cpu().numpy())

    nats = {name: np.zeros(len(test)) for name in ("poisson", "negative_binomial", "zero_inflated")}
    for train_column, test_column in zip(to_columns(train), to_columns(test), strict=True):
        # 1. Distinct counts and how often they occur.
        values, frequencies = np.unique(train_column, return_counts=True)
        values = values.astype(np.float64)
        x, index = np.unique(test_column, return_inverse=True)
        x = x.astype(np.float64)

        # 2. Fit the models; the mean is never 0, as counts that did not occur are not impossible.
        mean = float((values @ frequencies + 1) / (len(train_column) + 1))
        r = _fit_dispersion(values, frequencies, mean)
        zero_inflated = _fit_zero_inflated(values, frequencies, mean, r)

        # 3. Evaluate them.
        nats["poisson"] -= (x * math.log(mean) - mean - gammaln(x + 1))[index]
        nats["negative_binomial"] -= negative_binomial(x, mean, r)[index]
        nats["zero_inflated"] -= zero_inflated(x)[index]
    nats_per_bit = len(elements) * math.log(2)
    return {name: torch.from_numpy(total) / nats_per_bit for name, total in nats.items()}


def fitted_elements(size: int) -> Tensor:
    """Return the elements that independent counts are fitted to, int64.

    They are at most 2,048 evenly spaced ones of `size`.
    """
    stride = -(-size // MAX_FITTED_ELEMENTS)
    return torch.arange(0, size, stride)


def histogram_bits(train: Tensor, test: Tensor, max_count: int) -> Tensor:
    """Return bits per dimension of each held-out sample by the elements' histograms, float64 [M].

    One is added to each bin (Laplace smoothing).

    Args:
        train: integer counts [N, *shape].
        test: integer counts [M, *shape].
        max_count: largest possible count.

    References: the choice is this project's, checked in tests/evaluation/test_baselines.py.
    """
    flat_train = train.flatten(1)
    flat_test = test.flatten(1)
    num_elements = flat_test.shape[1]
    nats = torch.zeros(len(test), dtype=torch.float64)
    for element in range(num_elements):  # one by one, as all as int64 could be gigabytes
        counts = torch.bincount(flat_train[:, element].long(), minlength=max_count + 1)
        smoothed = counts.double() + 1
        log_p = torch.log(smoothed / smoothed.sum())
        nats -= log_p[flat_test[:, element].long()].cpu()
    return nats / (num_elements * math.log(2))


def negative_binomial(x: Array, mean: float, r: float) -> Array:
    """Return log P(X = x) for a mean m and a variance m + m^2 / r, of the shape of `x`.

    It equals `scipy.stats.nbinom.logpmf`, which takes eight times as long.

    References: definition; checked in tests/evaluation/test_baselines.py.
    """
    from scipy.special import gammaln

    log_p: Array = gammaln(x + r) - gammaln(r) - gammaln(x + 1) - r * math.log1p(mean / r)
    return log_p + x * (math.log(mean) - math.log(r + mean))


def _fit_dispersion(values: Array, frequencies: Array, mean: float) -> float:
    """Return the maximum-likelihood dispersion r of a negative binomial, from 0.001 to 1e6.

    Args:
        values: distinct counts [K].
        frequencies: of them [K].
        mean: of the negative binomial.

    References: maximum likelihood; checked in tests/evaluation/test_baselines.py.
    """
    from scipy.optimize import minimize_scalar

    def cost(log_r: float) -> float:
        """Return the negative log-likelihood; see `negative_binomial`."""
        return -float(frequencies @ negative_binomial(values, mean, math.exp(log_r)))

    bounds = (math.log(MIN_DISPERSION), math.log(MAX_DISPERSION))
    return math.exp(minimize_scalar(cost, bounds=bounds, method="bounded").x)


def _fit_zero_inflated(
    values: Array, frequencies: Array, mean: float, r: float
) -> Callable[[Array], Array]:
    """Return the log-probability of a hurdle model, counts [...] -> float64 [...].

    The probability of 0 is the observed share, and positive counts follow a negative binomial
    without zeros. If 0 is not more frequent than in the negative binomial, that is returned.

    Args:
        values: distinct counts [K].
        frequencies: of them [K].
        mean: of the negative binomial.
        r: its dispersion.

    References: Mullahy 1986.
    """
    from scipy.optimize import minimize

    # 1. The probability of 0.
    total = frequencies.sum()
    is_positive = values > 0
    p_zero = (total - frequencies[is_positive].sum() + 0.5) / (total + 1)
    p_zero_expected = math.exp(float(negative_binomial(np.zeros(1), mean, r)[0]))
    if is_positive.sum() < 2 or p_zero <= p_zero_expected:
        return lambda x: negative_binomial(x, mean, r)

    # 2. The distribution of positive counts.
    x_positive = values[is_positive]
    weight = frequencies[is_positive]

    def log_p_positive(x: Array, log_mean: float, log_r: float) -> Array:
        """Return log P(X = x | X > 0) of the negative binomial, of the shape of `x`."""
        m = math.exp(min(log_mean, MAX_LOG_MEAN))
        dispersion = math.exp(min(max(log_r, MIN_LOG_DISPERSION), MAX_LOG_DISPERSION))
        minus_log_p_zero = dispersion * math.log1p(m / dispersion)
        log_p_above_zero = math.log(-math.expm1(-max(minus_log_p_zero, 1e-12)))
        return negative_binomial(x, m, dispersion) - log_p_above_zero

    def cost(parameters: Array) -> float:
        """Return the negative log-likelihood of (log mean, log r); see `log_p_positive`."""
        return -float(weight @ log_p_positive(x_positive, *parameters))

    start = [math.log(x_positive @ weight / weight.sum()), math.log(max(r, 0.5))]
    best = minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-3})

    def log_p(x: Array) -> Array:
        """Return log P(X = x) of the hurdle model, of the shape of `x`."""
        log_p_above = math.log1p(-p_zero) + log_p_positive(x, *best.x)
        return np.where(x > 0, log_p_above, math.log(p_zero))

    return log_p
