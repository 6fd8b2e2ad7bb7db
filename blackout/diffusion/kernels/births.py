"""Reverse steps of pure death: births of missing units."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.guidance import GuidedCount
from blackout.diffusion.kernels.base import Rounding, stochastic_rounding
from blackout.diffusion.predictions import CountPrediction, Denoiser, MissingCount, require
from blackout.diffusion.processes import Process
from blackout.diffusion.processes.base import expand_time
from blackout.diffusion.schedules import reverse_clock, step_fraction
from blackout.random import RandomSource, binomial, poisson, uniform
from blackout.random import categorical as gamma


@component("kernel")
@dataclass(frozen=True)
class BinomialBridge:
    """Round y to a whole number n of missing units, then take the exact bridge from X_0 = X_t + n (Algorithm 2).

    Never leaves 0..max_count.

    Args:
        rounding: of y.
    """

    rounding: Rounding = stochastic_rounding

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        y = predicted_count(self, denoiser, process, xt, t).mean
        missing = torch.minimum(self.rounding(y, generator).to(torch.int64), process.max_count - xt.to(torch.int64))
        return process.bridge((xt + missing).to(xt.dtype), xt, s, t, generator)


@component("kernel")
@dataclass(frozen=True)
class PoissonLeap:
    """X_s = X_t + Poisson(y r), clipped to max_count.

    Algorithm 2 prints the rate y e^-t / (1 - e^-t), which lacks the time increment; y r integrates the reverse rate
    over the step.
    """

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        y = predicted_count(self, denoiser, process, xt, t).mean.double()
        return grown(xt, poisson(y * fraction(s, t, xt), generator), process)


@component("kernel")
@dataclass(frozen=True)
class PosteriorBridge:
    """Draw X_0 from the head's distribution of the missing count, then take the exact bridge.

    With the exact distribution it makes no error for one element, whatever the step; elements are drawn independently,
    so their correlations given X_t still cost O(1 / T).

    Raises:
        ValueError: when called, the head predicts no distribution, or the count is guided and has none.
    """

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        prediction = predicted_count(self, denoiser, process, xt, t)
        distribution = prediction.distribution
        if isinstance(prediction, GuidedCount):
            raise ValueError("guidance leaves no distribution for the posterior bridge: use sampler=trapezoidal")
        if distribution is None:
            raise ValueError("the posterior bridge needs a head that predicts a distribution")
        return process.bridge((xt + distribution.sample(generator)).to(xt.dtype), xt, s, t, generator)


@component("kernel")
@dataclass(frozen=True)
class Trapezoidal:
    """Second order with two evaluations per step: the theta-trapezoidal method, kept unbiased in the mean.

    Half a step of the clock tau = -log(1 - e^-t) is a Poisson leap to rho of fraction h = 1 - sqrt(1 - r); the other
    half is one of the same fraction with the extrapolated count

        [2 y(X_rho, rho) - (1 - h) y(X_t, t)]_+.

    The conditional mean of X_0 is a martingale, so that y(X_rho, rho) is (1 - h) y(X_t, t) on average, and the mean
    number of births of the whole step is y r (up to the positive part). Halves of equal length (theta = 1/2) keep the
    weights at 2 and 1 however long the step. The step to s = 0, whose clock never ends, is a single Poisson leap.

    Second order where no birth more than halves another element's rate; elsewhere the positive part cuts, and the
    order is 1.

    Args:
        floor: least rate of the second stage, as a share of y(X_rho, rho); with any floor above 0 every X_0 stays
            possible, so that the chain's likelihood bound is finite.

    Raises:
        ValueError: a floor outside [0, 1].
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be in [0, 1], not {self.floor}")

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        if float(s) == 0:
            return PoissonLeap()(denoiser, process, xt, s, t, generator)
        rho = reverse_clock((reverse_clock(s) + reverse_clock(t)) / 2)  # the clock is its own inverse
        half = step_fraction(rho, t)
        # first stage: y frozen at X_t, from t to rho
        y = predicted_count(self, denoiser, process, xt, t).mean.double()
        x_rho = grown(xt, poisson(y * half, generator), process)
        # second stage: from rho to s, of the same fraction, with the extrapolated count
        y_rho = predicted_count(self, denoiser, process, x_rho, rho).mean.double()
        rate = torch.maximum(2 * y_rho - (1 - half) * y, self.floor * y_rho)
        return grown(x_rho, poisson(rate * half, generator), process)


def predicted_count(part: object, denoiser: Denoiser, process: object, xt: Tensor, t: Tensor) -> CountPrediction:
    """What is predicted of the missing count given X_t; `part` is the kernel or corrector that needs it.

    Raises:
        ValueError: something else is predicted.
    """
    needed = "a head that predicts the missing count (and for some samplers its variance or distribution)"
    return require(denoiser(xt, t), CountPrediction, part, process, needed)


def fraction(s: Tensor, t: Tensor, x: Tensor) -> Tensor:
    """The step fraction r, float64, broadcastable to x [B, ...]."""
    return step_fraction(expand_time(s, x), expand_time(t, x))


def grown(x: Tensor, births: Tensor, process: Process) -> Tensor:
    """x + births, clipped to max_count, in x's dtype."""
    return (x + births).clamp_(max=process.max_count).to(x.dtype)


# --- The second-order step of pure death that works with whole distributions of the missing count.

LARGEST = 1023
"""Largest max_count: every number a missing count can be is enumerated in every element."""


@component("kernel")
@dataclass(frozen=True)
class PosteriorTrapezoidal:
    """Second order with two evaluations per step, and exact for independent elements, whatever the step.

    Stage 1 draws N from its distribution P_t(N | X_t) and takes the exact bridge to rho, which halves the clock
    -log(1 - e^-t) as in `Trapezoidal`; b of the units are born there. Stage 2 is the bridge from rho to s with N of

        [2 P_rho(n | X_rho) - P_t(b + n | X_t) Bin(b; b + n, h) / Z]_+, normalised.

    The second term, with h the fraction of stage 1, is what the first prediction says is still missing at rho in an
    element of which b units came back: it is P_rho itself where the element does not depend on the others, so that the
    difference is what has been learned from the others meanwhile, which is extrapolated to the whole step. The step to
    s = 0, whose clock never ends, is a single posterior bridge.

    It keeps max_count + 1 float32 numbers per element a few times over.

    Raises:
        ValueError: when called, the head predicts no distribution, the count is guided, or counts go beyond `LARGEST`.
    """

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        if process.max_count > LARGEST:
            raise ValueError(
                f"the posterior trapezoidal step enumerates counts: at most {LARGEST}, not {process.max_count}"
            )
        if float(s) == 0:
            return PosteriorBridge()(denoiser, process, xt, s, t, generator)
        rho = reverse_clock((reverse_clock(s) + reverse_clock(t)) / 2)
        first = self._distribution(denoiser, process, xt, t)
        x_rho = process.bridge((xt + first.sample(generator)).to(xt.dtype), xt, rho, t, generator)
        second = self._distribution(denoiser, process, x_rho, rho)
        top, before, between = process.max_count, xt.to(torch.int64), x_rho.to(torch.int64)
        expected = remaining(first, between - before, fraction(rho, t, xt), top - before, top)
        found = tabulated(second, top - between, top).double()
        mass = (2 * torch.exp(found) - torch.exp(expected)).clamp_(min=0.0)
        missing = _drawn(mass, uniform(tuple(xt.shape), generator, xt.device))
        return process.bridge((x_rho + missing).to(xt.dtype), x_rho, s, rho, generator)

    def _distribution(self, denoiser: Denoiser, process: Process, x: Tensor, t: Tensor) -> MissingCount:
        prediction = predicted_count(self, denoiser, process, x, t)
        if isinstance(prediction, GuidedCount):
            raise ValueError(
                "guidance leaves no distribution for the posterior trapezoidal step: use sampler=trapezoidal"
            )
        if prediction.distribution is None:
            raise ValueError("the posterior trapezoidal step needs a head that predicts a distribution")
        return prediction.distribution


def tabulated(distribution: MissingCount, largest: Tensor, max_count: int) -> Tensor:
    """log P(N = n) for n = 0..max_count in front, float32 [max_count + 1, B, ...]; -inf beyond `largest` [B, ...]."""
    rows = []
    for n in range(max_count + 1):
        number = torch.full_like(largest, n)
        rows.append(torch.where(number > largest, -math.inf, distribution.log_prob(torch.minimum(number, largest))))
    return torch.stack(rows)


def remaining(distribution: MissingCount, births: Tensor, h: Tensor, largest: Tensor, max_count: int) -> Tensor:
    """log P(N - b = n | b of N came back, each with chance h) for n = 0..max_count, float64 [max_count + 1, B, ...].

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


def _drawn(mass: Tensor, u: Tensor) -> Tensor:
    """Whole numbers with probabilities proportional to mass [levels, B, ...] float64, by uniforms u [B, ...]."""
    passed = mass.cumsum(0)
    number = (passed <= u * passed[-1]).sum(0)
    possible = (mass > 0).to(torch.int64)
    last = len(mass) - 1 - possible.flip(0).argmax(0)  # rounding must not lead beyond what is possible
    return torch.minimum(number, last)


# --- Births of a given mean and dispersion, from the family of distributions that thinning maps to itself.

_POISSON_WITHIN = 1e-3
"""|F - 1| below which N is as good as Poisson: it avoids a million trials of nothing."""


@component("kernel")
@dataclass(frozen=True)
class PanjerLeap:
    """Births of mean y r and variance y r (1 - r + r F), with F = Var[N | X_t] / y from the prediction.

    N is modelled by the family that thinning maps to itself (Panjer 1981), then thinned by r:

        F < 1   Binomial(y / (1 - F), r (1 - F)), the number of trials rounded stochastically
        F = 1   Poisson(y r)
        F > 1   negative binomial of size y / (F - 1) and mean y r

    With less than one trial, Bernoulli(y r). Counts are clipped to max_count.

    Args:
        dispersion: F for every element, where the head predicts no variance; None asks the head for it.

    Raises:
        ValueError: dispersion is negative, or the head predicts no variance and there is no dispersion.
    """

    dispersion: float | None = None

    def __post_init__(self) -> None:
        if self.dispersion is not None and not self.dispersion >= 0:
            raise ValueError(f"the dispersion must not be negative, not {self.dispersion}")

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        prediction = predicted_count(self, denoiser, process, xt, t)
        y = prediction.mean.double()
        r = fraction(s, t, xt).expand_as(y)
        return grown(xt, panjer(y, self._dispersion(prediction, y), r, generator), process)

    def _dispersion(self, prediction: CountPrediction, y: Tensor) -> Tensor:
        if self.dispersion is not None:
            return torch.full_like(y, self.dispersion)
        if prediction.variance is None:
            raise ValueError("the Panjer kernel needs a head that predicts the variance, or a value for its dispersion")
        return prediction.variance.double() / y.clamp(min=1e-30)


def panjer(y: Tensor, dispersion: Tensor, r: Tensor, generator: RandomSource = None) -> Tensor:
    """Thinned counts of `PanjerLeap`.

    Args:
        y: mean before thinning, float64 [B, ...].
        dispersion: variance over mean before thinning, the same shape.
        r: probability of staying, the same shape.

    Returns:
        Float64 whole numbers of the same shape.
    """
    excess = dispersion - 1
    under, over = excess < -_POISSON_WITHIN, (excess > _POISSON_WITHIN) & (y > 0)
    # F < 1: y / (1 - F) trials, or a single one of chance y r where that is less than one
    trials = torch.where(under, y / (-excess).clamp(min=_POISSON_WITHIN), 0.0)
    several = trials >= 1
    rounded = stochastic_rounding(torch.where(several, trials, 0.0), generator)
    trials = torch.where(under & ~several, 1.0, rounded)
    chance = torch.where(several, r * -excess, y * r).clamp(0.0, 1.0)
    births = binomial(trials, torch.where(under, chance, 0.0), generator)
    # F > 1: a Poisson rate that is Gamma distributed, of size y / (F - 1) and scale r (F - 1)
    size = torch.where(over, y / excess.clamp(min=_POISSON_WITHIN), 1.0)
    rate = torch.where(over, gamma(size, generator) * (r * excess), y * r)
    return births + poisson(torch.where(under, 0.0, rate), generator)
