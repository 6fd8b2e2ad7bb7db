"""Finite processes of the package, each with transitions that are computed without it.

Every function takes the largest count and returns the package's process and its exact transitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.linalg import expm

from blackout.diffusion.processes import (
    Absorbing,
    AbsorbingChain,
    DiscreteTimeChain,
    FiniteProcess,
    Ordinal,
    Uniform,
    UniformChain,
    from_generator,
)
from blackout.diffusion.time_grids import logit_times
from blackout.verification.toys import (
    Array,
    Transitions,
    chain_transitions,
    generator_transitions,
    random_generator,
)

ProcessPair: TypeAlias = tuple[FiniteProcess | DiscreteTimeChain, Transitions]
MakePair: TypeAlias = Callable[[int], ProcessPair]

CHAIN_LENGTH = 48  # steps of chains in discrete time
HALVING_RATE = 3.0


# --- continuous time


def uniform(max_count: int) -> ProcessPair:
    """Return the uniform process and its exact transitions, of the rates Q = 1 / S - I.

    References: Campbell et al. 2022.
    """
    size = max_count + 1
    return Uniform(max_count), generator_transitions(_uniform_rows(max_count) - np.eye(size))


def absorbing(max_count: int) -> ProcessPair:
    """Return the absorbing process and its exact transitions, of rates to the mask.

    References: Campbell et al. 2022.
    """
    size = max_count + 2
    return Absorbing(max_count), generator_transitions(_mask_rows(max_count) - np.eye(size))


def ordinal(max_count: int, width: float | None = None, spread: float | None = None) -> ProcessPair:
    """Return the ordinal process and its exact transitions, of jumps between near levels.

    The rates from level i to j are weight(|i - j|) sqrt(pi_j / pi_i).

    Args:
        max_count: largest level.
        width: of Gaussian weights; None for jumps between neighbours alone.
        spread: of a Gaussian stationary distribution pi; None for a uniform one.
    """
    levels = np.arange(max_count + 1.0)
    distance = np.abs(levels[:, None] - levels[None, :])
    if width is None:
        weight = (distance == 1) * 1.0
    else:
        weight = (distance > 0) * np.exp(-((distance / width) ** 2) / 2)
    if spread is None:
        root_pi = np.ones(max_count + 1)
    else:
        root_pi = np.exp(-(((levels - max_count / 2) / spread) ** 2) / 4)
    rates = weight * root_pi[None, :] / root_pi[:, None]
    generator = _normalise_speed(rates - np.diag(rates.sum(1)))
    return Ordinal(max_count, width, spread), generator_transitions(generator, ordered=True)


def halving(max_count: int) -> ProcessPair:
    """Return the documentation's example of a generator: x becomes x // 2 at rate 3."""
    identity = np.eye(max_count + 1)
    generator = HALVING_RATE * (identity[np.arange(max_count + 1) // 2] - identity)
    return from_generator(max_count, generator), generator_transitions(generator)


def random_jumps(max_count: int) -> ProcessPair:
    """Return a process with random rates and two states more than levels."""
    generator = _random_rates(max_count + 3)
    return from_generator(max_count, generator), generator_transitions(generator)


# --- discrete time


def uniform_chain(max_count: int) -> ProcessPair:
    """Return the chain that replaces levels by uniform ones.

    References: Austin et al. 2021, appendix A.2.
    """
    chain = UniformChain(max_count, CHAIN_LENGTH)
    return chain, _replacement_steps(_uniform_rows(max_count))


def absorbing_chain(max_count: int) -> ProcessPair:
    """Return the chain that replaces levels by the mask.

    References: Austin et al. 2021, appendix A.2.
    """
    chain = AbsorbingChain(max_count, CHAIN_LENGTH)
    return chain, _replacement_steps(_mask_rows(max_count))


def observed_jumps(max_count: int) -> ProcessPair:
    """Return a jump process with random rates, observed at the times of a grid.

    The steps are exp(Q d) with the intervals d of the grid, so that each has a matrix of its own.
    """
    generator = _random_rates(max_count + 2)
    times = logit_times(CHAIN_LENGTH, 6.0, -12.0).numpy()
    steps = np.stack([expm(generator * interval) for interval in np.diff(times)])
    return DiscreteTimeChain(max_count, CHAIN_LENGTH, steps), chain_transitions(steps)


# --- matrices


def _uniform_rows(max_count: int) -> Array:
    """Return rows of equal probabilities, [levels, levels]."""
    return np.full((max_count + 1, max_count + 1), 1 / (max_count + 1))


def _mask_rows(max_count: int) -> Array:
    """Return rows with probability 1 for the mask, the last state, [levels + 1, levels + 1]."""
    return np.eye(max_count + 2)[[max_count + 1] * (max_count + 2)]


def _replacement_steps(replacement: Array) -> Transitions:
    """Return steps that replace elements, ever more often, by draws from rows of a matrix [S, S].

    The share that step k = 0, 1, ... replaces is 1 / (T - k).

    References: Austin et al. 2021, section 3.2 and appendix A.2.
    """
    share = 1 / (CHAIN_LENGTH - np.arange(CHAIN_LENGTH))[:, None, None]
    return chain_transitions((1 - share) * np.eye(len(replacement)) + share * replacement)


def _random_rates(size: int) -> Array:
    """Return random rates [size, size] whose slowest mode decays as e^-t."""
    return _normalise_speed(random_generator(np.random.default_rng(3), size))


def _normalise_speed(generator: Array) -> Array:
    """Return the generator [S, S] divided by the decay rate of its slowest mode.

    That is the second smallest of minus the eigenvalues; the smallest is 0.
    """
    return generator / np.sort(-np.linalg.eigvals(generator).real)[1]
