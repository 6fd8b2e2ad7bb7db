"""Toys for any process: distributions on one or two elements, and the process as scipy's matrices of one element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import stats

from blackout.laws import chains
from blackout.laws.toys import Array, Data, binomial_pmf


@dataclass(frozen=True)
class Matrices:
    """A process by brute force, one element.

    Attributes:
        between: (s, t) -> P(X_t | X_s), [states, states].
        generator: t -> the generator at t, [states, states]; None for chains in discrete time.
        ordered: whether several jumps within one leap add up.
    """

    between: Callable[[float, float], Array]
    generator: Callable[[float], Array] | None = None
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
        """The distribution of X_t, [states ** elements]."""
        law = self.cube
        for _ in range(self.elements):  # the first axis is summed over, and its state becomes the last
            law = np.tensordot(law, self.forward(t), axes=(0, 0))
        return law.reshape(-1)

    def expectation(self, table: Array, t: float) -> Array:
        """E[f(X_0,i, X_t,i) | X_t] for every element i; 0 where X_t cannot be.

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
        mass = self.marginal(t)[:, None, None]
        return np.where(mass > 0, np.stack(found, axis=1) / np.where(mass > 0, mass, 1), 0.0)

    def origins(self, t: float) -> Array:
        """P(X_0,i = . | X_t), K = levels."""
        return self.expectation(self.forward(t)[:, :, None] * np.eye(self.levels)[:, None, :], t)

    def before(self, s: float, t: float) -> Array:
        """P(X_s,i = . | X_t), K = states."""
        return self.expectation(self.forward(s)[:, None, :] * self.between(s, t).T[None], t)

    def reverse_rates(self, t: float) -> Array:
        """Rates of the reverse jumps into every state, Q[j, m] p_t(j) / p_t(m), K = states."""
        jumps = self.rates_at(t).T * (1 - np.eye(self.size))
        return self.expectation(jumps[None] * self.forward(t)[:, None, :], t)

    def forward_rates(self, t: float) -> Array:
        """Rates of the forward jumps into every state, K = states."""
        return (self.rates_at(t) * (1 - np.eye(self.size)))[self.states]

    def rates_at(self, t: float) -> Array:
        """The generator at t.

        Raises:
            ValueError: the process has none.
        """
        if self.matrices.generator is None:
            raise ValueError("a chain in discrete time has no rates")
        return self.matrices.generator(t)


def of_generator(
    generator: Array, ordered: bool = False, speeds: tuple[float, ...] = (1.0,), changes: tuple[float, ...] = ()
) -> Matrices:
    """exp(Q tau), where Q runs at speeds[i] from changes[i - 1] (or 0) to changes[i]."""
    edges = (0.0, *changes, np.inf)

    def between(s: float, t: float) -> Array:
        spent = [max(0.0, min(t, b) - max(s, a)) for a, b in pairwise(edges)]
        return np.clip(chains.expm(generator * float(np.dot(speeds, spent))), 0.0, None)

    def at(t: float) -> Array:
        return generator * speeds[int(np.searchsorted(changes, t, side="right"))]

    return Matrices(between, at, ordered)


def of_steps(steps: Array) -> Matrices:
    """A chain in discrete time, from the matrices of its steps [T, states, states]."""

    return Matrices(lambda s, t: chains.product(steps[round(s) : round(t)]))


def of_birth_death(mean: float, size: int) -> Matrices:
    """Immigration and death on 0..size - 1: binomial survivors and Poisson newcomers."""
    rates, levels = chains.birth_death_generator(mean, size), np.arange(size)

    def between(s: float, t: float) -> Array:
        survivors = binomial_pmf(levels[:, None], np.exp(s - t), size - 1)
        newcomers = stats.poisson.pmf(levels[None, :] - levels[:, None], -mean * np.expm1(s - t))
        return survivors @ newcomers

    return Matrices(between, lambda t: rates, ordered=True)
