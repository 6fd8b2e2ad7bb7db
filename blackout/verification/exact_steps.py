"""The exact distributions of the steps that reverse kernels take, from products of matrices.

Nothing here uses the kernels' own code. Pure death adds births to counts, so that a kernel is a
distribution of births (`BIRTHS`) or, with two stages, a step of its own (`PURE_DEATH_STEPS`). Of
any other process a step's distribution is [states ** elements, elements, states]: where each
element goes, given the state of all elements.

S is the number of states of all elements, and q = e^-t is the survival at time t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from scipy import stats

from blackout.verification.toys import (
    Array,
    JumpToy,
    MissingCounts,
    Toy,
    binomial_pmf,
    shift_rows,
)

# (missing counts of R elements, fraction r) -> P(births = d), [R, max_count + 1]; what a row lacks
# of 1 is the probability of more births than max_count
Births: TypeAlias = Callable[[MissingCounts, float], Array]
# (toy, distribution of X_t, s, t) -> distribution of X_s, [S]; of pure death s and t are survivals
Step: TypeAlias = Callable[[Any, Array, float, float], Array]
# (toy, s, t) -> distribution of every element after a step, [states ** elements, elements, states]
ElementStep: TypeAlias = Callable[[JumpToy, float, float], Array]

MIN_PATH_WEIGHT = 1e-14  # of two-stage paths, relative to the largest; rarer ones are left out
LATTICE = 256  # sums of jumps are computed modulo this number, which is far beyond their range


# --- births of pure death


def birth_fraction(q_s: float, q_t: float) -> float:
    """Return r = (q_s - q_t) / (1 - q_t), the share of missing units that are born in a step.

    References: Santos et al. 2023, eq. 13 without its factor s.
    """
    return (q_s - q_t) / (1 - q_t)


def nearest_births(missing: MissingCounts, r: float) -> Array:
    """Return Binomial(N, r) with N = E[N | X_t], rounded to the nearest integer, halves to even.

    References: Santos et al. 2023, eq. 12 and section 3.
    """
    n = np.minimum(np.round(missing.mean), missing.headroom).astype(int)
    return binomial_pmf(n[:, None], r, missing.max_count)


def stochastic_births(missing: MissingCounts, r: float) -> Array:
    """Return Binomial(N, r) with N = E[N | X_t], rounded up or down at random without bias.

    References: Santos et al. 2023, eq. 12; the rounding is this project's, checked in
        tests/verification/test_pure_death_kernels.py.
    """
    return sum(
        share[:, None]
        * binomial_pmf(np.minimum(n, missing.headroom).astype(int)[:, None], r, missing.max_count)
        for n, share in _stochastic_rounding(missing.mean)
    )


def poisson_births(missing: MissingCounts, r: float) -> Array:
    """Return Poisson(y r) with y = E[N | X_t].

    References: Santos et al. 2023, Algorithm 2.
    """
    return poisson_pmf(missing.mean * r, missing.max_count)


def posterior_births(missing: MissingCounts, r: float) -> Array:
    """Return Binomial(N, r) with N from its exact posterior.

    References: Santos et al. 2023, eq. 12.
    """
    n = np.arange(missing.max_count + 1)
    return missing.pmf @ binomial_pmf(n[:, None], r, missing.max_count)


def poisson_pmf(rate: Array, max_count: int) -> Array:
    """Return P(d) for d = 0..max_count, [R, max_count + 1], of rates [R]."""
    return stats.poisson.pmf(np.arange(max_count + 1), rate[:, None])


BIRTHS: dict[str, Births] = {
    "nearest": nearest_births,
    "stochastic": stochastic_births,
    "poisson": poisson_births,
    "posterior": posterior_births,
}


# --- steps of pure death


def step_matrix(toy: Toy, births: Births, q_s: float, q_t: float) -> Array:
    """Return P(X_s | X_t), [S, S], of a kernel that treats elements independently given X_t.

    Births are clipped at the largest count.

    References: Santos et al. 2023, Algorithm 2.
    """
    missing = toy.missing_counts(q_t)
    pmf = births(missing, birth_fraction(q_s, q_t))
    levels = add_births(pmf, toy.max_count - missing.headroom)
    return joint_distribution(levels.reshape(-1, toy.pixels, toy.max_count + 1))


def independent_step(toy: Toy, xt_pmf: Array, q_s: float, q_t: float, births: Births) -> Array:
    """Return the distribution of X_s, [S], by `step_matrix`, given that of X_t, [S]."""
    return xt_pmf @ step_matrix(toy, births, q_s, q_t)


def trapezoidal_step(toy: Toy, xt_pmf: Array, q_s: float, q_t: float) -> Array:
    """Return the distribution of X_s, [S], after a theta-trapezoidal step with theta = 1 / 2.

    The rates of the second stage are [2 y_rho - (1 - r) y]_+ with the predictions y at X_t and
    y_rho between the stages, and the fraction r of the first stage.

    References: Anderson and Mattingly 2011, with theta = 1 / 2.
    """

    def second_births(stage: SecondStage) -> Iterator[Array]:
        """Yield Poisson births of every element at extrapolated rates, [R, max_count + 1]."""
        y = toy.missing_counts(q_t).mean.reshape(-1, toy.pixels)
        y_rho = toy.missing_counts(stage.q_rho).mean.reshape(-1, toy.pixels)
        extrapolated = 2 * y_rho[stage.middle] - (1 - stage.first_fraction) * y[stage.start]
        rate = np.clip(extrapolated, 0, None) * stage.second_fraction
        for i in range(toy.pixels):
            yield poisson_pmf(rate[:, i], toy.max_count)

    return _two_stage_step(toy, xt_pmf, q_s, q_t, poisson_births, second_births)


def posterior_trapezoidal_step(toy: Toy, xt_pmf: Array, q_s: float, q_t: float) -> Array:
    """Return the distribution of X_s, [S], after a trapezoidal step of whole distributions.

    Both stages are bridges. The missing count N of the second one has the distribution
    [2 P(N | X_rho) - P(N left | X_t)]_+, normalised.

    References: this project; checked in tests/verification/test_pure_death_kernels.py.
    """

    def second_births(stage: SecondStage) -> Iterator[Array]:
        """Yield the births of every element by a bridge to N, [R, max_count + 1]."""
        levels = np.arange(toy.max_count + 1)
        missing = toy.missing_counts(q_t).pmf.reshape(-1, toy.pixels, len(levels))
        missing_rho = toy.missing_counts(stage.q_rho).pmf.reshape(-1, toy.pixels, len(levels))
        first_bridge = binomial_pmf(levels[:, None], stage.first_fraction, toy.max_count)
        second_bridge = binomial_pmf(levels[:, None], stage.second_fraction, toy.max_count)
        for i in range(toy.pixels):
            # P(N left | X_t) by Bayes' rule, given the births of the first stage
            born = toy.states[stage.middle, i] - toy.states[stage.start, i]
            total = born[:, None] + levels
            clipped = total.clip(max=toy.max_count)
            prior = np.take_along_axis(missing[stage.start, i], clipped, 1)
            remaining = np.where(
                total <= toy.max_count, prior * first_bridge[clipped, born[:, None]], 0
            )
            remaining = remaining / remaining.sum(1, keepdims=True)
            extrapolated = np.clip(2 * missing_rho[stage.middle, i] - remaining, 0, None)
            yield (extrapolated / extrapolated.sum(1, keepdims=True)) @ second_bridge

    return _two_stage_step(toy, xt_pmf, q_s, q_t, posterior_births, second_births)


@dataclass(frozen=True)
class SecondStage:
    """The second stage of a step, for R pairs of states that a first stage connects.

    Attributes:
        q_rho: survival between the stages.
        first_fraction: `birth_fraction` of the first stage.
        second_fraction: `birth_fraction` of the second stage.
        start: numbers of the states X_t before the first stage, int64 [R].
        middle: numbers of the states X_rho between the stages, int64 [R].
    """

    q_rho: float
    first_fraction: float
    second_fraction: float
    start: Array
    middle: Array


def _two_stage_step(
    toy: Toy,
    xt_pmf: Array,
    q_s: float,
    q_t: float,
    first_births: Births,
    second_births: Callable[[SecondStage], Iterable[Array]],
) -> Array:
    """Return the distribution of X_s, [S], after two stages of equal length on the clock 1 - q.

    The last step, to q_s = 1, has one stage.

    References: Anderson and Mattingly 2011.

    Args:
        toy: the data.
        xt_pmf: distribution of X_t, [S].
        q_s: survival after the step.
        q_t: survival before the step.
        first_births: of the first stage.
        second_births: of the second stage, of every element, [R, max_count + 1].
    """
    if q_s == 1:
        return independent_step(toy, xt_pmf, q_s, q_t, first_births)
    q_rho = 1 - np.sqrt((1 - q_s) * (1 - q_t))
    weights = xt_pmf[:, None] * step_matrix(toy, first_births, q_rho, q_t)
    start, middle = np.nonzero(weights > MIN_PATH_WEIGHT * weights.max())
    stage = SecondStage(
        q_rho, birth_fraction(q_rho, q_t), birth_fraction(q_s, q_rho), start, middle
    )
    levels = [add_births(pmf, toy.states[middle, i]) for i, pmf in enumerate(second_births(stage))]
    axes = "abcdefgh"[: len(levels)]
    rows = ",".join(f"r{axis}" for axis in axes)
    joint = np.einsum(f"r,{rows}->{axes}", weights[start, middle], *levels, optimize=True)
    return joint.reshape(-1)


def add_births(births: Array, start: Array) -> Array:
    """Return the distribution of start + births, [R, levels]; excess goes to the largest level.

    References: Santos et al. 2023, Algorithm 2, which clips as the samplers do.

    Args:
        births: P(births = d), [R, levels].
        start: levels before the births, int64 [R].
    """
    levels = shift_rows(births, start)
    levels[:, -1] += np.clip(1 - levels.sum(1), 0, None)
    return levels


def joint_distribution(levels: Array) -> Array:
    """Return the product of distributions of elements, [..., levels ** elements].

    Args:
        levels: distribution of every element, [..., elements, levels].
    """
    joint = levels[..., 0, :]
    for element in range(1, levels.shape[-2]):
        joint = (joint[..., :, None] * levels[..., element, None, :]).reshape(*joint.shape[:-1], -1)
    return joint


PURE_DEATH_STEPS: dict[str, Step] = {
    **{name: partial(independent_step, births=births) for name, births in BIRTHS.items()},
    "trapezoidal": trapezoidal_step,
    "posterior_trapezoidal": posterior_trapezoidal_step,
}


# --- steps of other processes


def tau_leap(toy: JumpToy, s: float, t: float) -> Array:
    """Return the exact distribution of a `TauLeap` step; the last step, to s = 0, draws X_0.

    References: Campbell et al. 2022, section 4.3.
    """
    if s == 0.0:
        return np.pad(toy.origin_pmf(t), [(0, 0), (0, 0), (0, toy.size - toy.levels)])
    return leap(toy, toy.reverse_rates(t), t - s)


def tau_leap_of_rates(toy: JumpToy, s: float, t: float) -> Array:
    """Return the exact distribution of a tau-leap at the rates of time t, also if s = 0.

    A kernel takes this step if its prediction consists of rates only.

    References: Campbell et al. 2022, section 4.3.
    """
    return leap(toy, toy.reverse_rates(t), t - s)


def corrector_move(toy: JumpToy, s: float, duration: float) -> Array:
    """Return the exact distribution of a corrector move: jumps at forward and reverse rates of s.

    References: Campbell et al. 2022, section 4.4.
    """
    return leap(toy, toy.reverse_rates(s) + toy.forward_rates(), duration)


def leap(toy: JumpToy, rates: Array, duration: float) -> Array:
    """Return the distribution of every element after jumps at constant rates.

    Of ordered states all jumps are added and the sum is clipped. Of others there is at most one
    jump. Sums of Poisson jumps are computed by their Fourier transform.

    References: Gillespie 2001; Campbell et al. 2022, section 4.3; the transform is this project's,
        checked in tests/verification/test_jump_kernels.py.

    Args:
        toy: data and process.
        rates: of jumps into every state, [states ** elements, elements, states].
        duration: of the leap.

    Returns:
        The shape of `rates`.
    """
    start = toy.states
    if not toy.transitions.ordered:
        total_rate = rates.sum(-1, keepdims=True)
        share = np.divide(rates, total_rate, out=np.zeros_like(rates), where=total_rate > 0)
        stay = np.eye(toy.size)[start] * np.exp(-total_rate * duration)
        return share * -np.expm1(-total_rate * duration) + stay
    jumps = np.zeros((*rates.shape[:-1], LATTICE))
    distance = np.arange(toy.size) - start[..., None]
    np.put_along_axis(jumps, distance % LATTICE, rates * duration, -1)
    exponent = np.fft.rfft(jumps)
    sums = np.fft.irfft(np.exp(exponent - exponent[..., :1]), LATTICE).clip(0.0)
    return _add_jumps(toy.size, sums, start)


def birth_death_bridge(toy: JumpToy, s: float, t: float, mean: float) -> Array:
    """Return the exact distribution of a `BirthDeathBridge` step with unbiased rounding.

    References: this project; checked in tests/verification/test_jump_kernels.py.
    """
    missing, immigrants = np.moveaxis(missing_and_immigrants(toy, t, mean), -1, 0)
    x = toy.states
    pmf = np.zeros((*missing.shape, toy.size))
    for num_immigrants, immigrants_share in _stochastic_rounding(immigrants):
        num_immigrants = np.minimum(num_immigrants, x)
        headroom = np.maximum(toy.levels - 1 - (x - num_immigrants), 0)
        for num_missing, missing_share in _stochastic_rounding(missing):
            num_missing = np.minimum(num_missing, headroom)
            bridge = birth_death_bridge_pmf(toy.size, x, num_missing, num_immigrants, s, t, mean)
            pmf += (immigrants_share * missing_share)[..., None] * bridge
    return pmf


def birth_death_bridge_pmf(
    size: int, x: Array, missing: Array, immigrants: Array, s: float, t: float, mean: float
) -> Array:
    """Return P(X_s | X_t, N, I) = x + Binomial(N, r) - Binomial(I, g) + Poisson, [..., size].

    Some missing units N are back at time s, some immigrants I have not come yet, and other units
    came and died between the data and X_t.

    References: this project; checked in tests/verification/test_jump_kernels.py.

    Args:
        size: number of states.
        x: X_t, [...].
        missing: N, units of X_0 that died before t, [...].
        immigrants: I, units of X_t that came after 0, [...].
        s: time of X_s.
        t: time of X_t, after s.
        mean: of the process's stationary distribution.
    """
    q_s = np.exp(-s)
    q_t = np.exp(-t)
    r = (q_s - q_t) / (1 - q_t)
    g = 1 - (1 - q_s) * q_t / q_s / (1 - q_t)
    passing = mean * (1 - q_s) * (1 - q_t / q_s)
    # distributions of jumps as Fourier transforms, E z^jumps
    z = np.exp(-2j * np.pi * np.arange(LATTICE // 2 + 1) / LATTICE)
    binomials = (1 - g + g / z) ** immigrants[..., None] * (1 - r + r * z) ** missing[..., None]
    sums = np.fft.irfft(binomials * np.exp(passing * (z - 1)), LATTICE).clip(0.0)
    return _add_jumps(size, sums, x)


def missing_and_immigrants(toy: JumpToy, t: float, mean: float) -> Array:
    """Return E[(X_0 - S, X_t - S) | X_t] with the survivors S, [states ** elements, elements, 2].

    These are the missing units and the immigrants: what an exact denoiser of immigration and death
    predicts.

    References: this project; checked in tests/verification/test_jump_kernels.py.
    """
    o, m, k = np.ogrid[: toy.levels, : toy.size, : toy.levels]  # X_0, X_t and S
    survive = binomial_pmf(np.arange(toy.levels)[:, None], np.exp(-t), toy.levels - 1)
    joint = survive[:, None, :] * stats.poisson.pmf(m - k, -mean * np.expm1(-t))
    missing = (joint * (o - k)).sum(-1)
    immigrants = (joint * (m - k)).sum(-1)
    return toy.expectation(np.stack([missing, immigrants], axis=-1), t)


def elementwise_step(step: ElementStep) -> Step:
    """Return the step of all elements, which move independently given the state of all."""

    def joint_step(toy: JumpToy, xt_pmf: Array, s: float, t: float) -> Array:
        """Return the distribution of X_s, [S], from that of X_t."""
        return xt_pmf @ joint_distribution(step(toy, s, t))

    return joint_step


# --- starts


def finite_start(toy: JumpToy, t: float) -> Array:
    """Return the start of finite processes, X_t averaged over all levels, [states ** elements]."""
    return joint_distribution(np.tile(toy.forward(t).mean(0), (1, toy.elements, 1)))[0]


def pure_death_start(toy: Toy, q: float) -> Array:
    """Return where pure death starts, [states ** elements]: Poisson(q E[X_0]).

    References: this project; checked in tests/verification/test_kernel_bias.py.
    """
    births = poisson_pmf(toy.mean * q, toy.max_count)
    return joint_distribution(add_births(births, np.zeros(toy.pixels, int)))


def birth_death_start(toy: JumpToy, t: float, mean: float) -> Array:
    """Return where immigration and death starts, [states ** elements].

    It is Poisson(q E[X_0] + mean (1 - q)) with the survival q at time t.

    References: this project; checked in tests/verification/test_jump_kernels.py.
    """
    rates = np.exp(-t) * toy.mean - mean * np.expm1(-t)
    return joint_distribution(poisson_pmf(rates, toy.size - 1)[None])[0]


def _stochastic_rounding(value: Array) -> list[tuple[Array, Array]]:
    """Return the integers below and above each value, with their probabilities, [...] each.

    The mean of the rounded value is the value.
    """
    low = np.floor(value)
    return [(low, 1 - (value - low)), (low + 1, value - low)]


def _add_jumps(size: int, sums: Array, start: Array) -> Array:
    """Return the distribution of start + sum of jumps, clipped to 0..size - 1, [..., size].

    Args:
        size: number of states.
        sums: distribution of sums of jumps modulo `LATTICE`, [..., LATTICE].
        start: states before the jumps, [...].
    """
    middle = LATTICE // 2
    sums = np.roll(sums, middle, axis=-1)  # the sum d is at d + middle
    pmf = np.take_along_axis(sums, np.arange(size) - start[..., None] + middle, -1)
    cumulative = np.cumsum(sums, -1)
    pmf[..., 0] = np.take_along_axis(cumulative, middle - start[..., None], -1)[..., 0]
    inside = np.take_along_axis(cumulative, middle + size - 2 - start[..., None], -1)[..., 0]
    pmf[..., -1] = cumulative[..., -1] - inside
    return pmf
