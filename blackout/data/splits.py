"""Held-out splits: at random by class, and by whole groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.errors import ensure


def held_out_split(count: int, holdout: float, seed: int = 0, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Divide the indices 0..count-1 at random into a training and a held-out set.

    The samples are shuffled, sorted by class, and every (1/holdout)-th is held out: each class keeps its share to
    within one sample, and `round(holdout * count)` samples are held out (at least 1, at most count - 1). Ours, tested
    in `tests/data/test_splits.py`.

    Args:
        count: number of samples; a single one is in both splits.
        holdout: share to hold out, between 0 and 1, both excluded.
        seed: seed of the shuffle.
        labels: class of each sample, [count]; None for a single class.

    Returns:
        Indices (train, test), int64, each in increasing order.

    Raises:
        ValueError: a share outside (0, 1), or no sample.
    """
    ensure(0 < holdout < 1, f"holdout must be a share between 0 and 1 (both excluded), got {holdout}")
    ensure(count >= 1, "at least one sample is needed, got none")
    if count == 1:
        return torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    if labels is not None:
        order = order[torch.argsort(labels[order], stable=True)]
    held = min(max(round(holdout * count), 1), count - 1)
    chosen = torch.zeros(count, dtype=torch.bool)
    # the middles of `held` equal stretches; in integers, so that rounding can never make two of them meet
    chosen[order[(2 * torch.arange(held) + 1) * count // (2 * held)]] = True
    return torch.nonzero(~chosen).flatten(), torch.nonzero(chosen).flatten()


def group_split(groups: npt.NDArray[Any], holdout: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of training and held-out samples, no group in both: whole groups are held out, in random order.

    Ours (tests/data/test_stores.py).

    Args:
        groups: [N], text or numbers, of at least two kinds.
        holdout: share of the samples that the held-out groups reach, as nearly as whole groups can.
        seed: of the order.

    Raises:
        ValueError: a share outside (0, 1), or one group.
    """
    ensure(0 < holdout < 1, f"holdout must be a share between 0 and 1 (both excluded), got {holdout}")
    kinds, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    ensure(len(kinds) >= 2, "one group cannot be divided: at least 2 are needed to hold one out")
    order = np.random.default_rng(seed).permutation(len(kinds))
    reached = np.cumsum(sizes[order])
    number = int(np.abs(reached[:-1] - holdout * len(codes)).argmin()) + 1
    held = torch.from_numpy(np.isin(codes, order[:number]))
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()
