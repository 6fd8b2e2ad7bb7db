"""Tours without learning, to report beside those of a model: by polar angle, and mended by exchanging two edges."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.permutations.metrics import arranged, tour_length

_LEAST_GAIN = 1e-7
_MOST_MOVES = 10_000


def polar_tours(points: Tensor) -> Tensor:
    """Points [b, n, 2] by their angle about their centre, from the first point on: int64 [b, n]."""
    x, y = (points - points.mean(1, keepdim=True)).unbind(-1)
    angle = torch.atan2(y, x)
    turned = (angle - angle[:, :1]) % (2 * torch.pi)
    turned[:, 0] = -1.0
    return turned.argsort(1)


def two_opt(points: Tensor, tours: Tensor) -> Tensor:
    """Tours [b, n] after the best exchange of two edges, again and again until none is shorter.

    A move reverses the stretch from place i to place j, 0 < i <= j, so that the first point stays first.
    """
    n = points.shape[1]
    i, j = torch.triu_indices(n - 1, n - 1, 1) + 1
    place = torch.arange(n)
    for _ in range(_MOST_MOVES):
        visited = arranged(points, tours)
        before, first, last, after = (visited[:, at] for at in (i - 1, i, j, (j + 1) % n))
        gain = _between(before, first) + _between(last, after) - _between(before, last) - _between(first, after)
        most, which = gain.max(1)
        moves = most > _LEAST_GAIN
        if not bool(moves.any()):
            break
        start, end = i[which].unsqueeze(1), j[which].unsqueeze(1)
        inside = (place >= start) & (place <= end) & moves.unsqueeze(1)
        tours = tours.gather(1, torch.where(inside, start + end - place, place))
    return tours


def gaps_without_learning(points: Tensor) -> dict[str, Tensor]:
    """Relative excess of both over the shortest tours, in whose order the points [b, n, 2] are: float32 [b] each."""
    shortest, polar = tour_length(points), polar_tours(points)
    mended = two_opt(points, polar)
    return {
        "gap_of_polar_tour": tour_length(arranged(points, polar)) / shortest - 1,
        "gap_of_polar_tour_with_two_opt": tour_length(arranged(points, mended)) / shortest - 1,
    }


def _between(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).norm(dim=-1)
