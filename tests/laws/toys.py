"""Exact laws on enumerable state spaces, written independently of the package: pmf matrices, oracles, transition
matrices.

One pixel with levels 0..M. Rows are the conditioning state, columns the state drawn. All float64 numpy.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

LEVELS = np.arange(256)


def two_bumps() -> np.ndarray:
    """A 256-level pixel: an even mixture of two rounded normals, 70 +- 20 and 185 +- 25."""
    p = stats.norm.pdf(LEVELS, 70, 20) + stats.norm.pdf(LEVELS, 185, 25)
    return p / p.sum()


def bernoulli(p: float) -> np.ndarray:
    return np.array([1 - p, p])


def entropy(p: np.ndarray) -> float:
    return float(stats.entropy(p))


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    return 0.5 * float(np.abs(p - q).sum())


def thinning(max_count: int, q: float) -> np.ndarray:
    """P(X_t = m | X_0 = o), [o, m]."""
    levels = np.arange(max_count + 1)
    return stats.binom.pmf(levels[None, :], levels[:, None], q)


def posterior(p0: np.ndarray, q: float) -> np.ndarray:
    """P(X_0 = o | X_t = m), [m, o]; rows that cannot occur are put on o = m."""
    joint = thinning(len(p0) - 1, q).T * p0[None, :]
    mass = joint.sum(1, keepdims=True)
    return np.where(mass > 0, joint / np.where(mass > 0, mass, 1), np.eye(len(p0)))


def missing_mean(p0: np.ndarray, q: float) -> np.ndarray:
    """The oracle y(m) = E[X_0 - X_t | X_t = m], [m]."""
    levels = np.arange(len(p0))
    return np.clip(posterior(p0, q) @ levels - levels, 0, None)


def bridge(max_count: int, o: int, m: int, r: float) -> np.ndarray:
    """P(X_s = n | X_0 = o, X_t = m), [n]."""
    levels = np.arange(max_count + 1)
    return stats.binom.pmf(levels - m, o - m, r)


def mixture_kernel(p0: np.ndarray, q: float, r: float) -> np.ndarray:
    """Exact reverse transition [m, n]: the bridge averaged over the posterior of X_0."""
    size = len(p0)
    missing = np.arange(size)
    births = stats.binom.pmf(np.arange(size)[None, :], missing[:, None], r)  # [missing, births]
    post, kernel = posterior(p0, q), np.zeros((size, size))
    for m in range(size):
        kernel[m, m:] = post[m, m:] @ births[: size - m, : size - m]
    return kernel


def rounded_kernel(y: np.ndarray, r: float, stochastic: bool) -> np.ndarray:
    """Binomial bridge with y rounded to the nearest, or stochastically, and clipped to the room there is: [m, n]."""
    size = len(y)
    kernel = np.zeros((size, size))
    for m in range(size):
        low = np.floor(y[m])
        options = [(low, 1 - (y[m] - low)), (low + 1, y[m] - low)] if stochastic else [(np.round(y[m]), 1.0)]
        for n, weight in options:
            kernel[m, m:] += weight * stats.binom.pmf(np.arange(size - m), min(int(n), size - 1 - m), r)
    return kernel


def poisson_kernel(rate: np.ndarray) -> np.ndarray:
    """Births Poisson(rate[m]), clipped at the top: [m, n]."""
    size = len(rate)
    kernel = np.zeros((size, size))
    for m in range(size):
        kernel[m, m:] = stats.poisson.pmf(np.arange(size - m), rate[m])
        kernel[m, -1] += stats.poisson.sf(size - 1 - m, rate[m])
    return kernel
