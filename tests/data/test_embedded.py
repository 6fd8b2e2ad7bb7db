from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits, load_sample_images

from blackout.data import digits, patches


def test_digits_are_counts_with_a_stratified_split() -> None:
    data = digits()
    assert data.train.shape == (1438, 1, 8, 8)
    assert data.test.shape == (359, 1, 8, 8)
    assert (data.train.dtype, data.max_count, data.num_classes) == (torch.uint8, 16, 10)
    assert data.train_labels is not None and data.test_labels is not None
    published = load_digits()
    both = torch.cat([data.train, data.test]).flatten(1).numpy(), torch.cat([data.train_labels, data.test_labels])
    assert sorted(zip(map(bytes, both[0]), both[1].tolist(), strict=True)) == sorted(
        zip(map(bytes, published.data.astype("uint8")), published.target.tolist(), strict=True)
    )
    held, kept = torch.bincount(data.test_labels), torch.bincount(data.train_labels)
    assert ((held - 0.2 * (held + kept)).abs() <= 1).all()
    assert digits().fingerprint("test") == data.fingerprint("test") != digits(seed=1).fingerprint("test")


def test_digits_held_out_are_not_trained_on() -> None:
    data = digits(holdout=0.3)
    train = {bytes(image) for image in data.train.flatten(1).numpy()}
    assert not any(bytes(image) in train for image in data.test.flatten(1).numpy())


def test_patches_are_crops_of_their_own_part_of_a_photograph() -> None:
    data = patches()
    assert data.train.shape == (6100, 3, 32, 32)
    assert data.test.shape == (1300, 3, 32, 32)
    assert (data.train.dtype, data.max_count, data.num_classes) == (torch.uint8, 255, 2)
    assert data.train_labels is not None and data.test_labels is not None
    temple, flower = (torch.from_numpy(image.copy()).permute(2, 0, 1) for image in load_sample_images().images)
    # the first and the last crop of each part: the border between the parts is at column 512 of 640
    assert torch.equal(data.train[0], temple[:, :32, :32])
    assert torch.equal(data.train[3049], temple[:, 392:424, 480:512])
    assert torch.equal(data.test[0], temple[:, :32, 512:544])
    assert torch.equal(data.test[-1], flower[:, 392:424, 608:640])
    assert data.train_labels.tolist() == [0] * 3050 + [1] * 3050


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 129}, "size must be at most 128"),
        ({"size": 428, "holdout": 0.45}, "size must be at most 288"),
        ({"size": 0}, "at least 1"),
        ({"stride": 0}, "at least 1"),
        ({"holdout": 1.0}, "between 0 and 1"),
    ],
)
def test_impossible_patches_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patches(**arguments)  # type: ignore[arg-type]
