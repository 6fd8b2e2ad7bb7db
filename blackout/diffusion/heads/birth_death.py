"""The head of immigration and death."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from blackout.component import component
from blackout.diffusion.heads.pure_death import ScaledHead
from blackout.diffusion.predictions import BirthDeathPrediction


@component("head", "base")
class BirthDeathHead(ScaledHead):
    """Head of `BirthDeath`, with an output for each of E[X_0 - S | X_t] and E[I | X_t].

    Each is (1 - q) C softplus(f).

    References: this project; checked in tests/diffusion/test_losses.py.

    Args:
        mean: C, the mean count of the data and of the stationary distribution.

    Raises:
        ValueError: mean is not positive.
    """

    outputs: ClassVar[int] = 2

    def __call__(  # type: ignore[override]
        self, raw: Tensor, xt: Tensor, t: Tensor
    ) -> BirthDeathPrediction:
        """Return the pair, [B, 2, ...]; arguments as for `Head`."""
        return BirthDeathPrediction(*self._mean_and_log(raw.float(), t))
