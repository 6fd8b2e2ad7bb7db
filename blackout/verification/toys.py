"""Small data sets and processes whose every conditional distribution is a matrix.

`Toy` is data under pure death, `JumpToy` is data under any process whose transition matrices scipy
can compute (`generator_transitions`, `chain_transitions`, `birth_death_transitions`). Nothing here
uses the rest of the package, whose draws and formulas are compared with these matrices.

Rows of matrices are the state that is conditioned on, columns the state that is drawn. A state of
several elements is numbered as in a row-major array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np
from scipy import special, stats
from scipy.linalg import expm

Array = np.ndarray

SMALLEST_MASS = 1e-300  # of a state that can occur; rarer ones count as impossible
LOG_FACTORIAL = special.gammaln(np.arange(4096) + 1.0)  # log k! of counts below 4,096


class MissingCounts(NamedTuple):
    """Exact posterior of the missing count N = X_0 - X_t, for every state and element.

    The R rows are pairs of a state and an element.

    Attributes:
        mean: E[N | X_t], [R].
        pmf: P(N = n | X_t), [R, max_count + 1].
        headroom: max_count - X_t, [R].
    """

    mean: Array
    pmf: Array
    headroom: Array

    @property
    def max_count(self) -> int:
        """The largest count of an element."""
        return self.pmf.shape[1] - 1


class Data:
    """Toy data: a tabulated distribution of X_0 on levels ** elements states.

    Args:
        name: of the data.
        p0: array with one axis per element, each as long as there are levels; normalised here.
        size: number of states of one element of X_t; None for as many as there are levels.
    """

    def __init__(self, name: str, p0: Array, size: int | None = None) -> None:
        self.name = name
        self.elements = p0.ndim
        self.levels = len(p0)
        self.size = size or len(p0)
        self.cube = p0 / p0.sum()
        self.p0 = self.cube.reshape(-1)

    def enumerate_states(self, size: int) -> Array:
        """Return all states of elements with `size` states each, [size ** elements, elements]."""
        return np.indices([size] * self.elements).reshape(self.elements, -1).T

    @cached_property
    def states(self) -> Array:
        """All states of X_t, [size ** elements, elements]."""
        return self.enumerate_states(self.size)

    @property
    def entropy(self) -> float:
        """H(X_0) in nats."""
        return float(stats.entropy(self.p0))

    @property
    def mean(self) -> Array:
        """E[X_0], [elements]."""
        return self.p0 @ self.enumerate_states(self.levels)


class Toy(Data):
    """Data of `pixels` elements with counts 0..max_count, under pure death.

    There are S = (max_count + 1) ** pixels states, of X_0 and of X_t.
    """

    def __init__(self, name: str, p0: Array) -> None:
        super().__init__(name, p0)
        self.pixels = self.elements
        self.max_count = self.levels - 1

    def thinning(self, q: float) -> Array:
        """Return P(X_t | X_0) at survival q, [S, S]; elements are independent.

        References: Santos et al. 2023, eq. 8.
        """
        return reduce(np.kron, [thinning(self.max_count, q)] * self.pixels)

    def marginal(self, q: float) -> Array:
        """Return the distribution of X_t at survival q, [S]."""
        return self.p0 @ self.thinning(q)

    def posterior(self, q: float) -> Array:
        """Return P(X_0 | X_t) by Bayes' rule, [S, S]; X_0 = X_t for states that cannot occur."""
        return normalise_rows(self.thinning(q).T * self.p0, np.eye(len(self.p0)), SMALLEST_MASS)

    def missing_counts(self, q: float) -> MissingCounts:
        """Return what an exact denoiser predicts for all states at survival q.

        References: Santos et al. 2023, eq. 15, summed over all X_0.
        """
        size = self.max_count + 1
        posterior = self.posterior(q).reshape(-1, *[size] * self.pixels)
        axes = range(1, self.pixels + 1)
        origins = [
            posterior.sum(axis=tuple(other for other in axes if other != axis)) for axis in axes
        ]
        origin = np.stack(origins, axis=1).reshape(-1, size)
        counts = self.states.reshape(-1)
        pmf = shift_rows(origin, -counts)
        return MissingCounts(pmf @ np.arange(size), pmf, self.max_count - counts)

    def reverse(self, q_s: float, q_t: float) -> Array:
        """Return P(X_s | X_t) = P(X_t | X_s) P(X_s) / P(X_t), [S, S], by Bayes' rule.

        References: Santos et al. 2023, eq. 12, averaged over X_0.
        """
        forward = self.thinning(q_t / q_s) * self.marginal(q_s)[:, None]
        return normalise_rows(forward.T, np.eye(len(self.p0)), SMALLEST_MASS)


# --- data


def two_bumps() -> Toy:
    """Return a pixel of 256 levels: an even mixture of normal densities, 70 ± 20 and 185 ± 25.

    Its entropy is 5.1971 nats.
    """
    levels = np.arange(256)
    return Toy("two bumps", stats.norm.pdf(levels, 70, 20) + stats.norm.pdf(levels, 185, 25))


def rare_pixel(p: float = 0.3) -> Toy:
    """Return a black-and-white pixel that is white with probability p."""
    return Toy("rare pixel", np.array([1 - p, p]))


def pixel_pair() -> Toy:
    """Return two pixels of 16 levels that are both dim and alike, or one bright and one dark.

    p(a, b) = 0.6 N((a, b); (4, 5), 2, correlation 0.8) + 0.4 N((a, b); (12, 9), 2.2, correlation
    -0.6)
    """
    grid = np.moveaxis(np.indices((16, 16)), 0, -1)

    def bump(centre: tuple[float, float], width: float, correlation: float) -> Array:
        """Return a normal density on the grid, [16, 16]."""
        covariance = width**2 * np.array([[1, correlation], [correlation, 1]])
        return stats.multivariate_normal.pdf(grid, centre, covariance)

    return Toy("pixel pair", 0.6 * bump((4, 5), 2.0, 0.8) + 0.4 * bump((12, 9), 2.2, -0.6))


def exclusive_pair() -> Toy:
    """Return two pixels of 16 levels, one of which is always black.

    A birth in one pixel sets the rate of the other to 0.
    """
    lit = stats.norm.pdf(np.arange(16), 8, 3)
    p0 = np.zeros((16, 16))
    p0[1:, 0] = 0.6 * lit[1:]
    p0[0, 1:] = 0.4 * lit[1:]
    return Toy("exclusive pair", p0)


def five_bits() -> Toy:
    """Return five black-and-white pixels with a random distribution on their 32 states."""
    p0 = np.random.default_rng(0).dirichlet(np.full(32, 0.3))
    return Toy("five bits", p0.reshape([2] * 5))


def three_pixels() -> Toy:
    """Return three pixels of 5 levels with a random distribution on their 125 states."""
    p0 = np.random.default_rng(0).dirichlet(np.full(125, 0.3))
    return Toy("three pixels", p0.reshape([5] * 3))


# --- arrays of probabilities


def total_variation(p: Array, q: Array) -> float:
    """Return half the L1 distance of two distributions, [S] each."""
    return 0.5 * float(np.abs(p - q).sum())


def divide_or_default(
    weights: Array, mass: Array, default: Array | float = 0.0, smallest: float = 0.0
) -> Array:
    """Return weights / mass, or `default` where the mass is at most `smallest`.

    All shapes broadcast.
    """
    return np.where(mass > smallest, weights / np.where(mass > smallest, mass, 1), default)


def normalise_rows(weights: Array, default: Array, smallest: float = 0.0) -> Array:
    """Return rows of weights [..., n] that sum to 1, or `default` for sums up to `smallest`."""
    return divide_or_default(weights, weights.sum(-1, keepdims=True), default, smallest)


def shift_rows(rows: Array, columns: Array) -> Array:
    """Move row r of [R, n] to the right by columns[r], int64 [R]; what leaves the row is lost."""
    index = np.arange(rows.shape[1])[None, :] - columns[:, None]
    inside = (index >= 0) & (index < rows.shape[1])
    return np.where(inside, np.take_along_axis(rows, np.clip(index, 0, rows.shape[1] - 1), 1), 0.0)


def thinning(max_count: int, q: float) -> Array:
    """Return P(X_t = m | X_0 = o) = Binomial(m; o, q) of one pixel, [levels, levels].

    References: Santos et al. 2023, eq. 8.
    """
    return binomial_pmf(np.arange(max_count + 1)[:, None], q, max_count)


def binomial_pmf(n: Array, p: Array | float, max_count: int) -> Array:
    """Return P(k) for k = 0..max_count along the last axis, by logarithms of factorials.

    Args:
        n: numbers of trials, integers [..., 1].
        p: probability of a success, [..., 1] or a number.
        max_count: largest k.

    References: this project; checked in tests/verification/test_pure_death_kernels.py.
    """
    k = np.arange(max_count + 1)
    failures = np.clip(n - k, 0, None)
    log_ways = LOG_FACTORIAL[n] - LOG_FACTORIAL[k] - LOG_FACTORIAL[failures]
    log_power = special.xlogy(k, p) + special.xlog1py(failures, -np.asarray(p))
    return np.where(k <= n, np.exp(log_ways + log_power), 0.0)


# --- processes


class Transitions(NamedTuple):
    """Transition matrices and generator of a process of one element.

    Attributes:
        matrix: (s, t) -> P(X_t | X_s), [states, states].
        generator: rates [states, states]; None for chains in discrete time.
        ordered: whether states are ordered, so that several jumps within one leap add up.
    """

    matrix: Callable[[float, float], Array]
    generator: Array | None = None
    ordered: bool = False


class JumpToy(Data):
    """Toy data under a jump process given by its transition matrices.

    What depends on an element and on the state of all elements is an array [states ** elements,
    elements, K].

    Args:
        name: of the data.
        p0: array with one axis per element, each as long as there are levels.
        transitions: of the process.
    """

    def __init__(self, name: str, p0: Array, transitions: Transitions) -> None:
        self.transitions = transitions
        self.transition = lru_cache(maxsize=None)(transitions.matrix)
        super().__init__(name, p0, len(self.transition(0.0, 1.0)))

    def forward(self, t: float) -> Array:
        """Return P(X_t = m | X_0 = o) of one element, [levels, states]."""
        return self.transition(0.0, t)[: self.levels]

    def marginal(self, t: float) -> Array:
        """Return the distribution of X_t, [states ** elements]."""
        joint = self.cube
        for _ in range(self.elements):
            # sums over the level of the first axis; the element's state becomes the last axis
            joint = np.tensordot(joint, self.forward(t), axes=(0, 0))
        return joint.reshape(-1)

    def expectation(self, table: Array, t: float) -> Array:
        """Return E[f(X_0,i, X_t,i) | X_t] for every element i, by Bayes' rule.

        Args:
            table: P(X_t,i = m | X_0,i = o) f(o, m), [levels, states, K]. With this factor nothing
                is divided by small probabilities of one element.
            t: time of X_t.

        Returns:
            [states ** elements, elements, K]; 0 for states X_t that cannot occur.

        References: this project; checked in tests/verification/test_jump_kernels.py.
        """
        sums = []
        for element in range(self.elements):
            joint = np.moveaxis(self.cube, element, 0)
            for _ in range(self.elements - 1):
                joint = np.tensordot(joint, self.forward(t), axes=(1, 0))
            weighted = np.einsum("or,omk->mrk", joint.reshape(self.levels, -1), table)
            cube = weighted.reshape(*[self.size] * self.elements, -1)
            sums.append(np.moveaxis(cube, 0, element).reshape(self.size**self.elements, -1))
        return divide_or_default(np.stack(sums, axis=1), self.marginal(t)[:, None, None])

    def origin_pmf(self, t: float) -> Array:
        """Return P(X_0,i = . | X_t), [states ** elements, elements, levels]."""
        return self.expectation(self.forward(t)[:, :, None] * np.eye(self.levels)[:, None, :], t)

    def bridge_pmf(self, s: float, t: float) -> Array:
        """Return P(X_s,i = . | X_t), [states ** elements, elements, states]."""
        table = self.forward(s)[:, None, :] * self.transition(s, t).T[None]
        return self.expectation(table, t)

    def reverse_rates(self, t: float) -> Array:
        """Return the rates of reverse jumps into every state.

        They are Q[j, m] p_t(j) / p_t(m), [states ** elements, elements, states], and 0 for the
        present state.

        References: Santos et al. 2023, eq. 71; Campbell et al. 2022, Proposition 1.
        """
        jumps = self.rates.T * (1 - np.eye(self.size))
        return self.expectation(jumps[None] * self.forward(t)[:, None, :], t)

    def forward_rates(self) -> Array:
        """Return the rates of forward jumps into every state, the same at all times.

        They are [states ** elements, elements, states], and 0 for the present state.
        """
        return (self.rates * (1 - np.eye(self.size)))[self.states]

    @property
    def rates(self) -> Array:
        """The generator Q of a process in continuous time, [states, states]."""
        assert self.transitions.generator is not None
        return self.transitions.generator


def generator_transitions(generator: Array, ordered: bool = False) -> Transitions:
    """Return exp(Q (t - s)) of rates Q [states, states], by scipy.

    References: Campbell et al. 2022, section 3.
    """

    def matrix(s: float, t: float) -> Array:
        """Return P(X_t | X_s); rounding errors below 0 are cut off."""
        return np.clip(expm(generator * (t - s)), 0.0, None)

    return Transitions(matrix, generator, ordered)


def chain_transitions(steps: Array) -> Transitions:
    """Return the transitions of a chain in discrete time, whose steps are [T, states, states]."""

    def matrix(s: float, t: float) -> Array:
        """Return the product of the steps between two times, which are whole numbers."""
        return multiply_steps(steps[round(s) : round(t)])

    return Transitions(matrix)


def birth_death_transitions(mean: float, size: int) -> Transitions:
    """Return the transitions of immigration and death on 0..size - 1, [size, size].

    X_t given X_s is Binomial(X_s, e^(s - t)) + Poisson(mean (1 - e^(s - t))).

    References: this project; checked in tests/verification/test_jump_kernels.py.
    """
    levels = np.arange(size)

    def matrix(s: float, t: float) -> Array:
        """Return the convolution of survivors and immigrants."""
        survivors = binomial_pmf(levels[:, None], np.exp(s - t), size - 1)
        immigrants = stats.poisson.pmf(levels[None, :] - levels[:, None], -mean * np.expm1(s - t))
        return survivors @ immigrants

    return Transitions(matrix, birth_death_generator(mean, size), ordered=True)


def multiply_steps(steps: Array) -> Array:
    """Return the product of matrices [T, S, S]; the identity if there are none."""
    return reduce(np.matmul, steps, np.eye(steps.shape[-1]))


def birth_death_generator(births: float, size: int) -> Array:
    """Return the rates of immigration and death, cut off at size - 1, [size, size].

    Counts k rise at the rate `births` and fall at the rate k.

    References: this project; checked in tests/verification/test_bounds_and_losses.py.
    """
    q = np.diag(np.full(size - 1, births), 1) + np.diag(np.arange(1.0, size), -1)
    return q - np.diag(q.sum(1))


def random_generator(
    rng: np.random.Generator, size: int, density: float = 1.0, spread: float = 1.0
) -> Array:
    """Return random rates [size, size] whose rows sum to 0.

    Args:
        rng: source of random numbers.
        size: number of states.
        density: probability that a rate is not 0.
        spread: standard deviation of the logarithms of rates.
    """
    q = np.exp(spread * rng.standard_normal((size, size))) * (rng.random((size, size)) < density)
    np.fill_diagonal(q, 0.0)
    return q - np.diag(q.sum(1))
