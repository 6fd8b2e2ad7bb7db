"""Keeping watch over a denoiser while a sampler uses it."""

from __future__ import annotations

import math

from torch import Tensor

from blackout.diffusion.predictions import CategoricalPrediction, Denoiser, Prediction
from blackout.errors import UserError


class CountingDenoiser:
    """A denoiser that counts how often it was evaluated, keeps its last prediction and checks that all are finite.

    Args:
        denoiser: what is evaluated.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        self.evaluations = 0
        self.last: Prediction | None = None
        self._sum: Tensor | float = 0.0  # finite as long as all that was predicted is

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        self.evaluations += 1
        self.last = self._denoiser(xt, t)
        self._sum = self._sum + sum(map(_total, getattr(self.last, "both", (self.last,))))
        if xt.device.type == "cpu":
            self.check()
        return self.last

    def check(self) -> None:
        """Wait for the device and look.

        Raises:
            UserError: a prediction was not finite.
        """
        if not math.isfinite(self._sum):
            raise UserError("the network's output is not finite (NaN or infinity): its weights cannot be sampled with")


def _total(prediction: Prediction) -> Tensor:
    """A number that is finite if the prediction is."""
    if isinstance(prediction, CategoricalPrediction):
        return prediction.log_probs.amax(1).sum()  # others may be -inf
    total = prediction.mean.sum()
    variance = getattr(prediction, "variance", None)
    return total if variance is None else total + variance.sum()
