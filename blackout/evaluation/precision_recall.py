"""Fidelity and diversity by nearest neighbours in feature space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 1 << 23
"""Distances held at once: 64 MiB of float64."""


class PrecisionRecall(NamedTuple):
    """Shares of samples (precision) and reference images (recall, coverage) matched; density may exceed 1."""

    precision: float
    recall: float
    density: float
    coverage: float


def precision_recall(
    samples: Tensor,
    reference: Tensor,
    neighbours: int = 3,
    density_neighbours: int = 5,
    device: torch.device | str = "cpu",
) -> PrecisionRecall:
    """Precision and recall [Kynkaanniemi 2019, eq. 1 and 2], density and coverage [Naeem 2020, section 3].

    The ball of a point reaches to its k-th nearest neighbour in its own set. Precision: share of samples inside a ball
    of the reference. Recall: share of reference images inside a ball of the samples. Density: mean number of reference
    balls around a sample, over k. Coverage: share of reference balls that contain a sample. Precision and recall follow
    torch-fidelity (k = 3, closed balls), density and coverage their authors (k = 5, open balls). Results are comparable
    for sets of equal sizes. Distances are computed in blocks of rows, so memory is O(n + m) beside one block.

    Args:
        samples: features [n, F] of the generated images.
        reference: features [m, F] of the reference images.
        neighbours: k of precision and recall.
        density_neighbours: k of density and coverage.
        device: where distances are computed; the features are copied there.
    """
    # squared distances come from products of the features: in float32 they would lose points that nearly agree
    fake, real = (features.to(device, torch.float64) for features in (samples, reference))
    (fake_radius,) = _radii(fake, [neighbours])
    real_radius, density_radius = _radii(real, [neighbours, density_neighbours])
    precise = dense = 0
    recalled = torch.zeros(len(real), dtype=torch.bool, device=real.device)
    covered = recalled.clone()
    for rows, distance in _distance_blocks(fake, real):
        precise += int((distance <= real_radius).any(dim=1).sum())
        recalled |= (distance <= fake_radius[rows, None]).any(dim=0)
        inside = distance < density_radius
        dense += int(inside.sum())
        covered |= inside.any(dim=0)
    return PrecisionRecall(
        precision=precise / len(fake),
        recall=float(recalled.double().mean()),
        density=dense / (density_neighbours * len(fake)),
        coverage=float(covered.double().mean()),
    )


def _radii(points: Tensor, neighbours: list[int]) -> list[Tensor]:
    """Distance of each point to its k-th nearest neighbour, for each k; the point itself is the 0th."""
    radii = points.new_empty(len(neighbours), len(points))
    for rows, distance in _distance_blocks(points, points):
        nearest = distance.topk(max(neighbours) + 1, dim=1, largest=False, sorted=True).values
        radii[:, rows] = nearest[:, neighbours].T
    return list(radii)


def _distance_blocks(points: Tensor, others: Tensor) -> Iterator[tuple[slice, Tensor]]:
    step = max(1, _BLOCK_ELEMENTS // len(others))
    for start in range(0, len(points), step):
        rows = slice(start, min(start + step, len(points)))
        yield rows, torch.cdist(points[rows], others)
