"""Files of tours and votes in other units, or with other sizes than they state."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.data.findings import Note
from blackout.errors import UserError
from blackout.permutations.coded import permutations
from blackout.permutations.datasets import items, read_puzzles
from blackout.permutations.metrics import tour_length
from blackout.permutations.tours import Frame, fit_frame, shortest_tours, tsp

POINTS = torch.rand(30, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def write_tours(path: Path, points: torch.Tensor) -> Path:
    lines = []
    for cities, tour in zip(points.tolist(), shortest_tours(points).tolist(), strict=True):
        numbers = " ".join(repr(number) for city in cities for number in city)
        lines.append(f"{numbers} output {' '.join(str(k + 1) for k in [*tour, tour[0]])}")
    path.write_text("\n".join(lines))
    return path


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
        read_puzzles(tmp_path / "metres.npz", tsp(6, held_out=2))


def test_tours_to_test_on_have_a_file_of_their_own(tmp_path: Path) -> None:
    """As published: all tours of one file are trained on, and the first of the other are judged."""
    train_path = write_tours(tmp_path / "train.txt", POINTS[:8])
    test_path = write_tours(tmp_path / "test.txt", POINTS[8:])
    source = tsp(path=train_path, test_path=test_path, validation=0, instances=5, held_out=2)
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
    held_out = source.batch("test", torch.arange(source.held_out))["items"]
    assert torch.isin(held_out.flatten(), POINTS.float().flatten()).all()
    narrow = torch.tensor([[[0.0, 10.0], [100.0, 20.0], [50.0, 30.0]]]).double()
    assert fit_frame(narrow) == Frame((0.0, -30.0), 100.0)
    with pytest.raises(UserError, match="its tours have 6"):
        tsp(path=path, cities=9)
    with pytest.raises(UserError, match=r"test_path needs dataset\.path"):
        tsp(test_path=path)
    path.write_text(path.read_text().replace("output", "1_0 output", 1))
    with pytest.raises(UserError, match="line 1: numbers must not have an underscore"):
        tsp(path=path)


def test_stated_sizes_of_votes_are_compared_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.soc"
    names = "".join(f"# ALTERNATIVE NAME {k}: {k}\n" for k in (1, 2, 3))
    votes = "4: 1,2,3\n6: 3,2,1\n"
    path.write_text(
        f"# NUMBER ALTERNATIVES: 3\n# NUMBER VOTERS: 10\n# NUMBER UNIQUE ORDERS: 2\n{names}{votes}"
    )
    assert permutations(path).train_size == 8
    for line, message in (
        ("VOTERS: 11", "states 11 voters, but has 10"),
        ("UNIQUE ORDERS: 3", "but has 2"),
    ):
        path.write_text(f"# NUMBER {line}\n{names}{votes}")
        with pytest.raises(UserError, match=message):
            permutations(path)


def test_numbers_that_lose_digits_are_refused_and_unused_arrays_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, items=20_000_000 + np.arange(40).reshape(8, 5))
    with pytest.raises(UserError, match="lose digits"):
        items(path)
    np.savez(path, items=np.arange(40).reshape(8, 5), weights=np.ones(8))
    with pytest.warns(Note, match="not used of this file: weights"):
        items(path)
