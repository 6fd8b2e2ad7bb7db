"""Unreduced losses: the Poisson loss y - N log y of the mean, and the weights of the observation times.

What else a head predicts adds its own score (`Prediction.loss`); the weights are the same for all of it.

Weights belong to an interval (s, t) of the grid, s < t, with q = e^-t:

    paper, instantaneous (eq. 14)   (t - s) q_t
    paper, finite time   (eq. 15)   q_s - q_t
    likelihood                      the same / (1 - q_t)

The published weights are the likelihood's times 1 - q_t: appendix F divides by the sampling density of the times twice.
They favour global structure and gave the published FID; the likelihood's make the loss a bound on -log p (plus a
constant).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from blackout.diffusion.heads import Prediction


class Loss(Protocol):
    """Prediction and the process's target at times t [B], one grid step after s -> one value per element."""

    def __call__(self, prediction: Prediction, target: Any, s: Tensor, t: Tensor) -> Tensor: ...


def poisson_loss(prediction: Prediction, target: Tensor) -> Tensor:
    """y - N log y in float32, unreduced; its minimum over y is at E[N].

    Args:
        prediction: y and log y of shape [B, ...].
        target: N = X_0 - X_t, integers of the same shape.
    """
    return prediction.mean.float() - target.float() * prediction.log_mean.float()


def instantaneous_weight(s: Tensor, t: Tensor) -> Tensor:
    """(t - s) e^-t  (eq. 14), float64."""
    return (t - s) * torch.exp(-t)


def finite_time_weight(s: Tensor, t: Tensor) -> Tensor:
    """e^-s - e^-t  (eq. 15), float64."""
    return -torch.exp(-s) * torch.expm1(s - t)


def paper_weighting(weight: Tensor, t: Tensor) -> Tensor:
    """The weight as printed."""
    return weight


def likelihood_weighting(weight: Tensor, t: Tensor) -> Tensor:
    """weight / (1 - e^-t): undoes the doubled importance weight."""
    return weight / -torch.expm1(-t)


WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "instantaneous": instantaneous_weight,
    "finite_time": finite_time_weight,
}
WEIGHTINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "paper": paper_weighting,
    "likelihood": likelihood_weighting,
}


def loss_weights(times: Tensor, kind: str = "instantaneous", weighting: str = "paper") -> Tensor:
    """The weight w_k of every interval of a grid.

    Args:
        times: float64 [T + 1].
        kind: "instantaneous" or "finite_time".
        weighting: "paper" or "likelihood".

    Returns:
        float64 [T].

    Raises:
        ValueError: an unknown name.
    """
    return CountLoss(kind, weighting).weights(times[:-1], times[1:])


@dataclass(frozen=True)
class CountLoss:
    """Weighted loss of a batch observed at times t.

    Args:
        kind: "instantaneous" or "finite_time".
        weighting: "paper" or "likelihood".
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown name, or a scale that is not positive.
    """

    kind: str = "instantaneous"
    weighting: str = "paper"
    scale: float = 1.0

    def __post_init__(self) -> None:
        for value, allowed, name in ((self.kind, WEIGHTS, "loss"), (self.weighting, WEIGHTINGS, "weighting")):
            if value not in allowed:
                raise ValueError(f"unknown {name} '{value}': one of {', '.join(allowed)}")
        if not self.scale > 0:
            raise ValueError(f"the loss's scale must be positive, not {self.scale}")

    def weights(self, s: Tensor, t: Tensor) -> Tensor:
        """Float64 weights of the intervals (s, t)."""
        return self.scale * WEIGHTINGS[self.weighting](WEIGHTS[self.kind](s, t), t)

    def __call__(self, prediction: Prediction, target: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """w (y - N log y), or the head's own score, float32 of target's shape [B, ...]; s and t are float64 [B]."""
        weight = self.weights(s, t).float().view(-1, *[1] * (target.ndim - 1))
        return weight * prediction.loss(target)
