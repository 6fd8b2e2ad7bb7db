"""Tours: points in the plane whose right order is their shortest closed tour.

Tours are made and solved here, or read from a file.

References: Zhang et al. 2025, section 4.3.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from blackout.component import component
from blackout.data.findings import Note
from blackout.data.images import StrPath
from blackout.data.splits import take_validation, validation_size
from blackout.errors import UserError, ensure, error_context, refuse
from blackout.permutations.datasets.array_files import split_at_random
from blackout.permutations.datasets.puzzles import Puzzles, StoredPuzzles, draw_integers
from blackout.permutations.group import is_permutation
from blackout.permutations.metrics import rearrange
from blackout.permutations.tours import MAX_HELD_KARP_CITIES, counter_clockwise, shortest_tours
from blackout.protocols import Split
from blackout.random import SampleStreams, StepStreams, fold_seed
from blackout.safe_reading import read_text

DEFAULT_CITIES = 10  # of tours made here
DEFAULT_INSTANCES = 2000
DEFAULT_NUM_TEST = 1000
MAX_CITIES = 200  # that integer programming solves in seconds
# keys of the random numbers of instances
INSTANCE_KEY = 4
INSTANCE_SPLIT_KEYS: dict[Split, int] = {"test": 0, "train": 1, "val": 2}
POINT_FACTS = {
    "first_fixed": True,
    "mean": 0.5,
    "std": 12**-0.5,  # of the uniform distribution on [0, 1]
    "encoder": {"_target_": "blackout.networks.PointEncoder"},
}


class Tours(Puzzles):
    """Uniform points [n, 2] in the unit square, whose right order is the shortest tour.

    The direction of the tour is counter-clockwise.

    The tour starts in a random city, which is known. Unlike in the paper the direction is fixed, by
    geometry, because an order of indices would be lost in the shuffle. Up to 13 cities every puzzle
    is new. With more cities there are `instances` of them, each solved when it is first needed.
    They are shown from random cities, in the eight symmetries of the square.

    Args:
        cities: n.
        instances: number of training tours with more than 13 cities.
        num_test: number of validation and of test tours.
        seed: of everything random.

    Raises:
        ValueError: cities outside 3..200, or no instances.

    References: Zhang et al. 2025, section 4.3.
    """

    def __init__(self, cities: int, instances: int, num_test: int, seed: int) -> None:
        ensure(3 <= cities <= MAX_CITIES, f"tsp: cities must be 3..{MAX_CITIES}, not {cities}")
        ensure(instances >= 1, f"tsp: instances must be at least 1, not {instances}")
        self._instances = instances
        self._solved: dict[tuple[Split, int], Tensor] = {}
        super().__init__(
            name="tsp",
            kind="points",
            num_items=cities,
            item_shape=(2,),
            num_test=num_test,
            seed=seed,
            facts=POINT_FACTS,
        )

    def convert_units(self, items: Tensor) -> Tensor:
        """Return points of a file as they are: they must be in the unit square.

        Raises:
            ValueError: points outside.
        """
        low, high = (float(end) for end in items.aminmax())
        message = f"points must be in the unit square, as the model's are, not {low:g}..{high:g}"
        ensure(low >= 0 and high <= 1, message)
        return items

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return the points [b, n, 2] of the puzzles in the order of their shortest tours."""
        if self.num_items <= MAX_HELD_KARP_CITIES:
            return {"items": self._make_tours(len(index), streams)}
        if split != "train":
            return {"items": self._stored_tours(split, index)}
        instance = draw_integers(streams, (len(index),), self._instances)
        return {"items": _apply_symmetry(self._stored_tours(split, instance), streams)}

    def _make_tours(self, size: int, streams: StepStreams) -> Tensor:
        """Draw points [size, n, 2], in the order of their shortest tours from a random city."""
        n = self.num_items
        points = streams.next_draw().uniform((size, n, 2)).float()
        start = draw_integers(streams, (size, 1), n)
        tours = shortest_tours(points).gather(1, (torch.arange(n) + start) % n)
        return rearrange(points, tours)

    def _stored_tours(self, split: Split, instances: Tensor) -> Tensor:
        """Return instances [b] of a split, [b, n, 2], solving those that are new."""
        seed = fold_seed(self.seed, INSTANCE_KEY, INSTANCE_SPLIT_KEYS[split])
        tours: list[Tensor] = []
        for instance in instances.tolist():
            if (split, instance) not in self._solved:
                streams = SampleStreams(seed, torch.tensor([instance])).step(0)
                self._solved[split, instance] = self._make_tours(1, streams)[0]
            tours.append(self._solved[split, instance])
        return torch.stack(tours)


class FileTours(StoredPuzzles):
    """Tours of a file; training tours start in random cities, in the symmetries of the square.

    Args:
        lists: points in the unit square in the order of their tours, [N, n, 2], by split.
        seed: of the puzzles.
        frame: in which the points of the file lie.
    """

    def __init__(self, lists: Mapping[Split, Tensor], seed: int, frame: Frame) -> None:
        self._frame = frame
        super().__init__("tsp", "points", lists, seed, POINT_FACTS)

    def convert_units(self, items: Tensor) -> Tensor:
        """Return points of another file, [N, n, 2], in the unit square."""
        return self._frame.to_unit_square(items)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return the points [b, n, 2] of the puzzles in the order of their tours."""
        items = super().make(split, index, streams)["items"]
        return {"items": _apply_symmetry(items, streams) if split == "train" else items}


def _apply_symmetry(points: Tensor, streams: StepStreams) -> Tensor:
    """Return tours [b, n, 2] from random cities, rotated and reflected at random.

    They are still counter-clockwise.

    References: this project; checked in tests/permutations/datasets/test_tours.py.
    """
    size, n, _ = points.shape
    quarter_turns = draw_integers(streams, (size, 1, 1), 4)
    is_reflected = draw_integers(streams, (size, 1, 1), 2) > 0
    x, y = (points - 0.5).split(1, -1)
    is_odd = quarter_turns % 2 > 0
    rotated = torch.cat([torch.where(is_odd, -y, x), torch.where(is_odd, x, y)], -1)
    rotated = rotated * torch.where(quarter_turns > 1, -1.0, 1.0)
    # a reflected tour runs clockwise, and is therefore reversed
    reflected = (rotated * torch.tensor([-1.0, 1.0])).flip(1)
    start = draw_integers(streams, (size, 1), n)
    order = (torch.arange(n) + start) % n
    return rearrange(torch.where(is_reflected, reflected, rotated) + 0.5, order)


@dataclass(frozen=True)
class Frame:
    """How points of a file lie in the unit square: (point - origin) / scale.

    Args:
        origin: two coordinates.
        scale: length that becomes 1.
    """

    origin: tuple[float, float] = (0.0, 0.0)
    scale: float = 1.0

    def to_unit_square(self, points: Tensor) -> Tensor:
        """Return points [..., 2] in the unit square, float32."""
        origin = torch.tensor(self.origin, dtype=torch.float64)
        return ((points.double() - origin) / self.scale).float()


def fit_frame(points: Tensor) -> Frame:
    """Return the frame of the points of a file: none for points in the unit square.

    Other points, such as metres, are moved and scaled alike along both axes, so that they fill the
    longer side of the square, and the middle of the shorter one.

    Args:
        points: float64 [..., 2].

    References: this project; checked in tests/permutations/datasets/test_tours.py.
    """
    flat = points.reshape(-1, 2)
    low = flat.amin(0)
    high = flat.amax(0)
    if bool((low >= 0).all() and (high <= 1).all()):
        return Frame()
    scale = float((high - low).max())
    ensure(scale > 0, "all points of the tours are equal: at least two must differ")
    x, y = ((low + high - scale) / 2).tolist()
    return Frame((x, y), scale)


@component("dataset")
def tsp(  # noqa: PLR0913 - the settings of dataset=tsp
    cities: int = DEFAULT_CITIES,
    path: StrPath | None = None,
    test_path: StrPath | None = None,
    instances: int | None = None,
    num_test: int | None = None,
    holdout: float = 0.1,
    seed: int = 0,
    validation: float = 0.1,
) -> Puzzles:
    """Return puzzles of shortest tours, made and solved here or read from a file.

    Args:
        cities: of tours made here, 3 to 200.
        path: of a file with a tour on every line, "x1 y1 x2 y2 ... output 1 5 ... 1"; None makes
            tours. Points outside the unit square are moved and scaled into it, see `fit_frame`.
        test_path: of a file with the tours for testing; None takes a share of those of `path`.
        instances: number of training tours made here with more than 13 cities, None for 2,000;
            with fewer cities their number is unlimited. Of a file the first so many, None for all.
        num_test: number of validation and of test tours made here, None for 1,000. Of a file the
            first so many, None for all.
        holdout: share of the tours of `path` for testing, without `test_path`.
        seed: of everything random.
        validation: share or number of a file's tours for validation; 0 for none.

    Raises:
        UserError: a file that is missing, damaged or impossible.
        ValueError: values out of range.

    References: Zhang et al. 2025, section 4.3.
    """
    if path is None:
        refuse(
            test_path is not None,
            "dataset.test_path needs the training tours: add dataset.path=<file>",
        )
        num_instances = DEFAULT_INSTANCES if instances is None else instances
        num_made_test = DEFAULT_NUM_TEST if num_test is None else num_test
        return Tours(cities, num_instances, num_made_test, seed)
    for name, value in (("instances", instances), ("num_test", num_test)):
        ensure(
            value is None or (type(value) is int and value >= 1),
            f"tsp: {name} must be a whole number of at least 1, or null, not {value}",
        )
    # 1. The tours of the files, which are all seen through the frame of the training points.
    file = Path(path).expanduser()
    points, tours = read_tours(file)
    _check_cities(file, points, cities)
    with error_context(str(file)):
        frame = fit_frame(points)
    if frame != Frame():
        x, y = frame.origin
        change = f"moved by ({-x:g}, {-y:g}) and divided by {frame.scale:g}"
        message = f"points of {file.name} are {change}, into the unit square"
        warnings.warn(Note(message), stacklevel=2)

    # 2. The splits.
    items = _order_points(frame, points, tours)
    if test_path is None:
        lists = split_at_random(items, validation, holdout, seed)
    else:
        test_file = Path(test_path).expanduser()
        test_points, test_tours = read_tours(test_file)
        _check_cities(test_file, test_points, points.shape[1])
        train, val = _take_validation(items, validation, seed)
        lists = {"train": train, "val": val, "test": _order_points(frame, test_points, test_tours)}
    sizes: dict[Split, int | None] = {"train": instances, "val": num_test, "test": num_test}
    return FileTours({split: lists[split][: sizes[split]] for split in lists}, seed, frame)


def _take_validation(items: Tensor, validation: float, seed: int) -> tuple[Tensor, Tensor]:
    """Divide training tours [N, ...] into those that are trained on and those for validation."""
    num_validation = validation_size(validation, len(items))
    if num_validation == 0:
        return items, items[:0]
    train, val = take_validation(len(items), num_validation, seed)
    return items[train], items[val]


def _check_cities(file: Path, points: Tensor, cities: int) -> None:
    """Refuse a number of cities that a file's tours do not have."""
    num_cities = points.shape[1]
    is_other = cities not in (DEFAULT_CITIES, num_cities)
    refuse(
        is_other, f"{file}: its tours have {num_cities} cities: leave out dataset.cities={cities}"
    )


def _order_points(frame: Frame, points: Tensor, tours: Tensor) -> Tensor:
    """Return points [N, n, 2] in the unit square, in the counter-clockwise order of their tours."""
    inside = frame.to_unit_square(points)
    return rearrange(inside, counter_clockwise(inside, tours))


def read_tours(path: Path) -> tuple[Tensor, Tensor]:
    """Read tours, one per line: "x1 y1 x2 y2 ... output 1 5 ... 1".

    Cities count from 1, and the first comes twice.

    Returns:
        Points float64 [N, n, 2] and tours int64 [N, n] from point 0.

    Raises:
        UserError: an unreadable file, or a line that is no tour; the message names the line.
    """
    refuse(not path.is_file(), f"{path}: no such file")
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    refuse(len(lines) < 2, f"{path}: at least two tours are needed, found {len(lines)}")
    points: list[list[float]] = []
    tours: list[list[int]] = []
    for number, line in enumerate(lines, 1):
        with error_context(f"{path}: line {number}"):
            coordinates, tour = _parse_tour(line)
        if points and len(tour) != len(tours[0]):
            raise UserError(
                f"{path}: line {number}: tours must have {len(tours[0])} cities, as in line 1, "
                f"not {len(tour)}"
            )
        points.append(coordinates)
        tours.append(tour)
    all_points = torch.tensor(points, dtype=torch.float64).view(len(points), -1, 2)
    return all_points, torch.tensor(tours)


def _parse_tour(line: str) -> tuple[list[float], list[int]]:
    """Return the coordinates of a line, and its tour from city 0.

    Raises:
        ValueError: the line is no tour.
    """
    points_text, keyword, tour_text = line.partition("output")
    ensure(
        keyword,
        "the word 'output' is missing: a line must be `x1 y1 x2 y2 ... output 1 5 ... 1`",
    )
    ensure("_" not in line, "numbers must not have an underscore")
    coordinates = [float(number) for number in points_text.split()]
    tour = [int(city) - 1 for city in tour_text.split()]
    are_finite = bool(torch.tensor(coordinates).isfinite().all())
    if len(coordinates) < 6 or len(coordinates) % 2 or not are_finite:
        raise ValueError(
            "two finite coordinates of at least three cities are needed, "
            f"found {len(coordinates)} numbers"
        )
    n = len(coordinates) // 2
    if len(tour) == n + 1 and tour[0] == tour[-1]:
        tour = tour[:-1]
    if len(tour) != n or not bool(is_permutation(torch.tensor(tour))):
        raise ValueError(f"after 'output' each city 1..{n} must occur once, and the first again")
    start = tour.index(0)
    return coordinates, tour[start:] + tour[:start]
