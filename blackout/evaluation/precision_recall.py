"""Precision and recall, density and coverage, from nearest neighbours among features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

NEIGHBOURS = 3  # k of precision and recall
DENSITY_NEIGHBOURS = 5  # k of density and coverage, Naeem et al. 2020
MAX_BLOCK_VALUES = 1 << 23  # distances in memory at once, 64 MiB of float64


class PrecisionRecall(NamedTuple):
    """Precision, recall, density and coverage; higher is better.

    Attributes:
        precision: share of samples near reference images, 0 to 1.
        recall: share of reference images near samples, 0 to 1.
        density: as precision, but counting neighbours; may exceed 1.
        coverage: share of reference images with a sample nearby, 0 to 1.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def precision_recall(
    samples: Tensor,
    reference: Tensor,
    neighbours: int = NEIGHBOURS,
    density_neighbours: int = DENSITY_NEIGHBOURS,
    device: torch.device | str = "cpu",
) -> PrecisionRecall:
    """Return precision and recall, density and coverage.

    The ball of a point reaches to its k-th nearest neighbour in its own set.

    - Precision: share of samples in a ball of the reference.
    - Recall: share of reference images in a ball of the samples.
    - Density: mean number of reference balls around a sample, over k.
    - Coverage: share of reference balls that contain a sample.

    Precision and recall follow torch-fidelity (k = 3, closed balls), density and coverage their
    authors (k = 5, open balls). Results are comparable for sets of equal sizes. Distances are
    computed in blocks of rows, so that memory is O(n + m) and one block.

    Args:
        samples: features [n, F] of generated images.
        reference: features [m, F] of reference images.
        neighbours: k of precision and recall.
        density_neighbours: k of density and coverage.
        device: where distances are computed; the features are copied there.

    References: Kynkaanniemi et al. 2019, eq. 1 and 2; Naeem et al. 2020, section 3.
    """
    # squared distances are differences of products: float32 would lose points that nearly agree
    fake = samples.to(device, torch.float64)
    real = reference.to(device, torch.float64)
    (fake_radius,) = _ball_radii(fake, [neighbours])
    real_radius, density_radius = _ball_radii(real, [neighbours, density_neighbours])
    num_precise = 0
    num_balls = 0
    is_recalled = torch.zeros(len(real), dtype=torch.bool, device=real.device)
    is_covered = is_recalled.clone()
    for rows, distance in _distance_blocks(fake, real):
        num_precise += int((distance <= real_radius).any(dim=1).sum())
        is_recalled |= (distance <= fake_radius[rows, None]).any(dim=0)
        is_inside = distance < density_radius
        num_balls += int(is_inside.sum())
        is_covered |= is_inside.any(dim=0)
    return PrecisionRecall(
        precision=num_precise / len(fake),
        recall=float(is_recalled.double().mean()),
        density=num_balls / (density_neighbours * len(fake)),
        coverage=float(is_covered.double().mean()),
    )


def _ball_radii(points: Tensor, neighbours: list[int]) -> list[Tensor]:
    """Return the distances of points [n, F] to their k-th nearest neighbours, [n] for each k.

    The point itself is the 0th neighbour.

    References: Kynkaanniemi et al. 2019, eq. 2.
    """
    radii = points.new_empty(len(neighbours), len(points))
    for rows, distance in _distance_blocks(points, points):
        nearest = distance.topk(max(neighbours) + 1, dim=1, largest=False, sorted=True).values
        radii[:, rows] = nearest[:, neighbours].T
    return list(radii)


def _distance_blocks(points: Tensor, targets: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows and their Euclidean distances [rows, m], of points [n, F] to targets [m, F]."""
    num_rows = max(1, MAX_BLOCK_VALUES // len(targets))
    for start in range(0, len(points), num_rows):
        rows = slice(start, min(start + num_rows, len(points)))
        yield rows, torch.cdist(points[rows], targets)
