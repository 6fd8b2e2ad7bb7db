"""Training, validation and test data: at random by class, or by whole groups."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.findings import Finding
from blackout.errors import ensure

DEFAULT_HOLDOUT = 0.1  # fraction of the samples for the test
DEFAULT_VALIDATION = 0.1  # fraction of the samples for validation


class SplitRows(NamedTuple):
    """Numbers of the samples of each split, int64, increasing."""

    train: Tensor
    val: Tensor
    test: Tensor


def split_samples(
    count: int,
    validation: float,
    holdout: float,
    seed: int = 0,
    labels: Tensor | None = None,
) -> SplitRows:
    """Divide the indices 0, ..., count - 1 at random, with equal fractions of every class.

    The test samples are those of `held_out_split`, whatever `validation` is. Validation samples are
    divided from the rest in the same way.

    Args:
        count: number of samples; a single one is in all splits.
        validation: fraction or number of all samples for validation, see `validation_size`; 0 for
            none.
        holdout: fraction of all samples for the test, between 0 and 1, both excluded.
        seed: of the random order.
        labels: class of each sample, [count]; None for a single class.

    Warns:
        UserWarning: there is one sample.

    Raises:
        ValueError: a fraction out of range, or no sample left to train on.

    Example:
        >>> rows = split_samples(100, validation=0.1, holdout=0.2)
        >>> [len(split) for split in rows]
        [70, 10, 20]
    """
    rest, test = held_out_split(count, holdout, seed, labels)
    num_validation = validation_size(validation, count)
    if num_validation == 0:
        return SplitRows(rest, rest[:0], test)
    if count == 1:
        message = "there is only one sample: it is used for training, validation and test"
        warnings.warn(Finding(message), stacklevel=2)
        return SplitRows(rest, rest, test)
    rest_labels = None if labels is None else labels[rest]
    train, val = take_validation(len(rest), num_validation, seed, rest_labels)
    return SplitRows(rest[train], rest[val], test)


def take_validation(
    count: int,
    num_validation: int,
    seed: int = 0,
    labels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Divide training samples at random into training and validation samples.

    Args:
        count: number of samples; a single one is in both splits.
        num_validation: number of validation samples, 1, ..., count - 1.
        seed: of the random order.
        labels: class of each sample, [count]; every class keeps its fraction.

    Returns:
        Indices (train, val), int64, increasing.

    Warns:
        UserWarning: there is one sample.

    Raises:
        ValueError: another number of validation samples.
    """
    if count == num_validation == 1:
        message = "there is only one training sample: it is used for validation, too"
        warnings.warn(message, stacklevel=2)
        return torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    counts = f"{num_validation:,} of {count:,} training samples"
    is_possible = 1 <= num_validation < count
    message = "validation must leave at least one sample to train on"
    ensure(is_possible, f"{message}, not take {counts}: use a smaller dataset.validation")
    return held_out_split(count, num_validation / count, seed, labels)


def validation_size(validation: float, count: int) -> int:
    """Return how many of `count` samples are for validation.

    Args:
        validation: a fraction below 1, which gives at least one sample unless it is 0, or a whole
            number.
        count: number of samples.

    Raises:
        ValueError: a negative number, or one that is neither a fraction nor whole.
    """
    is_number = isinstance(validation, int | float) and not isinstance(validation, bool)
    is_valid = is_number and 0 <= validation < count
    if not is_valid or (validation >= 1 and validation != int(validation)):
        allowed = f"a fraction below 1, or a whole number of samples below {count:,}; 0 for none"
        raise ValueError(f"validation must be {allowed}, not {validation!r}")
    if validation >= 1 or validation == 0:
        return int(validation)
    return max(1, round(validation * count))


def held_out_split(
    count: int,
    holdout: float,
    seed: int = 0,
    labels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Divide the indices 0, ..., count - 1 at random into training and held-out samples.

    The samples are shuffled and sorted by class, and every (1/holdout)-th is held out. So each
    class keeps its fraction to within one sample, and `round(holdout * count)` samples are held
    out, at least 1 and at most count - 1.

    Args:
        count: number of samples; a single one is in both splits.
        holdout: fraction to hold out, between 0 and 1, both excluded.
        seed: of the random order.
        labels: class of each sample, [count]; None for a single class.

    Returns:
        Indices (train, test), int64, increasing.

    Raises:
        ValueError: a fraction outside (0, 1), or no sample.

    References: this project; checked in tests/data/test_splits.py.
    """
    _check_holdout(holdout)
    ensure(count >= 1, "at least one sample is needed")
    if count == 1:
        return torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    if labels is not None:
        order = order[torch.argsort(labels[order], stable=True)]
    num_test = min(max(round(holdout * count), 1), count - 1)
    # centres of `num_test` equal stretches, in integers, so that no two are equal by rounding
    centers = (2 * torch.arange(num_test) + 1) * count // (2 * num_test)
    is_test = torch.zeros(count, dtype=torch.bool)
    is_test[order[centers]] = True
    return torch.nonzero(~is_test).flatten(), torch.nonzero(is_test).flatten()


def split_groups(
    groups: npt.NDArray[Any],
    validation: float,
    holdout: float,
    seed: int,
) -> SplitRows:
    """Divide samples by whole groups in random order, so that no group is in two splits.

    The test samples are the same whatever `validation` is.

    Args:
        groups: group of each sample, text or numbers [N], at least two different ones.
        validation: fraction or number of all samples that the validation groups should reach; 0 for
            none.
        holdout: fraction of all samples that the test groups should reach.
        seed: of the random order.

    Warns:
        UserWarning: one group is left after the test groups, so that there are no validation data.

    Raises:
        ValueError: a fraction out of range, or one group only.

    References: this project; checked in tests/data/test_stores.py.
    """
    _check_holdout(holdout)
    num_validation = validation_size(validation, len(groups))
    names, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    message = "one group cannot be divided: at least 2 are needed to hold one out"
    ensure(len(names) >= 2, f"{message}; leave out dataset.group, or choose another column")
    order = np.random.default_rng(seed).permutation(len(names))

    # 1. Test data: the first groups of the order.
    num_groups = _num_leading_groups(sizes[order], holdout * len(codes))
    test = order[:num_groups]
    rest = order[num_groups:]

    # 2. Validation data: the next groups, unless a single one is left.
    num_groups = 0
    if num_validation and len(rest) > 1:
        num_groups = _num_leading_groups(sizes[rest], num_validation)
    if num_validation and num_groups == 0:
        reason = f"of {len(names)} groups, one is needed for training and one for test"
        message = f"there are no validation data: {reason}"
        warnings.warn(message, stacklevel=2)
    val = rest[:num_groups]
    train = rest[num_groups:]
    rows = (torch.from_numpy(np.flatnonzero(np.isin(codes, split))) for split in (train, val, test))
    return SplitRows(*rows)


def _check_holdout(holdout: float) -> None:
    allowed = "a fraction between 0 and 1 (both excluded), such as 0.1"
    ensure(0 < holdout < 1, f"holdout must be {allowed}, not {holdout}")


def _num_leading_groups(sizes: npt.NDArray[Any], target: float) -> int:
    """Return for how many leading groups the number of samples is closest to a target.

    It is at least one group, and not all.
    """
    totals = np.cumsum(sizes)
    return int(np.abs(totals[:-1] - target).argmin()) + 1
