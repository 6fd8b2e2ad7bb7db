"""Reference samplers of the Ising model in NumPy and SciPy, and Kaufman's exact log Z.

They share no code with `blackout.flows`. Spins are int8 [chains, L, L] in {-1, 1}, and the
distribution is proportional to exp(K sum over bonds of s s') on a torus, each bond counted once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

Array = npt.NDArray[np.float64]
Spins = npt.NDArray[np.int8]
Moves = Callable[[Spins, float, np.random.Generator], Spins]

CRITICAL_COUPLING = math.log(1 + math.sqrt(2)) / 2
DERIVATIVE_STEP = 1e-5  # of the coupling, for the exact energy
SECOND_DERIVATIVE_STEP = 1e-3  # for its standard deviation


def exact_log_z(coupling: float, size: int) -> float:
    """Return log Z of an L x L torus.

    References: Kaufman 1949, eq. 90.
    """
    levels = np.arange(1, 2 * size)
    cosh_gamma = math.cosh(2 * coupling) / math.tanh(2 * coupling) - np.cos(math.pi * levels / size)
    gamma = np.concatenate([[2 * coupling + math.log(math.tanh(coupling))], np.arccosh(cosh_gamma)])
    half = size * gamma / 2
    odd = half[1::2]
    even = half[0::2]
    terms = [
        (1.0, np.logaddexp(odd, -odd).sum()),
        (1.0, _log_two_sinh(odd)),
        (1.0, np.logaddexp(even, -even).sum()),
        (math.copysign(1.0, gamma[0]), _log_two_sinh(even)),
    ]
    largest = max(value for _, value in terms)
    total = sum(sign * math.exp(value - largest) for sign, value in terms)
    prefactor = size * size / 2 * math.log(2 * math.sinh(2 * coupling))
    return prefactor - math.log(2) + largest + math.log(total)


def _log_two_sinh(values: Array) -> float:
    """Return sum log |2 sinh v|, -inf if one is 0."""
    magnitude = np.abs(values)
    with np.errstate(divide="ignore"):
        return float((magnitude + np.log(-np.expm1(-2 * magnitude))).sum())


def exact_mean_energy(coupling: float, size: int) -> float:
    """Return the mean of -K sum s s', from the derivative of log Z in K."""
    above = exact_log_z(coupling + DERIVATIVE_STEP, size)
    below = exact_log_z(coupling - DERIVATIVE_STEP, size)
    return -coupling * (above - below) / (2 * DERIVATIVE_STEP)


def exact_energy_deviation(coupling: float, size: int) -> float:
    """Return the standard deviation of -K sum s s', from the second derivative of log Z in K."""
    step = SECOND_DERIVATIVE_STEP
    below, middle, above = (exact_log_z(coupling + k * step, size) for k in (-1, 0, 1))
    return coupling * math.sqrt(above - 2 * middle + below) / step


def bond_sum(spins: Spins) -> Array:
    """Return the sum of s s' over all bonds, [chains]."""
    down = spins * np.roll(spins, -1, 1)
    right = spins * np.roll(spins, -1, 2)
    return (down.sum((1, 2), dtype=np.int64) + right.sum((1, 2), dtype=np.int64)).astype(np.float64)


def random_spins(chains: int, size: int, rng: np.random.Generator) -> Spins:
    """Draw independent spins."""
    return (2 * rng.integers(0, 2, (chains, size, size)) - 1).astype(np.int8)


def gibbs_sweep(spins: Spins, coupling: float, rng: np.random.Generator) -> Spins:
    """Draw all spins given their neighbours, first those of one colour of the checkerboard.

    The size must be even.

    References: Geman and Geman 1984.
    """
    size = spins.shape[1]
    rows, columns = np.indices((size, size))
    spins = spins.copy()
    for colour in (0, 1):
        field = sum(np.roll(spins, shift, axis) for axis in (1, 2) for shift in (1, -1))
        p_up = 1 / (1 + np.exp(-2 * coupling * field))
        new = np.where(rng.random(spins.shape) < p_up, 1, -1).astype(np.int8)
        spins = np.where((rows + columns) % 2 == colour, new, spins)
    return spins


def swendsen_wang_sweep(spins: Spins, coupling: float, rng: np.random.Generator) -> Spins:
    """Flip every cluster of active bonds with probability 1/2.

    References: Swendsen and Wang 1987.
    """
    index = np.arange(spins.size).reshape(spins.shape)
    first = []
    second = []
    p_active = -math.expm1(-2 * coupling)
    for axis in (1, 2):
        equal = spins == np.roll(spins, -1, axis)
        active = equal & (rng.random(spins.shape) < p_active)
        first.append(index[active])
        second.append(np.roll(index, -1, axis)[active])
    edges = (np.concatenate(first), np.concatenate(second))
    graph = coo_matrix((np.ones(len(edges[0]), np.int8), edges), (spins.size, spins.size))
    number, cluster = connected_components(graph, directed=False)
    flips = np.where(rng.random(number) < 0.5, -1, 1).astype(np.int8)
    flipped: Spins = spins * flips[cluster].reshape(spins.shape)
    return flipped


def anneal(
    moves: Moves, coupling: float, size: int, chains: int, sweeps: int, seed: int
) -> tuple[Array, Array]:
    """Return log-weights and energies [chains] of annealed importance sampling.

    Couplings rise linearly from 0, with one sweep at each.

    References: Neal 2001.
    """
    rng = np.random.default_rng(seed)
    spins = random_spins(chains, size, rng)
    log_weights = np.full(chains, size * size * math.log(2))
    bonds = bond_sum(spins)
    step = coupling / sweeps
    for k in range(1, sweeps + 1):
        log_weights += step * bonds
        spins = moves(spins, k * step, rng)
        bonds = bond_sum(spins)
    return log_weights, -coupling * bonds


def swendsen_wang_energy(
    coupling: float, size: int, chains: int, sweeps: int, seed: int
) -> tuple[float, float]:
    """Return the mean energy and its standard error of independent cluster chains.

    The first fifth of the sweeps is left out.
    """
    rng = np.random.default_rng(seed)
    spins = random_spins(chains, size, rng)
    total = np.zeros(chains)
    burn_in = sweeps // 5
    for k in range(sweeps):
        spins = swendsen_wang_sweep(spins, coupling, rng)
        if k >= burn_in:
            total += -coupling * bond_sum(spins)
    means = total / (sweeps - burn_in)
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(chains))
