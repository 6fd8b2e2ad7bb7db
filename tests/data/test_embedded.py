"""The digits and patches that come with scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits, load_sample_images

from blackout.data import digits, patches


def test_digits_are_counts_with_a_stratified_split() -> None:
    data = digits()
    assert [len(part) for part in (data.train, data.val, data.test)] == [1258, 180, 359]
    assert data.shape == (1, 8, 8)
    assert (data.train.dtype, data.max_count, data.num_classes) == (torch.uint8, 16, 10)
    assert (
        data.train_labels is not None
        and data.val_labels is not None
        and data.test_labels is not None
    )
    published = load_digits()
    images = torch.cat([data.train, data.val, data.test]).flatten(1).numpy()
    labels = torch.cat([data.train_labels, data.val_labels, data.test_labels])
    assert sorted(zip(map(bytes, images), labels.tolist(), strict=True)) == sorted(
        zip(map(bytes, published.data.astype("uint8")), published.target.tolist(), strict=True)
    )
    of_classes = torch.from_numpy(published.target).bincount()
    assert ((data.test_labels.bincount() - 0.2 * of_classes).abs() <= 1).all()
    assert ((data.val_labels.bincount() - 0.1 * of_classes).abs() <= 2).all()
    assert (
        digits().fingerprint("test")
        == data.fingerprint("test")
        != digits(seed=1).fingerprint("test")
    )


def test_no_digit_is_in_two_splits() -> None:
    data = digits(holdout=0.3)
    train, val, test = (
        set(map(bytes, part.flatten(1).numpy())) for part in (data.train, data.val, data.test)
    )
    assert not train & val and not train & test and not val & test


def test_merged_validation_digits_return_to_their_places() -> None:
    data = digits()
    official = digits(validation=0)
    assert len(official.train) == 1438 and len(official.val) == 0
    assert (
        data.merge_validation().fingerprint("train")
        == official.fingerprint("train")
        != data.fingerprint("train")
    )
    assert data.merge_validation().train_labels.tolist() == official.train_labels.tolist()  # type: ignore[union-attr]
    assert data.fingerprint("test") == official.fingerprint("test")
    part = data.select_condition(torch.tensor([3, 8]))
    together = data.merge_validation().select_condition(torch.tensor([3, 8]))
    assert abs(len(part.merge_validation().train) - len(together.train)) <= 2
    assert torch.equal(part.merge_validation().train_labels.unique(), torch.tensor([3, 8]))  # type: ignore[union-attr]


def test_patches_are_crops_of_their_own_part_of_a_photograph() -> None:
    data = patches()
    assert [len(part) for part in (data.train, data.val, data.test)] == [5300, 500, 1300]
    assert data.shape == (3, 32, 32)
    assert (data.train.dtype, data.max_count, data.num_classes) == (torch.uint8, 255, 2)
    assert data.train_labels is not None and data.test_labels is not None
    temple, flower = (
        torch.from_numpy(image.copy()).permute(2, 0, 1) for image in load_sample_images().images
    )
    # the first and the last crop of each part, whose borders are at columns 448 and 512 of 640
    assert torch.equal(data.train[0], temple[:, :32, :32])
    assert torch.equal(data.train[2649], temple[:, 392:424, 416:448])
    assert torch.equal(data.val[0], temple[:, :32, 448:480])
    assert torch.equal(data.val[-1], flower[:, 392:424, 480:512])
    assert torch.equal(data.test[0], temple[:, :32, 512:544])
    assert torch.equal(data.test[-1], flower[:, 392:424, 608:640])
    assert data.train_labels.tolist() == [0] * 2650 + [1] * 2650
    assert len(patches(validation=0).train) == 6100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 65}, "size must be at most 64 with holdout=0.2 and validation=0.1"),
        ({"size": 129, "validation": 0}, "size must be at most 128"),
        ({"size": 428, "holdout": 0.45, "validation": 0}, "size must be at most 288"),
        ({"validation": 0.8}, "leaves some of the width"),
        ({"validation": -0.1}, "leaves some of the width"),
        ({"size": 0}, "at least 1"),
        ({"stride": 0}, "at least 1"),
        ({"holdout": 1.0}, "between 0 and 1"),
    ],
)
def test_impossible_patches_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patches(**arguments)  # type: ignore[arg-type]
