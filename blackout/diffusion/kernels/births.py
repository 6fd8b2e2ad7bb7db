"""Reverse steps of pure death: births of missing units."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.guidance import GuidedCount
from blackout.diffusion.kernels.base import Rounding, stochastic_rounding
from blackout.diffusion.predictions import CountPrediction, Denoiser, require
from blackout.diffusion.processes import Process
from blackout.diffusion.processes.base import expand_time
from blackout.diffusion.schedules import reverse_clock, step_fraction
from blackout.random import RandomSource, poisson


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
