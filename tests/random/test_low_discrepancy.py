"""Points of a Weyl sequence cover the unit interval evenly, wherever the sequence begins."""

from __future__ import annotations

import pytest
import torch

from blackout.random import low_discrepancy


def discrepancy(points: torch.Tensor) -> float:
    """Return the largest difference between the share of points below a point and its position."""
    points = points.sort().values
    n = len(points)
    above = torch.arange(1, n + 1).double() / n - points
    below = points - torch.arange(n).double() / n
    return float(torch.maximum(above, below).max())


@pytest.mark.parametrize("first", [0, 1234, 10**6])
@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_points_are_spread_evenly(first: int, shift: float) -> None:
    points = low_discrepancy(first + torch.arange(1000), shift)
    assert points.dtype == torch.float64
    assert float(points.min()) >= 0
    assert float(points.max()) < 1
    assert discrepancy(points) < 0.005  # of random points about 0.03


def test_a_shift_moves_all_points() -> None:
    index = torch.arange(20).view(4, 5)
    moved = torch.frac(low_discrepancy(index) + 0.25)
    torch.testing.assert_close(low_discrepancy(index, 0.25), moved, atol=1e-12, rtol=0)
