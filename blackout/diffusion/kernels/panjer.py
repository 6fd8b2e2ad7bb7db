"""Births of a given mean and dispersion, from the family of distributions that thinning maps to itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.kernels.base import stochastic_rounding
from blackout.diffusion.kernels.births import fraction, grown, predicted_count
from blackout.diffusion.predictions import CountPrediction, Denoiser
from blackout.diffusion.processes import Process
from blackout.random import RandomSource, binomial, gamma, poisson

_POISSON_WITHIN = 1e-3
"""|F - 1| below which N is as good as Poisson: it avoids a million trials of nothing."""


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
