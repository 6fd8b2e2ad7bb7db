from __future__ import annotations

import pytest
import torch

from blackout.data.splits import held_out_split


@pytest.mark.parametrize("count", [2, 3, 10, 997])
@pytest.mark.parametrize("holdout", [0.001, 0.1, 1 / 3, 0.5, 0.9, 0.999])
def test_split_is_a_partition_of_the_promised_sizes(count: int, holdout: float) -> None:
    train, test = held_out_split(count, holdout)
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(count))
    assert len(test) == min(max(round(holdout * count), 1), count - 1)


def test_a_single_sample_is_in_both_splits() -> None:
    assert [split.tolist() for split in held_out_split(1, 0.1)] == [[0], [0]]


def test_every_class_keeps_its_share() -> None:
    labels = torch.repeat_interleave(torch.arange(5), torch.tensor([1, 2, 10, 100, 500]))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    _, test = held_out_split(len(labels), 0.2, labels=labels)
    held, whole = torch.bincount(labels[test], minlength=5), torch.bincount(labels)
    assert ((held - 0.2 * whole).abs() <= 1).all()


def test_the_seed_decides() -> None:
    assert torch.equal(held_out_split(100, 0.2, seed=1)[1], held_out_split(100, 0.2, seed=1)[1])
    assert not torch.equal(held_out_split(100, 0.2, seed=1)[1], held_out_split(100, 0.2, seed=2)[1])


@pytest.mark.parametrize(("count", "holdout"), [(10, 0.0), (10, 1.0), (10, -0.1), (10, float("nan")), (0, 0.5)])
def test_impossible_splits_are_refused(count: int, holdout: float) -> None:
    with pytest.raises(ValueError, match=r"holdout must be|at least one sample"):
        held_out_split(count, holdout)
