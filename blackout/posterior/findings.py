"""What a draw has found, for those who judge it: the law it was drawn from, or an operator with a judge of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from blackout.posterior.measurements import Measurements
from blackout.posterior.problem import Measured


@dataclass(frozen=True)
class Findings:
    """Samples and what they are samples of.

    Args:
        samples: counts [n, *shape].
        of: row of each one's measurement, int64 [n].
        measurements: all of them.
        seed: of the samples.
        model: the prior's.
    """

    samples: Tensor
    of: Tensor
    measurements: Measurements
    seed: int
    model: Any

    @property
    def problem(self) -> Measured:
        """Of all measurements."""
        return self.measurements.problem(self.seed)

    @property
    def truths(self) -> Tensor | None:
        """Counts [M, *shape], where they are known."""
        return self.measurements.of(self.seed)[1]
