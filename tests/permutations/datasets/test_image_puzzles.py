"""Jigsaws and lists of handwritten numbers."""

from __future__ import annotations

import torch

from blackout.permutations.datasets import jigsaw_digits, sort_digits


def test_jigsaws_are_cropped_and_cut_row_by_row():
    source = jigsaw_digits(pieces=3)
    images = source._images.test[:4].float() / 16
    cut = source.batch("test", torch.arange(4))["items"]
    assert cut.shape == (4, 9, 1, 2, 2)
    assert torch.equal(cut[:, 5, 0], images[:, 0, 2:4, 4:6])


def test_sorted_numbers_rise_and_their_ties_are_known():
    batch = sort_digits(length=30, digits=1, num_test=3).batch("test", torch.arange(3))
    values = batch["values"]
    assert (values[:, 1:] >= values[:, :-1]).all()
    assert torch.equal(values.gather(1, batch["ties"]), values)
    assert (
        (batch["ties"][:, 1:] == batch["ties"][:, :-1]) == (values[:, 1:] == values[:, :-1])
    ).all()
