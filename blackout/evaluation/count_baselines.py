"""Models of independent counts, fitted to every element: what a generative model of counts must at least beat."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
LogMass = Callable[[Array], Array]
_MOST_ELEMENTS = 2048
_LEAST_SHAPE, _MOST_SHAPE = 1e-3, 1e6


def baseline_bits(train: Tensor, test: Tensor) -> dict[str, float]:
    """Held-out bits per dimension of independent counts: `poisson`, `negative_binomial`, `zero_inflated`.

    Every element is fitted on its own by maximum likelihood, at most 2,048 evenly spaced ones; the last is a negative
    binomial with more zeros.

    Args:
        train, test: counts [N, *shape] and [M, *shape].
    """
    size = train[0].numel()
    chosen = torch.arange(0, size, -(-size // _MOST_ELEMENTS))
    columns, held_out = _columns(train, chosen), _columns(test, chosen)
    nats = {"poisson": 0.0, "negative_binomial": 0.0, "zero_inflated": 0.0}
    for column, fresh in zip(columns, held_out, strict=True):
        values, times = np.unique(column, return_counts=True)
        seen, of_seen = np.unique(fresh, return_counts=True)
        for name, model in _models(values.astype(float), times.astype(float)).items():
            nats[name] -= float(of_seen @ model(seen.astype(float)))
    number = len(held_out[0]) * len(columns) * math.log(2)
    return {name: total / number for name, total in nats.items()}


def _columns(counts: Tensor, chosen: Tensor) -> Array:
    flat: Array = counts.flatten(1)[:, chosen.to(counts.device)].T.contiguous().cpu().numpy()
    return flat


def _models(values: Array, times: Array) -> dict[str, LogMass]:
    """The three models of one element, from its values and how often each occurred."""
    from scipy.special import gammaln

    number = times.sum()
    mean = float((values @ times + 1) / (number + 1))  # never 0: a count that never occurred is not impossible
    r = _best_shape(values, times, mean)
    return {
        "poisson": lambda x: x * math.log(mean) - mean - gammaln(x + 1),
        "negative_binomial": lambda x: negative_binomial(x, mean, r),
        "zero_inflated": _zero_inflated(values, times, mean, r),
    }


def negative_binomial(x: Array, mean: float, r: float) -> Array:
    """log P(X = x) of mean m and variance m + m^2 / r."""
    from scipy.special import gammaln

    log_mass: Array = gammaln(x + r) - gammaln(r) - gammaln(x + 1) - r * math.log1p(mean / r)
    return log_mass + x * (math.log(mean) - math.log(r + mean))


def _best_shape(values: Array, times: Array, mean: float) -> float:
    from scipy.optimize import minimize_scalar

    def cost(log_r: float) -> float:
        return -float(times @ negative_binomial(values, mean, math.exp(log_r)))

    bounds = (math.log(_LEAST_SHAPE), math.log(_MOST_SHAPE))
    return math.exp(minimize_scalar(cost, bounds=bounds, method="bounded").x)


def _zero_inflated(values: Array, times: Array, mean: float, r: float) -> LogMass:
    """The negative binomial, or with more zeros where those that occurred are more than its own.

    The share of zeros is then the observed one, and what is above follows a negative binomial without zeros.
    """
    from scipy.optimize import minimize

    number, above = times.sum(), values > 0
    zeros = (number - times[above].sum() + 0.5) / (number + 1)
    if above.sum() < 2 or zeros <= math.exp(float(negative_binomial(np.zeros(1), mean, r)[0])):
        return lambda x: negative_binomial(x, mean, r)
    x, weight = values[above], times[above]

    def positive(points: Array, log_mean: float, log_r: float) -> Array:
        m, shape = math.exp(min(log_mean, 30.0)), math.exp(min(max(log_r, -7.0), 14.0))
        none = shape * math.log1p(m / shape)  # -log P(0)
        return negative_binomial(points, m, shape) - math.log(-math.expm1(-max(none, 1e-12)))

    start = [math.log(x @ weight / weight.sum()), math.log(max(r, 0.5))]
    best = minimize(lambda p: -float(weight @ positive(x, *p)), start, method="Nelder-Mead", options={"xatol": 1e-3})

    def log_mass(points: Array) -> Array:
        tail = math.log1p(-zeros) + positive(points, *best.x)
        return np.where(points > 0, tail, math.log(zeros))

    return log_mass
