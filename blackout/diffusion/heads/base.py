"""Protocol of heads: from the raw output of a network to a prediction."""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from blackout.diffusion.predictions import Prediction

AnyPrediction = TypeVar("AnyPrediction", bound=Prediction, covariant=True)


class Head(Protocol[AnyPrediction]):
    """Protocol of a head, which turns a network's raw output into a prediction."""

    @property
    def outputs(self) -> int:
        """Number of outputs of the network per element of the data."""

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> AnyPrediction:
        """Return the prediction given X_t.

        Args:
            raw: [B, outputs, ...], any floating type.
            xt: counts [B, ...].
            t: float64, a scalar or [B].
        """
