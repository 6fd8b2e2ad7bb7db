"""Training, validation and test data: at random by class, by whole groups, or the last of an official split."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.errors import ensure


class SplitRows(NamedTuple):
    """Numbers of the samples of each split, int64, in increasing order."""

    train: Tensor
    val: Tensor
    test: Tensor


def split_samples(
    count: int, validation: float, holdout: float, seed: int = 0, labels: Tensor | None = None
) -> SplitRows:
    """Divide the indices 0..count-1 at random into training, validation and test data, every class alike.

    The test data are those of `held_out_split`, whatever the validation data are, which are divided from the rest in
    the same way.

    Args:
        count: number of samples; a single one is in all splits.
        validation: share or number of all samples for validation, see `validation_size`; 0 for none.
        holdout: share of all samples for the test, between 0 and 1, both excluded.
        seed: seed of the choice.
        labels: class of each sample, [count]; None for a single class.

    Warns:
        UserWarning: there are too few samples for three splits.

    Raises:
        ValueError: shares out of range, or no sample is left to train on.
    """
    rest, test = held_out_split(count, holdout, seed, labels)
    number = validation_size(validation, count)
    if number == 0:
        return SplitRows(rest, rest[:0], test)
    if count == 1:
        warnings.warn("there is one sample: it is training, validation and test data", stacklevel=2)
        return SplitRows(rest, rest, test)
    train, val = take_validation(len(rest), number, seed, None if labels is None else labels[rest])
    return SplitRows(rest[train], rest[val], test)


def take_validation(count: int, number: int, seed: int = 0, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Divide `count` training samples at random into those that stay and `number` validation samples.

    Args:
        count: number of samples; a single one is training and validation data.
        number: of validation samples, 1 .. count - 1.
        seed: seed of the choice.
        labels: class of each sample, [count]; every class keeps its share.

    Returns:
        Indices (train, val), int64, each in increasing order.

    Warns:
        UserWarning: there is one sample.

    Raises:
        ValueError: another number.
    """
    if count == number == 1:
        warnings.warn("there is one training sample: it is validation data, too", stacklevel=2)
        return torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    told = f"validation must leave a sample to train on: {number:,} of {count:,} training samples"
    ensure(1 <= number < count, told)
    return held_out_split(count, number / count, seed, labels)


def validation_size(validation: float, count: int) -> int:
    """How many of `count` samples are taken for validation.

    Args:
        validation: a share below 1, of which at least one sample is taken unless it is 0, or a whole number of samples.
        count: number of samples.

    Raises:
        ValueError: a negative number, or one that is neither a share nor whole.
    """
    known = isinstance(validation, int | float) and not isinstance(validation, bool)
    if not known or not 0 <= validation < count or (validation >= 1 and validation != int(validation)):
        allowed = f"a share below 1, or a whole number of samples below {count:,}; 0 for none"
        raise ValueError(f"validation must be {allowed}, not {validation!r}")
    if validation >= 1 or validation == 0:
        return int(validation)
    return max(1, round(validation * count))


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


def split_groups(groups: npt.NDArray[Any], validation: float, holdout: float, seed: int) -> SplitRows:
    """Numbers of training, validation and test samples, no group in two of them: whole groups, in random order.

    The test data are the same whatever the validation data are. Ours (tests/data/test_stores.py).

    Args:
        groups: [N], text or numbers, of at least two kinds.
        validation: share or number of all samples that the validation groups reach, as nearly as whole groups can; 0
            for none.
        holdout: share of all samples that the test groups reach, likewise.
        seed: of the order.

    Warns:
        UserWarning: one group is left after the test groups: then there are no validation data.

    Raises:
        ValueError: shares out of range, or one group.
    """
    ensure(0 < holdout < 1, f"holdout must be a share between 0 and 1 (both excluded), got {holdout}")
    number = validation_size(validation, len(groups))
    kinds, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    ensure(len(kinds) >= 2, "one group cannot be divided: at least 2 are needed to hold one out")
    order = np.random.default_rng(seed).permutation(len(kinds))
    # 1. test data: the first groups of the order
    held = _leading_groups(sizes[order], holdout * len(codes))
    test, rest = order[:held], order[held:]
    # 2. validation data: the next groups, unless a single one is left
    held = _leading_groups(sizes[rest], number) if number and len(rest) > 1 else 0
    if number and not held:
        warnings.warn(f"there are no validation data: of {len(kinds)} groups one is left to train on", stacklevel=2)
    val, train = rest[:held], rest[held:]
    rows = (torch.from_numpy(np.flatnonzero(np.isin(codes, chosen))) for chosen in (train, val, test))
    return SplitRows(*rows)


def _leading_groups(sizes: npt.NDArray[Any], target: float) -> int:
    """How many of the first groups, of these sizes, come nearest to a number of samples; at least 1, and not all."""
    reached = np.cumsum(sizes)
    return int(np.abs(reached[:-1] - target).argmin()) + 1
