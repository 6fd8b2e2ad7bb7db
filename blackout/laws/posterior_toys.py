"""Whole matrices of split Gibbs sampling and its relatives on a tiny space, independent of `blackout.posterior`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from blackout.laws.toys import Array, thinning, total_variation

Element = Callable[[float], Array]
"""level -> transition matrix of one element, [levels, states]."""


def uniform_element(levels: int) -> Element:
    """e^-t I + (1 - e^-t) / N."""
    return lambda t: math.exp(-t) * np.eye(levels) - math.expm1(-t) / levels


def death_element(levels: int) -> Element:
    """Binomial(x, e^-t)."""
    return lambda t: thinning(levels - 1, math.exp(-t))


def absorbing_element(levels: int) -> Element:
    """Stays, or becomes the mask, state number `levels`."""
    return lambda t: np.hstack([math.exp(-t) * np.eye(levels), np.full((levels, 1), -math.expm1(-t))])


@dataclass(frozen=True)
class SplitToy:
    """A prior and a likelihood on levels ** elements, tied by a process.

    Args:
        p: prior, [levels ** elements].
        likelihood: L of data, the same shape.
        levels, elements: of the space.
        element: the process.
        relaxed: level -> Lt of states, [states ** elements]; None takes L itself.
    """

    p: Array
    likelihood: Array
    levels: int
    elements: int
    element: Element
    relaxed: Callable[[float], Array] | None = None

    @cached_property
    def posterior(self) -> Array:
        """p L / Z."""
        return _normal(self.p * self.likelihood)

    def forward(self, t: float) -> Array:
        """K_t(x, z), [x, z]."""
        return reduce(np.kron, [self.element(t)] * self.elements)

    def of_states(self, t: float) -> Array:
        """Lt(z)."""
        return self.likelihood if self.relaxed is None else self.relaxed(t)

    def split(self, t: float) -> Array:
        """The x-marginal of p(x) Lt(z) K_t(x, z): p (K_t Lt) / Z."""
        return _normal(self.p * (self.forward(t) @ self.of_states(t)))

    def denoise(self, t: float) -> Array:
        """p(x | z), [z, x]; of states that cannot be, the prior."""
        joint = (self.p[:, None] * self.forward(t)).T
        return _rows(joint, self.p)

    def likelihood_step(self, t: float, factor: float = 1.0) -> Array:
        """P(z | x) in proportion to Lt(z) K_t(x, z), [x, z].

        Args:
            factor: on K_t of one element off its diagonal; N - 1 is the published potential.
        """
        return _rows(self._kernel(t, factor) * self.of_states(t), self.of_states(t))

    def _kernel(self, t: float, factor: float) -> Array:
        one = self.element(t)
        away = 1 - np.eye(*one.shape)
        return reduce(np.kron, [one * (1 + (factor - 1) * away)] * self.elements)

    def sweep(self, t: float, factor: float = 1.0) -> Array:
        """x -> z -> x', [x, x']."""
        return self.likelihood_step(t, factor) @ self.denoise(t)

    def metropolis(self, x: int, t: float, factor: float = 1.0) -> Array:
        """One proposal given x: an element at random, one of the states at random, [z, z']."""
        states = round(len(self.of_states(t)) ** (1 / self.elements))
        target = self._kernel(t, factor)[x] * self.of_states(t)
        size, matrix = len(target), np.zeros((len(target), len(target)))
        numbers = np.stack(np.unravel_index(np.arange(size), (states,) * self.elements), 1)
        for z in range(size):
            for site in range(self.elements):
                for value in range(states):
                    other = numbers[z].copy()
                    other[site] = value
                    to = int(np.ravel_multi_index(tuple(other), (states,) * self.elements))
                    accept = 1.0 if target[z] == 0 else min(1.0, target[to] / target[z])
                    matrix[z, to] += accept / self.elements / states
        return matrix + np.diag(1 - matrix.sum(1))

    def site_by_site(self, x: int, t: float) -> Array:
        """One pass of the heat bath given x, one element after the other, [z, z']."""
        states = round(len(self.of_states(t)) ** (1 / self.elements))
        target = (self.forward(t)[x] * self.of_states(t)).reshape((states,) * self.elements)
        size, matrix = target.size, np.eye(target.size)
        for site in range(self.elements):
            conditional = _rows(np.moveaxis(target, site, -1), np.ones(states))
            step = np.zeros((size, size))
            for z, number in enumerate(np.ndindex(target.shape)):
                rest = number[:site] + number[site + 1 :]
                for value in range(states):
                    to = np.ravel_multi_index((*number[:site], value, *number[site + 1 :]), target.shape)
                    step[z, to] += conditional[(*rest, value)]
            matrix = matrix @ step
        return matrix

    def persistent(self, t: float, step: Callable[[int, float], Array], times: int = 1) -> Array:
        """The x-marginal of the joint chain (x, z): z moves by `step` given x, then x is drawn given z."""
        denoise, moves = self.denoise(t), [np.linalg.matrix_power(step(x, t), times) for x in range(len(self.p))]
        joint = np.einsum("xzw,wy->xzyw", np.stack(moves), denoise)
        size = len(self.p) * len(denoise)
        return stationary(joint.reshape(size, size)).reshape(len(self.p), -1).sum(1)

    def restarted(self, t: float, times: int) -> Array:
        """The stationary law of x where Metropolis starts at z = x in every sweep."""
        rows = [np.linalg.matrix_power(self.metropolis(x, t), times)[x] for x in range(len(self.p))]
        return stationary(np.stack(rows) @ self.denoise(t))

    def noise_denoise(self, t: float) -> Array:
        """z ~ K_t(x, .), x' ~ p(. | z), accepted with probability min(1, L(x') / L(x)): [x, x']."""
        return self._accepted(self.forward(t) @ self.denoise(t), self.likelihood)

    def corrected(self, t: float) -> Array:
        """A sweep, accepted with probability min(1, w(x') / w(x)), w = L / (K_t Lt): [x, x']."""
        return self._accepted(self.sweep(t), self.likelihood / (self.forward(t) @ self.of_states(t)))

    @staticmethod
    def _accepted(proposal: Array, weight: Array) -> Array:
        ratio = np.where(weight[:, None] > 0, weight[None] / np.where(weight > 0, weight, 1)[:, None], 1.0)
        moved = proposal * np.minimum(1.0, ratio)
        return moved + np.diag(1 - moved.sum(1))

    def error(self, law: Array) -> float:
        """Total variation to the posterior."""
        return total_variation(law, self.posterior)

    def divergences(self, t: float, sweeps: int) -> list[float]:
        """KL of the law after each sweep at a level from the split law, from the prior on."""
        law, target, found = self.p, self.split(t), []
        for _ in range(sweeps + 1):
            there = law > 0
            found.append(float((law[there] * np.log(law[there] / target[there])).sum()))
            law = law @ self.sweep(t)
        return found


def stationary(matrix: Array) -> Array:
    """The stationary law of a chain, by solving for it."""
    size = len(matrix)
    system = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    return np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]


def random_toy(element: Element, levels: int = 4, elements: int = 2, **more: Callable[[float], Array]) -> SplitToy:
    """A random prior and likelihood: Dirichlet, then exp(-3 uniform), of numpy's generator 0."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(levels**elements))
    return SplitToy(p, np.exp(-3 * rng.random(levels**elements)), levels, elements, element, **more)


def _normal(weights: Array) -> Array:
    return weights / weights.sum()


def _rows(weights: Array, instead: Array) -> Array:
    """Rows that sum to 1; where all is 0, another law."""
    mass = weights.sum(-1, keepdims=True)
    return np.where(mass > 0, weights / np.where(mass > 0, mass, 1), _normal(instead))
