"""Reverse steps: from X_t to X_s, s < t, with the help of a denoiser.

    BinomialBridge    y rounded to a whole number, then the exact bridge     1 evaluation   first order, biased
    PoissonLeap       Poisson(y r) births                                    1              first order
    PanjerLeap        births of mean y r and of the predicted dispersion     1              first order, smaller error
    PosteriorBridge   X_0 drawn from a predicted law, then the exact bridge  1              exact for one element
    Trapezoidal       theta-trapezoidal in its mean-preserving form          2              second order

y = E[N | X_t] is the expected missing count, N = X_0 - X_t, and r the step fraction: of the units missing at t, each
is back at s with probability r.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from blackout.diffusion.counts import bernoulli, binomial, poisson
from blackout.diffusion.heads import Prediction
from blackout.diffusion.overdispersed import gamma
from blackout.diffusion.processes import Process
from blackout.diffusion.processes.base import expand_time
from blackout.diffusion.schedules import reverse_clock, step_fraction
from blackout.diffusion.streams import RandomSource

Denoiser: TypeAlias = Callable[[Tensor, Tensor], Prediction]
"""(xt [B, ...], t float64 scalar) -> prediction of X_0 - X_t."""
Rounding: TypeAlias = Callable[[Tensor, RandomSource], Tensor]


class Kernel(Protocol):
    """One reverse step."""

    def __call__(
        self, denoiser: Denoiser, process: Process, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        """X_s given X_t.

        Args:
            denoiser: evaluated as often as the method needs.
            xt: counts [B, ...].
            s, t: float64 scalars, s < t.

        Returns:
            Counts of xt's shape and dtype, within 0..max_count.
        """
        ...

    def evaluations(self, s: float) -> int:
        """How often one step to time s evaluates the denoiser."""
        ...


class OneEvaluation:
    """What kernels that look at X_t alone have in common."""

    def evaluations(self, s: float) -> int:
        return 1


def nearest_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """The paper's. Biased: while y < 1/2 nothing is born, however many steps are taken."""
    return torch.round(y)


def stochastic_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """floor(y) + Bernoulli(y - floor(y)): unbiased, so the mean number of births is y r."""
    floor = torch.floor(y)
    return floor + bernoulli((y - floor).double(), generator).to(y.dtype)


@dataclass(frozen=True)
class BinomialBridge(OneEvaluation):
    """Round y to a whole number n of missing units, then take the exact bridge from X_0 = X_t + n (Algorithm 2).

    Never leaves 0..max_count.
    """

    rounding: Rounding = stochastic_rounding

    def __call__(
        self, denoiser: Denoiser, process: Process, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        room = process.max_count - xt.to(torch.int64)
        missing = torch.minimum(self.rounding(denoiser(xt, t).mean, generator).to(torch.int64), room)
        return process.bridge((xt + missing).to(xt.dtype), xt, s, t, generator)


@dataclass(frozen=True)
class PoissonLeap(OneEvaluation):
    """X_s = X_t + Poisson(y r), clipped to max_count.

    Algorithm 2 prints the rate y e^-t / (1 - e^-t), which lacks the time increment; y r integrates the reverse rate
    over the step.
    """

    def __call__(
        self, denoiser: Denoiser, process: Process, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        return _grown(xt, poisson(denoiser(xt, t).mean.double() * _fraction(s, t, xt), generator), process)


@dataclass(frozen=True)
class PanjerLeap(OneEvaluation):
    """Births of mean y r and variance y r (1 - r + r F), with F = Var[N | X_t] / y from the prediction.

    N is modelled by the family that thinning maps to itself (Panjer 1981), then thinned by r:

        F < 1   Binomial(y / (1 - F), r (1 - F)), the number of trials rounded stochastically
        F = 1   Poisson(y r)
        F > 1   negative binomial of size y / (F - 1) and mean y r

    With less than one trial, Bernoulli(y r). Births are clipped to the room there is.

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
        self, denoiser: Denoiser, process: Process, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        prediction = denoiser(xt, t)
        y = prediction.mean.double()
        r = _fraction(s, t, xt).expand_as(y)
        return _grown(xt, panjer(y, self._dispersion(prediction, y), r, generator), process)

    def _dispersion(self, prediction: Prediction, y: Tensor) -> Tensor:
        if self.dispersion is not None:
            return torch.full_like(y, self.dispersion)
        if prediction.variance is None:
            raise ValueError("the Panjer kernel needs a head that predicts the variance, or a value for its dispersion")
        return prediction.variance.double() / y.clamp(min=1e-30)


_POISSON_WITHIN = 1e-3
"""|F - 1| below which the law is Poisson's to all practical purposes: it avoids a million trials of nothing."""


def panjer(y: Tensor, dispersion: Tensor, r: Tensor, generator: RandomSource = None) -> Tensor:
    """Thinned counts of `PanjerLeap`, float64 whole numbers.

    Args:
        y: mean before thinning, float64 [B, ...].
        dispersion: variance over mean before thinning, the same shape.
        r: probability of staying, the same shape.
    """
    excess = dispersion - 1
    under, over = excess < -_POISSON_WITHIN, (excess > _POISSON_WITHIN) & (y > 0)
    trials = torch.where(under, y / (-excess).clamp(min=_POISSON_WITHIN), 0.0)
    several = trials >= 1
    rounded = stochastic_rounding(torch.where(several, trials, 0.0), generator)
    trials = torch.where(under & ~several, 1.0, rounded)
    chance = torch.where(several, r * -excess, y * r).clamp(0.0, 1.0)
    births = binomial(trials, torch.where(under, chance, 0.0), generator)
    size = torch.where(over, y / excess.clamp(min=_POISSON_WITHIN), 1.0)
    rate = torch.where(over, gamma(size, generator) * (r * excess), y * r)
    return births + poisson(torch.where(under, 0.0, rate), generator)


@dataclass(frozen=True)
class PosteriorBridge(OneEvaluation):
    """Draw X_0 from the head's law of the missing count, then take the exact bridge.

    With the exact law it makes no error for one element, whatever the step; elements are drawn independently, so
    their correlations given X_t still cost O(1 / T).

    Raises:
        ValueError: the head predicts no distribution.
    """

    def __call__(
        self, denoiser: Denoiser, process: Process, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        distribution = denoiser(xt, t).distribution
        if distribution is None:
            raise ValueError("the posterior bridge needs a head that predicts a distribution")
        missing = distribution.sample(generator)
        return process.bridge((xt + missing).to(xt.dtype), xt, s, t, generator)


@dataclass(frozen=True)
class Trapezoidal:
    """Second order with two evaluations per step: the theta-trapezoidal method, kept unbiased in the mean.

    Half a step of the clock tau = -log(1 - e^-t) is a Poisson leap to rho of fraction h = 1 - sqrt(1 - r); the other
    half is one of the same fraction with the extrapolated count

        [2 y(X_rho, rho) - (1 - h) y(X_t, t)]_+.

    The conditional mean of X_0 is a martingale, so that y(X_rho, rho) is (1 - h) y(X_t, t) on average, and the mean
    number of births of the whole step is y r (up to the positive part). Halves of equal length (theta = 1/2) keep the
    weights at 2 and 1 however long the step. The step to s = 0, whose clock never ends, is a single Poisson leap.
    """

    def __call__(
        self, denoiser: Denoiser, process: Process, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        if self.evaluations(float(s)) == 1:
            return PoissonLeap()(denoiser, process, xt, s, t, generator)
        rho = reverse_clock((reverse_clock(s) + reverse_clock(t)) / 2)
        half = step_fraction(rho, t)
        y = denoiser(xt, t).mean.double()
        x_rho = _grown(xt, poisson(y * half, generator), process)
        y_rho = denoiser(x_rho, rho).mean.double()
        rate = (2 * y_rho - (1 - half) * y).clamp(min=0.0)
        return _grown(x_rho, poisson(rate * half, generator), process)

    def evaluations(self, s: float) -> int:
        return 1 if s == 0 else 2


def _fraction(s: Tensor, t: Tensor, x: Tensor) -> Tensor:
    return step_fraction(expand_time(s, x), expand_time(t, x))


def _grown(x: Tensor, births: Tensor, process: Process) -> Tensor:
    return (x + births).clamp_(max=process.max_count).to(x.dtype)
