"""Cities in the unit square, to be visited on the shortest closed tour: exact solvers, 2-opt, puzzles of tours.

First what is found without learning: shortest tours, exactly (dynamic programming for batches of few cities, integer
programming for one of many), and tours by polar angle, mended by exchanging two edges. Then puzzles of them: made and
solved here, or read from a file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.images import StrPath
from blackout.errors import UserError, ensure, error_context, refuse
from blackout.permutations.datasets import Puzzles, StoredPuzzles, chosen, divide
from blackout.permutations.group import is_permutation
from blackout.permutations.metrics import arranged, tour_length
from blackout.protocols import Split
from blackout.random import SampleStreams, StepStreams, fold_seed
from blackout.safe_reading import read_text

__all__ = ["tsp"]

Array = npt.NDArray[np.float64]
MOST_AT_ONCE = 13
"""Cities that `held_karp` takes: time and memory quadruple with each one more."""
_LEAST_GAIN = 1e-6
"""Of the largest distance: more than rounding makes of nothing, or moves could undo each other for ever."""
_MOST_CITIES = 200
_INSTANCES = 4
_INSTANCE_STREAMS: dict[Split, int] = {"test": 0, "train": 1, "val": 2}
_FACTS = {"first_fixed": True, "mean": 0.5, "std": 12**-0.5, "encoder": {"_target_": "blackout.networks.PointEncoder"}}


def shortest_tours(points: Tensor) -> Tensor:
    """The shortest closed tours through points float [b, n, 2], int64 [b, n], from point 0 on, counter-clockwise.

    By `held_karp` [Held 1962], and beyond its cities `integer_programme`.
    """
    distances = np.linalg.norm(points.double().numpy()[:, :, None] - points.double().numpy()[:, None], axis=-1)
    few = points.shape[1] <= MOST_AT_ONCE
    tours = held_karp(distances) if few else np.stack([integer_programme(one) for one in distances])
    return counter_clockwise(points, torch.from_numpy(tours))


def counter_clockwise(points: Tensor, tours: Tensor) -> Tensor:
    """Tours int64 [b, n] or their reverses, from the same first city on, such that the polygon's area is positive.

    By the shoelace formula. Ours (tests/permutations/test_datasets.py).
    """
    x, y = arranged(points.double(), tours).unbind(-1)
    area = (x * y.roll(-1, 1) - x.roll(-1, 1) * y).sum(1)
    reverse = torch.cat([tours[:, :1], tours[:, 1:].flip(1)], 1)
    return torch.where((area < 0).unsqueeze(1), reverse, tours)


def held_karp(distances: Array) -> npt.NDArray[np.int64]:
    """Shortest tours [b, n] for distances [b, n, n], n from 2 to 13: from city 0 through every set of others.

    [Held 1962].

    Raises:
        ValueError: more cities.
    """
    batch, n, _ = distances.shape
    ensure(2 <= n <= MOST_AT_ONCE, f"tours of 2 to {MOST_AT_ONCE} cities are found at once, not of {n}")
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

    [Dantzig 1954]; only the cuts that are needed.

    Raises:
        ValueError: fewer than three cities, or the solver failed.
    """
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components, depth_first_order

    n = len(distances)
    ensure(n >= 3, f"a tour needs at least three cities, not {n}")
    i, j = np.triu_indices(n, 1)
    degrees = (np.arange(n)[:, None] == i) | (np.arange(n)[:, None] == j)
    constraints = [LinearConstraint(degrees.astype(float), 2, 2)]
    while True:
        found = milp(distances[i, j], integrality=np.ones(len(i)), bounds=(0, 1), constraints=constraints)
        ensure(found.x is not None, f"no tour of {n} cities was found")
        edges = found.x > 0.5
        graph = coo_array((np.ones(n), (i[edges], j[edges])), shape=(n, n))
        parts, part = connected_components(graph, directed=False)
        if parts == 1:
            return depth_first_order(graph, 0, directed=False, return_predecessors=False).astype(np.int64)
        cuts = [(part[i] == k) != (part[j] == k) for k in range(parts)]
        constraints.append(LinearConstraint(np.array(cuts, dtype=float), 2, np.inf))


def polar_tours(points: Tensor) -> Tensor:
    """Points [b, n, 2] by their angle about their centre, from the first point on: int64 [b, n]. Ours
    (tests/permutations/test_datasets.py).
    """
    x, y = (points - points.mean(1, keepdim=True)).unbind(-1)
    angle = torch.atan2(y, x)
    turned = (angle - angle[:, :1]) % (2 * torch.pi)
    turned[:, 0] = -1.0
    return turned.argsort(1)


def two_opt(points: Tensor, tours: Tensor) -> Tensor:
    """Tours [b, n] through points [b, n, 2] after the best exchange of two edges, until none is shorter [Croes 1958].

    A move reverses the stretch from place i to place j, 0 < i <= j, so that the first point stays first.
    """
    n = points.shape[1]
    i, j = torch.triu_indices(n - 1, n - 1, 1) + 1
    place = torch.arange(n)
    while True:
        visited, k = arranged(points, tours), (j + 1) % n
        d = torch.cdist(visited, visited, compute_mode="donot_use_mm_for_euclid_dist")
        most, which = (d[:, i - 1, i] + d[:, j, k] - d[:, i - 1, j] - d[:, i, k]).max(1)
        moves = most > _LEAST_GAIN * d.amax((1, 2))
        if not bool(moves.any()):
            return tours
        start, end = i[which].unsqueeze(1), j[which].unsqueeze(1)
        inside = (place >= start) & (place <= end) & moves.unsqueeze(1)
        tours = tours.gather(1, torch.where(inside, start + end - place, place))


def gaps_without_learning(points: Tensor) -> dict[str, Tensor]:
    """Relative excess of both over the shortest tours, in whose order the points [b, n, 2] are: float32 [b] each.

    Ours (tests/permutations/test_datasets.py).
    """
    polar = polar_tours(points)
    found = {"gap_of_polar_tour": polar, "gap_of_polar_tour_with_two_opt": two_opt(points, polar)}
    return {name: tour_length(arranged(points, tours)) / tour_length(points) - 1 for name, tours in found.items()}


class Tours(Puzzles):
    """Uniform points [n, 2]; the right order is the shortest tour, counter-clockwise, from any city on.

    [Zhang 2025, section 4.3], but that the direction is fixed: by geometry, because an order of indices would be lost
    in the shuffle. The first city is known. To 13 cities every puzzle is new; with more there are `instances` of them,
    each solved when it is first needed, shown from any city on and in the plane's eight symmetries.

    Args:
        cities: n.
        instances: number of training tours with more than 13 cities.
        held_out: number of validation and of test tours.
        seed: of everything random.

    Raises:
        ValueError: cities outside 3..200, or no instances.
    """

    def __init__(self, cities: int, instances: int, held_out: int, seed: int) -> None:
        ensure(3 <= cities <= _MOST_CITIES, f"tsp: cities must be 3..{_MOST_CITIES}, not {cities}")
        ensure(instances >= 1, f"tsp: instances must be at least 1, not {instances}")
        self._instances = instances
        self._solved: dict[tuple[Split, int], Tensor] = {}
        super().__init__("tsp", "points", cities, (2,), held_out, seed, _FACTS)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Puzzles with the numbers index [b], arrays [b, n, ...]: see `Puzzles.make`."""
        if self.num_items <= MOST_AT_ONCE:
            return {"items": self._new(len(index), streams)}
        number = chosen(streams, (len(index),), self._instances) if split == "train" else index
        tours = torch.stack([self._solve(split, k) for k in number.tolist()])
        return {"items": _varied(tours, streams) if split == "train" else tours}

    def _new(self, size: int, streams: StepStreams) -> Tensor:
        """Points [size, n, 2] in the order of their shortest tours, from a random city on: see `shortest_tours`."""
        n = self.num_items
        points = streams.next_draw().uniform((size, n, 2)).float()
        first = chosen(streams, (size, 1), n)
        return arranged(points, shortest_tours(points).gather(1, (torch.arange(n) + first) % n))

    def _solve(self, split: Split, number: int) -> Tensor:
        if (split, number) not in self._solved:
            seed = fold_seed(self.seed, _INSTANCES, _INSTANCE_STREAMS[split])
            streams = SampleStreams(seed, torch.tensor([number])).step(0)
            self._solved[split, number] = self._new(1, streams)[0]
        return self._solved[split, number]


class FileTours(StoredPuzzles):
    """Tours of a file, shown from any city on and, for training, in the plane's symmetries."""

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Puzzles with the numbers index [b], arrays [b, n, ...]: see `Puzzles.make`."""
        items = super().make(split, index, streams)["items"]
        return {"items": _varied(items, streams) if split == "train" else items}


def _varied(items: Tensor, streams: StepStreams) -> Tensor:
    """The same tours [b, n, 2] from another city on, turned and mirrored: still counter-clockwise.

    Ours (tests/permutations/test_datasets.py).
    """
    n = items.shape[1]
    turn, mirror = chosen(streams, (len(items), 1, 1), 4), chosen(streams, (len(items), 1, 1), 2) > 0
    x, y = (items - 0.5).split(1, -1)
    x, y = torch.where(turn % 2 > 0, -y, x), torch.where(turn % 2 > 0, x, y)
    turned = torch.cat([x, y], -1) * torch.where(turn > 1, -1.0, 1.0)
    # a mirrored tour runs clockwise: it is walked the other way round
    mirrored = (turned * torch.tensor([-1.0, 1.0])).flip(1)
    first = chosen(streams, (len(items), 1), n)
    return arranged(torch.where(mirror, mirrored, turned) + 0.5, (torch.arange(n) + first) % n)


@component("dataset")
def tsp(
    cities: int = 10,
    path: StrPath | None = None,
    instances: int = 2000,
    held_out: int = 1000,
    holdout: float = 0.1,
    seed: int = 0,
    validation: float = 0.1,
) -> Puzzles:
    """Shortest tours: instances made and solved here, or those of a file.

    Args:
        cities: in a tour made here, 3 to 200.
        path: of a file with a tour on every line, "x1 y1 x2 y2 ... output 1 5 ... 1"; None makes them.
        instances: training tours made here with more than 13 cities; with fewer there is no end of them.
        held_out: validation and test tours made here, so many of each.
        holdout: share of a file's tours to test on.
        seed: of everything random.
        validation: share or number of a file's tours by which choices are made; 0 for none.

    Raises:
        UserError: a file that is missing, damaged or impossible.
        ValueError: values out of range.
    """
    if path is None:
        return Tours(cities, instances, held_out, seed)
    points, tours = read_tours(Path(path).expanduser())
    items = arranged(points, counter_clockwise(points, tours))
    return FileTours("tsp", "points", divide(items, validation, holdout, seed), seed, _FACTS)


def read_tours(path: Path) -> tuple[Tensor, Tensor]:
    """Points float32 [N, n, 2] and tours int64 [N, n] that begin at point 0.

    A line holds one, "x1 y1 x2 y2 ... output 1 5 ... 1": cities are counted from 1, the first one comes twice.

    Raises:
        UserError: unreadable, or a line that is no tour; the message names the line.
    """
    refuse(not path.is_file(), f"{path}: no such file")
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    refuse(len(lines) < 2, f"{path}: at least two tours are needed, found {len(lines)}")
    points, tours = list[list[float]](), list[list[int]]()
    for number, line in enumerate(lines, 1):
        with error_context(f"{path}: line {number}"):
            numbers, tour = _parse(line)
        if points and len(tour) != len(tours[0]):
            raise UserError(f"{path}: line {number}: {len(tour)} cities, but line 1 has {len(tours[0])}")
        points.append(numbers)
        tours.append(tour)
    return torch.tensor(points).view(len(points), -1, 2), torch.tensor(tours)


def _parse(line: str) -> tuple[list[float], list[int]]:
    """Coordinates and the tour from city 0 on.

    Raises:
        ValueError: this is no tour.
    """
    before, word, after = line.partition("output")
    ensure(word, "the word 'output' between points and tour is missing")
    points, tour = list(map(float, before.split())), [int(k) - 1 for k in after.split()]
    if len(points) < 6 or len(points) % 2 or not bool(torch.tensor(points).isfinite().all()):
        raise ValueError(f"two finite coordinates of at least three cities are needed, found {len(points)} numbers")
    n = len(points) // 2
    closed = tour[:-1] if len(tour) == n + 1 and tour[0] == tour[-1] else tour
    if len(closed) != n or not bool(is_permutation(torch.tensor(closed))):
        raise ValueError(f"the tour does not visit each of the {n} cities once")
    first = closed.index(0)
    return points, closed[first:] + closed[:first]
