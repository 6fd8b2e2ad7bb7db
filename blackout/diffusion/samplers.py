"""Samplers: the steps that `sampler=` names (bridges, tau-leaping, second order), correctors beside them, and the
one loop that walks a grid backwards.

A kernel makes a reverse step, from X_t to X_s, s < t, with the help of a denoiser. For pure death [Santos 2023,
section 2.7], where y = E[N | X_t] is the expected missing count, N = X_0 - X_t, and r the step fraction: of the units
missing at t, each is back at s with probability r.

    BinomialBridge    y rounded to a whole number, then the exact bridge             1 NFE   first order, biased
    PoissonLeap       Poisson(y r) births                                            1       first order
    PosteriorBridge   X_0 from the predicted distribution, then the exact bridge     1       exact for one element
    Trapezoidal       theta-trapezoidal in its mean-preserving form                  2       second order on smooth data
    PosteriorTrapezoidal  the same for whole distributions, by exact bridges         2       second order; exact for one
    MultistepLeap    Poisson leaps that extrapolate what the last births taught      1       second order on smooth data

For the other processes:

    LevelBridge       X_0 from the predicted distribution, then the exact bridge     1       exact for one element
    BirthDeathBridge  the predicted pair rounded, then the exact bridge              1       first order
    TauLeap           all reverse jumps at frozen rates                              1       first order

Correctors stay at one time and move a sample towards the model's distribution there. They mend what an imperfect
network did on the way; with a perfect one the same evaluations are better spent on more steps. With guided rates they
leave p_t(x) p_t(c | x)^g as it is, and with known elements held in their place the law of the others given these:
nothing needs weighing. They are therefore what mends guidance and inpainting without particles.

`sample` is the loop [Santos 2023, Algorithm 2], from the prior or from any state, and `Sampler` how a model is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, nn

from blackout.component import Stats, component
from blackout.counts import count_dtype, time_on
from blackout.diffusion.guidance import Guidance, GuidedCount, GuidedPair
from blackout.diffusion.heads import Head, LevelHead
from blackout.diffusion.inpainting import KnownElements, KnownPath
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    Denoiser,
    Kind,
    MissingCount,
    Prediction,
    require,
)
from blackout.diffusion.processes import FiniteProcess, JumpProcess, Process, Uniform
from blackout.diffusion.processes.birth_death import BirthDeath
from blackout.diffusion.schedules import (
    check_range,
    in_range,
    logit_survival,
    reverse_clock,
    step_fraction,
    time_of_logit,
)
from blackout.errors import UserError, ensure, refuse
from blackout.random import RandomSource, SampleStreams, bernoulli, categorical, poisson, uniform
from blackout.training.instantiate import described, make
from blackout.training.model import evaluating

Rounding: TypeAlias = Callable[[Tensor, RandomSource], Tensor]
"""(y [B, ...], where randomness comes from) -> whole numbers of y's shape and dtype."""

_FOR_RATES = "a head that predicts what rates need"
"""What is asked of a prediction, for messages."""


@dataclass(frozen=True)
class ReverseStep:
    """One reverse step to be made, from time t to s < t.

    Args:
        denoiser: evaluated as often as the method needs.
        process: whose path is walked back.
        x: states X_t [B, ...].
        s, t: float64 scalars.
        generator: where randomness comes from.
    """

    denoiser: Denoiser
    process: Process
    x: Tensor
    s: Tensor
    t: Tensor
    generator: RandomSource = None

    def count(self, part: object) -> CountPrediction:
        """What is predicted of the missing count given X_t; `part` is the kernel or corrector that needs it.

        Raises:
            ValueError: something else is predicted.
        """
        needed = "a head that predicts the missing count (and for some samplers its distribution)"
        return require(self.denoiser(self.x, self.t), CountPrediction, part, self.process, needed)

    def distribution(self, posterior: str, part: object) -> MissingCount:
        """The predicted distribution of the missing count, for a posterior "bridge" or "trapezoidal step".

        Raises:
            ValueError: there is none, or the count is guided, which leaves none.
        """
        prediction = self.count(part)
        if isinstance(prediction, GuidedCount):
            raise ValueError(f"guidance leaves no distribution for the posterior {posterior}: use sampler=trapezoidal")
        if prediction.distribution is None:
            raise ValueError(f"the posterior {posterior} needs a head that predicts a distribution")
        return prediction.distribution

    def leap(self, y: Tensor) -> Tensor:
        """X_s = X_t + Poisson(y r) [B, ...], r the step fraction, clipped to max_count; y [B, ...] are missing.

        [Santos 2023, Algorithm 2], see `PoissonLeap`.
        """
        return grown(self.x, poisson(y * step_fraction(self.s, self.t), self.generator), self.process)

    def bridge(self, missing: Tensor) -> Tensor:
        """X_s [B, ...] by the exact bridge from X_0 = X_t + missing, whole numbers [B, ...] [Santos 2023, eq. 12]."""
        origin = (self.x + missing).to(self.x.dtype)
        return self.process.bridge(origin, self.x, self.s, self.t, self.generator)

    def halves(self, middle: Callable[[ReverseStep], Tensor]) -> ReverseStep:
        """The second half of the step by the clock -log(1 - e^-t), from where the first one, `middle`, leads.

        Ours, see `Trapezoidal`; states [B, ...].
        """
        rho = reverse_clock((reverse_clock(self.s) + reverse_clock(self.t)) / 2)  # the clock is its own inverse
        return replace(self, x=middle(replace(self, s=rho)), t=rho)


class Kernel(Protocol):
    """One reverse step."""

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s given X_t: states of the shape [B, ...] and dtype of `at.x`.

        Raises:
            ValueError: the method needs another kind of prediction or process.
        """


@runtime_checkable
class StatefulKernel(Protocol):
    """A kernel that remembers earlier steps, such as a multistep method: every run of the sampler gets a fresh one."""

    def fresh(self) -> Kernel:
        """The same method before its first step."""


@component(passed=("rounding",), called=("y", "generator"))
def nearest_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """The paper's, of y [B, ...] [Santos 2023, section 3].

    Biased: while y < 1/2 nothing is born, however many steps are taken.
    """
    return torch.round(y)


@component(passed=("rounding",), called=("y", "generator"))
def stochastic_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """floor(y) + Bernoulli(y - floor(y)), [B, ...]: unbiased, so the mean number of births is y r.

    Ours (tests/laws/test_kernel_laws.py).
    """
    floor = torch.floor(y)
    return floor + bernoulli((y - floor).double(), generator).to(y.dtype)


# --- kernels of pure death


@component("kernel")
@dataclass(frozen=True)
class BinomialBridge:
    """Round y to a whole number n of missing units, then take the exact bridge from X_0 = X_t + n.

    Never leaves 0..max_count [Santos 2023, eq. 12 and Algorithm 2].

    Args:
        rounding: of y.
    """

    rounding: Rounding = stochastic_rounding

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        missing = self.rounding(at.count(self).expected, at.generator).to(torch.int64)
        return at.bridge(torch.minimum(missing, at.process.max_count - at.x.to(torch.int64)))


@component("kernel")
@dataclass(frozen=True)
class PoissonLeap:
    """X_s = X_t + Poisson(y r), clipped to max_count: tau-leaping [Santos 2023, Algorithm 2; Gillespie 2001].

    Algorithm 2 prints the rate y e^-t / (1 - e^-t), which lacks the time increment; y r integrates the reverse rate
    over the step, as the authors' code does.
    """

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        return at.leap(at.count(self).expected)


@component("kernel")
@dataclass(frozen=True)
class PosteriorBridge:
    """Draw X_0 from the head's distribution of the missing count, then take the exact bridge.

    With the exact distribution it makes no error for one element, whatever the step; elements are drawn independently,
    so their correlations given X_t still cost O(1 / T). Ours (tests/laws/test_kernel_laws.py).

    Raises:
        ValueError: when called, the head predicts no distribution, or the count is guided and has none.
    """

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        return at.bridge(at.distribution("bridge", self).sample(at.generator))


@component("kernel")
@dataclass(frozen=True)
class Trapezoidal:
    """Second order with two evaluations per step: the theta-trapezoidal method [Anderson 2011], unbiased in the mean.

    Half a step of the clock tau = -log(1 - e^-t) is a Poisson leap to rho of fraction h = 1 - sqrt(1 - r); the other
    half is one of the same fraction with the extrapolated count

        [2 y(X_rho, rho) - (1 - h) y(X_t, t)]_+.

    The conditional mean of X_0 is a martingale, so that y(X_rho, rho) is (1 - h) y(X_t, t) on average, and the mean
    number of births of the whole step is y r (up to the positive part). Halves of equal length (theta = 1/2) keep the
    weights at 2 and 1 however long the step. The step to s = 0, whose clock never ends, is a single Poisson leap.

    Second order where no birth more than halves another element's rate; elsewhere the positive part cuts, and the
    order is 1. In this form it is ours (tests/laws/test_kernel_laws.py).
    """

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        y = at.count(self).expected
        if float(at.s) == 0:
            return at.leap(y)
        then = at.halves(lambda first: first.leap(y))  # y frozen at X_t, from t to rho
        # from rho to s, of the same fraction, with the extrapolated count
        return then.leap((2 * then.count(self).expected - (1 - step_fraction(then.t, at.t)) * y).clamp(min=0))


@component("kernel")
@dataclass(frozen=True)
class MultistepLeap:
    """Second order with one evaluation per step: what the births before have taught is extrapolated over the next.

    y(X_t, t) differs from what was expected of it, (1 - a) y of the step before, a its fraction, by what that step's
    births say of the other elements. A leap of fraction r holds y, so that its own births know nothing of each other:
    the covariance they lack, r - b (1 - r) with b = -log(1 - r) the step's clock, is lent by the births before,

        births ~ Poisson([y + c (y - expected)]_+ r),    c = (r - b (1 - r)) (1 - a) / (r a), at most 1,

    whose conditional mean is y r. The positive part is scaled to the total of what it cuts, lest it add births. The
    first step also lends what Poisson counts at the start lack, there expected being (1 - q) E[X_0]: c = (q^2 + d^2) /
    (2 q d), d the rise of the survival q. While little is born, Cov(X_s) is then that of the exact law at every time,
    whatever the steps. The step to s = 0 adds y, rounded stochastically. Ours (tests/laws/test_kernel_laws.py).

    Called by itself it knows no step before, and is a Poisson leap; particles and posteriors, which take a walk apart,
    take `single` in its place.
    """

    single: ClassVar[Kernel] = Trapezoidal()

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        return self.fresh()(at)

    def fresh(self, mean: Tensor | None = None) -> Kernel:
        """A walk's own, from Poisson counts of the given E[X_0], or from any state."""
        return _Multistep(mean)


class _Multistep:
    """A walk by `MultistepLeap`, which has the formula: it remembers what was expected of the step before."""

    def __init__(self, mean: Tensor | None) -> None:
        self._mean = mean
        self._before: tuple[float, Tensor, float] | None = None  # where the last step ended, expected y, its fraction

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`, as in `MultistepLeap`."""
        y = at.count(MultistepLeap()).expected
        r, rate, t = float(step_fraction(at.s, at.t)), y, float(at.t)
        if float(at.s) == 0:
            return grown(at.x, stochastic_rounding(y, at.generator), at.process)
        if self._before is None and self._mean is not None:
            q, rise = math.exp(-t), math.exp(-float(at.s)) - math.exp(-t)
            rate = _extrapolated(y, (1 - q) * self._mean.to(y), (q**2 + rise**2) / (2 * q * rise))
        elif self._before is not None and self._before[0] == t:  # not after a corrector that began elsewhere
            _, expected, a = self._before
            rate = _extrapolated(y, expected, (r + math.log1p(-r) * (1 - r)) * (1 - a) / (r * a))
        self._before = float(at.s), (1 - r) * y, r
        return at.leap(rate)


def _extrapolated(y: Tensor, expected: Tensor, c: float) -> Tensor:
    """[y + c (y - expected)]_+ of y's shape [B, ...], with the total of what is cut in every sample; c at most 1.

    Ours, as in `MultistepLeap`.
    """
    wanted = y + min(c, 1.0) * (y - expected)
    rate, axes = wanted.clamp(min=0), tuple(range(1, y.ndim))
    total = rate.sum(axes, keepdim=True, dtype=torch.float64).clamp(min=1e-30)
    return rate * (wanted.sum(axes, keepdim=True, dtype=torch.float64).clamp(min=0) / total)


def grown(x: Tensor, births: Tensor, process: Process) -> Tensor:
    """x + births, clipped to max_count, in x's dtype and shape [B, ...] [Santos 2023, Algorithm 2]."""
    return (x + births).clamp_(max=process.max_count).to(x.dtype)


_ENUMERATED = 1023
"""Largest max_count of `PosteriorTrapezoidal`: every number a missing count can be is enumerated in every element."""


@component("kernel")
@dataclass(frozen=True)
class PosteriorTrapezoidal:
    """Second order with two evaluations per step, and exact for independent elements, whatever the step. Ours.

    Stage 1 draws N from its distribution P_t(N | X_t) and takes the exact bridge to rho, which halves the clock
    -log(1 - e^-t) as in `Trapezoidal`; b of the units are born there. Stage 2 is the bridge from rho to s with N of

        [2 P_rho(n | X_rho) - P_t(b + n | X_t) Bin(b; b + n, h) / Z]_+, normalised.

    The second term, with h the fraction of stage 1, is what the first prediction says is still missing at rho in an
    element of which b units came back: it is P_rho itself where the element does not depend on the others, so that the
    difference is what has been learned from the others meanwhile, which is extrapolated to the whole step. The step to
    s = 0, whose clock never ends, is a single posterior bridge.

    It keeps max_count + 1 float32 numbers per element a few times over. The law: tests/laws/test_kernel_laws.py.

    Raises:
        ValueError: when called, the head predicts no distribution, the count is guided, or counts go beyond 1,023.
    """

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        top = at.process.max_count
        ensure(top <= _ENUMERATED, f"the posterior trapezoidal step takes counts up to {_ENUMERATED}, not {top}")
        if float(at.s) == 0:
            return PosteriorBridge()(at)
        first = at.distribution("trapezoidal step", self)
        then = at.halves(lambda half: half.bridge(first.sample(at.generator)))
        second, fraction = then.distribution("trapezoidal step", self), step_fraction(then.t, at.t)
        before, between = at.x.to(torch.int64), then.x.to(torch.int64)
        expected = remaining(first, between - before, fraction, top - before, top)
        found = tabulated(second, top - between, top).double()
        mass = (2 * torch.exp(found) - torch.exp(expected)).clamp_(min=0.0)
        return then.bridge(categorical(mass.movedim(0, -1), at.generator))


def tabulated(distribution: MissingCount, largest: Tensor, max_count: int) -> Tensor:
    """log P(N = n) for n = 0..max_count in front, float32 [max_count + 1, B, ...]; -inf beyond `largest` [B, ...]."""
    rows = []
    for n in range(max_count + 1):
        number = torch.full_like(largest, n)
        rows.append(torch.where(number > largest, -math.inf, distribution.log_prob(torch.minimum(number, largest))))
    return torch.stack(rows)


def remaining(distribution: MissingCount, births: Tensor, h: Tensor, largest: Tensor, max_count: int) -> Tensor:
    """log P(N - b = n | b of N came back, each with chance h) for n = 0..max_count, float64 [max_count + 1, B, ...].

    Bayes' rule, P(N = b + n) Bin(b; b + n, h) / Z. Ours (tests/laws/test_kernel_laws.py).

    Args:
        distribution: P(N).
        births: b, int64 [B, ...].
        h: float64, broadcastable to them.
        largest: the largest possible N, int64 [B, ...].
        max_count: largest count.
    """
    table = tabulated(distribution, largest, max_count).double()
    n = torch.arange(len(table), device=births.device).view(-1, *[1] * births.ndim)
    total = births + n
    prior = table.gather(0, total.clamp(max=max_count)).where(total <= largest, -math.inf)
    ways = torch.lgamma(total.double() + 1) - torch.lgamma(n.double() + 1)  # b! and h^b are the same for every n
    joint = prior + ways + n * torch.log1p(-h)
    return joint - torch.logsumexp(joint, 0)


# --- kernels of other processes


@component("kernel")
@dataclass(frozen=True)
class LevelBridge:
    """Draw X_0 from the predicted distribution, then X_s from the exact bridge between X_0 and X_t.

    For distribution heads, in continuous and discrete time [Austin 2021, eq. 4]. Exact for a single element whatever
    the step; elements are drawn independently, which costs O(step). Guidance acts on the distribution of X_s
    (`step_law`).
    """

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        needed = (
            "a process of finitely many states and a head that predicts a distribution over levels, such as "
            "process=uniform head=levels"
        )
        finite = require(at.process, FiniteProcess, self, at.process, needed)
        prediction = fitting(at.denoiser(at.x, at.t), CategoricalPrediction, self, finite, needed)
        if isinstance(prediction, GuidedPair):
            return draw_step(finite, prediction, at)
        origin = categorical(prediction.expected.movedim(1, -1), at.generator)
        return finite.bridge(origin, at.x, at.s, at.t, at.generator)


@component("kernel")
@dataclass(frozen=True)
class BirthDeathBridge:
    """Round the two predicted numbers of `BirthDeath` to whole ones, then take the exact bridge they fix.

    Ours (tests/laws/test_jump_kernel_laws.py), as `BinomialBridge` is for pure death.

    Args:
        rounding: of the numbers.

    Raises:
        ValueError: when called, guided rates: no numbers of missing and of immigrants have them, where births are rarer
            than immigration or deaths more frequent than those of X_t immigrants.
    """

    rounding: Rounding = stochastic_rounding

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        needed = "process=birth_death and its head"
        process = require(at.process, BirthDeath, self, at.process, needed)
        prediction = fitting(at.denoiser(at.x, at.t), BirthDeathPrediction, self, process, needed)
        if isinstance(prediction, GuidedPair):
            raise ValueError("the bridge of immigration and death has no guided rates: use sampler=tau_leap")
        y, x = prediction.expected, at.x.long()
        # I is at most X_t, and X_0 - S at most what is left up to max_count above the survivors S = X_t - I
        immigrants = torch.minimum(self.rounding(y[:, 1], at.generator).long(), x)
        headroom = (process.max_count - (x - immigrants)).clamp(min=0)
        missing = torch.minimum(self.rounding(y[:, 0], at.generator).long(), headroom)
        return process.bridge_from(missing, immigrants, at.x, at.s, at.t, at.generator)


@component("kernel")
@dataclass(frozen=True)
class TauLeap:
    """Leaps of every reverse type at frozen rates for t - s, the time increment that Algorithm 4 lacks.

    Types of ordered processes add up, Poisson each, clipped to the state space [Campbell 2022, section 4.3]; of
    unordered ones at most one happens. The last step, to s = 0, draws X_0 itself from a distribution head. Guidance
    acts on the rates, and on the distribution of the last step [Santos 2023, Algorithm 4].
    """

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [B, ...] and dtype of `at.x`: see `Kernel`."""
        jump = require(at.process, JumpProcess, self, at.process, "a process in continuous time")
        if float(at.s) == 0.0 and isinstance(jump, FiniteProcess):
            return LevelBridge()(at)
        prediction = fitting(at.denoiser(at.x, at.t), jump.prediction, self, jump, _FOR_RATES)
        moves = [(reverse_rates(jump, prediction, at.x, at.t), jump.reverse_jumps(at.x))]
        return leap(jump, at.x, moves, float(at.t - at.s), at.generator)


def fitting(prediction: Prediction, kind: type[Kind], part: object, process: object, needed: str) -> Kind | GuidedPair:
    """The prediction, if it is of this kind, or a pair of such ones to be guided; see `require`."""
    for one in prediction.both if isinstance(prediction, GuidedPair) else (prediction,):
        require(one, kind, part, process, needed)
    return cast("Kind | GuidedPair", prediction)


def reverse_rates(process: JumpProcess, prediction: Prediction, xt: Tensor, t: Tensor) -> Tensor:
    """kappa, or kappa^(1 - g) kappa_c^g of a pair [Nisonoff 2024]: float64 [B, R, ...] per unit of t."""
    if not isinstance(prediction, GuidedPair):
        return process.rates(prediction.expected, xt, t)
    return prediction.tilt(*(process.rates(one.expected, xt, t) for one in prediction.both))


def step_law(process: FiniteProcess, prediction: Prediction, xt: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """P(X_s = . | X_t) of every element, float64 [B, ..., S], or for a pair p^(1 - g) p_c^g, whose sum is not 1.

    Of a pair it is ours (tests/laws/test_guided_processes.py). Normalised, the latter has guided rates as the step
    becomes short, and in one step to s = 0 a single element follows p(x) p(c | x)^g exactly. (Bridges from a draw of
    P(X_0 | X_t)^(1 - g) P_c^g have other rates: those of absorption, for one, are then the same whatever the class.)
    """
    if not isinstance(prediction, GuidedPair):
        return process.step_pmf(prediction.expected, xt, s, t)
    return prediction.tilt(*(process.step_pmf(one.expected, xt, s, t) for one in prediction.both))


def draw_step(process: FiniteProcess, pair: GuidedPair, at: ReverseStep) -> Tensor:
    """X_s [B, ...] from `step_law`, normalised; states that the models hold impossible stay as they are.

    Ours (tests/laws/test_guided_processes.py).
    """
    law = step_law(process, pair, at.x, at.s, at.t)
    possible = law.sum(-1) > 0
    drawn = categorical(torch.where(possible[..., None], law, 1.0), at.generator)
    return torch.where(possible, drawn, at.x.long()).to(at.x.dtype)


def leap(
    process: JumpProcess, xt: Tensor, moves: list[tuple[Tensor, Tensor]], duration: float, generator: RandomSource
) -> Tensor:
    """X_t after jumps at constant rates for a while [Santos 2023, Algorithm 4].

    Args:
        process: ordered ones add up all that happens, others take one jump at most.
        xt: states [B, ...].
        moves: rates, float64 [B, R, ...], of R types of jumps and what each adds, broadcastable to the same shape.
        duration: in units of t.

    Returns:
        States of xt's shape and dtype.
    """
    if process.ordered:
        total = sum((poisson(rates * duration, generator) * jumps).sum(1) for rates, jumps in moves)
        return (xt + total).clamp(0, process.num_states - 1).to(xt.dtype)
    rates = torch.cat([r for r, _ in moves], dim=1).movedim(1, -1)
    jumps = torch.cat([j.expand(r.shape) for r, j in moves], dim=1)
    exit_rate = rates.sum(-1)
    # nothing happens with probability e^(-exit rate duration), else one jump, in proportion to its rate
    stays = uniform(tuple(xt.shape), generator, xt.device) < torch.exp(-exit_rate * duration)
    # where nothing can happen any weights will do
    chosen = categorical(torch.where(exit_rate[..., None] > 0, rates, 1.0), generator)
    jump = jumps.gather(1, chosen[:, None]).squeeze(1)
    return torch.where(stays | (exit_rate == 0), xt.long(), xt + jump).to(xt.dtype)


# --- correctors

_MOST_STEPS = 1_000_000
"""Of a sampler or a corrector: nobody waits for more, and a grid of times must fit in memory."""
_NEEDED = "a process in continuous time: a chain of steps has no rates"


class Corrector(Protocol):
    """One step at time s, after the predictor `kernel` came there from t."""

    def __call__(self, kernel: Kernel, at: ReverseStep, /) -> Tensor:
        """Another X_s: states of the shape [B, ...] and dtype of `at.x`, which here is X_s already.

        Raises:
            ValueError: the method needs another kind of prediction or process.
        """


@component("corrector")
@dataclass(frozen=True)
class ThinAndBridge:
    """Let X_s decay back towards t, then take the predictor's step from there to s.

    Ours (tests/laws/test_loop_laws.py).

    With the exact reverse kernel it leaves the distribution of X_s as it is, whatever the length of the step back.

    Args:
        back: how far to go back, as a share of the predictor's step in logit survival.

    Raises:
        ValueError: back is not in (0, 1]; when called, a process in discrete time.
    """

    back: float = 0.5

    def __post_init__(self) -> None:
        ensure(0 < self.back <= 1, f"back must be in (0, 1], not {self.back}")

    def __call__(self, kernel: Kernel, at: ReverseStep) -> Tensor:
        """Another X_s, of the shape [B, ...] and dtype of `at.x`: see `Corrector`."""
        u_s, u_t = logit_survival(at.s), logit_survival(at.t)
        earlier = time_of_logit(u_s + self.back * (u_t - u_s))
        # as X_(earlier - s) given X_0 = X_s
        decayed = require(at.process, JumpProcess, self, at.process, _NEEDED).sample(at.x, earlier - at.s, at.generator)
        return kernel(replace(at, x=decayed, t=earlier))


@component("corrector")
@dataclass(frozen=True)
class LevelCorrector:
    """A stay at time s: forward and reverse jumps together for a while leave the distribution p_s as it is.

    The rates are those of both generators at s, frozen for `fraction` (t - s) [Campbell 2022, section 4.4].
    A perfect network gains nothing by it; an imperfect one is brought nearer to its own distribution at s.

    Args:
        fraction: length of the stay in units of the step t - s.

    Raises:
        ValueError: fraction is not positive; when called, a chain in discrete time.
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        ensure(self.fraction > 0, f"the corrector's fraction of a step must be positive, not {self.fraction}")

    def __call__(self, kernel: Kernel, at: ReverseStep) -> Tensor:
        """Another X_s, of the shape [B, ...] and dtype of `at.x`: see `Corrector`."""
        jump = require(at.process, JumpProcess, self, at.process, _NEEDED)
        prediction = fitting(at.denoiser(at.x, at.s), jump.prediction, self, jump, _FOR_RATES)
        moves = [
            (reverse_rates(jump, prediction, at.x, at.s), jump.reverse_jumps(at.x)),
            (jump.forward_rates(at.x, at.s), jump.forward_jumps(at.x)),
        ]
        return leap(jump, at.x, moves, self.fraction * float(at.t - at.s), at.generator)


THIN_AND_BRIDGE = ThinAndBridge()


@dataclass(frozen=True)
class Correction:
    """How often, how and where to correct.

    Args:
        steps: corrector steps after every step of the kernel; 0 for none.
        corrector: one such step.
        between: (lowest, highest) logit of survival of the times to correct at; None for all.

    Raises:
        ValueError: a negative number of steps, or an empty range.
    """

    steps: int = 0
    corrector: Corrector = THIN_AND_BRIDGE
    between: Sequence[float] | None = None

    def __post_init__(self) -> None:
        ensure(0 <= self.steps <= _MOST_STEPS, f"corrector_steps must be in 0..{_MOST_STEPS:,}, not {self.steps}")
        check_range(self.between, "corrector_between")

    def at(self, s: float) -> int:
        """The number of corrector steps at time s; never any at s = 0, where all is done."""
        return self.steps if s > 0 and in_range(self.between, s) else 0


# --- the loop


class CountingDenoiser:
    """A denoiser that counts how often it was evaluated, keeps its last prediction, and where it was asked for, and
    checks that all are finite.

    Args:
        denoiser: what is evaluated.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        self.evaluations = 0
        self.last: Prediction | None = None
        self.asked = (torch.empty(0), torch.empty(0))
        self._ready: Prediction | None = None
        self._sum: Tensor | float = 0.0  # finite as long as all that was predicted is

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """Of states [B, ...] at times t, a scalar or [B]: see `Denoiser`."""
        ready, self._ready = self._ready, None
        self.evaluations += ready is None
        self.last, self.asked = self._denoiser(xt, t) if ready is None else ready, (xt, t)
        self._sum = self._sum + sum(map(_total, getattr(self.last, "both", (self.last,))))
        if xt.device.type == "cpu":
            self.check()
        return self.last

    def go_on(self, rows: Tensor, t: Tensor) -> None:
        """The next states are these rows of the last ones: what was said of them at this time t is not asked again."""
        if self.asked[1] is t and self.last is not None:
            self._ready = _of_rows(self.last, rows)

    def check(self) -> None:
        """Wait for the device and look.

        Raises:
            UserError: a prediction was not finite.
        """
        if not math.isfinite(self._sum):
            raise UserError("the network's output is not finite (NaN or infinity): its weights cannot be sampled with")


def _of_rows(part: Any, rows: Tensor) -> Any:
    """These rows of a prediction [B, ...], of all that it consists of."""
    if isinstance(part, Tensor):
        return part[rows]
    held = {one.name: _of_rows(getattr(part, one.name), rows) for one in fields(part)} if is_dataclass(part) else {}
    return replace(part, **held) if held else part


def _total(prediction: Prediction) -> Tensor:
    """A number that is finite if the prediction is."""
    if isinstance(prediction, CategoricalPrediction):
        return prediction.log_probs.amax(1).sum()  # others may be -inf
    return prediction.mean.sum()


Callback: TypeAlias = Callable[[int, Tensor, Prediction | None], None]
"""Called with (k, X_{t_k}, prediction) for the start, k = T, and after every step, down to k = 0. The prediction is the
last one made in that step: of X_0 given an earlier state; None at the start."""


@torch.no_grad()  # in inference_mode autocast would cast all weights anew at every evaluation
def sample(
    denoiser: Denoiser,
    process: Process,
    times: Tensor,
    shape: tuple[int, ...],
    generator: torch.Generator | SampleStreams | None = None,
    callback: Callback | None = None,
    *,
    kernel: Kernel = BinomialBridge(),
    correction: Correction = Correction(),
    mean: Tensor | None = None,
    known: KnownElements | None = None,
    start: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Walk a batch back from times[-1] to times[0] [Santos 2023, Algorithm 2].

    Args:
        denoiser: (xt, t) -> prediction; its network must be in eval mode.
        process: the forward process to be reversed.
        times: float64 [T + 1], increasing: a grid, or a part of one.
        shape: [B, ...] of the batch.
        generator: streams make sample k's random numbers a function of (seed, k, step) alone.
        callback: receives (k, X_{t_k}, prediction) for every time, k = T first.
        kernel: the reverse step; one that keeps state is replaced by a fresh one.
        correction: corrector steps after the kernel's.
        mean: E[X_0], broadcastable to shape, for a prior that can use it (pure death's Poisson start).
        known: elements of X_0 that are given, for inpainting.
        start: X_{times[-1]}, states of `shape`; None draws it from the prior.
        device: where the batch is.

    Returns:
        X_0, integer counts of `shape`; where times[0] > 0, the states X_{times[0]}.

    Raises:
        ValueError: times that do not increase from 0 or above, or a start of another shape.
        UserError: the network's output is not finite.
    """
    times, device = times.cpu(), torch.device(device)  # whoever asks for a time's value does not wait for the device
    if times.ndim != 1 or not len(times) or times[0] < 0 or not bool((times.diff() > 0).all()):
        raise ValueError("the times of a sampler must increase from 0 or above")
    if start is None:
        xt = process.prior(shape, time_on(times[-1], device), source_at(generator, len(times)), mean=mean)
    elif tuple(start.shape) == tuple(shape) and not start.is_floating_point():
        xt = start.to(device, count_dtype(process.num_states - 1))
    else:
        what = f"{start.dtype} {tuple(start.shape)}"
        raise ValueError(f"the start must be integers of shape {tuple(shape)}, not {what}")
    path = None if known is None else KnownPath(known.of_batch(shape, device), process, generator)
    counting = CountingDenoiser(denoiser)
    if isinstance(kernel, MultistepLeap) and start is None:
        kernel = kernel.fresh(mean)
    elif isinstance(kernel, StatefulKernel):
        kernel = kernel.fresh()
    for k in range(len(times) - 1, -1, -1):
        if k < len(times) - 1:
            counting.last = None  # let go of it before the next one is made: over 256 levels it is large
            s, t, source = times[k], times[k + 1], source_at(generator, k + 1)
            xt = kernel(ReverseStep(counting, process, xt, s, t, source))
        if path is not None:
            xt = path.at(k, times[k], xt)
        # correctors act on known elements in their place, and these return to it afterwards (Lugmayr et al. 2022,
        # Algorithm 1): the elements that were born beside them are brought in line
        for _ in range(correction.at(float(times[k])) if correction.steps and k < len(times) - 1 else 0):
            xt = correction.corrector(kernel, ReverseStep(counting, process, xt, s, t, source))
            xt = xt if path is None else path.put(xt)
        if callback is not None:
            callback(k, xt, counting.last)
    counting.check()
    return xt if times[0] > 0 else xt.clamp(max=process.max_count).to(count_dtype(process.max_count))


def source_at(generator: torch.Generator | SampleStreams | None, step: int) -> RandomSource:
    """The numbers of one step; a torch generator simply goes on."""
    return generator.at(step) if isinstance(generator, SampleStreams) else generator


# --- how a model is sampled

def kernel_of_data(given: Mapping[str, Any], stats: Stats) -> dict[str, Any]:
    """What is null of a sampler that is left to the data, `sampler=counts`. Ours (tests/cli/test_configs.py).

    Narrow counts are drawn from their predicted distribution, which is of first order and takes twice as many steps.
    """
    bridges = "kernel" not in given and stats.get("outputs", 1) > 1  # a count's mean, and its distribution
    decided: dict[str, Any] = {}
    if bridges:
        decided["kernel"] = {"_target_": "blackout.diffusion.PosteriorBridge"}
    if given.get("num_steps", 0) is None:
        decided["num_steps"] = 100 if bridges else 50
    return decided


@component("sampler", from_stats=kernel_of_data)
@dataclass(frozen=True)
class Sampler:
    """How a model is sampled; by default as `sampler=trapezoidal`, the command line's.

    Args:
        kernel: the reverse step.
        num_steps: steps along the grid; each costs as many network evaluations as kernel and correctors need.
        grid: num_steps -> times; None follows the family of the training schedule.
        poisson_start: start from Poisson(q_T E[X_0]) rather than from black.
        corrector_steps, corrector, corrector_between: see `Correction`.
        guidance, guidance_between: see `Guidance`.
        batch_size: samples per evaluation of the network.
        keep_dropout: leave the network in train mode, as the reference code did.
        bfloat16: evaluate it in bfloat16 autocast on devices that have it; counts and draws stay exact.
        inpainting_particles: of every sample with known elements; 1 overwrites them and weighs nothing; None is 16
            where particles can be weighed, else 1.

    Raises:
        ValueError: a number is out of range.
    """

    kernel: Kernel = Trapezoidal()
    num_steps: int = 100
    grid: Callable[[int], Tensor] | None = None
    poisson_start: bool = True
    corrector_steps: int = 0
    corrector: Corrector = THIN_AND_BRIDGE
    corrector_between: Sequence[float] | None = None
    guidance: float = 1.0
    guidance_between: Sequence[float] | None = None
    batch_size: int = 256
    keep_dropout: bool = False
    bfloat16: bool = False
    inpainting_particles: int | None = None
    correction: Correction = field(init=False, repr=False, compare=False)
    """Corrector steps after the kernel's."""
    towards: Guidance = field(init=False, repr=False, compare=False)
    """How samples are guided to their classes."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "inpainting_particles"):
            value, free = getattr(self, name), name == "inpainting_particles"
            if not (free and value is None) and (type(value) is not int or not 1 <= value <= _MOST_STEPS):
                raise ValueError(f"{name} must be a whole number in 1..{_MOST_STEPS:,}, not {value!r}")
        correction = Correction(self.corrector_steps, self.corrector, self.corrector_between)
        object.__setattr__(self, "correction", correction)
        towards = Guidance(self.guidance, self.guidance_between)
        object.__setattr__(self, "towards", towards)

    @property
    def lends(self) -> bool:
        """Whether it may start early: no other start may."""
        return isinstance(self.kernel, MultistepLeap) and self.poisson_start

    def evaluating(self, network: nn.Module) -> AbstractContextManager[None]:
        """Inside, the network is evaluated like this; see `blackout.training.model.evaluating`."""
        return evaluating(network, self.keep_dropout, self.bfloat16)


def count_evaluations(
    times: Tensor, process: Process, head: Head, sampler: Sampler, guided: bool = False, shape: tuple[int, ...] = (1,)
) -> int:
    """The number of network function evaluations (NFE) of a sample, found by drawing one element without a network.

    Args:
        times, process: as for `sample`.
        head: the model's, which is given zeros in place of a network's output.
        sampler: its kernel and correctors are counted.
        guided: where its guidance acts on a step, judged by the time the step starts at, each evaluation counts twice.
        shape: of what is drawn, for heads that know the data's elements.
    """
    ended, correction = list[int](), sampler.correction
    if isinstance(process, FiniteProcess):  # a kernel asks as often of two levels, which need no matrix for every time
        process = Uniform(1)
        head = LevelHead(process, 1)

    def corrected(kernel: Kernel, at: ReverseStep) -> Tensor:
        before = counting.evaluations
        x = correction.corrector(kernel, at)
        counting.evaluations += (correction.steps - 1) * (counting.evaluations - before)
        return x

    counting = CountingDenoiser(lambda xt, t: head(torch.zeros(1, head.outputs, *shape), xt, t))
    once = replace(correction, steps=min(correction.steps, 1), corrector=corrected)
    sample(
        counting, process, times, (1, *shape), torch.Generator().manual_seed(0),
        lambda k, xt, prediction: ended.append(counting.evaluations), kernel=sampler.kernel, correction=once,
    )  # fmt: skip
    per_step = [after - before for before, after in pairwise(ended)]  # from t_T down
    starts = reversed(times[1:].tolist())
    return sum(n * (2 if guided and sampler.towards.doubles(t) else 1) for n, t in zip(per_step, starts, strict=True))


def named_sampler(name: str) -> Sampler:
    """Make the sampler that `sampler=<name>` is on the command line, with the corrector that goes with it.

    Raises:
        UserError: there is none of that name.
    """
    # Hydra is imported here, so that the package does without it
    from omegaconf import OmegaConf

    from blackout.config.choices import choices, load_choice
    from blackout.config.compose import compose

    known = [choice for choice in choices("sampler") if "kernel" in load_choice("sampler", choice)]
    refuse(name not in known, f"sampler={name!r}: there is no such sampler, only {', '.join(known)}")
    config: Any = OmegaConf.to_container(compose("sample", [f"sampler={name}"])["sampler"])
    return make({key: value for key, value in config.items() if value is not None}, "sampler")


def chosen_sampler(own: Sampler, requested: Sampler | str | None, num_steps: int | None) -> Sampler:
    """Return the requested sampler, or the model's own, with another number of steps if one is given.

    A name stands for a kernel with its corrector and its usual number of steps. The grid and everything else stay the
    model's. The name of the kernel that the model has changes nothing.

    Args:
        own: the model's sampler.
        requested: a sampler, a name from the command line, or None for the model's own.
        num_steps: None for those of the sampler.

    Raises:
        UserError: there is none of that name.
        ValueError: not a positive number of steps.
    """
    sampler = requested or own
    if isinstance(sampler, str):
        named = named_sampler(sampler)
        if _same_kernel(named.kernel, own.kernel):
            sampler = own
        else:
            sampler = replace(own, kernel=named.kernel, corrector=named.corrector, num_steps=named.num_steps)
    return sampler if num_steps is None else replace(sampler, num_steps=num_steps)


def _same_kernel(kernel: Kernel, other: Kernel) -> bool:
    """Whether two kernels are of one class with equal arguments."""
    return type(kernel) is type(other) and described(kernel, "kernel") == described(other, "kernel")
