"""Predictions given the total count of a sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blackout.counts import per_row
from blackout.diffusion.predictions import CountPrediction, Denoiser

MIN_MEAN = 1e-12  # missing units of a sample whose total is reached; a mean must be positive


@dataclass(frozen=True)
class TotalDenoiser:
    """Denoiser whose predicted missing counts are scaled so that each sample reaches a total T.

    E[sum N | X_t, sum X_0 = T] = T - sum X_t exactly, whatever the data. A network with the total
    as input satisfies it only nearly. The shares of the elements in the missing units stay as they
    are.

    References: this project; checked in tests/diffusion/test_conditions.py.

    Args:
        denoiser: of pure death, with the total as a condition.
        total: T.
    """

    denoiser: Denoiser
    total: float

    def __call__(self, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return the scaled prediction y (T - sum X_t) / sum y, [B, ...].

        Args:
            xt: counts [B, ...].
            t: times, a scalar or [B].

        Raises:
            ValueError: the denoiser predicts more than means.
        """
        prediction = self.denoiser(xt, t)
        if type(prediction) is not CountPrediction:
            raise ValueError("a total needs a head that predicts means alone, such as head=gamma")
        missing = self.total - xt.flatten(1).sum(1, dtype=torch.float64)
        predicted = prediction.expected.flatten(1).sum(1)
        factor = per_row(missing.clamp(min=MIN_MEAN) / predicted.clamp(min=MIN_MEAN), xt)
        log_mean = prediction.log_mean + factor.log().to(prediction.log_mean)
        return replace(prediction, mean=log_mean.exp(), log_mean=log_mean)
