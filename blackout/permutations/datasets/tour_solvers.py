"""Shortest tours, exactly: dynamic programming for batches of few cities, integer programming for one of many.

Held & Karp (1962); the programme of Dantzig, Fulkerson & Johnson (1954) with the cuts that are needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
MOST_AT_ONCE = 13
"""Cities that `held_karp` takes: time and memory quadruple with each one more."""
_ROUNDS = 1000


def shortest_tours(points: Tensor) -> Tensor:
    """The shortest closed tours through points float [b, n, 2], int64 [b, n], from point 0 on, counter-clockwise."""
    distances = np.linalg.norm(points.double().numpy()[:, :, None] - points.double().numpy()[:, None], axis=-1)
    if points.shape[1] <= MOST_AT_ONCE:
        tours = held_karp(distances)
    else:
        tours = np.stack([integer_programme(one) for one in distances])
    return counter_clockwise(points, torch.from_numpy(tours))


def counter_clockwise(points: Tensor, tours: Tensor) -> Tensor:
    """Tours int64 [b, n] or their reverses, from the same first city on, such that the polygon's area is positive."""
    x, y = points.double().gather(1, tours.unsqueeze(-1).expand(-1, -1, 2)).unbind(-1)
    area = (x * y.roll(-1, 1) - x.roll(-1, 1) * y).sum(1)
    reverse = torch.cat([tours[:, :1], tours[:, 1:].flip(1)], 1)
    return torch.where((area < 0).unsqueeze(1), reverse, tours)


def held_karp(distances: Array) -> npt.NDArray[np.int64]:
    """Shortest tours [b, n] for distances [b, n, n], n from 2 to 13: from city 0 through every set of others.

    Raises:
        ValueError: more cities.
    """
    batch, n, _ = distances.shape
    if not 2 <= n <= MOST_AT_ONCE:
        raise ValueError(f"tours of 2 to {MOST_AT_ONCE} cities are found at once, not of {n}")
    m, d = n - 1, np.moveaxis(distances, 0, -1)
    sets = np.arange(2**m)
    sizes = np.array([int(s).bit_count() for s in sets])
    cost = np.full((2**m, m, batch), np.inf)
    before = np.zeros((2**m, m, batch), dtype=np.int8)
    for j in range(m):
        cost[1 << j, j] = d[0, j + 1]
    for size in range(2, n):
        for j in range(m):
            ends = sets[(sizes == size) & (sets >> j & 1 == 1)]
            through = cost[ends ^ (1 << j)] + d[1:, j + 1]
            before[ends, j] = through.argmin(1)
            cost[ends, j] = through.min(1)
    rows, tours = np.arange(batch), np.zeros((batch, n), dtype=np.int64)
    last = (cost[-1] + d[1:, 0]).argmin(0)
    left = np.full(batch, 2**m - 1)
    for i in range(n - 1, 0, -1):
        tours[:, i] = last + 1
        last, left = before[left, last, rows].astype(np.int64), left ^ (1 << last)
    return tours


def integer_programme(distances: Array) -> npt.NDArray[np.int64]:
    """The shortest tour [n] for distances [n, n]: two edges at every city, and cuts against tours of a part.

    Raises:
        ValueError: fewer than three cities, or the solver failed.
    """
    from scipy.optimize import LinearConstraint, milp

    n = len(distances)
    if n < 3:
        raise ValueError(f"a tour needs at least three cities, not {n}")
    i, j = np.triu_indices(n, 1)
    degrees = (np.arange(n)[:, None] == i) | (np.arange(n)[:, None] == j)
    constraints = [LinearConstraint(degrees.astype(float), 2, 2)]
    for _ in range(_ROUNDS):
        found = milp(distances[i, j], integrality=np.ones(len(i)), bounds=(0, 1), constraints=constraints)
        if found.x is None:
            break
        parts = _cycles(n, i[found.x > 0.5], j[found.x > 0.5])
        if len(parts) == 1:
            return np.array(parts[0], dtype=np.int64)
        cuts = [np.isin(i, part) != np.isin(j, part) for part in parts]
        constraints.append(LinearConstraint(np.array(cuts, dtype=float), 2, np.inf))
    raise ValueError(f"no tour of {n} cities was found")


def _cycles(n: int, i: npt.NDArray[np.int64], j: npt.NDArray[np.int64]) -> list[list[int]]:
    """The cycles of a graph in which every vertex has two edges."""
    neighbours: list[list[int]] = [[] for _ in range(n)]
    for a, b in zip(i.tolist(), j.tolist(), strict=True):
        neighbours[a].append(b)
        neighbours[b].append(a)
    found, seen = list[list[int]](), set[int]()
    for start in range(n):
        cycle, at = list[int](), start
        while at not in seen:
            seen.add(at)
            cycle.append(at)
            at = next((k for k in neighbours[at] if k not in seen), at)
        if cycle:
            found.append(cycle)
    return found
