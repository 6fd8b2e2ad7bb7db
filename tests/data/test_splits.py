"""Splits: sizes, fractions of classes, whole groups, and errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from blackout.data.splits import held_out_split, split_groups, split_samples


@pytest.mark.parametrize("count", [2, 3, 10, 997])
@pytest.mark.parametrize("holdout", [0.001, 0.1, 1 / 3, 0.5, 0.9, 0.999])
def test_split_is_a_partition_of_the_requested_sizes(count: int, holdout: float) -> None:
    train, test = held_out_split(count, holdout)
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(count))
    assert len(test) == min(max(round(holdout * count), 1), count - 1)


def test_a_single_sample_is_in_both_splits() -> None:
    assert [split.tolist() for split in held_out_split(1, 0.1)] == [[0], [0]]


def test_every_class_keeps_its_fraction() -> None:
    labels = torch.repeat_interleave(torch.arange(5), torch.tensor([1, 2, 10, 100, 500]))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    _, test = held_out_split(len(labels), 0.2, labels=labels)
    test_counts = torch.bincount(labels[test], minlength=5)
    all_counts = torch.bincount(labels)
    assert ((test_counts - 0.2 * all_counts).abs() <= 1).all()


def test_the_seed_determines_the_split() -> None:
    assert torch.equal(held_out_split(100, 0.2, seed=1)[1], held_out_split(100, 0.2, seed=1)[1])
    assert not torch.equal(held_out_split(100, 0.2, seed=1)[1], held_out_split(100, 0.2, seed=2)[1])


@pytest.mark.parametrize(
    ("count", "holdout"), [(10, 0.0), (10, 1.0), (10, -0.1), (10, float("nan")), (0, 0.5)]
)
def test_impossible_splits_are_refused(count: int, holdout: float) -> None:
    with pytest.raises(ValueError, match=r"holdout must be|at least one sample"):
        held_out_split(count, holdout)


@pytest.mark.parametrize("count", [3, 10, 997])
@pytest.mark.parametrize(("validation", "holdout"), [(0.1, 0.1), (0.3, 0.2), (1, 0.4), (0.0, 0.2)])
def test_three_splits_are_a_partition_of_the_requested_sizes(
    count: int, validation: float, holdout: float
) -> None:
    rows = split_samples(count, validation, holdout, seed=4)
    assert torch.equal(torch.cat(rows).sort().values, torch.arange(count))
    assert all(torch.equal(part, part.sort().values) for part in rows)
    expected = validation if validation in (0, 1) else max(1, round(validation * count))
    assert len(rows.val) == expected and len(rows.train) > 0


def test_the_test_data_do_not_depend_on_the_validation_data() -> None:
    tests = [split_samples(200, validation, 0.2, seed=3).test for validation in (0, 0.1, 0.5, 7)]
    assert all(torch.equal(test, held_out_split(200, 0.2, seed=3)[1]) for test in tests)


def test_every_class_keeps_its_fraction_in_all_splits() -> None:
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([10, 50, 100, 500]))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    rows = split_samples(len(labels), 0.1, 0.2, labels=labels)
    all_counts = torch.bincount(labels)
    for part, fraction in ((rows.val, 0.1), (rows.test, 0.2), (rows.train, 0.7)):
        assert (
            (torch.bincount(labels[part], minlength=4) - fraction * all_counts).abs() <= 2
        ).all()


def test_very_few_samples_share_splits_with_a_warning() -> None:
    with pytest.warns(
        UserWarning, match="only one sample: it is used for training, validation and test"
    ):
        assert [part.tolist() for part in split_samples(1, 0.1, 0.1)] == [[0], [0], [0]]
    with pytest.warns(
        UserWarning, match="only one training sample: it is used for validation, too"
    ):
        train, val, test = split_samples(2, 0.1, 0.1)
    assert torch.equal(train, val) and sorted([*train.tolist(), *test.tolist()]) == [0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(part) for part in split_samples(3, 0.1, 0.1)] == [1, 1, 1]


@pytest.mark.parametrize("validation", [0.95, 9, 10, -0.1, 1.5, float("nan"), "0.1"])
def test_impossible_validation_data_are_refused(validation: float) -> None:
    with pytest.raises(ValueError, match="validation must"):
        split_samples(10, validation, 0.1)


def test_groups_are_not_divided() -> None:
    groups = np.repeat(["a", "b", "c", "d", "e"], [10, 20, 30, 20, 20])
    rows = split_groups(groups, 0.2, 0.3, seed=0)
    assert torch.equal(torch.cat(rows).sort().values, torch.arange(100))
    kinds = [set(groups[part.numpy()]) for part in rows]
    assert all(kinds) and sum(map(len, kinds)) == 5
    assert torch.equal(split_groups(groups, 0, 0.3, seed=0).test, rows.test)
    assert len(split_groups(groups, 0, 0.3, seed=0).val) == 0


def test_two_groups_leave_none_for_validation_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="no validation data: of 2 groups, one is needed"):
        rows = split_groups(np.array([1, 1, 2, 2]), 0.1, 0.5, seed=0)
    assert [len(part) for part in rows] == [2, 0, 2]
