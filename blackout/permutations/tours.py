"""Shortest closed tours through points in the plane, by exact solvers and by 2-opt.

The exact solvers are dynamic programming (Held and Karp) for batches of few cities, and integer
programming for a single instance of many.

Example:
    >>> import torch
    >>> square = torch.tensor([[[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
    >>> shortest_tours(square).tolist()
    [[0, 2, 1, 3]]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.permutations.metrics import rearrange, tour_length

Array = npt.NDArray[np.float64]

MAX_HELD_KARP_CITIES = 13  # each more city takes twice the time and memory
MIN_GAIN = 1e-6  # of the largest distance; smaller gains may be rounding, and cycle for ever


def shortest_tours(points: Tensor) -> Tensor:
    """Return the shortest closed tours from point 0, counter-clockwise, int64 [b, n].

    Args:
        points: float [b, n, 2].

    References: Held and Karp 1962 up to 13 cities, Dantzig et al. 1954 above.
    """
    coordinates = points.double().numpy()
    distances = np.linalg.norm(coordinates[:, :, None] - coordinates[:, None], axis=-1)
    if points.shape[1] <= MAX_HELD_KARP_CITIES:
        tours = held_karp(distances)
    else:
        tours = np.stack([integer_programme(matrix) for matrix in distances])
    return counter_clockwise(points, torch.from_numpy(tours))


def counter_clockwise(points: Tensor, tours: Tensor) -> Tensor:
    """Return tours in the direction in which their polygon has a positive area (shoelace formula).

    Args:
        points: [b, n, 2].
        tours: int64 [b, n]; the first city stays first.

    References: this project; checked in tests/permutations/datasets/test_tours.py.
    """
    x, y = rearrange(points.double(), tours).unbind(-1)
    area = (x * y.roll(-1, 1) - x.roll(-1, 1) * y).sum(1)
    reversed_tours = torch.cat([tours[:, :1], tours[:, 1:].flip(1)], 1)
    return torch.where((area < 0).unsqueeze(1), reversed_tours, tours)


def held_karp(distances: Array) -> npt.NDArray[np.int64]:
    """Return shortest tours from city 0, int64 [b, n], by dynamic programming over sets of cities.

    Args:
        distances: [b, n, n], n from 2 to 13.

    Raises:
        ValueError: another number of cities.

    References: Held and Karp 1962.
    """
    batch, n, _ = distances.shape
    ensure(
        2 <= n <= MAX_HELD_KARP_CITIES,
        f"dynamic programming solves tours of 2 to {MAX_HELD_KARP_CITIES} cities, not of {n}",
    )
    m = n - 1  # cities other than 0; bit j of a set is city j + 1
    d = np.moveaxis(distances, 0, -1)
    sets = np.arange(2**m)
    sizes = np.array([int(s).bit_count() for s in sets])
    # 1. shortest path from 0 through a set to its last city, and the city before that
    cost = np.full((2**m, m, batch), np.inf)
    previous = np.zeros((2**m, m, batch), dtype=np.int8)
    for j in range(m):
        cost[1 << j, j] = d[0, j + 1]
    for size in range(2, n):
        for j in range(m):
            with_j = sets[(sizes == size) & (sets >> j & 1 == 1)]
            candidates = cost[with_j ^ (1 << j)] + d[1:, j + 1]
            previous[with_j, j] = candidates.argmin(1)
            cost[with_j, j] = candidates.min(1)
    # 2. trace the tours back from the set of all cities
    rows = np.arange(batch)
    tours = np.zeros((batch, n), dtype=np.int64)
    last = (cost[-1] + d[1:, 0]).argmin(0)
    remaining = np.full(batch, 2**m - 1)
    for i in range(n - 1, 0, -1):
        tours[:, i] = last + 1
        before_last = previous[remaining, last, rows].astype(np.int64)
        remaining = remaining ^ (1 << last)
        last = before_last
    return tours


def integer_programme(distances: Array) -> npt.NDArray[np.int64]:
    """Return the shortest tour from city 0, int64 [n], by integer programming.

    Cuts against subtours are added as they are needed.

    Args:
        distances: [n, n].

    Raises:
        ValueError: fewer than three cities, or a failure of the solver.

    References: Dantzig et al. 1954.
    """
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components, depth_first_order

    n = len(distances)
    ensure(n >= 3, f"a tour needs at least three cities, not {n}")
    i, j = np.triu_indices(n, 1)  # the edges
    num_edges = len(i)
    incidence = (np.arange(n)[:, None] == i) | (np.arange(n)[:, None] == j)
    constraints = [LinearConstraint(incidence.astype(float), 2, 2)]
    while True:
        # 1. solve
        solution = milp(
            distances[i, j],
            integrality=np.ones(num_edges),
            bounds=(0, 1),
            constraints=constraints,
        )
        ensure(solution.x is not None, f"no tour of {n} cities was found")
        # 2. a single cycle is the tour
        selected = solution.x > 0.5
        graph = coo_array((np.ones(n), (i[selected], j[selected])), shape=(n, n))
        num_cycles, cycle = connected_components(graph, directed=False)
        if num_cycles == 1:
            tour = depth_first_order(graph, 0, directed=False, return_predecessors=False)
            return tour.astype(np.int64)
        # 3. otherwise at least two edges must leave each cycle
        cuts = [(cycle[i] == k) != (cycle[j] == k) for k in range(num_cycles)]
        constraints.append(LinearConstraint(np.array(cuts, dtype=float), 2, np.inf))


def polar_tours(points: Tensor) -> Tensor:
    """Return the order of points by angle about their centre, int64 [b, n].

    It starts with the first of the points [b, n, 2].
    """
    x, y = (points - points.mean(1, keepdim=True)).unbind(-1)
    angle = torch.atan2(y, x)
    from_first = (angle - angle[:, :1]) % (2 * torch.pi)
    from_first[:, 0] = -1.0
    return from_first.argsort(1)


def two_opt(points: Tensor, tours: Tensor) -> Tensor:
    """Improve tours by the best exchange of two edges, until none is shorter.

    A move reverses the stretch from position i to position j, 0 < i <= j, so that the first point
    stays first.

    Args:
        points: [b, n, 2].
        tours: int64 [b, n].

    Returns:
        int64 [b, n].

    References: Croes 1958.
    """
    n = points.shape[1]
    i, j = torch.triu_indices(n - 1, n - 1, 1) + 1
    following = (j + 1) % n
    position = torch.arange(n)
    while True:
        visited = rearrange(points, tours)
        d = torch.cdist(visited, visited, compute_mode="donot_use_mm_for_euclid_dist")
        gains = d[:, i - 1, i] + d[:, j, following] - d[:, i - 1, j] - d[:, i, following]
        gain, move = gains.max(1)
        improves = gain > MIN_GAIN * d.amax((1, 2))
        if not bool(improves.any()):
            return tours
        start = i[move].unsqueeze(1)
        end = j[move].unsqueeze(1)
        is_reversed = (position >= start) & (position <= end) & improves.unsqueeze(1)
        tours = tours.gather(1, torch.where(is_reversed, start + end - position, position))


def heuristic_gaps(points: Tensor) -> dict[str, Tensor]:
    """Return the relative gaps of heuristic tours to the shortest tours, float32 [b] by name.

    The heuristics are polar tours, and the same after 2-opt.

    Args:
        points: in the order of their shortest tours, [b, n, 2].

    References: this project; checked in tests/permutations/test_tours.py.
    """
    polar = polar_tours(points)
    improved = two_opt(points, polar)
    shortest = tour_length(points)
    return {
        "gap_of_polar_tour": tour_length(rearrange(points, polar)) / shortest - 1,
        "gap_of_polar_tour_with_two_opt": tour_length(rearrange(points, improved)) / shortest - 1,
    }
