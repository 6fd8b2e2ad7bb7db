"""The kernels: what they should do, exactly, and what they do, in draws that a chi-square test compares with it.

First pure death, whose kernels add births to counts: `BIRTHS`, `step_law` and the two trapezoidal laws, `walk` for the
chains these make. Then the kernels for any process; there a step's distribution is [states ** elements, elements,
states]: where each element goes given the state of all. Last the package's own kernels, run with the exact denoiser
of a toy. Ours; the kernels themselves say where they are from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.kernels import (
    BinomialBridge,
    Kernel,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    Trapezoidal,
    nearest_rounding,
    stochastic_rounding,
)
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    Denoiser,
    Prediction,
)
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.samplers import sample
from blackout.laws.toys import Array, Beliefs, JumpToy, Toy, binomial_pmf, shifted
from blackout.random import RandomSource, SampleStreams, categorical

Births = Callable[[Beliefs, float], Array]
"""(beliefs of R elements, step fraction r) -> P(births = d), [R, max_count + 1]; what is missing from 1 is clipped."""


def nearest_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial bridge, y rounded to the nearest whole number, halves to the even one."""
    n = np.minimum(np.round(beliefs.mean), beliefs.headroom).astype(int)
    return binomial_pmf(n[:, None], r, _top(beliefs))


def stochastic_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial bridge, y rounded up with the probability of its fractional part."""
    at_most, top = beliefs.headroom, _top(beliefs)
    each = [(np.minimum(n, at_most).astype(int), share) for n, share in _rounded(beliefs.mean)]
    return sum(share[:, None] * binomial_pmf(n[:, None], r, top) for n, share in each)


def poisson_births(beliefs: Beliefs, r: float) -> Array:
    """Poisson(y r)."""
    return poisson_pmf(beliefs.mean * r, _top(beliefs))


def posterior_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial(N, r) with N from its exact distribution."""
    top = _top(beliefs)
    return beliefs.missing @ binomial_pmf(np.arange(top + 1)[:, None], r, top)


def poisson_pmf(rate: Array, top: int) -> Array:
    """P(d) for d = 0..top, [R, top + 1]."""
    return stats.poisson.pmf(np.arange(top + 1), rate[:, None])


BIRTHS: dict[str, Births] = {
    "nearest": nearest_births,
    "stochastic": stochastic_births,
    "poisson": poisson_births,
    "posterior": posterior_births,
}


def step_matrix(toy: Toy, births: Births, q_s: float, q_t: float) -> Array:
    """P(X_s | X_t) of a kernel that treats elements independently given X_t, [m, n]."""
    beliefs = toy.beliefs(q_t)
    levels = landing(births(beliefs, fraction(q_s, q_t)), toy.max_count - beliefs.headroom)
    return independent(levels.reshape(-1, toy.pixels, toy.max_count + 1))


def step_law(toy: Toy, law: Array, q_s: float, q_t: float, births: Births) -> Array:
    """The distribution of X_s when X_t has the given one."""
    return law @ step_matrix(toy, births, q_s, q_t)


def trapezoidal_law(toy: Toy, law: Array, q_s: float, q_t: float) -> Array:
    """The same for the theta-trapezoidal step [Anderson 2011] of theta = 1 / 2, with stages of equal length.

    The second stage looks at X_t and X_rho.
    """
    if q_s == 1:
        return step_law(toy, law, q_s, q_t, poisson_births)
    q_rho, first, second = _halves(q_s, q_t)
    y, y_rho = (toy.beliefs(q).mean.reshape(-1, toy.pixels) for q in (q_t, q_rho))
    weight = law[:, None] * step_matrix(toy, poisson_births, q_rho, q_t)
    before, between = np.nonzero(weight > 1e-14 * weight.max())
    rate = np.clip(2 * y_rho[between] - (1 - first) * y[before], 0, None) * second
    reached = [landing(poisson_pmf(rate[:, i], toy.max_count), toy.states[between, i]) for i in range(toy.pixels)]
    return _together(weight[before, between], reached)


def posterior_trapezoidal_law(toy: Toy, law: Array, q_s: float, q_t: float) -> Array:
    """The same for the trapezoidal step of whole distributions: bridges in both stages, the second extrapolated."""
    if q_s == 1:
        return step_law(toy, law, q_s, q_t, posterior_births)
    q_rho, first, second = _halves(q_s, q_t)
    weight = law[:, None] * step_matrix(toy, posterior_births, q_rho, q_t)
    before, between = np.nonzero(weight > 1e-14 * weight.max())
    levels = np.arange(toy.max_count + 1)
    missing, missing_rho = (toy.beliefs(q).missing.reshape(-1, toy.pixels, len(levels)) for q in (q_t, q_rho))
    chances, bridge = (binomial_pmf(levels[:, None], r, toy.max_count) for r in (first, second))
    reached = []
    for i in range(toy.pixels):
        births = toy.states[between, i] - toy.states[before, i]
        total = births[:, None] + levels
        inside = total.clip(max=toy.max_count)
        left = np.take_along_axis(missing[before, i], inside, 1) * chances[inside, births[:, None]]
        left = np.where(total <= toy.max_count, left, 0)
        extrapolated = np.clip(2 * missing_rho[between, i] - left / left.sum(1, keepdims=True), 0, None)
        drawn = (extrapolated / extrapolated.sum(1, keepdims=True)) @ bridge
        reached.append(landing(drawn, toy.states[between, i]))
    return _together(weight[before, between], reached)


def _halves(q_s: float, q_t: float) -> tuple[float, float, float]:
    """The survival between two stages of a trapezoidal step, and the fraction of each stage."""
    q_rho = 1 - np.sqrt((1 - q_s) * (1 - q_t))
    return q_rho, fraction(q_rho, q_t), fraction(q_s, q_rho)


def _together(weight: Array, reached: list[Array]) -> Array:
    """sum over rows of weight [R] times the product of the elements' distributions [R, levels]: [states]."""
    letters = "abcdefgh"[: len(reached)]
    of_rows = ",".join(f"r{x}" for x in letters)
    return np.einsum(f"r,{of_rows}->{letters}", weight, *reached, optimize=True).reshape(-1)


def walk(toy: Toy, survivals: Array, step: Callable[[Toy, Array, float, float], Array]) -> Iterator[tuple[int, Array]]:
    """(k, distribution of X_{t_k}) of a sampler that starts from Poisson(q_T E[X_0]), k = T down to 0.

    Args:
        toy: the data.
        survivals: q at every time of the grid, survivals[0] = 1.
        step: (toy, distribution of X_t, q_s, q_t) -> that of X_s.
    """
    law = independent(landing(poisson_pmf(toy.mean * survivals[-1], toy.max_count), np.zeros(toy.pixels, int)))
    yield len(survivals) - 1, law
    for k in range(len(survivals) - 1, 0, -1):
        law = step(toy, law, survivals[k - 1], survivals[k])
        yield k - 1, law


def final_law(toy: Toy, survivals: Array, step: Callable[[Toy, Array, float, float], Array]) -> Array:
    """The distribution of what a sampler returns, [S]."""
    *_, (_, law) = walk(toy, survivals, step)
    return law


def fraction(q_s: float, q_t: float) -> float:
    """r = (q_s - q_t) / (1 - q_t)."""
    return (q_s - q_t) / (1 - q_t)


def landing(births: Array, start: Array) -> Array:
    """Distribution of the level reached, [R, levels]; what would go beyond the top stays there."""
    reached = shifted(births, start)
    reached[:, -1] += np.clip(1 - reached.sum(1), 0, None)
    return reached


def independent(levels: Array) -> Array:
    """Distributions of every element [..., elements, levels] -> of all [..., levels ** elements]."""
    joint = levels[..., 0, :]
    for element in range(1, levels.shape[-2]):
        joint = (joint[..., :, None] * levels[..., element, None, :]).reshape(*joint.shape[:-1], -1)
    return joint


def _top(beliefs: Beliefs) -> int:
    return beliefs.missing.shape[1] - 1


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


KERNELS: dict[str, Kernel] = {
    "nearest": BinomialBridge(nearest_rounding),
    "stochastic": BinomialBridge(stochastic_rounding),
    "poisson": PoissonLeap(),
    "posterior": PosteriorBridge(),
    "trapezoidal": Trapezoidal(),
    "posterior_trapezoidal": PosteriorTrapezoidal(),
}
"""Of pure death."""

Expected: TypeAlias = Callable[[JumpToy, float], Array]
"""(toy, t) -> E[statistic | X_t], [states ** elements, elements, K]."""


@dataclass(frozen=True)
class TableOfCounts:
    """Any distribution of the missing count, given as P(N = n) [..., levels] float64."""

    pmf: Tensor

    def log_prob(self, missing: Tensor) -> Tensor:
        """log P(N = missing): float32, shape of the integers `missing`."""
        return torch.log(self.pmf.gather(-1, missing.long().unsqueeze(-1)).squeeze(-1)).float()

    def sample(self, generator: RandomSource = None) -> Tensor:
        """A draw of N by inversion, int64 [...]."""
        return categorical(self.pmf, generator)


class ExactDenoiser:
    """The denoiser a perfect network would be, for pure death.

    Args:
        toy: the data.
    """

    def __init__(self, toy: Toy) -> None:
        self.toy, self.process = toy, PureDeath(toy.max_count)
        self._table = lru_cache(maxsize=None)(self._made)

    def __call__(self, xt: Tensor, t: Tensor) -> CountPrediction:
        at = torch.from_numpy(numbers(xt, self.toy.size))
        mean, missing = (table[at] for table in self._table(float(t)))
        return CountPrediction(mean, torch.log(mean.clamp(min=1e-30)), TableOfCounts(missing))

    def _made(self, t: float) -> tuple[Tensor, ...]:
        """Of all states, in float64 where a network gives float32: the distributions compared with have it too."""
        beliefs, shape = self.toy.beliefs(math.exp(-t)), (len(self.toy.p0), self.toy.pixels, -1)
        mean, missing = (torch.from_numpy(x).reshape(shape) for x in (beliefs.mean, beliefs.missing))
        return mean.squeeze(-1), missing


class ExactJumpDenoiser:
    """The denoiser a perfect network would be, for any process, with a table for every time it is asked about.

    Args:
        toy: data and process.
        expected: the exact mean of the process's statistic.
        kind: of prediction that the process needs.
    """

    def __init__(self, toy: JumpToy, expected: Expected, kind: type[Prediction] = CategoricalPrediction) -> None:
        self.toy, self.kind = toy, kind
        self._table = lru_cache(maxsize=None)(lambda t: torch.from_numpy(expected(toy, t)))

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        # float64, where a network gives float32: the distributions compared with have it too
        mean = self._table(float(t))[torch.from_numpy(numbers(xt, self.toy.size))].movedim(-1, 1)
        log_mean = torch.log(mean.clamp(min=1e-300))
        if self.kind is CategoricalPrediction:
            return CategoricalPrediction(log_mean)
        return BirthDeathPrediction(mean, log_mean)


def step_draws(
    toy: Toy | JumpToy, denoiser: Denoiser, process: Process, kernel: Kernel, state: int, s: float, t: float, n: int,
    seed: int = 0,
) -> Array:  # fmt: skip
    """How often the kernel led from a state at t to each state at s in n draws, [states ** elements]."""
    s_, t_ = torch.tensor([s, t], dtype=torch.float64)
    xt = torch.from_numpy(toy.states[state]).expand(n, -1).to(torch.uint8).contiguous()
    return histogram(kernel(denoiser, process, xt, s_, t_, SampleStreams(seed, torch.arange(n)).at(1)), toy.size)


def loop_draws(
    toy: Toy | JumpToy, denoiser: Denoiser, process: Process, kernel: Kernel, times: Tensor, n: int, seed: int = 0
) -> Array:
    """How often the sampling loop returned each state of the data in n samples, [levels ** elements]."""
    streams, mean = SampleStreams(seed, torch.arange(n)), torch.from_numpy(toy.mean)
    x0 = sample(denoiser, process, times, (n, toy.elements), streams, kernel=kernel, mean=mean)
    return histogram(x0, toy.levels)


def numbers(x: Tensor, size: int) -> Array:
    """The numbers of states [n, elements], each of so many, int64 [n]."""
    return np.ravel_multi_index(tuple(x.long().numpy().T), [size] * x.shape[1])


def histogram(x: Tensor, size: int) -> Array:
    """How often each state is among x [n, elements], int64 [size ** elements]."""
    return np.bincount(numbers(x, size), minlength=size ** x.shape[1])


def p_value(observed: Array, law: Array) -> float:
    """Chi-square test of counts [S] against a distribution [S], cells expected less than 5 times put together.

    0 when a state of probability 0 was drawn.
    """
    expected = law * observed.sum()
    if observed[law <= 0].any():
        return 0.0
    rare = expected < 5
    cells = np.append(expected[~rare], expected[rare].sum())
    drawn = np.append(observed[~rare], observed[rare].sum())
    drawn, cells = drawn[cells > 1e-9], cells[cells > 1e-9]
    if len(cells) < 2:
        return 1.0
    return float(stats.chisquare(drawn, cells * drawn.sum() / cells.sum()).pvalue)
