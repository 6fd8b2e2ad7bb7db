"""What the kernels for any process should do: the exact distributions of their steps, and of the chains these make.

A step's distribution is [states ** elements, elements, states]: where each element goes given the state of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from blackout.laws.births import independent, poisson_pmf
from blackout.laws.markov_toys import JumpToy
from blackout.laws.toys import Array, binomial_pmf

JumpStep = Callable[[JumpToy, float, float], Array]
"""(toy, s, t) -> the distribution of a step from t to s."""

_LATTICE = 256
"""Whole numbers modulo this stand for the sums of jumps, which stay well inside."""


def level_bridge(toy: JumpToy, s: float, t: float) -> Array:
    """X_0 from its exact distribution, then the exact bridge: every element's own reverse step."""
    return toy.before(s, t)


def tau_leap(toy: JumpToy, s: float, t: float) -> Array:
    """Reverse rates frozen for t - s; to s = 0, X_0 from its exact distribution."""
    if s == 0.0:
        return np.pad(toy.origins(t), [(0, 0), (0, 0), (0, toy.size - toy.levels)])
    return leap(toy, toy.reverse_rates(t), t - s)


def tau_leap_counts(toy: JumpToy, s: float, t: float) -> Array:
    """The same where the prediction is of rates alone, so that the last step is a leap too."""
    return leap(toy, toy.reverse_rates(t), t - s)


def stay(toy: JumpToy, s: float, duration: float) -> Array:
    """The corrector: forward and reverse rates at time s, frozen for a while."""
    return leap(toy, toy.reverse_rates(s) + toy.forward_rates(s), duration)


def leap(toy: JumpToy, rates: Array, duration: float) -> Array:
    """Jumps at constant rates [..., states] into every state: all of them, clipped, or one at most."""
    start = toy.states
    if not toy.matrices.ordered:
        leaving = rates.sum(-1, keepdims=True)
        share = np.divide(rates, leaving, out=np.zeros_like(rates), where=leaving > 0)
        return share * -np.expm1(-leaving * duration) + np.eye(toy.size)[start] * np.exp(-leaving * duration)
    jumps = np.zeros((*rates.shape[:-1], _LATTICE))
    by = np.arange(toy.size) - start[..., None]
    np.put_along_axis(jumps, by % _LATTICE, rates * duration, -1)
    exponent = np.fft.rfft(jumps)
    total = np.fft.irfft(np.exp(exponent - exponent[..., :1]), _LATTICE).clip(0.0)
    return _land(toy.size, total, start)


def birth_death_bridge(toy: JumpToy, s: float, t: float, mean: float) -> Array:
    """The bridge from the numbers N of missing and I of immigrants, rounded stochastically to whole ones."""
    missing, immigrants = np.moveaxis(missing_and_immigrants(toy, t, mean), -1, 0)
    x, law = toy.states, np.zeros((*missing.shape, toy.size))
    for came, p_came in _rounded(immigrants):
        came = np.minimum(came, x)
        headroom = np.maximum(toy.levels - 1 - (x - came), 0)
        for lost, p_lost in _rounded(missing):
            reached = bridge_from(toy.size, x, np.minimum(lost, headroom), came, s, t, mean)
            law += (p_came * p_lost)[..., None] * reached
    return law


def bridge_from(size: int, x: Array, missing: Array, immigrants: Array, s: float, t: float, mean: float) -> Array:
    """X_t = x plus Binomial(N, r) minus Binomial(I, g) plus Poisson, [..., size] for arrays [...]."""
    q_s, q_t = np.exp(-s), np.exp(-t)
    r, g = (q_s - q_t) / (1 - q_t), 1 - (1 - q_s) * q_t / q_s / (1 - q_t)
    passing = mean * (1 - q_s) * (1 - q_t / q_s)
    z = np.exp(-2j * np.pi * np.arange(_LATTICE // 2 + 1) / _LATTICE)  # distributions as Fourier transforms, E z^jumps
    both = (1 - g + g / z) ** immigrants[..., None] * (1 - r + r * z) ** missing[..., None]
    return _land(size, np.fft.irfft(both * np.exp(passing * (z - 1)), _LATTICE).clip(0.0), x)


def missing_and_immigrants(toy: JumpToy, t: float, mean: float) -> Array:
    """E[(X_0 - S, I) | X_t], survivors S and immigrants I: the exact denoiser of immigration and death."""
    o, m, k = np.ogrid[: toy.levels, : toy.size, : toy.levels]
    survive = binomial_pmf(np.arange(toy.levels)[:, None], np.exp(-t), toy.levels - 1)
    joint = survive[:, None, :] * stats.poisson.pmf(m - k, -mean * np.expm1(-t))
    return toy.expectation(np.stack([(joint * (o - k)).sum(-1), (joint * (m - k)).sum(-1)], axis=-1), t)


def start(toy: JumpToy, t: float) -> Array:
    """X_t averaged over the levels of every element: where finite processes start."""
    return independent(np.tile(toy.forward(t).mean(0), (1, toy.elements, 1)))[0]


def start_poisson(toy: JumpToy, t: float, mean: float) -> Array:
    """Poisson(q E[X_0] + a (1 - q)), where immigration and death starts."""
    rates = np.exp(-t) * toy.mean - mean * np.expm1(-t)
    return independent(poisson_pmf(rates, toy.size - 1)[None])[0]


def sampled(toy: JumpToy, law: Array, step: JumpStep, times: Sequence[float]) -> Array:
    """The distribution [levels ** elements] of what the loop returns on a grid; states above the levels are cut off."""
    for s, t in zip(times[-2::-1], times[:0:-1], strict=True):
        law = law @ independent(step(toy, s, t))
    kept = np.ravel_multi_index(tuple(np.minimum(toy.states, toy.levels - 1).T), [toy.levels] * toy.elements)
    return np.bincount(kept, weights=law, minlength=len(toy.p0))


def _rounded(value: Array) -> list[tuple[Array, Array]]:
    """The whole numbers around each value, with their probabilities."""
    low = np.floor(value)
    return [(low, 1 - (value - low)), (low + 1, value - low)]


def _land(size: int, total: Array, start: Array) -> Array:
    """Distributions of sums of jumps [..., lattice] and where they start [...] -> of states [..., size], clipped."""
    middle = _LATTICE // 2
    total = np.roll(total, middle, axis=-1)  # the sum d is at d + middle
    reached = np.take_along_axis(total, np.arange(size) - start[..., None] + middle, -1)
    up_to = np.cumsum(total, -1)
    reached[..., 0] = np.take_along_axis(up_to, middle - start[..., None], -1)[..., 0]
    inside = np.take_along_axis(up_to, middle + size - 2 - start[..., None], -1)[..., 0]
    reached[..., -1] = up_to[..., -1] - inside
    return reached
