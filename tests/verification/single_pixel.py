"""Exact distributions of one pixel with levels 0..M, written independently of the package.

In matrices, rows are the conditioning state and columns the sampled state. All are float64 numpy.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

LEVELS = np.arange(256)


def two_bumps() -> np.ndarray:
    """A 256-level pixel: an even mixture of two rounded normals, 70 ± 20 and 185 ± 25."""
    p = stats.norm.pdf(LEVELS, 70, 20) + stats.norm.pdf(LEVELS, 185, 25)
    return p / p.sum()


def bernoulli(p: float) -> np.ndarray:
    return np.array([1 - p, p])


def entropy(p: np.ndarray) -> float:
    return float(stats.entropy(p))


def thinning(max_count: int, q: float) -> np.ndarray:
    """P(X_t = m | X_0 = o), [o, m]."""
    levels = np.arange(max_count + 1)
    return stats.binom.pmf(levels[None, :], levels[:, None], q)


def posterior(p0: np.ndarray, q: float) -> np.ndarray:
    """P(X_0 = o | X_t = m), [m, o]; all mass on o = m in rows that cannot occur."""
    joint = thinning(len(p0) - 1, q).T * p0[None, :]
    mass = joint.sum(1, keepdims=True)
    return np.where(mass > 0, joint / np.where(mass > 0, mass, 1), np.eye(len(p0)))


def missing_mean(p0: np.ndarray, q: float) -> np.ndarray:
    """The exact posterior mean y(m) = E[X_0 - X_t | X_t = m], [m]."""
    levels = np.arange(len(p0))
    return np.clip(posterior(p0, q) @ levels - levels, 0, None)


def bridge(max_count: int, o: int, m: int, r: float) -> np.ndarray:
    """P(X_s = n | X_0 = o, X_t = m), [n]."""
    levels = np.arange(max_count + 1)
    return stats.binom.pmf(levels - m, o - m, r)
