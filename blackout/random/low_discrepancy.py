"""Points that cover the unit interval more evenly than random ones."""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN_RATIO = 0.6180339887498949  # its multiples modulo 1 are spread evenly, however many


def low_discrepancy(index: Tensor, shift: float = 0.0) -> Tensor:
    """Return points of a Weyl sequence in [0, 1): frac((index + 1/2) golden ratio + shift).

    Any stretch of consecutive indices covers the interval evenly.

    Args:
        index: numbers of the points, integers of any shape.
        shift: added to all points, modulo 1.

    Returns:
        float64 of the shape of `index`.

    References: Niederreiter 1992, chapter 3; checked in tests/random/test_low_discrepancy.py.

    Example:
        >>> [round(point, 2) for point in low_discrepancy(torch.arange(3)).tolist()]
        [0.31, 0.93, 0.55]
    """
    return torch.frac((index.double() + 0.5) * GOLDEN_RATIO + shift)
