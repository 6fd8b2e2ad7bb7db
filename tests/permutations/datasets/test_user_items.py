"""Lists of items and puzzles in files of the user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.data.findings import Note
from blackout.errors import UserError
from blackout.permutations.datasets import items, jigsaw_digits, read_puzzles


def test_every_list_of_a_file_is_in_one_split(tmp_path):
    np.savez(tmp_path / "lists.npz", items=np.arange(60).reshape(20, 3))
    source = items(tmp_path / "lists.npz", holdout=0.2, validation=0.1)
    sets = {
        split: set(source.batch(split, torch.arange(number))["items"].flatten().tolist())
        for split, number in (("train", 400), ("val", 2), ("test", 4))
    }
    assert sorted(map(len, sets.values())) == [6, 12, 42] and len(set.union(*sets.values())) == 60
    assert items(tmp_path / "lists.npz", validation=0).size("val") == 0


def test_items_and_puzzles_of_the_user_are_read(tmp_path):
    values = np.random.default_rng(0).normal(size=(20, 5, 3))
    np.savez(tmp_path / "mine.npz", items=values)
    source = items(tmp_path / "mine.npz")
    assert source.kind == "items" and source.num_items == 5 and source.size("test") == 2
    digits = jigsaw_digits()
    counts = np.random.default_rng(0).integers(0, 17, size=(3, 4, 4, 4))
    np.savez(tmp_path / "cut.npz", items=counts)
    puzzles = read_puzzles(tmp_path / "cut.npz", digits)["items"]
    np.testing.assert_allclose(puzzles.numpy(), counts[:, :, None] / 16)
    for invalid, word in (
        (counts[:, :3], "must be"),
        (counts * 100, "reach"),
        (np.full((1, 4, 4, 4), np.nan), "finite"),
    ):
        np.savez(tmp_path / "bad.npz", items=invalid)
        with pytest.raises(UserError, match=word):
            read_puzzles(tmp_path / "bad.npz", digits)


def test_numbers_that_lose_digits_are_refused_and_unused_arrays_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, items=20_000_000 + np.arange(40).reshape(8, 5))
    with pytest.raises(UserError, match="lose digits"):
        items(path)
    np.savez(path, items=np.arange(40).reshape(8, 5), weights=np.ones(8))
    with pytest.warns(Note, match="not used of this file: weights"):
        items(path)
