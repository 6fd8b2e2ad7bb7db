"""Tours that are made and solved here, or read from files."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.data.findings import Note
from blackout.errors import UserError
from blackout.permutations.datasets import read_puzzles, tsp
from blackout.permutations.datasets.tours import Frame, fit_frame, read_tours
from blackout.permutations.metrics import rearrange, tour_length
from blackout.permutations.tours import shortest_tours

POINTS = torch.rand(30, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def write_tours(path: Path, points: torch.Tensor) -> Path:
    lines = []
    for cities, tour in zip(points.tolist(), shortest_tours(points).tolist(), strict=True):
        numbers = " ".join(repr(number) for city in cities for number in city)
        lines.append(f"{numbers} output {' '.join(str(k + 1) for k in [*tour, tour[0]])}")
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("cities", [6, 14])
def test_tours_run_counter_clockwise_from_any_city(cities):
    items_in_order = tsp(cities, instances=3, num_test=4).batch("train", torch.arange(6))["items"]
    x, y = items_in_order.unbind(-1)
    assert ((x * y.roll(-1, 1) - x.roll(-1, 1) * y).sum(1) > 0).all()
    if cities == 6:
        solved = rearrange(items_in_order, shortest_tours(items_in_order))
        torch.testing.assert_close(tour_length(solved), tour_length(items_in_order))


def test_tours_are_read_from_a_file(tmp_path):
    points = torch.rand(10, 5, 2, generator=torch.Generator().manual_seed(2))
    tours = shortest_tours(points)
    lines = [
        " ".join(f"{x!r} {y!r}" for x, y in cities)
        + " output "
        + " ".join(str(k + 1) for k in [*tour, 0])
        for cities, tour in zip(points.tolist(), tours.tolist(), strict=True)
    ]
    (tmp_path / "tours.txt").write_text("\n".join(lines))
    data = read_tours(tmp_path / "tours.txt")
    assert torch.equal(data[0], points) and torch.equal(data[1], tours)
    source = tsp(path=tmp_path / "tours.txt")
    assert source.num_items == 5 and source.batch("train", torch.arange(9))["items"].shape == (
        9,
        5,
        2,
    )
    for line, word in (
        ("0 0 1 1 1 0 output 1 2 2 1", "once"),
        ("0 0 1 1 output 1 2 1", "three"),
        ("0 0 1 x 1 0 output 1 2 3 1", "line 2"),
        ("0 0 1 1 1 0", "output"),
    ):
        (tmp_path / "bad.txt").write_text(f"0 0 1 1 1 0 output 1 2 3 1\n{line}\n")
        with pytest.raises(UserError, match=word):
            tsp(path=tmp_path / "bad.txt")
    with pytest.raises(UserError, match=r"not\.txt: no such file"):
        tsp(path=tmp_path / "not.txt")


def test_points_in_metres_are_scaled_into_the_unit_square(tmp_path: Path) -> None:
    """Both axes have the same scale, so that the tours keep their shape."""
    metres = POINTS * 5000 + torch.tensor([500_000.0, 5_000_000.0])
    path = write_tours(tmp_path / "metres.txt", metres)
    with pytest.warns(Note, match="into the unit square"):
        source = tsp(path=path)
    frame = fit_frame(metres)
    train = source.batch("train", torch.arange(200))["items"]
    assert -1e-6 <= float(train.min()) < 0.01 and 0.99 < float(train.max()) <= 1 + 1e-6
    lengths = tour_length(train).double()
    cities_in_order = metres.gather(1, shortest_tours(metres).unsqueeze(-1).expand(-1, -1, 2))
    expected = tour_length(cities_in_order).double() / frame.scale
    assert float((lengths[:, None] - expected).abs().amin(1).max()) < 1e-5
    np.savez(tmp_path / "metres.npz", items=metres.numpy())
    read = read_puzzles(tmp_path / "metres.npz", source)["items"]
    torch.testing.assert_close(read, frame.to_unit_square(metres))
    with pytest.raises(UserError, match=r"metres\.npz: points must be in the unit square"):
        read_puzzles(tmp_path / "metres.npz", tsp(6, num_test=2))


@pytest.mark.parametrize("sizes", [{"instances": -5}, {"instances": 0}, {"num_test": 1.5}])
def test_numbers_of_tours_of_a_file_are_positive(tmp_path: Path, sizes) -> None:
    """Negative ones do not count from the end."""
    path = write_tours(tmp_path / "tours.txt", POINTS)
    with pytest.raises(ValueError, match="must be a whole number of at least 1, or null"):
        tsp(path=path, **sizes)


def test_tours_to_test_on_have_a_file_of_their_own(tmp_path: Path) -> None:
    """As published: all tours of one file are trained on, and the first of the other are judged."""
    train_path = write_tours(tmp_path / "train.txt", POINTS[:8])
    test_path = write_tours(tmp_path / "test.txt", POINTS[8:])
    source = tsp(path=train_path, test_path=test_path, validation=0, instances=5, num_test=2)
    assert (source.size("val"), source.size("test")) == (0, 2)
    test_tours = source.batch("test", torch.arange(2))["items"].double()
    torch.testing.assert_close(test_tours.sort(1).values, POINTS[8:10].sort(1).values)
    lengths = {round(float(length), 4) for length in tour_length(test_tours)}
    trained = source.batch("train", torch.arange(200))["items"]
    trained_lengths = {round(float(length), 4) for length in tour_length(trained)}
    assert len(trained_lengths) == 5 and not lengths & trained_lengths
    divided = tsp(path=train_path, test_path=test_path, validation=2)
    assert (divided.size("val"), divided.size("test")) == (2, len(POINTS) - 8)


def test_points_in_the_unit_square_are_not_scaled(tmp_path: Path) -> None:
    path = write_tours(tmp_path / "x.txt", POINTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = tsp(path=path)
    assert fit_frame(POINTS) == Frame()
    held_out = source.batch("test", torch.arange(source.num_test))["items"]
    assert torch.isin(held_out.flatten(), POINTS.float().flatten()).all()
    narrow = torch.tensor([[[0.0, 10.0], [100.0, 20.0], [50.0, 30.0]]]).double()
    assert fit_frame(narrow) == Frame((0.0, -30.0), 100.0)
    with pytest.raises(UserError, match="its tours have 6"):
        tsp(path=path, cities=9)
    with pytest.raises(UserError, match=r"test_path needs the training tours"):
        tsp(test_path=path)
    path.write_text(path.read_text().replace("output", "1_0 output", 1))
    with pytest.raises(UserError, match="line 1: numbers must not have an underscore"):
        tsp(path=path)
