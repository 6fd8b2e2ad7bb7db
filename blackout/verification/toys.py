"""Toys: distributions on a few elements of a few levels, with their exact denoisers, and processes, whose every
conditional law is a matrix.

`Toy` is data under pure death, `JumpToy` data under any process that scipy makes the matrices of (`of_generator`,
`of_steps`, `of_birth_death`). Nothing here uses the package: what it draws and computes is compared with this. Ours.

Rows are the conditioning state, columns the state drawn. A state of several pixels is numbered as in a row-major array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np
from scipy import special, stats
from scipy.linalg import expm as expm

Array = np.ndarray


class Beliefs(NamedTuple):
    """The exact posterior of the missing count N of every element: rows are (state, pixel).

    Attributes:
        mean: E[N | X_t], [R].
        missing: P(N = n | X_t), [R, max_count + 1].
        headroom: max_count - X_t, [R].
    """

    mean: Array
    missing: Array
    headroom: Array


class Data:
    """A distribution of X_0 on levels ** elements.

    Args:
        name: of the data.
        p0: array with one axis per element, each as long as there are levels.
        size: number of states of one element of X_t, by default as many as there are levels.
    """

    def __init__(self, name: str, p0: Array, size: int | None = None) -> None:
        """p0, [levels, levels, ...], one axis per element, with sum 1; and flat, [levels ** elements]."""
        self.name, self.elements, self.levels, self.size = name, p0.ndim, len(p0), size or len(p0)
        self.cube = p0 / p0.sum()
        self.p0 = self.cube.reshape(-1)

    def states_of(self, size: int) -> Array:
        """Every state of all elements if one has so many, [size ** elements, elements]."""
        return np.indices([size] * self.elements).reshape(self.elements, -1).T

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
        """P(X_t | X_0) for pure death, [o, m]: elements are independent [Santos 2023, eq. 8]."""
        return reduce(np.kron, [thinning(self.max_count, q)] * self.pixels)

    def marginal(self, q: float) -> Array:
        """The distribution of X_t, [S]."""
        return self.p0 @ self.thinning(q)

    def posterior(self, q: float) -> Array:
        """P(X_0 | X_t), [m, o], by Bayes' rule; of states that cannot occur, X_0 = X_t."""
        return normal_rows(self.thinning(q).T * self.p0, np.eye(len(self.p0)), 1e-300)

    def beliefs(self, q: float) -> Beliefs:
        """The exact denoiser: E[N | X_t], [R], P(N | X_t), [R, max_count + 1], and headroom [R], with N = X_0 - X_t.

        The prediction y of [Santos 2023, eq. 15], summed over all X_0.
        """
        levels, size = np.arange(self.max_count + 1), self.max_count + 1
        posterior = self.posterior(q).reshape(-1, *[size] * self.pixels)
        others = [
            tuple(axis for axis in range(1, self.pixels + 1) if axis != own)
            for own in range(1, self.pixels + 1)
        ]
        origin = np.stack([posterior.sum(axis=axes) for axes in others], axis=1).reshape(-1, size)
        start = self.states.reshape(-1)
        missing = shifted(origin, -start)
        return Beliefs(missing @ levels, missing, self.max_count - start)

    def reverse(self, q_s: float, q_t: float) -> Array:
        """The exact joint reverse transition P(X_s | X_t) = P(X_t | X_s) P(X_s) / P(X_t), [m, n], by Bayes' rule.

        The bridge of [Santos 2023, eq. 12], averaged over X_0.
        """
        forward = self.thinning(q_t / q_s) * self.marginal(q_s)[:, None]
        return normal_rows(forward.T, np.eye(len(self.p0)), 1e-300)


def two_bumps() -> Toy:
    """A 256-level pixel: an even mixture of two normal densities, 70 +- 20 and 185 +- 25.

    Entropy 5.1971 nats. p0 is [256].
    """
    levels = np.arange(256)
    return Toy("two bumps", stats.norm.pdf(levels, 70, 20) + stats.norm.pdf(levels, 185, 25))


def rare_pixel(p: float = 0.3) -> Toy:
    """A black-and-white pixel that is white with probability p: p0 is [2]."""
    return Toy("rare pixel", np.array([1 - p, p]))


def pixel_pair() -> Toy:
    """Two pixels of 16 levels, in one of two states: both dim and alike, or one bright and its fellow dark.

    p(a, b) = 0.6 N((a, b); (4, 5), 2, correlation 0.8) + 0.4 N((a, b); (12, 9), 2.2, correlation -0.6)

    p0 is [16, 16]. Ours (tests/verification/test_pure_death_kernels.py).
    """
    grid = np.moveaxis(np.indices((16, 16)), 0, -1)

    def bump(centre: tuple[float, float], width: float, correlation: float) -> Array:
        """The normal density N(centre, width, correlation) on its grid, [16, 16]: of `pixel_pair`."""
        cov = width**2 * np.array([[1, correlation], [correlation, 1]])
        return stats.multivariate_normal.pdf(grid, centre, cov)

    return Toy("pixel pair", 0.6 * bump((4, 5), 2.0, 0.8) + 0.4 * bump((12, 9), 2.2, -0.6))


def exclusive_pair() -> Toy:
    """Two pixels of 16 levels, of which one is always black: a birth in one takes all rate from the other.

    p0 is [16, 16]. Ours (tests/verification/test_pure_death_kernels.py).
    """
    lit = stats.norm.pdf(np.arange(16), 8, 3)
    p0 = np.zeros((16, 16))
    p0[1:, 0], p0[0, 1:] = 0.6 * lit[1:], 0.4 * lit[1:]
    return Toy("exclusive pair", p0)


def five_bits() -> Toy:
    """Five black-and-white pixels with a random law on their 32 states."""
    return Toy("five bits", np.random.default_rng(0).dirichlet(np.full(32, 0.3)).reshape([2] * 5))


def three_pixels() -> Toy:
    """Three pixels of 5 levels with a random law on their 125 states."""
    return Toy(
        "three pixels", np.random.default_rng(0).dirichlet(np.full(125, 0.3)).reshape([5] * 3)
    )


def total_variation(p: Array, q: Array) -> float:
    """Half the L1 distance of two distributions, [S] each: a float. Ours (tests/verification/test_pure_death_kernels.py)."""
    return 0.5 * float(np.abs(p - q).sum())


def divided(weights: Array, mass: Array, instead: Array | float = 0.0, least: float = 0.0) -> Array:
    """weights / mass, or `instead` where the mass is at most `least`; shapes broadcast, [...].

    Of `JumpToy.expectation`.
    """
    return np.where(mass > least, weights / np.where(mass > least, mass, 1), instead)


def normal_rows(weights: Array, instead: Array, least: float = 0.0) -> Array:
    """Rows of [..., n] that sum to 1; `instead`, [..., n], where they sum to `least` or less."""
    return divided(weights, weights.sum(-1, keepdims=True), instead, least)


def thinning(max_count: int, q: float) -> Array:
    """P(X_t = m | X_0 = o) of one pixel, [o, m]: Binomial(o, q) [Santos 2023, eq. 8]."""
    return binomial_pmf(np.arange(max_count + 1)[:, None], q, max_count)


_LOG_FACTORIAL = special.gammaln(np.arange(4096) + 1.0)
"""log k!, of counts below 4096."""


def binomial_pmf(n: Array, p: Array | float, max_count: int) -> Array:
    """P(k) for k = 0..max_count along the last axis; n whole numbers [..., 1] or [R, 1], p likewise or a scalar.

    By logarithms of factorials. Ours (tests/verification/test_pure_death_kernels.py).
    """
    k = np.arange(max_count + 1)
    kept = np.clip(n - k, 0, None)
    log_ways = _LOG_FACTORIAL[n] - _LOG_FACTORIAL[k] - _LOG_FACTORIAL[kept]
    return np.where(
        k <= n, np.exp(log_ways + special.xlogy(k, p) + special.xlog1py(kept, -np.asarray(p))), 0.0
    )


def shifted(rows: Array, by: Array) -> Array:
    """Move row r of [R, n] by by[r] columns, int64 [R]; what falls off is lost: [R, n].

    Of `Toy.beliefs` and `landing`.
    """
    index = np.arange(rows.shape[1])[None, :] - by[:, None]
    inside = (index >= 0) & (index < rows.shape[1])
    return np.where(inside, np.take_along_axis(rows, np.clip(index, 0, rows.shape[1] - 1), 1), 0.0)


class Matrices(NamedTuple):
    """A process by brute force, one element.

    Attributes:
        between: (s, t) -> P(X_t | X_s), [states, states].
        generator: [states, states]; None for chains in discrete time.
        ordered: whether several jumps within one leap add up.
    """

    between: Callable[[float, float], Array]
    generator: Array | None = None
    ordered: bool = False


class JumpToy(Data):
    """Data, and the process that acts on every element.

    A state of several elements is numbered as in a row-major array. What depends on an element and the state of all
    is an array [states ** elements, elements, K].

    Args:
        name: of the data.
        p0: array with one axis per element, each as long as there are levels.
        matrices: the process.
    """

    def __init__(self, name: str, p0: Array, matrices: Matrices) -> None:
        self.matrices, self.between = matrices, lru_cache(maxsize=None)(matrices.between)
        super().__init__(name, p0, len(self.between(0.0, 1.0)))

    def forward(self, t: float) -> Array:
        """P(X_t = m | X_0 = o) of one element, [levels, states]."""
        return self.between(0.0, t)[: self.levels]

    def marginal(self, t: float) -> Array:
        """The distribution of X_t, [states ** elements]: every axis of p0 times `forward`."""
        law = self.cube
        for _ in range(
            self.elements
        ):  # the first axis is summed over, and its state becomes the last
            law = np.tensordot(law, self.forward(t), axes=(0, 0))
        return law.reshape(-1)

    def expectation(self, table: Array, t: float) -> Array:
        """E[f(X_0,i, X_t,i) | X_t] for every element i, [states ** elements, elements, K]; 0 where X_t cannot be.

        Bayes' rule, summed over X_0 of all elements. Ours (tests/verification/test_jump_kernels.py).

        Args:
            table: P(X_t,i = m | X_0,i = o) f(o, m), [levels, states, K]: so nothing is divided by small probabilities
                of one element.
        """
        found = []
        for element in range(self.elements):
            law = np.moveaxis(self.cube, element, 0)
            for _ in range(self.elements - 1):
                law = np.tensordot(law, self.forward(t), axes=(1, 0))
            summed = np.einsum("or,omk->mrk", law.reshape(self.levels, -1), table)
            cube = summed.reshape(*[self.size] * self.elements, -1)
            found.append(np.moveaxis(cube, 0, element).reshape(self.size**self.elements, -1))
        return divided(np.stack(found, axis=1), self.marginal(t)[:, None, None])

    def origins(self, t: float) -> Array:
        """P(X_0,i = . | X_t), [states ** elements, elements, levels]."""
        return self.expectation(self.forward(t)[:, :, None] * np.eye(self.levels)[:, None, :], t)

    def before(self, s: float, t: float) -> Array:
        """P(X_s,i = . | X_t), [states ** elements, elements, states]."""
        return self.expectation(self.forward(s)[:, None, :] * self.between(s, t).T[None], t)

    def reverse_rates(self, t: float) -> Array:
        """Rates of the reverse jumps into every state, Q[j, m] p_t(j) / p_t(m), [states ** elements, elements, states].

        [Santos 2023, eq. 71], summed over X_0 [Campbell 2022, Proposition 1].
        """
        jumps = self.rates.T * (1 - np.eye(self.size))
        return self.expectation(jumps[None] * self.forward(t)[:, None, :], t)

    def forward_rates(self, t: float) -> Array:
        """Rates of the forward jumps into every state, [states ** elements, elements, states]: rows of `rates`."""
        return (self.rates * (1 - np.eye(self.size)))[self.states]

    @property
    def rates(self) -> Array:
        """The generator of a process in continuous time."""
        assert self.matrices.generator is not None
        return self.matrices.generator


def of_generator(generator: Array, ordered: bool = False) -> Matrices:
    """exp(Q (t - s)) of rates Q [states, states], by scipy [Campbell 2022]."""
    return Matrices(lambda s, t: np.clip(expm(generator * (t - s)), 0.0, None), generator, ordered)


def of_steps(steps: Array) -> Matrices:
    """A chain in discrete time, from the matrices of its steps [T, states, states]."""

    return Matrices(lambda s, t: product(steps[round(s) : round(t)]))


def of_birth_death(mean: float, size: int) -> Matrices:
    """Immigration and death on 0..size - 1: binomial survivors and Poisson newcomers.

    [size, size]. Ours (tests/verification/test_jump_kernels.py).
    """
    levels = np.arange(size)

    def between(s: float, t: float) -> Array:
        """P(X_t | X_s), [size, size]: Binomial(X_s, e^(s - t)) + Poisson(mean (1 - e^(s - t))). Of `of_birth_death`."""
        survivors = binomial_pmf(levels[:, None], np.exp(s - t), size - 1)
        newcomers = stats.poisson.pmf(levels[None, :] - levels[:, None], -mean * np.expm1(s - t))
        return survivors @ newcomers

    return Matrices(between, birth_death_generator(mean, size), ordered=True)


def product(steps: np.ndarray) -> np.ndarray:
    """The product of matrices [T, S, S]; of none, the identity."""
    return reduce(np.matmul, steps, np.eye(steps.shape[-1]))


def birth_death_generator(births: float, size: int) -> np.ndarray:
    """Immigration-death cut off at size - 1: rates [size, size], `births` up and k down from k, a row from each state.

    Ours (tests/verification/test_bounds_and_losses.py).
    """
    q = np.diag(np.full(size - 1, births), 1) + np.diag(np.arange(1.0, size), -1)
    return q - np.diag(q.sum(1))


def random_generator(
    rng: np.random.Generator, size: int, density: float = 1.0, spread: float = 1.0
) -> np.ndarray:
    """Off-diagonal rates exp(spread normal), each kept with probability `density`: [size, size], rows with sum 0.

    Ours (tests/verification/test_jump_kernels.py).
    """
    q = np.exp(spread * rng.standard_normal((size, size))) * (rng.random((size, size)) < density)
    np.fill_diagonal(q, 0.0)
    return q - np.diag(q.sum(1))
