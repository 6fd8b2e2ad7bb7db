"""Batches of a user's own DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blackout.diffusion.user_batches import read_batch
from blackout.errors import UserError

COUNTS = torch.tensor([[0, 3], [5, 1], [2, 2]])


def test_counts_and_labels_are_named() -> None:
    labels = torch.tensor([0, 2, 1])
    batch = read_batch((COUNTS, labels), (2,), 5, num_classes=3)
    assert torch.equal(batch["x0"], COUNTS) and torch.equal(batch["label"], labels)
    assert read_batch(COUNTS, (2,), 5, num_classes=3).keys() == {"x0"}


def test_models_without_classes_ignore_labels() -> None:
    assert "label" in read_batch((COUNTS, torch.zeros(7)), (2,), 5)


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        (torch.tensor([0, 3, 1]), r"in 0\.\.2, not 0\.\.3"),
        (torch.tensor([0, -1, 1]), r"not -1\.\.1"),
        (torch.tensor([0, 1]), r"one per sample, not torch\.int64 \[2\]"),
        (torch.tensor([0.0, 1.0, 2.0]), r"not torch\.float32 \[3\]"),
        (["a", "b", "c"], "not list"),
    ],
)
def test_labels_that_are_no_classes_of_the_model_are_refused(label: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_batch({"x0": COUNTS, "label": label}, (2,), 5, num_classes=3)


def test_counts_out_of_range_are_refused_with_their_range() -> None:
    with pytest.raises(UserError, match=r"counts in 0\.\.4, not 0\.\.5"):
        read_batch(COUNTS, (2,), 4)
