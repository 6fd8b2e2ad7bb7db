"""Which observation times to train on more often."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.losses import CountLoss


@component("importance")
@dataclass(frozen=True)
class GradientImportance:
    """Times in proportion to weight x sqrt(1 - e^-t), which is about how large a loss's gradients are.

    At the optimum the gradient of w (y - N log y) along log y is w (y - N), of standard deviation
    w sqrt(E Var[N | X_t]); the variance of a count being of the order of its mean, that is w sqrt(1 - q) up to a
    constant. Drawing by it lowers the variance of gradients, not that of the logged loss.

    Args:
        kind, weighting: those of the loss.
        floor: share of draws that is spread evenly over the grid, so that no weight explodes.

    Raises:
        ValueError: floor is not in (0, 1], or there is no such loss.
    """

    kind: str = "instantaneous"
    weighting: str = "paper"
    floor: float = 0.15
    _loss: CountLoss = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1:
            raise ValueError(f"the floor of importance sampling must be in (0, 1], not {self.floor}")
        object.__setattr__(self, "_loss", CountLoss(self.kind, self.weighting))

    def __call__(self, s: Tensor, t: Tensor) -> Tensor:
        """Density of the intervals (s, t) float64 [T], of mean 1."""
        size = self._loss.weights(s, t) * torch.sqrt(-torch.expm1(-t))
        return (1 - self.floor) * size / size.mean() + self.floor
