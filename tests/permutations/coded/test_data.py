"""Puzzles as permutations with contexts."""

from __future__ import annotations

import torch

from blackout.permutations.coded.data import data_from_puzzles
from blackout.permutations.datasets import jigsaw_digits
from blackout.permutations.metrics import rearrange


def test_puzzles_become_permutations_that_solve_them():
    puzzles = jigsaw_digits(2, num_test=12)
    source = data_from_puzzles(puzzles)
    batch = source.batch("train", torch.arange(8))
    puzzle_batch = puzzles.batch("train", torch.arange(8))
    assert torch.equal(rearrange(batch["items"], batch["x"]), puzzle_batch["items"])
    test = source.batch("test", torch.arange(12))
    scores = source.sample_scores({"samples": test["x"], "target": test["x"], **test})
    assert float(scores["accuracy"].mean()) == 1
    assert source.facts["item_shape"] == [1, 4, 4] and source.size("train") is None
