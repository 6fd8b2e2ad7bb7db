"""Unreduced losses for any process: relative entropy of jump rates, and cross-entropy of X_0.

The negative log-likelihood is bounded by the integral over t of E sum_r [kappa_r - lambda_r log kappa_r] plus a
constant (Algorithm 3): lambda_r are the reverse rates given X_0, kappa_r the model's. Under times drawn uniformly from
a grid an interval has weight t - s, once; Algorithm 3 multiplies by it twice. The `paper` weighting further multiplies
by 1 - q, q = e^-t, as the published losses of pure death do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.heads import Prediction
from blackout.diffusion.losses import poisson_loss
from blackout.diffusion.processes import Observation

_TINY = 1e-300
WEIGHTINGS = ("paper", "likelihood")


def time_weights(s: Tensor, t: Tensor, weighting: str) -> Tensor:
    """(t - s), times 1 - e^-t for `paper`; float64."""
    return (t - s) * (-torch.expm1(-t) if weighting == "paper" else 1.0)


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
        ValueError: an unknown weighting, or a scale that is not positive.
    """

    weighting: str = "likelihood"
    sampled: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check(self.weighting, self.scale)

    def __call__(self, prediction: Prediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Float32 [B, ...]; s and t are float64 [B]."""
        process, xt = target.process, target.xt
        kappa = process.rates(prediction.log_mean.double().exp(), xt, t)
        losses = rate_loss(kappa, process.reverse_rates(target.x0, xt, t))
        if self.sampled:
            types = losses.shape[1]
            chosen = (target.choice * types).long().clamp_(max=types - 1)
            total = types * losses.gather(1, chosen[:, None]).squeeze(1)
        else:
            total = losses.sum(1)
        weight = self.scale * time_weights(s, t, self.weighting)
        return (weight.view(-1, *[1] * (xt.ndim - 1)) * total).float()


@dataclass(frozen=True)
class BirthDeathLoss:
    """Poisson losses y - N log y of the missing and of the immigrants, times their known factors q, 1 over 1 - q.

    Args:
        weighting: "paper" or "likelihood".
        sampled: draw one of the two per element and double it instead of summing.
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive.
    """

    weighting: str = "paper"
    sampled: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check(self.weighting, self.scale)

    def __call__(self, prediction: Prediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Float32 [B, ...]; s and t are float64 [B]."""
        if target.statistic is None:
            raise ValueError("this loss is for the birth-death process, whose observations hold two numbers")
        weight = self.scale * time_weights(s, t, self.weighting) / -torch.expm1(-t)
        factors = torch.stack([weight * torch.exp(-t), weight], dim=1).float()
        losses = factors.view(-1, 2, *[1] * (target.xt.ndim - 1)) * poisson_loss(prediction, target.statistic)
        if not self.sampled:
            return losses.sum(1)
        return 2 * torch.where(target.choice < 0.5, losses[:, 0], losses[:, 1])


@dataclass(frozen=True)
class CrossEntropy:
    """-log P(X_0 | X_t) of heads that predict a distribution over levels.

    Args:
        weighting: "paper" for equal weights (D3PM's auxiliary loss and the usual choice); "likelihood" for
            (t - s) q / (1 - q), which makes it the bound itself for the absorbing process.
        scale: multiplies every weight.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive.
    """

    weighting: str = "paper"
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check(self.weighting, self.scale)

    def __call__(self, prediction: Prediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Float32 [B, ...]; s and t are float64 [B]."""
        loss = -self.scale * prediction.log_mean.gather(1, target.x0.long()[:, None]).squeeze(1).float()
        if self.weighting == "paper":
            return loss
        return ((t - s) / torch.expm1(t)).float().view(-1, *[1] * (loss.ndim - 1)) * loss


@dataclass(frozen=True)
class StepLoss:
    """KL(P(X_s | X_0, X_t) || the model's step), for any finite process: the variational bound of a chain's steps.

    The model's step is the bridge averaged over its distribution of X_0 (Austin et al. 2021, eq. 4); at s = 0 this is
    the cross-entropy.

    Args:
        cross_entropy: adds this much of -log P(X_0 | X_t), D3PM's auxiliary loss.
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: scale is not positive or cross_entropy is negative.
    """

    cross_entropy: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check("paper", self.scale)
        if self.cross_entropy < 0:
            raise ValueError(f"cross_entropy must not be negative, not {self.cross_entropy}")

    def __call__(self, prediction: Prediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Float32 [B, ...]; s and t are float64 [B]."""
        loss = target.process.step_divergence(prediction.log_mean.double().exp(), target.x0, target.xt, s, t).float()
        if self.cross_entropy:
            loss = loss + self.cross_entropy * CrossEntropy()(prediction, target, s, t)
        return self.scale * loss


def _check(weighting: str, scale: float) -> None:
    if weighting not in WEIGHTINGS:
        raise ValueError(f"unknown weighting '{weighting}': one of {', '.join(WEIGHTINGS)}")
    if not scale > 0:
        raise ValueError(f"the loss's scale must be positive, not {scale}")
