"""One thread per process unless OMP_NUM_THREADS says otherwise.

The tensors are tiny, and threads of two processes on few cores slow each other down.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from blackout.data import CountData

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def seed_torch() -> None:
    """Seed PyTorch's generator, so that no test depends on the tests before it."""
    # imported here, since the controller of pytest-xdist needs no PyTorch
    import torch

    torch.manual_seed(0)


@pytest.fixture
def numbered() -> CountData:
    """A dataset of 23 training, 7 validation and 9 test images [1, 2, 3].

    Training and test image k is filled with k, validation image k with k + 20. The left column of
    training images is 30.
    """
    import torch

    from blackout.data import CountData

    train = torch.arange(23).view(-1, 1, 1, 1).expand(23, 1, 2, 3).clone()
    test = torch.arange(9).view(-1, 1, 1, 1).expand(9, 1, 2, 3).clone()
    train[..., 0] = 30
    val = torch.arange(20, 27).view(-1, 1, 1, 1).expand(7, 1, 2, 3).clone()
    labels = [torch.arange(size) % 3 for size in (23, 7, 9)]
    return CountData(
        "numbered", train, test, 30, labels[0], labels[2], val=val, val_labels=labels[1]
    )
