"""Cities in the unit square, to be visited on the shortest closed tour."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import held_out_split
from blackout.data.readers import file_error
from blackout.errors import UserError
from blackout.family import Split
from blackout.permutations.datasets.base import Puzzles, chosen
from blackout.permutations.datasets.tour_solvers import MOST_AT_ONCE, counter_clockwise, shortest_tours
from blackout.permutations.group import is_permutation
from blackout.random import SampleStreams, StepStreams, fold_seed

# --- Files of tours, one on a line: "x1 y1 x2 y2 ... output 1 5 ... 1", cities counted from 1, the first one twice.


def read_tours(path: Path) -> tuple[Tensor, Tensor]:
    """Points float32 [N, n, 2] and tours int64 [N, n] that begin at point 0.

    Raises:
        UserError: unreadable, or a line that is no tour; the message names the line.
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise file_error(path, "not a readable text file of tours", error) from error
    if len(lines) < 2:
        raise UserError(f"{path}: at least two tours are needed, found {len(lines)}")
    points, tours = list[list[float]](), list[list[int]]()
    for number, line in enumerate(lines, 1):
        try:
            found = _parse(line)
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        if points and len(found[0]) != len(points[0]):
            raise UserError(
                f"{path}: line {number}: {len(found[0]) // 2} cities, but line 1 has {len(points[0]) // 2}: all tours "
                "of a file have equally many"
            )
        points.append(found[0])
        tours.append(found[1])
    return torch.tensor(points).view(len(points), -1, 2), torch.tensor(tours)


def _parse(line: str) -> tuple[list[float], list[int]]:
    """Coordinates and the tour from city 0 on.

    Raises:
        ValueError: this is no tour.
    """
    before, word, after = line.partition("output")
    if not word:
        raise ValueError("the word 'output' between points and tour is missing")
    points, tour = list(map(float, before.split())), [int(k) - 1 for k in after.split()]
    if len(points) < 6 or len(points) % 2 or not bool(torch.tensor(points).isfinite().all()):
        raise ValueError(f"two finite coordinates of at least three cities are needed, found {len(points)} numbers")
    n = len(points) // 2
    closed = tour[:-1] if len(tour) == n + 1 and tour[0] == tour[-1] else tour
    if len(closed) != n or not bool(is_permutation(torch.tensor(closed))):
        raise ValueError(f"the tour does not visit each of the {n} cities once")
    first = closed.index(0)
    return points, closed[first:] + closed[:first]


def write_tours(points: Tensor, tours: Tensor, path: Path) -> None:
    """Write points [N, n, 2] and their tours [N, n], a line each."""
    lines = []
    for cities, tour in zip(points.tolist(), tours.tolist(), strict=True):
        numbers = [*tour, tour[0]]
        lines.append(
            " ".join(f"{x!r} {y!r}" for x, y in cities) + " output " + " ".join(str(k + 1) for k in numbers) + "\n"
        )
    path.write_text("".join(lines))


_MOST_CITIES = 200
_INSTANCES = 4
_FACTS = {"first_fixed": True, "mean": 0.5, "std": 12**-0.5, "encoder": {"_target_": "blackout.networks.PointEncoder"}}


class Tours(Puzzles):
    """Uniform points [n, 2]; the right order is the shortest tour, counter-clockwise, from any city on.

    The direction is fixed by geometry because an order of indices would be lost in the shuffle, and the first city is
    known. To 13 cities every puzzle is new; with more there are `instances` of them, each solved when it is first
    needed, shown from any city on and in the plane's eight symmetries.

    Args:
        cities: n.
        instances: number of training tours with more than 13 cities.
        held_out: number of test tours.
        seed: of everything random.

    Raises:
        ValueError: cities outside 3..200, or no instances.
    """

    def __init__(self, cities: int, instances: int, held_out: int, seed: int) -> None:
        if not 3 <= cities <= _MOST_CITIES:
            raise ValueError(f"tsp: cities must be 3..{_MOST_CITIES}, not {cities}")
        if instances < 1:
            raise ValueError(f"tsp: instances must be at least 1, not {instances}")
        self._instances = instances
        self._solved: dict[tuple[Split, int], Tensor] = {}
        super().__init__("tsp", "points", cities, (2,), held_out, seed, _FACTS)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        if self.num_items <= MOST_AT_ONCE:
            points = streams.next_draw().uniform((len(index), self.num_items, 2)).float()
            return {"items": _along(points, shortest_tours(points), streams)}
        number = chosen(streams, (len(index),), self._instances) if split == "train" else index
        tours = torch.stack([self._solve(split, k) for k in number.tolist()])
        return {"items": _varied(tours, streams) if split == "train" else tours}

    def _solve(self, split: Split, number: int) -> Tensor:
        if (split, number) not in self._solved:
            streams = SampleStreams(fold_seed(self.seed, _INSTANCES, split == "train"), torch.tensor([number])).at(0)
            points = streams.next_draw().uniform((1, self.num_items, 2)).float()
            self._solved[split, number] = _along(points, shortest_tours(points), streams)[0]
        return self._solved[split, number]

    def _content(self, split: Split) -> str:
        return f"{self._instances}"


class FileTours(Puzzles):
    """Tours in a file, shown from any city on and, for training, in the plane's symmetries."""

    def __init__(self, path: Path, holdout: float, seed: int) -> None:
        points, tours = read_tours(path)
        items = points.gather(1, counter_clockwise(points, tours).unsqueeze(-1).expand_as(points))
        train, test = held_out_split(len(items), holdout, seed)
        self._train, self._test = items[train], items[test]
        super().__init__("tsp", "points", items.shape[1], (2,), len(test), seed, _FACTS)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        if split == "test":
            return {"items": self._test[index]}
        return {"items": _varied(self._train[chosen(streams, (len(index),), len(self._train))], streams)}

    def _content(self, split: Split) -> str:
        rows = self._train if split == "train" else self._test
        return hashlib.sha256(rows.numpy().tobytes()).hexdigest()


@component("dataset")
def tsp(
    cities: int = 10,
    path: str | os.PathLike[str] | None = None,
    instances: int = 2000,
    held_out: int = 1000,
    holdout: float = 0.1,
    seed: int = 0,
) -> Puzzles:
    """Shortest tours: instances made and solved here, or those of a file.

    Args:
        cities: in a tour made here, 3 to 200.
        path: of a file with a tour on every line, "x1 y1 x2 y2 ... output 1 5 ... 1"; None makes them.
        instances: training tours made here with more than 13 cities; with fewer there is no end of them.
        held_out: test tours made here.
        holdout: share of a file's tours that is held out.
        seed: of everything random.

    Raises:
        UserError: a file that is missing, damaged or impossible.
        ValueError: values out of range.
    """
    if path is None:
        return Tours(cities, instances, held_out, seed)
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{file}: {'not a file' if file.exists() else 'no such file'}")
    return FileTours(file, holdout, seed)


def _along(points: Tensor, tours: Tensor, streams: StepStreams) -> Tensor:
    """Points [b, n, 2] in the order of their tours, from a random city on."""
    n = points.shape[1]
    first = chosen(streams, (len(points), 1), n)
    tours = tours.gather(1, (torch.arange(n) + first) % n)
    return points.gather(1, tours.unsqueeze(-1).expand_as(points))


def _varied(items: Tensor, streams: StepStreams) -> Tensor:
    """The same tours [b, n, 2] from another city on, turned and mirrored: still counter-clockwise."""
    n = items.shape[1]
    turn, mirror = chosen(streams, (len(items), 1, 1), 4), chosen(streams, (len(items), 1, 1), 2) > 0
    x, y = (items - 0.5).split(1, -1)
    x, y = torch.where(turn % 2 > 0, -y, x), torch.where(turn % 2 > 0, x, y)
    turned = torch.cat([x, y], -1) * torch.where(turn > 1, -1.0, 1.0)
    # a mirrored tour runs clockwise: it is walked the other way round
    mirrored = (turned * torch.tensor([-1.0, 1.0])).flip(1)
    first = chosen(streams, (len(items), 1), n)
    place = ((torch.arange(n) + first) % n).unsqueeze(-1).expand_as(items)
    return (torch.where(mirror, mirrored, turned) + 0.5).gather(1, place)
