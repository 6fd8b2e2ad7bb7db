"""Precision and recall, density and coverage against their definitions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from blackout.evaluation import (
    precision_recall,
)


def test_density_and_coverage_match_their_definition() -> None:
    """Calculated by hand on a line.

    References: Naeem et al. 2020, eqs. 2 and 4.
    """
    real = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    fake = torch.tensor([[0.4], [0.6], [100.0], [2.5]])
    radius = [1.0, 1.0, 2.0, 4.0]  # distance to the nearest other real point
    inside = [
        [
            abs(float(f - r)) < radius_of_point
            for r, radius_of_point in zip(real, radius, strict=True)
        ]
        for f in fake
    ]
    result = precision_recall(fake, real, neighbours=1, density_neighbours=1)
    assert result.density == pytest.approx(sum(map(sum, inside)) / len(fake))
    # `neighbours` affects precision and recall only
    with_two_neighbours = precision_recall(fake, real, neighbours=2, density_neighbours=1)
    assert (with_two_neighbours.density, with_two_neighbours.coverage) == (
        result.density,
        result.coverage,
    )
    assert result.coverage == pytest.approx(
        sum(any(row[i] for row in inside) for i in range(4)) / 4
    )


def test_near_duplicates_are_found_far_from_the_origin() -> None:
    """In float32, distances of 1e-3 vanish in the rounding of squares of norm 26."""
    generator = torch.Generator().manual_seed(0)
    x, offset = (
        F.normalize(torch.randn(200, 2048, generator=generator)) * size for size in (26, 1e-3)
    )
    real = torch.cat([x, x + offset])
    fake = torch.cat([x + offset / 4, x + 5 * offset / 4])
    assert precision_recall(fake, real, neighbours=1)[:2] == (1.0, 1.0)


def test_identical_sets_have_perfect_scores() -> None:
    x = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    result = precision_recall(x, x)
    assert result.precision == result.recall == result.coverage == 1


def test_precision_and_recall_use_closed_balls_and_density_open_ones() -> None:
    """Points on a grid, with many equal distances, against the definitions."""
    generator = torch.Generator().manual_seed(0)
    fake, real = (torch.randint(0, 5, (n, 2), generator=generator).double() for n in (13, 17))
    radii = [torch.cdist(points, points).sort(1).values[:, 2] for points in (fake, real)]
    distances = torch.cdist(fake, real)
    closed = (distances <= radii[1], distances <= radii[0][:, None])
    inside = distances < radii[1]
    assert bool((distances == radii[1]).any() and (distances == radii[0][:, None]).any())
    shares = closed[0].any(1), closed[1].any(0), inside.sum(1) / 2, inside.any(0)
    expected = [float(share.double().mean()) for share in shares]
    assert precision_recall(fake, real, neighbours=2, density_neighbours=2) == pytest.approx(
        expected
    )
