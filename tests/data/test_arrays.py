"""`CountData`: types, moments, hashes, batches, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from blackout.data import CountData, counts


def make(
    train: torch.Tensor | None = None,
    test: torch.Tensor | None = None,
    max_count: int = 10,
    **labels: Any,
) -> CountData:
    train = torch.zeros(4, 1, 2, 2, dtype=torch.int64) if train is None else train
    test = torch.zeros(2, 1, 2, 2, dtype=torch.int64) if test is None else test
    return CountData("toy", train, test, max_count, **labels)


@pytest.mark.parametrize(
    ("max_count", "dtype"), [(1, torch.uint8), (255, torch.uint8), (256, torch.int32)]
)
def test_counts_are_kept_in_the_smallest_agreed_type(max_count: int, dtype: torch.dtype) -> None:
    data = make(torch.full((4, 3), max_count), torch.zeros(2, 3, dtype=torch.int16), max_count)
    assert data.train.dtype == data.test.dtype == dtype
    assert data.train.max() == max_count
    assert data.shape == (3,)


def test_moments_are_those_of_the_training_split() -> None:
    counts = torch.randint(0, 1001, (9000, 7), generator=torch.Generator().manual_seed(0))
    data = make(counts, counts[:1] * 0, 1000)
    assert data.mean == pytest.approx(counts.double().mean().item(), rel=1e-12)
    assert data.std == pytest.approx(counts.double().std(correction=0).item(), rel=1e-10)
    assert make().std == 0.0


def test_num_classes_counts_both_splits() -> None:
    assert make().num_classes is None
    assert (
        make(train_labels=torch.tensor([0, 1, 0, 1]), test_labels=torch.tensor([0, 4])).num_classes
        == 5
    )


def test_fingerprint_depends_on_values_order_shape_and_type() -> None:
    counts = torch.arange(8).view(4, 1, 2, 1)
    data = make(counts, counts)
    assert (
        data.fingerprint("train")
        == data.fingerprint("test")
        == make(counts.int(), counts).fingerprint()
    )
    for other_counts in (counts.flip(0), counts.view(4, 1, 1, 2), counts + 1):
        assert make(other_counts, other_counts).fingerprint() != data.fingerprint()
    assert make(counts, counts, 300).fingerprint() != data.fingerprint()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (torch.zeros(4, 1, 2, 2), "train data: counts must be integers, not torch.float32"),
        (torch.zeros(4, 1, 2, 2, dtype=torch.bool), "must be integers"),
        (torch.zeros(4, dtype=torch.int64), r"\[N, D\], .* or \[N, C, D, H, W\], not \[4\]"),
        (torch.zeros(0, 1, 2, 2, dtype=torch.int64), "at least one sample"),
        (
            torch.zeros(4, 1, 2, 3, dtype=torch.int64),
            r"same shape, not \(1, 2, 3\) and \(1, 2, 2\)",
        ),
        (
            torch.eye(4).long().view(4, 1, 2, 2) * 11,
            r"at most max_count=10, not 11 at index \[0, 0, 0, 0\]",
        ),
        (
            torch.eye(4).long().view(4, 1, 2, 2).flip(0) * -3,
            r"be at least 0, not -3 at index \[0, 0, 1, 1\]",
        ),
    ],
)
def test_bad_counts_are_refused(train: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(train)


def test_the_index_of_a_bad_count_is_right_far_into_the_data() -> None:
    train = torch.zeros(10_000, 3, dtype=torch.int32)
    train[9_001, 2] = 77
    with pytest.raises(ValueError, match=r"not 77 at index \[9001, 2\]"):
        make(train, train[:1], 76)


@pytest.mark.parametrize("max_count", [0, -1, 2**31, 2.5, True])
def test_bad_max_count_is_refused(max_count: int) -> None:
    with pytest.raises(ValueError, match="max_count must be a whole number between 1 and"):
        make(max_count=max_count)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"train_labels": torch.zeros(4).long()}, "pass all of train_labels"),
        (
            {"train_labels": torch.zeros(3).long(), "test_labels": torch.zeros(2).long()},
            r"\[4\], not \[3\]",
        ),
        ({"train_labels": torch.zeros(4), "test_labels": torch.zeros(2)}, "must be integers"),
        (
            {"train_labels": torch.zeros(4).long(), "test_labels": -torch.ones(2).long()},
            "must be at least 0",
        ),
    ],
)
def test_bad_labels_are_refused(labels: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**labels)


def test_batches_are_mirrored_where_the_uniform_is_below_one_half() -> None:
    images = torch.arange(24).view(4, 1, 2, 3)
    data = make(
        images, images, 23, train_labels=torch.arange(4), test_labels=torch.arange(4), flip=True
    )
    index = torch.tensor([2, 0, 3])
    augment = torch.tensor([0.49, 0.5, 0.0])
    for source in (data, data.to("cpu")):
        batch = source.batch("train", index, augment)
        assert torch.equal(
            batch["x0"], torch.stack([images[2].flip(-1), images[0], images[3].flip(-1)]).byte()
        )
        assert torch.equal(batch["label"], index)
        assert torch.equal(source.batch("train", index)["x0"], images[index].byte())
        assert source.fingerprint() == data.fingerprint() and torch.equal(source.train, data.train)
    assert torch.equal(
        make(images, images, 23).batch("train", index, augment)["x0"], images[index].byte()
    )
    with pytest.raises(
        ValueError, match=r"flip mirrors images \[C, H, W\], but toy has samples of shape \(3,\)"
    ):
        make(torch.zeros(2, 3).long(), torch.zeros(2, 3).long(), flip=True)


def test_labels_far_beyond_the_samples_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", counts=np.ones((40, 3), int), labels=np.arange(40) * 25_000)
    with pytest.raises(ValueError, match="labels must be below 65,536, not 975,000"):
        counts(tmp_path / "x.npz")
