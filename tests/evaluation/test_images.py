"""Conversion of counts to images of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blackout.errors import UserError
from blackout.evaluation import to_uint8
from blackout.evaluation.extractors import to_rgb


@pytest.mark.parametrize("max_count", [1, 2, 16, 100, 254, 255, 256, 1000, 65535])
def test_every_count_is_mapped_to_the_nearest_grey_level(max_count: int) -> None:
    counts = torch.arange(max_count + 1, dtype=torch.int32)
    expected = np.floor(255 * counts.numpy().astype(np.float64) / max_count + 0.5)
    grey = to_uint8(counts, max_count)
    assert grey.dtype is torch.uint8
    assert (grey.numpy() == expected).all()


def test_bytes_and_bits_are_mapped_exactly() -> None:
    counts = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_uint8(counts, 255), counts)
    assert to_uint8(torch.tensor([0, 1]), 1).tolist() == [0, 255]


@pytest.mark.parametrize(
    ("counts", "max_count", "message"),
    [
        (torch.tensor([0.5]), 255, "float32"),
        (torch.tensor([float("nan")]), 255, "float32"),
        (torch.tensor([True]), 1, "bool"),
        (torch.tensor([-1, 3]), 255, r"from -1 to 3"),
        (torch.tensor([17], dtype=torch.uint8), 16, r"from 17 to 17"),
        (torch.tensor([300]), 255, r"0\.\.255"),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), 255, "empty"),
        (torch.tensor([0]), 0, "max_count"),
    ],
)
def test_invalid_counts_are_refused(counts: torch.Tensor, max_count: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        to_uint8(counts, max_count)


def test_grey_images_are_repeated_and_other_channels_refused() -> None:
    grey = torch.randint(0, 256, (2, 1, 4, 5), dtype=torch.uint8)
    assert torch.equal(to_rgb(grey), grey.repeat(1, 3, 1, 1))
    for shape in [(2, 2, 4, 4), (3, 4, 4), (2, 16)]:
        with pytest.raises(UserError, match="shape"):
            to_rgb(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(UserError, match="uint8"):
        to_rgb(torch.zeros(2, 3, 4, 4, dtype=torch.int32))
