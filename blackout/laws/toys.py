"""Toys: distributions on a few pixels of a few levels, whose every conditional distribution is a matrix.

Rows are the conditioning state, columns the state drawn. A state of several pixels is numbered as in a row-major array.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import special, stats

Array = np.ndarray


@dataclass(frozen=True)
class Beliefs:
    """The exact posterior of the missing count N of every element: rows are (state, pixel).

    Attributes:
        mean: E[N | X_t], [R].
        variance: Var[N | X_t], [R].
        missing: P(N = n | X_t), [R, max_count + 1].
        headroom: max_count - X_t, [R].
    """

    mean: Array
    variance: Array
    missing: Array
    headroom: Array

    @property
    def dispersion(self) -> Array:
        """Var[N] / E[N], 1 where nothing is missing."""
        return np.divide(self.variance, self.mean, out=np.ones_like(self.mean), where=self.mean > 0)


class Data:
    """A distribution of X_0 on levels ** elements.

    Args:
        name: of the data.
        p0: array with one axis per element, each as long as there are levels.
        size: number of states of one element of X_t, by default as many as there are levels.
    """

    def __init__(self, name: str, p0: Array, size: int | None = None) -> None:
        self.name, self.elements, self.levels, self.size = name, p0.ndim, len(p0), size or len(p0)
        self.cube = p0 / p0.sum()
        self.p0 = self.cube.reshape(-1)

    def states_of(self, size: int) -> Array:
        """Every state of all elements if one has so many, [size ** elements, elements]."""
        axes = np.meshgrid(*[np.arange(size)] * self.elements, indexing="ij")
        return np.stack([axis.reshape(-1) for axis in axes], axis=1)

    @cached_property
    def states(self) -> Array:
        """Every state of X_t, [size ** elements, elements]."""
        return self.states_of(self.size)

    @property
    def entropy(self) -> float:
        """H(X_0) in nats."""
        return float(stats.entropy(self.p0))

    @property
    def mean(self) -> Array:
        """E[X_0], [elements]."""
        return self.p0 @ self.states_of(self.levels)


class Toy(Data):
    """Data of `pixels` elements with counts 0..max_count, under pure death."""

    def __init__(self, name: str, p0: Array) -> None:
        super().__init__(name, p0)
        self.pixels, self.max_count = self.elements, self.levels - 1

    def thinning(self, q: float) -> Array:
        """P(X_t | X_0) for pure death, [o, m]."""
        one = thinning(self.max_count, q)
        matrix = np.ones((1, 1))
        for _ in range(self.pixels):
            matrix = np.kron(matrix, one)
        return matrix

    def marginal(self, q: float) -> Array:
        """The distribution of X_t, [S]."""
        return self.p0 @ self.thinning(q)

    def posterior(self, q: float) -> Array:
        """P(X_0 | X_t), [m, o]; of states that cannot occur, X_0 = X_t."""
        joint = self.thinning(q).T * self.p0
        mass = joint.sum(1, keepdims=True)
        return np.where(mass > 1e-300, joint / np.where(mass > 1e-300, mass, 1), np.eye(len(self.p0)))

    def beliefs(self, q: float) -> Beliefs:
        """The exact denoiser."""
        levels, size = np.arange(self.max_count + 1), self.max_count + 1
        posterior = self.posterior(q).reshape(-1, *[size] * self.pixels)
        origin = np.stack([posterior.sum(axis=tuple(a for a in range(1, self.pixels + 1) if a != pixel + 1))
                           for pixel in range(self.pixels)], axis=1).reshape(-1, size)  # fmt: skip
        start = self.states.reshape(-1)
        missing = _shift(origin, -start)
        mean = missing @ levels
        variance = np.clip(missing @ levels**2 - mean**2, 0, None)
        return Beliefs(mean, variance, missing, self.max_count - start)

    def reverse(self, q_s: float, q_t: float) -> Array:
        """The exact joint reverse transition P(X_s | X_t), [m, n], by Bayes' rule."""
        forward = self.thinning(q_t / q_s) * self.marginal(q_s)[:, None]
        mass = forward.sum(0)
        return np.where(mass > 1e-300, forward / np.where(mass > 1e-300, mass, 1), np.eye(len(mass))).T

    def covariance(self, q: float) -> Array:
        """Cov(N | X_t), [S, pixels, pixels]."""
        posterior = self.posterior(q)
        mean = posterior @ self.states
        second = np.einsum("mo,oi,oj->mij", posterior, self.states, self.states)
        return second - mean[:, :, None] * mean[:, None, :]

    def curvature(self, q: float) -> float:
        """G = E || D^-1/2 Cov(N | X_t) D^-1/2 - 1 ||_F^2, D = diag E[N | X_t]: a Poisson step costs KL r^2 G / 4."""
        mean = self.beliefs(q).mean.reshape(-1, self.pixels)
        lit = mean > 1e-12  # elsewhere nothing is missing and the quotient would be of rounding errors
        scale = np.where(lit, np.sqrt(np.where(lit, mean, 1)), np.inf)
        scaled = self.covariance(q) / (scale[:, :, None] * scale[:, None, :]) - np.eye(self.pixels) * lit[:, :, None]
        return float(self.marginal(q) @ (scaled**2).sum((1, 2)))


def two_bumps() -> Toy:
    """A 256-level pixel: an even mixture of two normal densities, 70 +- 20 and 185 +- 25. Entropy 5.1971 nats."""
    levels = np.arange(256)
    return Toy("two bumps", stats.norm.pdf(levels, 70, 20) + stats.norm.pdf(levels, 185, 25))


def rare_pixel(p: float = 0.3) -> Toy:
    """A black-and-white pixel that is white with probability p."""
    return Toy("rare pixel", np.array([1 - p, p]))


def pixel_pair() -> Toy:
    """Two pixels of 16 levels, in one of two states: both dim and alike, or one bright and its fellow dark.

    p(a, b) = 0.6 N((a, b); (4, 5), 2, correlation 0.8) + 0.4 N((a, b); (12, 9), 2.2, correlation -0.6)
    """
    grid = np.stack(np.meshgrid(np.arange(16), np.arange(16), indexing="ij"), axis=-1)

    def bump(centre: tuple[float, float], width: float, correlation: float) -> Array:
        cov = width**2 * np.array([[1, correlation], [correlation, 1]])
        return stats.multivariate_normal.pdf(grid, centre, cov)

    return Toy("pixel pair", 0.6 * bump((4, 5), 2.0, 0.8) + 0.4 * bump((12, 9), 2.2, -0.6))


def exclusive_pair() -> Toy:
    """Two pixels of 16 levels, of which one is always black: a birth in one takes all rate from the other."""
    lit = stats.norm.pdf(np.arange(16), 8, 3)
    p0 = np.zeros((16, 16))
    p0[1:, 0], p0[0, 1:] = 0.6 * lit[1:], 0.4 * lit[1:]
    return Toy("exclusive pair", p0)


def five_bits() -> Toy:
    """Five black-and-white pixels with a random law on their 32 states."""
    return Toy("five bits", np.random.default_rng(0).dirichlet(np.full(32, 0.3)).reshape([2] * 5))


def three_pixels() -> Toy:
    """Three pixels of 5 levels with a random law on their 125 states."""
    return Toy("three pixels", np.random.default_rng(0).dirichlet(np.full(125, 0.3)).reshape([5] * 3))


def total_variation(p: Array, q: Array) -> float:
    """Half the L1 distance of two distributions."""
    return 0.5 * float(np.abs(p - q).sum())


def thinning(max_count: int, q: float) -> Array:
    """P(X_t = m | X_0 = o) of one pixel, [o, m]."""
    levels = np.arange(max_count + 1)
    return binomial_pmf(levels[:, None], q, max_count)


def binomial_pmf(n: Array, p: Array | float, max_count: int) -> Array:
    """P(k) for k = 0..max_count along the last axis; n whole numbers [..., 1] or [R, 1], p likewise or a scalar."""
    k = np.arange(max_count + 1)
    kept = np.clip(n - k, 0, None)
    log_ways = _log_factorial(4096)[n] - _log_factorial(4096)[k] - _log_factorial(4096)[kept]
    return np.where(k <= n, np.exp(log_ways + special.xlogy(k, p) + special.xlog1py(kept, -np.asarray(p))), 0.0)


@lru_cache(maxsize=4)
def _log_factorial(size: int) -> Array:
    return special.gammaln(np.arange(size) + 1.0)


def _shift(rows: Array, by: Array) -> Array:
    """Move row r by by[r] columns; what falls off is lost."""
    index = np.arange(rows.shape[1])[None, :] - by[:, None]
    inside = (index >= 0) & (index < rows.shape[1])
    return np.where(inside, np.take_along_axis(rows, np.clip(index, 0, rows.shape[1] - 1), 1), 0.0)
