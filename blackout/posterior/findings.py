"""What a draw has found, for those who judge it: the law it was drawn from, or an operator with a judge of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Findings:
    """Samples and what they are samples of.

    Args:
        samples: counts [n, *shape].
        of: row of each one's measurement, int64 [n].
        problem: all measurements, a `Measured`, which stands above this file.
        truths: counts [M, *shape], where they are known.
        seed: of the samples.
    """

    samples: Tensor
    of: Tensor
    problem: Any
    truths: Tensor | None
    seed: int
