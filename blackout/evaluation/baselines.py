"""Models fitted to training data, whose scores stand beside those of a generative model: what it must at least beat.

Of likelihoods these are models of independent counts, and of samples a Gaussian copula.
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
_MOST_ELEMENTS = 2048
_LEAST_SHAPE, _MOST_SHAPE = 1e-3, 1e6
_MOST_ROWS, _MOST_NUMBERS = 2000, 1 << 24
"""Training samples to which the copula is fitted, and numbers in them, at most."""
COPULA, MOST_DRAWN = "gaussian_copula", 10_000
"""Its name, and how many of its samples are scored at most."""


def copula_samples(train: Tensor | DiskCounts, number: int, seed: int = 0) -> Tensor:
    """Counts of a Gaussian copula with the training samples' own distribution of every element [Liu 2009, section 3].

    Ranks of training counts, ties in random order, are made normal; normal variables of their covariance, made ranks
    again, choose training counts. At most 2,000 evenly spaced training samples are used.

    Args:
        train: counts [N, *shape].
        number: n of samples.
        seed: of samples and ties.

    Returns:
        Counts [n, *shape] of the same dtype.
    """
    from scipy.special import ndtr, ndtri

    most = min(len(train), _MOST_ROWS, max(2, _MOST_NUMBERS // train[0].numel()))
    rows: Array = train[torch.linspace(0, len(train) - 1, most).long()].flatten(1).cpu().numpy()
    generator = np.random.default_rng(seed)
    ranks = (rows + generator.random(rows.shape)).argsort(0).argsort(0)
    normal = ndtri((ranks + 0.5) / most).astype(np.float32)
    mixed = generator.standard_normal((number, most), dtype=np.float32) @ normal / math.sqrt(most)
    chosen = (ndtr(mixed / normal.std(0)) * most).astype(np.int64).clip(0, most - 1)
    return torch.from_numpy(np.take_along_axis(np.sort(rows, 0), chosen, 0)).view(number, *train.shape[1:])


def baseline_bits(train: Tensor, test: Tensor) -> dict[str, Tensor]:
    """Bits per dimension of each held-out sample by independent counts, float64 [M] each.

    They are `poisson`, `negative_binomial` and `zero_inflated`, a negative binomial with more zeros. Every element of
    `fitted_elements` is fitted on its own by maximum likelihood.

    Args:
        train, test: counts [N, *shape] and [M, *shape].

    References: Mullahy 1986 (zeros); the choice is this project's, checked in tests/evaluation/test_baselines.py.
    """
    from scipy.special import gammaln

    chosen = fitted_elements(train[0].numel())
    columns, held_out = (
        counts.flatten(1)[:, chosen.to(counts.device)].T.contiguous().cpu().numpy() for counts in (train, test)
    )
    nats = {name: np.zeros(len(test)) for name in ("poisson", "negative_binomial", "zero_inflated")}
    for column, fresh in zip(columns, held_out, strict=True):
        values, times = np.unique(column, return_counts=True)
        x, place = np.unique(fresh, return_inverse=True)
        values, x = values.astype(np.float64), x.astype(np.float64)
        mean = float((values @ times + 1) / (len(column) + 1))  # never 0: what never occurred is not impossible
        r = _best_shape(values, times, mean)
        zero_inflated = _zero_inflated(values, times, mean, r)
        nats["poisson"] -= (x * math.log(mean) - mean - gammaln(x + 1))[place]
        nats["negative_binomial"] -= negative_binomial(x, mean, r)[place]
        nats["zero_inflated"] -= zero_inflated(x)[place]
    return {name: torch.from_numpy(total) / (len(chosen) * math.log(2)) for name, total in nats.items()}


def fitted_elements(size: int) -> Tensor:
    """Return the elements, int64, that independent counts are fitted to: at most 2,048 evenly spaced ones of `size`."""
    return torch.arange(0, size, -(-size // _MOST_ELEMENTS))


def histogram_bits(train: Tensor, test: Tensor, max_count: int) -> Tensor:
    """Bits per dimension of each held-out sample by every element's own histogram, float64 [M].

    One is added to each cell, as Laplace. The choice is ours (tests/evaluation/test_baselines.py).

    Args:
        train, test: integer counts [N, *shape] and [M, *shape].
        max_count: the largest there can be.
    """
    flat_train, flat_test = train.flatten(1), test.flatten(1)  # widened by elements: all would be gigabytes
    nats = torch.zeros(len(test), dtype=torch.float64)
    for element in range(flat_train.shape[1]):
        histogram = torch.bincount(flat_train[:, element].long(), minlength=max_count + 1).double() + 1
        nats -= torch.log(histogram / histogram.sum())[flat_test[:, element].long()].cpu()
    return nats / (flat_test.shape[1] * math.log(2))


def negative_binomial(x: Array, mean: float, r: float) -> Array:
    """log P(X = x) of mean m and variance m + m^2 / r, of the shape of `x`.

    By definition; equal to `scipy.stats.nbinom` (tests/evaluation/test_baselines.py), which takes eight times as long.
    """
    from scipy.special import gammaln

    log_mass: Array = gammaln(x + r) - gammaln(r) - gammaln(x + 1) - r * math.log1p(mean / r)
    return log_mass + x * (math.log(mean) - math.log(r + mean))


def _best_shape(values: Array, times: Array, mean: float) -> float:
    """The r at which `negative_binomial` of this mean is likeliest, a number, of counts with numbers of times, [K]
    each.

    Maximum likelihood over 0.001 to 1e6 (tests/evaluation/test_baselines.py).
    """
    from scipy.optimize import minimize_scalar

    def cost(log_r: float) -> float:
        """Minus the log-likelihood of a number log r, a number, by `negative_binomial`."""
        return -float(times @ negative_binomial(values, mean, math.exp(log_r)))

    bounds = (math.log(_LEAST_SHAPE), math.log(_MOST_SHAPE))
    return math.exp(minimize_scalar(cost, bounds=bounds, method="bounded").x)


def _zero_inflated(values: Array, times: Array, mean: float, r: float) -> Callable[[Array], Array]:
    """log P of the negative binomial, or with more zeros where those that occurred are more than its own.

    The share of zeros is then the observed one, and what is above follows a negative binomial without zeros: a hurdle
    model [Mullahy 1986]. Counts and their numbers of times are [K] each; it maps counts [...] to [...].
    """
    from scipy.optimize import minimize

    number, above = times.sum(), values > 0
    zeros = (number - times[above].sum() + 0.5) / (number + 1)
    if above.sum() < 2 or zeros <= math.exp(float(negative_binomial(np.zeros(1), mean, r)[0])):
        return lambda x: negative_binomial(x, mean, r)
    x, weight = values[above], times[above]

    def positive(points: Array, log_mean: float, log_r: float) -> Array:
        """log P(X = x | X > 0) of points [...], [...]: the negative binomial without zeros."""
        m, shape = math.exp(min(log_mean, 30.0)), math.exp(min(max(log_r, -7.0), 14.0))
        none = shape * math.log1p(m / shape)  # -log P(0)
        return negative_binomial(points, m, shape) - math.log(-math.expm1(-max(none, 1e-12)))

    start = [math.log(x @ weight / weight.sum()), math.log(max(r, 0.5))]
    best = minimize(lambda p: -float(weight @ positive(x, *p)), start, method="Nelder-Mead", options={"xatol": 1e-3})
    return lambda points: np.where(points > 0, math.log1p(-zeros) + positive(points, *best.x), math.log(zeros))
