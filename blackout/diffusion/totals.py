"""Predictions given the total count of a sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blackout.counts import per_row
from blackout.diffusion.predictions import CountPrediction, Denoiser

SMALLEST_MEAN = 1e-12  # units that are missing where the total is reached; a mean must be positive


@dataclass(frozen=True)
class TotalDenoiser:
    """Predictions given the total count of X_0 too: as much is missing in all as the total lacks.

    E[sum N | X_t, sum X_0 = T] = T - sum X_t exactly, whatever the data. A network with the total as input satisfies it
    only nearly. How the network divides the missing units among the elements stays as it is.

    References: this project; that samples have the total is checked in tests/diffusion/test_conditions.py.

    Args:
        denoiser: of pure death, with the total as a condition.
        total: T.
    """

    denoiser: Denoiser
    total: float

    def __call__(self, xt: Tensor, t: Tensor) -> CountPrediction:
        """y (T - sum X_t) / sum y, from the denoiser's prediction y.

        Args:
            xt: counts [B, ...].
            t: times, a scalar or [B].

        Returns:
            The prediction with means [B, ...].

        Raises:
            ValueError: the denoiser predicts more than means.
        """
        prediction = self.denoiser(xt, t)
        if type(prediction) is not CountPrediction:
            raise ValueError("a total needs a head that predicts means alone, such as head=gamma")
        missing = (self.total - xt.flatten(1).sum(1, dtype=torch.float64)).clamp(min=SMALLEST_MEAN)
        predicted = prediction.expected.flatten(1).sum(1).clamp(min=SMALLEST_MEAN)
        factor = per_row(missing / predicted, xt)
        log_mean = prediction.log_mean + factor.log().to(prediction.log_mean)
        return replace(prediction, mean=log_mean.exp(), log_mean=log_mean)
