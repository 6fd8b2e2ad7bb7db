"""Losses of jump processes: the relative entropy of the rates of jumps.

The negative log-likelihood is bounded by the integral over t of E sum_r [kappa_r - lambda_r log kappa_r] plus a
constant (Algorithm 3): lambda_r are the reverse rates given X_0, kappa_r the model's. Under times drawn uniformly from
a grid an interval has weight t - s, once; Algorithm 3 multiplies by it twice. The `paper` weighting further multiplies
by 1 - q, q = e^-t, as the published losses of pure death do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from blackout.diffusion.losses.base import Weight, by_name, check_scale, per_element
from blackout.diffusion.predictions import BirthDeathPrediction, Prediction, poisson_loss, require
from blackout.diffusion.processes import JumpProcess, Observation

_TINY = 1e-300


def _likelihood(s: Tensor, t: Tensor) -> Tensor:
    """t - s."""
    return t - s


def _paper(s: Tensor, t: Tensor) -> Tensor:
    """(t - s) (1 - e^-t)."""
    return (t - s) * -torch.expm1(-t)


_WEIGHTINGS = {"paper": _paper, "likelihood": _likelihood}


def rate_loss(kappa: Tensor, rate: Tensor) -> Tensor:
    """kappa - lambda log kappa, elementwise float64; its minimum over kappa is at E[lambda]."""
    return kappa - torch.special.xlogy(rate, kappa.clamp(min=_TINY))


@dataclass(frozen=True)
class RateLoss:
    """The likelihood's own loss for every jump process: sum over types of kappa_r - lambda_r log kappa_r.

    For a distribution over X_0 it is the score entropy of the rates derived from it.

    Args:
        weighting: "paper" or "likelihood".
        sampled: draw one type per element and multiply by R instead of summing over all R.
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive; when called, a process without rates, or a
            prediction that they do not follow from.
    """

    weighting: str = "likelihood"
    sampled: bool = False
    scale: float = 1.0
    _weight: Weight = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_weight", by_name(_WEIGHTINGS, self.weighting, "weighting"))
        check_scale(self.scale)

    def __call__(self, prediction: Prediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Float32 [B, ...]; s and t are float64 [B]."""
        target = require(target, Observation, self, None, "a process whose target holds the state it was observed in")
        process, xt = target.process, target.xt
        process = require(process, JumpProcess, self, process, "a process in continuous time")
        prediction = require(prediction, process.prediction, self, process, "a head that predicts what its rates need")
        kappa = process.rates(prediction.expected, xt, t)
        losses = rate_loss(kappa, process.reverse_rates(target.x0, xt, t))
        if self.sampled:
            types = losses.shape[1]
            chosen = (target.choice * types).long().clamp_(max=types - 1)
            total = types * losses.gather(1, chosen[:, None]).squeeze(1)
        else:
            total = losses.sum(1)
        return (per_element(self.scale * self._weight(s, t), xt) * total).float()


@dataclass(frozen=True)
class BirthDeathLoss:
    """Poisson losses y - N log y of the missing and of the immigrants, times their known factors q, 1 over 1 - q.

    Args:
        weighting: "paper" or "likelihood".
        sampled: draw one of the two per element and double it instead of summing.
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive; when called, another process.
    """

    weighting: str = "paper"
    sampled: bool = False
    scale: float = 1.0
    _weight: Weight = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_weight", by_name(_WEIGHTINGS, self.weighting, "weighting"))
        check_scale(self.scale)

    def __call__(self, prediction: BirthDeathPrediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Float32 [B, ...]; s and t are float64 [B]."""
        needed = "the birth-death process, whose observations hold two numbers, and its head"
        process = getattr(target, "process", None)
        pair = require(getattr(target, "statistic", None), Tensor, self, process, needed)
        prediction = require(prediction, BirthDeathPrediction, self, process, needed)
        weight = self.scale * self._weight(s, t) / -torch.expm1(-t)
        # per unit of time the missing are born at q / (1 - q), the immigrants leave at 1 / (1 - q)
        factors = torch.stack([weight * torch.exp(-t), weight], dim=1).float()
        losses = factors.view(-1, 2, *[1] * (pair.ndim - 2)) * poisson_loss(prediction, pair)
        if not self.sampled:
            return losses.sum(1)
        return 2 * torch.where(target.choice < 0.5, losses[:, 0], losses[:, 1])
