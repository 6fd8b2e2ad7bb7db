"""What is claimed of the kernels of every process, and the check that prints how wrong each is with a perfect network,
how fast that vanishes, and what is allowed.

A `Subject` is a process and data, with the exact distributions of its kernels and the package's own draws from them.
`CLAIMS` says of each on which grids its errors, by whole matrices, fall with which order (`Study`, `Row`), and that
the draws of the kernels follow those distributions (`draws`). Ours.

The kernels stand first: what they should do, exactly, and what they do, in draws that a chi-square test compares with
it. Pure death adds births to counts: `BIRTHS`, `step_law` and the two trapezoidal laws. For any process a step's
distribution is [states ** elements, elements, states]: where each element goes given the state of all. Last the
package's own kernels, run with the exact denoiser of a toy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion import processes
from blackout.diffusion.correctors import LevelCorrector
from blackout.diffusion.kernels import (
    BinomialBridge,
    BirthDeathBridge,
    Kernel,
    LevelBridge,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    ReverseStep,
    TauLeap,
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
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.schedules import fisher_times, logit_times, step_times
from blackout.random import RandomSource, SampleStreams, categorical
from blackout.verification import toys as chains
from blackout.verification.toys import (
    Array,
    Beliefs,
    JumpToy,
    Matrices,
    Toy,
    binomial_pmf,
    exclusive_pair,
    five_bits,
    of_birth_death,
    of_generator,
    of_steps,
    pixel_pair,
    rare_pixel,
    shifted,
    three_pixels,
    total_variation,
    two_bumps,
)

Births = Callable[[Beliefs, float], Array]
"""(beliefs of R elements, step fraction r) -> P(births = d), [R, max_count + 1]; what is missing from 1 is clipped."""


def nearest_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial bridge, y rounded to the nearest whole number, halves to the even one.

    [Santos 2023, eq. 12 and section 3]; [R, max_count + 1] as of `Births`.
    """
    n = np.minimum(np.round(beliefs.mean), beliefs.headroom).astype(int)
    return binomial_pmf(n[:, None], r, _top(beliefs))


def stochastic_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial bridge, y rounded up with the probability of its fractional part.

    [Santos 2023, eq. 12], the rounding ours (tests/verification/test_pure_death_kernels.py); [R, max_count + 1] as of
    `Births`.
    """
    at_most, top = beliefs.headroom, _top(beliefs)
    each = [(np.minimum(n, at_most).astype(int), share) for n, share in _rounded(beliefs.mean)]
    return sum(share[:, None] * binomial_pmf(n[:, None], r, top) for n, share in each)


def poisson_births(beliefs: Beliefs, r: float) -> Array:
    """Poisson(y r), [R, max_count + 1] as of `Births` [Santos 2023, Algorithm 2]."""
    return poisson_pmf(beliefs.mean * r, _top(beliefs))


def posterior_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial(N, r) with N from its exact distribution, [R, max_count + 1] as of `Births` [Santos 2023, eq. 12]."""
    top = _top(beliefs)
    return beliefs.missing @ binomial_pmf(np.arange(top + 1)[:, None], r, top)


def poisson_pmf(rate: Array, top: int) -> Array:
    """P(d) for d = 0..top, [R, top + 1], of rates [R]."""
    return stats.poisson.pmf(np.arange(top + 1), rate[:, None])


BIRTHS: dict[str, Births] = {
    "nearest": nearest_births,
    "stochastic": stochastic_births,
    "poisson": poisson_births,
    "posterior": posterior_births,
}


def step_matrix(toy: Toy, births: Births, q_s: float, q_t: float) -> Array:
    """P(X_s | X_t) of a kernel that treats elements independently given X_t, [m, n].

    Births clipped at the largest count, as in `Births` [Santos 2023, Algorithm 2].
    """
    beliefs = toy.beliefs(q_t)
    levels = landing(births(beliefs, fraction(q_s, q_t)), toy.max_count - beliefs.headroom)
    return independent(levels.reshape(-1, toy.pixels, toy.max_count + 1))


def step_law(toy: Toy, law: Array, q_s: float, q_t: float, births: Births) -> Array:
    """The distribution of X_s, [S], when X_t has the given one, [S]: its product with `step_matrix`."""
    return law @ step_matrix(toy, births, q_s, q_t)


def trapezoidal_law(toy: Toy, law: Array, q_s: float, q_t: float) -> Array:
    """The same for the theta-trapezoidal step [Anderson 2011] of theta = 1 / 2, with stages of equal length.

    The second stage looks at X_t and X_rho. Distributions are [S].
    """

    def births(
        q_rho: float, first: float, second: float, before: Array, between: Array
    ) -> Iterator[Array]:
        """Of every element in the second stage, [R, max_count + 1], Poisson of rates extrapolated to its end.

        [2 y_rho - (1 - r) y]_+ with the fraction r of the first stage: [Anderson 2011] with theta = 1 / 2.
        """
        y, y_rho = (toy.beliefs(q).mean.reshape(-1, toy.pixels) for q in (q_t, q_rho))
        rate = np.clip(2 * y_rho[between] - (1 - first) * y[before], 0, None) * second
        return (poisson_pmf(rate[:, i], toy.max_count) for i in range(toy.pixels))

    return _two_stages(toy, law, q_s, q_t, poisson_births, births)


def posterior_trapezoidal_law(toy: Toy, law: Array, q_s: float, q_t: float) -> Array:
    """The same for the trapezoidal step of whole distributions: bridges in both stages, the second extrapolated.

    [S] of [S]. Ours (tests/verification/test_pure_death_kernels.py).
    """

    def births(
        q_rho: float, first: float, second: float, before: Array, between: Array
    ) -> Iterator[Array]:
        """Of every element in the second stage, [R, max_count + 1], bridges.

        N is of [2 P(N | X_rho) - P(N left | X_t)]_+, normalised.

        Of `posterior_trapezoidal_law`.
        """
        levels = np.arange(toy.max_count + 1)
        missing, missing_rho = (
            toy.beliefs(q).missing.reshape(-1, toy.pixels, len(levels)) for q in (q_t, q_rho)
        )
        chances, bridge = (binomial_pmf(levels[:, None], r, toy.max_count) for r in (first, second))
        for i in range(toy.pixels):
            came = toy.states[between, i] - toy.states[before, i]
            total = came[:, None] + levels
            inside = total.clip(max=toy.max_count)
            left = (
                np.take_along_axis(missing[before, i], inside, 1) * chances[inside, came[:, None]]
            )
            left = np.where(total <= toy.max_count, left, 0)
            extrapolated = np.clip(
                2 * missing_rho[between, i] - left / left.sum(1, keepdims=True), 0, None
            )
            yield (extrapolated / extrapolated.sum(1, keepdims=True)) @ bridge

    return _two_stages(toy, law, q_s, q_t, posterior_births, births)


def _two_stages(
    toy: Toy,
    law: Array,
    q_s: float,
    q_t: float,
    births: Births,
    later: Callable[..., Iterable[Array]],
) -> Array:
    """Births of halves of the clock 1 - q; those of the second follow from where both begin; one stage to q_s = 1.

    [Anderson 2011], of a distribution [S] to one [S].

    Args:
        later: (survival between the stages, their fractions, numbers of states before [R], and between) -> the births
            of every element, [R, max_count + 1].
    """
    if q_s == 1:
        return step_law(toy, law, q_s, q_t, births)
    q_rho = 1 - np.sqrt((1 - q_s) * (1 - q_t))
    weight = law[:, None] * step_matrix(toy, births, q_rho, q_t)
    before, between = np.nonzero(weight > 1e-14 * weight.max())
    drawn = later(q_rho, fraction(q_rho, q_t), fraction(q_s, q_rho), before, between)
    reached = [landing(one, toy.states[between, i]) for i, one in enumerate(drawn)]
    letters = "abcdefgh"[: len(reached)]
    of_rows = ",".join(f"r{x}" for x in letters)
    return np.einsum(
        f"r,{of_rows}->{letters}", weight[before, between], *reached, optimize=True
    ).reshape(-1)


def fraction(q_s: float, q_t: float) -> float:
    """r = (q_s - q_t) / (1 - q_t), floats [Santos 2023, eq. 13 without its factor s]."""
    return (q_s - q_t) / (1 - q_t)


def landing(births: Array, start: Array) -> Array:
    """Distribution of the level reached, [R, levels] from [R]; what would go beyond the top stays there.

    Clipping as of the samplers [Santos 2023, Algorithm 2].
    """
    reached = shifted(births, start)
    reached[:, -1] += np.clip(1 - reached.sum(1), 0, None)
    return reached


def independent(levels: Array) -> Array:
    """Distributions of every element [..., elements, levels] -> of all [..., levels ** elements].

    Their products. Ours (tests/verification/test_pure_death_kernels.py).
    """
    joint = levels[..., 0, :]
    for element in range(1, levels.shape[-2]):
        joint = (joint[..., :, None] * levels[..., element, None, :]).reshape(*joint.shape[:-1], -1)
    return joint


def _top(beliefs: Beliefs) -> int:
    """max_count, an integer, of `missing` [R, max_count + 1]."""
    return beliefs.missing.shape[1] - 1


JumpStep = Callable[[JumpToy, float, float], Array]
"""(toy, s, t) -> the distribution of a step from t to s."""

_LATTICE = 256
"""Whole numbers modulo this stand for the sums of jumps, which stay well inside."""


def tau_leap(toy: JumpToy, s: float, t: float) -> Array:
    """Reverse rates frozen for t - s; to s = 0, X_0 from its exact distribution.

    [states ** elements, elements, states] [Campbell 2022, section 4.3], see `leap`.
    """
    if s == 0.0:
        return np.pad(toy.origins(t), [(0, 0), (0, 0), (0, toy.size - toy.levels)])
    return leap(toy, toy.reverse_rates(t), t - s)


def tau_leap_counts(toy: JumpToy, s: float, t: float) -> Array:
    """The same where the prediction is of rates alone, so that the last step is a leap too.

    [states ** elements, elements, states], see `leap`.
    """
    return leap(toy, toy.reverse_rates(t), t - s)


def stay(toy: JumpToy, s: float, duration: float) -> Array:
    """The corrector: forward and reverse rates at time s, frozen for a while.

    [states ** elements, elements, states] [Campbell 2022, section 4.4], see `leap`.
    """
    return leap(toy, toy.reverse_rates(s) + toy.forward_rates(s), duration)


def leap(toy: JumpToy, rates: Array, duration: float) -> Array:
    """Jumps at constant rates [..., states] into every state: all of them, clipped, or one at most.

    [..., states] [Gillespie 2001; Campbell 2022, section 4.3]; sums of Poisson jumps by their Fourier transform, ours
    (tests/verification/test_jump_kernels.py).
    """
    start = toy.states
    if not toy.matrices.ordered:
        leaving = rates.sum(-1, keepdims=True)
        share = np.divide(rates, leaving, out=np.zeros_like(rates), where=leaving > 0)
        return share * -np.expm1(-leaving * duration) + np.eye(toy.size)[start] * np.exp(
            -leaving * duration
        )
    jumps = np.zeros((*rates.shape[:-1], _LATTICE))
    by = np.arange(toy.size) - start[..., None]
    np.put_along_axis(jumps, by % _LATTICE, rates * duration, -1)
    exponent = np.fft.rfft(jumps)
    return _land(
        toy.size, np.fft.irfft(np.exp(exponent - exponent[..., :1]), _LATTICE).clip(0.0), start
    )


def birth_death_bridge(toy: JumpToy, s: float, t: float, mean: float) -> Array:
    """The bridge from the numbers N of missing and I of immigrants, rounded stochastically to whole ones.

    [states ** elements, elements, states], see `bridge_from`. Ours (tests/verification/test_jump_kernels.py).
    """
    missing, immigrants = np.moveaxis(missing_and_immigrants(toy, t, mean), -1, 0)
    x, law = toy.states, np.zeros((*missing.shape, toy.size))
    for came, p_came in _rounded(immigrants):
        came = np.minimum(came, x)
        headroom = np.maximum(toy.levels - 1 - (x - came), 0)
        for lost, p_lost in _rounded(missing):
            reached = bridge_from(toy.size, x, np.minimum(lost, headroom), came, s, t, mean)
            law += (p_came * p_lost)[..., None] * reached
    return law


def bridge_from(
    size: int, x: Array, missing: Array, immigrants: Array, s: float, t: float, mean: float
) -> Array:
    """X_t = x plus Binomial(N, r) minus Binomial(I, g) plus Poisson, [..., size] for arrays [...].

    Survivors that are back, immigrants that had not come, and units that came and went: ours
    (tests/verification/test_jump_kernels.py).
    """
    q_s, q_t = np.exp(-s), np.exp(-t)
    r, g = (q_s - q_t) / (1 - q_t), 1 - (1 - q_s) * q_t / q_s / (1 - q_t)
    passing = mean * (1 - q_s) * (1 - q_t / q_s)
    z = np.exp(
        -2j * np.pi * np.arange(_LATTICE // 2 + 1) / _LATTICE
    )  # distributions as Fourier transforms, E z^jumps
    both = (1 - g + g / z) ** immigrants[..., None] * (1 - r + r * z) ** missing[..., None]
    return _land(size, np.fft.irfft(both * np.exp(passing * (z - 1)), _LATTICE).clip(0.0), x)


def missing_and_immigrants(toy: JumpToy, t: float, mean: float) -> Array:
    """E[(X_0 - S, I) | X_t], survivors S and immigrants I: the exact denoiser of immigration and death.

    [states ** elements, elements, 2]. Ours (tests/verification/test_jump_kernels.py).
    """
    o, m, k = np.ogrid[: toy.levels, : toy.size, : toy.levels]
    survive = binomial_pmf(np.arange(toy.levels)[:, None], np.exp(-t), toy.levels - 1)
    joint = survive[:, None, :] * stats.poisson.pmf(m - k, -mean * np.expm1(-t))
    return toy.expectation(
        np.stack([(joint * (o - k)).sum(-1), (joint * (m - k)).sum(-1)], axis=-1), t
    )


def start(toy: JumpToy, t: float) -> Array:
    """X_t averaged over the levels of every element: where finite processes start, [states ** elements]."""
    return independent(np.tile(toy.forward(t).mean(0), (1, toy.elements, 1)))[0]


def start_thinned(toy: Toy, q: float) -> Array:
    """Poisson(q E[X_0]), where pure death starts, [states ** elements].

    Ours (tests/verification/test_kernel_bias.py).
    """
    return independent(landing(poisson_pmf(toy.mean * q, toy.max_count), np.zeros(toy.pixels, int)))


def start_poisson(toy: JumpToy, t: float, mean: float) -> Array:
    """Poisson(q E[X_0] + a (1 - q)), where immigration and death starts, [states ** elements].

    Ours (tests/verification/test_jump_kernels.py).
    """
    rates = np.exp(-t) * toy.mean - mean * np.expm1(-t)
    return independent(poisson_pmf(rates, toy.size - 1)[None])[0]


def _rounded(value: Array) -> list[tuple[Array, Array]]:
    """The whole numbers around each value, [...], with their probabilities, [...] each: stochastic rounding, see
    `stochastic_births`.
    """
    low = np.floor(value)
    return [(low, 1 - (value - low)), (low + 1, value - low)]


def _land(size: int, total: Array, start: Array) -> Array:
    """Distributions of sums of jumps [..., lattice] and where they start [...] -> of states [..., size], clipped.

    Of the sums of `leap` and `bridge_from`.
    """
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
        """log P(N = missing), of the table of the class: float32, shape of the integers `missing`, [...]."""
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
        """Of states [n, elements] at a scalar time: E[N | X_t] and P(N | X_t) of `Toy.beliefs`."""
        at = torch.from_numpy(numbers(xt, self.toy.size))
        mean, missing = (table[at] for table in self._table(float(t)))
        return CountPrediction(mean, torch.log(mean.clamp(min=1e-30)), TableOfCounts(missing))

    def _made(self, t: float) -> tuple[Tensor, ...]:
        """`Toy.beliefs` of all states, [S, elements] and [S, elements, levels], in float64 where a network gives
        float32: the distributions compared with have it too.
        """
        beliefs, shape = self.toy.beliefs(math.exp(-t)), (len(self.toy.p0), self.toy.pixels, -1)
        mean, missing = (
            torch.from_numpy(x).reshape(shape) for x in (beliefs.mean, beliefs.missing)
        )
        return mean.squeeze(-1), missing


class ExactJumpDenoiser:
    """The denoiser a perfect network would be, for any process, with a table for every time it is asked about.

    Args:
        toy: data and process.
        expected: the exact mean of the process's statistic.
        kind: of prediction that the process needs.
    """

    def __init__(
        self, toy: JumpToy, expected: Expected, kind: type[Prediction] = CategoricalPrediction
    ) -> None:
        self.toy, self.kind = toy, kind
        self._table = lru_cache(maxsize=None)(lambda t: torch.from_numpy(expected(toy, t)))

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """Of states [n, elements] at a scalar time: the mean of `expected`, and its logarithm."""
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
    at = ReverseStep(denoiser, process, xt, s_, t_, SampleStreams(seed, torch.arange(n)).step(1))
    return histogram(kernel(at), toy.size)


def loop_draws(
    toy: Toy | JumpToy,
    denoiser: Denoiser,
    process: Process,
    kernel: Kernel,
    times: Tensor,
    n: int,
    seed: int = 0,
) -> Array:
    """How often the sampling loop returned each state of the data in n samples, [levels ** elements]."""
    streams, mean = SampleStreams(seed, torch.arange(n)), torch.from_numpy(toy.mean)
    plan = SamplingPlan(denoiser, process, times, kernel, mean=mean)
    x0 = run_sampler(plan, (n, toy.elements), streams)
    return histogram(x0, toy.levels)


def numbers(x: Tensor, size: int) -> Array:
    """The numbers of states [n, elements], each of so many, int64 [n]."""
    return np.ravel_multi_index(tuple(x.long().numpy().T), [size] * x.shape[1])


def histogram(x: Tensor, size: int) -> Array:
    """How often each state is among x [n, elements], int64 [size ** elements]: the counts of `p_value`."""
    return np.bincount(numbers(x, size), minlength=size ** x.shape[1])


def p_value(observed: Array, law: Array) -> float:
    """Chi-square test of counts [S] against a distribution [S], cells expected less than 5 times put together.

    0 when a state of probability 0 was drawn.

    Pearson's test. Ours (tests/verification/test_pure_death_kernels.py) is which cells are put together.
    """
    expected = law * observed.sum()
    if observed[law <= 0].any():
        return 0.0
    rare = expected < 5
    cells = np.append(expected[~rare], expected[rare].sum())
    drawn = np.append(observed[~rare], observed[rare].sum())
    drawn, cells = drawn[cells > 1e-9], cells[cells > 1e-9]
    return (
        1.0
        if len(cells) < 2
        else float(stats.chisquare(drawn, cells * drawn.sum() / cells.sum()).pvalue)
    )


EXACT = 2e-5
"""Total variation of a kernel that is exact: the start and rounding leave less."""
SURE = 1e-6
"""p-value below which draws are not as they should be; of a hundred right ones it says so once in 10,000 runs."""
_TESTED, _LOOP = ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0)), logit_times(8, 4.0, -9.0)
"""Steps (s, t) at which draws are tested, and the grid on which those of the loop are."""

Grid = Callable[[int], Tensor]
Step = Callable[[Any, Array, float, float], Array]
"""(toy, the distribution of X_t, s, t) -> that of X_s, [states ** elements]; of pure death s and t are survivals."""

LAWS: dict[str, Step] = {
    **{name: partial(step_law, births=births) for name, births in BIRTHS.items()},
    "trapezoidal": trapezoidal_law,
    "posterior_trapezoidal": posterior_trapezoidal_law,
}
"""The exact distribution of one step of each kernel of pure death, independent of its code."""
_TWICE = ("trapezoidal", "posterior_trapezoidal")
"""Kernels that evaluate the network twice in every step but the last."""


@dataclass(frozen=True)
class Subject:
    """A process and data, with the exact distributions of some kernels and the package's own draws from them.

    Args:
        process: its name in `process=`, and which one where that leaves a choice.
        toy: the data.
        law: the package's process.
        denoiser: what a perfect network would be.
        kernels: of the package, by name.
        tested: steps (s, t) at which draws are tested.
        grid: on which the loop's draws are; None where no loop is tested.
        steps: the exact distributions of the kernels' steps, by name.
        start: (toy, final time) -> the distribution sampling starts from.
        clock: time -> what toy, steps and start call it.
    """

    process: str
    toy: Any
    law: Any
    denoiser: Denoiser
    kernels: Mapping[str, Kernel]
    tested: tuple[tuple[float, float], ...]
    grid: Tensor | None
    steps: Mapping[str, Step]
    start: Callable[[Any, float], Array]
    clock: Callable[[float], float] = float

    @property
    def name(self) -> str:
        """Of the data."""
        return str(self.toy.name)

    def error(self, kernel: str, grid: Grid, num_steps: int) -> tuple[int, float]:
        """NFE, and the total variation of the exact distribution sampled from the one aimed at: an integer and a float.

        Ours (tests/verification/test_pure_death_kernels.py, test_jump_kernel_laws.py).
        """
        per_step = 2 if kernel in _TWICE else 1
        times = grid(num_steps // per_step)
        return per_step * (len(times) - 2) + 1, total_variation(
            self.final_law(kernel, times), self.toy.p0
        )

    def final_law(self, kernel: str, times: Tensor) -> Array:
        """What the sampling loop returns on a grid, [levels ** elements]; states above the levels are cut off.

        Its steps one after another, see `Step`. Ours (tests/verification/test_pure_death_kernels.py).
        """
        toy, at = self.toy, [self.clock(t) for t in times.tolist()]
        law = self.start(toy, at[-1])
        for s, t in zip(at[-2::-1], at[:0:-1], strict=True):
            law = self.steps[kernel](toy, law, s, t)
        kept = np.ravel_multi_index(
            tuple(np.minimum(toy.states, toy.levels - 1).T), [toy.levels] * toy.elements
        )
        return np.bincount(kept, weights=law, minlength=len(toy.p0))

    def step(self, kernel: str, state: int, s: float, t: float) -> Array:
        """The exact distribution of a step from a state, [states ** elements]."""
        return self.steps[kernel](
            self.toy, np.eye(len(self.toy.states))[state], self.clock(s), self.clock(t)
        )

    def chosen(self, s: float, t: float) -> list[int]:
        """Two states to start a step from, by the marginal [S]: the most probable one, and one that is so only now
        and then.
        """
        likely = np.argsort(-self.toy.marginal(self.clock(t)))
        return likely[[0, len(likely) // 3 or 1]].tolist()

    def p_values(self, kernel: str, n: int) -> list[float]:
        """Chi-square tests of the package's own draws, n per step, against the exact distributions.

        Floats, of `p_value` of counts [S].
        """
        p, how = list[float](), (self.toy, self.denoiser, self.law, self.kernels[kernel])
        for s, t in self.tested:
            for state in self.chosen(s, t):
                p.append(
                    p_value(
                        step_draws(*how, state, s, t, n, len(p)), self.step(kernel, state, s, t)
                    )
                )
        if self.grid is not None:
            p.append(p_value(loop_draws(*how, self.grid, 2 * n), self.final_law(kernel, self.grid)))
        return p


def pure_death(toy: Toy, kernels: Mapping[str, Kernel]) -> Subject:
    """A toy under pure death, of which these kernels are checked."""
    denoiser, grid, clock = ExactDenoiser(toy), logit_times(8, 4.0, -6.0), lambda t: math.exp(-t)
    how = (denoiser.process, denoiser, kernels, _TESTED, grid, LAWS, start_thinned, clock)
    return Subject("pure_death", toy, *how)


def jumping(step: JumpStep) -> Step:
    """A step whose elements are independent given the state of all.

    [S] of [S] by `independent`.
    """
    return lambda toy, law, s, t: law @ independent(step(toy, s, t))


class StaySubject(Subject):
    """The corrector on a toy: a stay at time 0.6, cut into steps, should leave the distribution there as it is."""

    @property
    def name(self) -> str:
        """Of the data, and that this is about correctors."""
        return f"{self.toy.name}, correctors"

    def error(self, kernel: str, grid: Grid, num_steps: int) -> tuple[int, float]:
        """Steps, and how far from the law at time 0.6, [S], it is after them: `total_variation`, a float.

        Ours (tests/verification/test_jump_kernels.py).
        """
        law, step = self.toy.marginal(0.6), independent(stay(self.toy, 0.6, 0.5 / num_steps))
        return num_steps, total_variation(law @ np.linalg.matrix_power(step, num_steps), law)

    def chosen(self, s: float, t: float) -> list[int]:
        return super().chosen(t, s)


def corrected(subject: Subject) -> StaySubject:
    """The corrector of half a step, on the toy of another subject."""
    kernel: Kernel = partial(LevelCorrector(0.5), TauLeap())
    return StaySubject(
        subject.process, subject.toy, subject.law, subject.denoiser, {"level_corrector": kernel},
        ((0.05, 0.15), (0.6, 1.0), (2.0, 2.5)), None,
        {"level_corrector": jumping(lambda toy, s, t: stay(toy, s, 0.5 * (t - s)))}, subject.start,
    )  # fmt: skip


_PIXEL = np.array([0.35, 0.05, 0.1, 0.3, 0.2])
_PAIR = np.array([[0.4, 0.02, 0.03], [0.02, 0.1, 0.01], [0.01, 0.01, 0.4]])
_COUNTS = np.array([0.3, 0.1, 0.05, 0.05, 0.2, 0.05, 0.05, 0.2])
_ARRIVALS = 3.0
_CHAIN = 48

Claims = Callable[[], Iterator[tuple]]
Grids = Mapping[str, Callable[[int], Tensor]]


def _pure_death() -> Iterator[tuple]:
    """Nothing is claimed of nearest rounding, which does not converge.

    On one pixel the bridges from draws are exact, on a black-and-white one so is stochastic
    rounding, and the others are of the first order. Given correlated pixels,
    only the trapezoidal methods are better than first order, and only where no birth changes another pixel's rate by
    much: the rough toys leave them at the first.
    """
    first = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "posterior": 0.9}
    second = {"trapezoidal": 1.32, "posterior_trapezoidal": 1.32}
    bumps = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "posterior": math.inf}
    exact = ("stochastic", "posterior", "posterior_trapezoidal")
    rare = {"nearest": None, "poisson": 0.9, **dict.fromkeys(exact, math.inf)}
    rough = {"posterior": 0.85, "trapezoidal": 0.95, "posterior_trapezoidal": 0.95}
    pair, truncated = pixel_pair(), partial(logit_times, first=7.0, last=-10.0)
    grids = {"fisher grid": fisher_times, "logit grid": truncated}
    # of 256 levels, draws are checked by the tests at chosen states alone: the chi-square of a loop would see little
    yield pure_death(two_bumps(), {}), {"fisher grid": fisher_times}, (10, 30, 100), bumps
    yield pure_death(rare_pixel(), KERNELS), grids, (16, 32, 64), rare
    yield pure_death(pair, KERNELS), grids, (16, 32, 64), {**first, **second}
    for toy in (exclusive_pair(), five_bits(), three_pixels()):
        yield pure_death(toy, {}), {"logit grid": truncated}, (16, 32, 64), rough


def finite(process: str, name: str, cube: Array, law: Any, matrices: Matrices) -> Subject:
    """A finite process, of which X_0's distribution is predicted and which has no rates in discrete time."""
    toy, rates = JumpToy(name, cube, matrices), matrices.generator is not None
    kernels: dict[str, Kernel] = {
        "level_bridge": LevelBridge(),
        **({"tau_leap": TauLeap()} if rates else {}),
    }
    exact = {"level_bridge": jumping(JumpToy.before), "tau_leap": jumping(tau_leap)}
    tested, grid = (
        (_TESTED, _LOOP)
        if rates
        else (((0.0, 1.0), (5.0, 6.0), (20.0, 41.0)), step_times(8, _CHAIN))
    )
    return Subject(
        process,
        toy,
        law,
        ExactJumpDenoiser(toy, JumpToy.origins),
        kernels,
        tested,
        grid,
        exact,
        start,
    )


def _continuous(
    process: str, make: Callable[[int], tuple[Any, Matrices]], leap: float = 0.9, pair: bool = True
) -> Iterator[tuple]:
    """Bridges from draws of X_0 are exact for one element and of the first order for two; leaps of the order given."""
    subjects = [(finite(process, "one pixel", _PIXEL, *make(len(_PIXEL) - 1)), math.inf, leap)]
    if pair:
        subjects.append((finite(process, "two pixels", _PAIR, *make(len(_PAIR) - 1)), 0.9, 0.9))
    for subject, bridge, order in subjects:
        yield subject, _GRIDS, (32, 64, 128), {"level_bridge": bridge, "tau_leap": order}
        yield corrected(subject), _STAY, (16, 32, 64), {"level_corrector": 0.9}


def _discrete(process: str, make: Callable[[int], tuple[Any, Matrices]]) -> Iterator[tuple]:
    """With all the chain's steps or some of them."""
    grids = {"steps grid": partial(step_times, length=_CHAIN)}
    for name, cube, order in (("one pixel", _PIXEL, math.inf), ("two pixels", _PAIR, 0.9)):
        yield (
            finite(process, name, cube, *make(len(cube) - 1)),
            grids,
            (12, 24, 48),
            {"level_bridge": order},
        )


_GRIDS: Grids = {
    "logit grid": partial(logit_times, first=6.0, last=-12.0),
    "fisher grid": fisher_times,
}
_STAY: Grids = {"stay in so many parts": fisher_times}  # the grid itself is not used


def _evenly(top: int) -> Array:
    """Rows of equal probabilities, [top + 1, top + 1]: of `_uniform`."""
    return np.full((top + 1, top + 1), 1 / (top + 1))


def _masked(top: int) -> Array:
    """Rows that are all in the last state, [top + 2, top + 2]: of `_absorbing`."""
    return np.eye(top + 2)[[top + 1] * (top + 2)]


def _uniform(top: int) -> tuple[Any, Matrices]:
    """The process, and exp(Q (t - s)) with Q = 1 / S - I, [S, S] [Campbell 2022]."""
    return processes.Uniform(top), of_generator(_evenly(top) - np.eye(top + 1))


def _absorbing(top: int) -> tuple[Any, Matrices]:
    """The process, and exp(Q (t - s)) with Q from every state to the mask, [S, S] [Campbell 2022]."""
    return processes.Absorbing(top), of_generator(_masked(top) - np.eye(top + 2))


def _ordinal(
    top: int, width: float | None = None, spread: float | None = None
) -> tuple[Any, Matrices]:
    """The process, and exp(Q (t - s)) with Q [S, S], rates between levels i and j by weight(|i - j|) sqrt(pi_j / pi_i).

    Weights are those of neighbours, or Gaussian, and pi Gaussian or even: as of `processes.Ordinal`, made here anew.
    """
    levels = np.arange(top + 1.0)
    apart = np.abs(levels[:, None] - levels[None, :])
    weight = (
        (apart == 1) * 1.0 if width is None else (apart > 0) * np.exp(-((apart / width) ** 2) / 2)
    )
    root = np.ones(top + 1) if spread is None else np.exp(-(((levels - top / 2) / spread) ** 2) / 4)
    rates = weight * root[None, :] / root[:, None]
    generator = _scaled(rates - np.diag(rates.sum(1)))
    return processes.Ordinal(top, width, spread), of_generator(generator, ordered=True)


def _halving(top: int) -> tuple[Any, Matrices]:
    """The documentation's example: x to x // 2 at rate 3.

    Q is [top + 1, top + 1]. Ours (tests/verification/test_jump_kernels.py).
    """
    generator = 3.0 * (np.eye(top + 1)[np.arange(top + 1) // 2] - np.eye(top + 1))
    return processes.from_generator(top, generator), of_generator(generator)


def _any(top: int) -> tuple[Any, Matrices]:
    """Random rates, two states more than levels, and a speed that grows.

    Q is [top + 3, top + 3].
    """
    generator = _random(top + 3)
    return processes.from_generator(top, generator), of_generator(generator)


def _chain(
    make: Callable[[int, int], Any], law: Callable[[int], Array], top: int
) -> tuple[Any, Matrices]:
    """Elements are replaced by draws from rows of `law`, ever more often.

    Steps [T, S, S] have shares 1 / (48 - k), k from 0 [Austin 2021, section 3.2 and appendix A.2].
    """
    replaced, by = 1 / (_CHAIN - np.arange(_CHAIN))[:, None, None], law(top)
    return make(top, _CHAIN), of_steps((1 - replaced) * np.eye(len(by)) + replaced * by)


def _observed(top: int) -> tuple[Any, Matrices]:
    """A jump process with random rates, looked at now and then: every step has a matrix of its own.

    Steps are exp(Q d) of intervals d, [T, S, S]. Ours (tests/verification/test_jump_kernels.py).
    """
    generator, times = _random(top + 2), logit_times(_CHAIN, 6.0, -12.0).numpy()
    steps = np.stack([chains.expm(generator * d) for d in np.diff(times)])
    return processes.DiscreteTimeChain(top, _CHAIN, steps), of_steps(steps)


def _random(size: int) -> Array:
    """Random rates, scaled so that the slowest mode decays as e^-t."""
    return _scaled(chains.random_generator(np.random.default_rng(3), size))


def _scaled(generator: Array) -> Array:
    """A generator [S, S] over its second least rate of decay, so that the slowest mode decays as e^-t.

    Ours (tests/verification/test_jump_kernels.py).
    """
    return generator / np.sort(-np.linalg.eigvals(generator).real)[1]


def _birth_death() -> Iterator[tuple]:
    """Rounded numbers and leaps, both of the first order."""
    law = processes.BirthDeath(len(_COUNTS) - 1, _ARRIVALS)
    toy = JumpToy("one pixel", _COUNTS, of_birth_death(_ARRIVALS, law.num_states))
    kernels: dict[str, Kernel] = {"birth_death_bridge": BirthDeathBridge(), "tau_leap": TauLeap()}
    bridge = partial(birth_death_bridge, mean=_ARRIVALS)
    exact = {"birth_death_bridge": jumping(bridge), "tau_leap": jumping(tau_leap_counts)}
    denoiser = ExactJumpDenoiser(
        toy, partial(missing_and_immigrants, mean=_ARRIVALS), BirthDeathPrediction
    )
    start = partial(start_poisson, mean=_ARRIVALS)
    subject = Subject("birth_death", toy, law, denoiser, kernels, _TESTED, _LOOP, exact, start)
    yield subject, _GRIDS, (32, 64, 128), {"birth_death_bridge": 0.9, "tau_leap": 0.9}
    yield corrected(subject), _STAY, (16, 32, 64), {"level_corrector": 0.9}


CLAIMS: dict[str, list[Claims]] = {
    "pure_death": [_pure_death],
    "birth_death": [_birth_death],
    "uniform": [partial(_continuous, "uniform", _uniform)],
    "absorbing": [
        # what is unmasked stays, and was drawn from the right distribution: one element only waits for the wrong time
        partial(_continuous, "absorbing", _absorbing, leap=math.inf),
    ],
    "ordinal": [
        partial(_continuous, "ordinal", _ordinal),
        partial(_continuous, "ordinal, wide", partial(_ordinal, width=2.0, spread=2.0), pair=False),
    ],
    "generator": [
        partial(_continuous, "generator, halving", _halving),
        partial(_continuous, "generator, any", _any, pair=False),
    ],
    "discrete_uniform": [
        partial(_discrete, "discrete_uniform", partial(_chain, processes.UniformChain, _evenly))
    ],
    "discrete_absorbing": [
        partial(_discrete, "discrete_absorbing", partial(_chain, processes.AbsorbingChain, _masked))
    ],
    "discrete": [partial(_discrete, "discrete", _observed)],
}
"""By name in `process=`: (subject, grids, numbers of steps, orders) of everything that is claimed."""


class Study(NamedTuple):
    """One subject on one grid.

    Args:
        subject: process and data.
        grid_name, grid: the grid's name and num_steps -> times.
        steps: numbers of steps, rising; a kernel that evaluates twice per step takes half as many.
        orders: the least order of convergence claimed of a kernel, inf for an exact one, None for no claim.
    """

    subject: Subject
    grid_name: str
    grid: Grid
    steps: Sequence[int]
    orders: Mapping[str, float | None]


class Row(NamedTuple):
    """What was found about one kernel, and whether it is what was claimed."""

    kernel: str
    evaluations: list[int]
    errors: list[float]
    claim: float | None

    @property
    def order(self) -> float:
        """p where the error last fell as evaluations^-p; inf for an exact kernel. A float, of the last two errors.

        Ours (tests/verification/test_jump_kernels.py).
        """
        if max(self.errors) < EXACT:
            return math.inf
        return math.log(self.errors[-2] / self.errors[-1]) / math.log(
            self.evaluations[-1] / self.evaluations[-2]
        )

    @property
    def holds(self) -> bool:
        """Whether the order is at least the one claimed."""
        return self.claim is None or self.order >= self.claim


def studies(processes: Sequence[str] = ()) -> Iterator[Study]:
    """Everything that is claimed, of all processes or those named."""
    for claimed in chain.from_iterable(CLAIMS[process] for process in processes or CLAIMS):
        for subject, grids, steps, orders in claimed():
            yield from (Study(subject, name, grid, steps, orders) for name, grid in grids.items())


def rows(study: Study) -> Iterator[Row]:
    """The errors of every kernel of a study, from products of exact matrices."""
    for name, claim in study.orders.items():
        found = [study.subject.error(name, study.grid, num_steps) for num_steps in study.steps]
        yield Row(name, [n for n, _ in found], [error for _, error in found], claim)


def draws(subject: Subject, kernel: str, n: int = 20_000) -> tuple[str, float]:
    """Chi-square tests of the kernel's own draws against the exact distribution: single steps, and the whole loop.

    Returns:
        What is tested, and the least p-value.
    """
    p = subject.p_values(kernel, n)
    return f"{subject.process}, {subject.name}, {kernel}: least p of {len(p)}", min(p)


def verify(show: Callable[[str], None] = print, processes: Sequence[str] = ()) -> bool:
    """Check every claim, of all processes or those named, showing one line for each. True when all hold."""
    good, subjects = True, dict[tuple[str, str], Subject]()
    for study in studies(processes):
        subject = study.subject
        subjects.setdefault((subject.process, subject.name), subject)
        show(
            f"\n{subject.process}, {subject.name} ({subject.toy.entropy:.4f} nats), {study.grid_name}"
        )
        show(f"  {'kernel':<18}{'total variation at network evaluations':<44}{'order':>7}  claimed")
        for row in rows(study):
            errors = "  ".join(
                f"{n:>4}: {e:.5f}" for n, e in zip(row.evaluations, row.errors, strict=True)
            )
            show(
                f"  {row.kernel:<18}{errors:<44}{_order(row.order):>7}  {_claim(row.claim)}{_verdict(row.holds)}"
            )
            good &= row.holds
    show(
        "\ndraws of the kernels themselves against the exact laws (chi-square, one step and whole loop)"
    )
    for name, p in (
        draws(subject, kernel) for subject in subjects.values() for kernel in subject.kernels
    ):
        show(f"  {name:<76}{p:>9.2g}  >= {SURE:g}{_verdict(p >= SURE)}")
        good &= p >= SURE
    return good


def _order(order: float) -> str:
    return "exact" if order == math.inf else f"{order:.2f}"


def _claim(claim: float | None) -> str:
    return "-" if claim is None else "exact" if claim == math.inf else f">= {claim}"


def _verdict(holds: bool) -> str:
    return "" if holds else "   FAILS"
