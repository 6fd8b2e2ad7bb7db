"""The loss of pure death: the Poisson loss y - N log y of the mean, and the weights of the observation times.

What else a head predicts adds its own score (`CountPrediction.loss`); the weights are the same for all of it.

Weights belong to an interval (s, t) of the grid, s < t, with q = e^-t:

    paper, instantaneous (eq. 14)   (t - s) q_t
    paper, finite time   (eq. 15)   q_s - q_t
    likelihood                      the same / (1 - q_t)
    growth                          the likelihood's / sqrt(q_t)

The published weights are the likelihood's times 1 - q_t: appendix F divides by the sampling density of the times twice.
They favour global structure and gave the published FID; the likelihood's make the loss a bound on -log p (plus a
constant). Going back, counts grow by e-folds of q, and a share that is missing at one of them is missing in the end.
The likelihood weighs an e-fold with its number of births, so that the first ones hardly matter; growth's weights lie
half-way to equal ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from blackout.diffusion.losses.base import Weight, by_name, check_scale, per_element
from blackout.diffusion.predictions import CountPrediction, require


def instantaneous_weight(s: Tensor, t: Tensor) -> Tensor:
    """(t - s) e^-t  (eq. 14), float64 [T]."""
    return (t - s) * torch.exp(-t)


def finite_time_weight(s: Tensor, t: Tensor) -> Tensor:
    """e^-s - e^-t  (eq. 15), float64 [T]."""
    return -torch.exp(-s) * torch.expm1(s - t)


def paper_weighting(weight: Tensor, t: Tensor) -> Tensor:
    """The weight [T] as printed."""
    return weight


def likelihood_weighting(weight: Tensor, t: Tensor) -> Tensor:
    """weight / (1 - e^-t), [T]: undoes the doubled importance weight."""
    return weight / -torch.expm1(-t)


def growth_weighting(weight: Tensor, t: Tensor) -> Tensor:
    """weight e^(t / 2) / (1 - e^-t), [T]: between the likelihood's and equal weights of all e-folds of q."""
    return likelihood_weighting(weight, t) * torch.exp(t / 2)


_KINDS = {"instantaneous": instantaneous_weight, "finite_time": finite_time_weight}
_WEIGHTINGS = {"paper": paper_weighting, "likelihood": likelihood_weighting, "growth": growth_weighting}


def loss_weights(times: Tensor, kind: str = "instantaneous", weighting: str = "paper") -> Tensor:
    """The weight w_k of every interval of a grid.

    Args:
        times: float64 [T + 1].
        kind: "instantaneous" or "finite_time".
        weighting: "paper", "likelihood" or "growth".

    Returns:
        float64 [T].

    Raises:
        ValueError: an unknown name.
    """
    return CountLoss(kind, weighting).weights(times[:-1], times[1:])


@dataclass(frozen=True)
class CountLoss:
    """Weighted loss of a batch of counts observed at times t.

    Args:
        kind: "instantaneous" or "finite_time".
        weighting: "paper", "likelihood" or "growth".
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown name, or a scale that is not positive; when called, another process or head than counts'.
    """

    kind: str = "instantaneous"
    weighting: str = "paper"
    scale: float = 1.0
    _weight: Weight = field(init=False, repr=False, compare=False)
    _weighting: Callable[[Tensor, Tensor], Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_weight", by_name(_KINDS, self.kind, "loss"))
        object.__setattr__(self, "_weighting", by_name(_WEIGHTINGS, self.weighting, "weighting"))
        check_scale(self.scale)

    def weights(self, s: Tensor, t: Tensor) -> Tensor:
        """The weights of intervals (s, t), float64 [T] each."""
        return self.scale * self._weighting(self._weight(s, t), t)

    def __call__(self, prediction: CountPrediction, target: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """w (y - N log y), or the head's own score, float32 of target's shape [B, ...]; s and t are float64 [B]."""
        process = getattr(target, "process", None)
        target = require(target, Tensor, self, process, "a process whose target is the missing count")
        prediction = require(prediction, CountPrediction, self, process, "a head that predicts the missing count")
        return per_element(self.weights(s, t).float(), target) * prediction.loss(target)
