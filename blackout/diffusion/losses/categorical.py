"""Losses of distributions over the data levels: cross-entropy of X_0, and the KL of one step of the reverse process."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from blackout.diffusion.losses.base import Weight, by_name, check_scale, per_element
from blackout.diffusion.predictions import CategoricalPrediction, require
from blackout.diffusion.processes import FiniteProcess, Observation


def _equal(s: Tensor, t: Tensor) -> Tensor:
    """1 at all times."""
    return torch.ones_like(t)


def _absorbing(s: Tensor, t: Tensor) -> Tensor:
    """(t - s) q / (1 - q), q = e^-t."""
    return (t - s) / torch.expm1(t)


_WEIGHTINGS = {"paper": _equal, "likelihood": _absorbing}


@dataclass(frozen=True)
class CrossEntropy:
    """-log P(X_0 | X_t) of heads that predict a distribution over levels.

    Args:
        weighting: "paper" for equal weights (D3PM's auxiliary loss and the usual choice); "likelihood" for
            (t - s) q / (1 - q), which makes it the bound itself for the absorbing process.
        scale: multiplies every weight.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive; when called, another kind of head.
    """

    weighting: str = "paper"
    scale: float = 1.0
    _weight: Weight = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_weight", by_name(_WEIGHTINGS, self.weighting, "weighting"))
        check_scale(self.scale)

    def __call__(self, prediction: CategoricalPrediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Float32 [B, ...]; s and t are float64 [B]."""
        target, prediction = _needed(self, prediction, target)
        loss = -self.scale * prediction.log_probs.gather(1, target.x0.long()[:, None]).squeeze(1).float()
        return per_element(self._weight(s, t).float(), loss) * loss


@dataclass(frozen=True)
class StepLoss:
    """KL(P(X_s | X_0, X_t) || the model's step), for any finite process: the variational bound of a chain's steps.

    The model's step is the bridge averaged over its distribution of X_0 (Austin et al. 2021, eq. 4); at s = 0 this is
    the cross-entropy.

    Args:
        cross_entropy: adds this much of -log P(X_0 | X_t), D3PM's auxiliary loss.
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: scale is not positive or cross_entropy is negative; when called, another kind of process or head.
    """

    cross_entropy: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if self.cross_entropy < 0:
            raise ValueError(f"cross_entropy must not be negative, not {self.cross_entropy}")

    def __call__(self, prediction: CategoricalPrediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Float32 [B, ...]; s and t are float64 [B]."""
        target, prediction = _needed(self, prediction, target)
        process = require(target.process, FiniteProcess, self, target.process, "a process of finitely many states")
        loss = process.step_divergence(prediction.expected, target.x0, target.xt, s, t).float()
        if self.cross_entropy:
            loss = loss + self.cross_entropy * CrossEntropy()(prediction, target, s, t)
        return self.scale * loss


def _needed(part: object, prediction: object, target: object) -> tuple[Observation, CategoricalPrediction]:
    """Target and prediction as these losses need them."""
    process = getattr(target, "process", None)
    return (
        require(target, Observation, part, process, "a process of finitely many states"),
        require(prediction, CategoricalPrediction, part, process, "a head that predicts a distribution over levels"),
    )
