"""Real data that ship with scikit-learn and need no download."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import CountData


@component("dataset", passed=("source",))
def digits(holdout: float = 0.2, seed: int = 0) -> CountData:
    """Handwritten digits, 1,797 images [1, 8, 8] with counts 0..16 and ten classes.

    Each value is the number of ink pixels in a 4x4 block of a 32x32 scan. Both splits have the same mix of classes.

    Args:
        holdout: share of the images to hold out.
        seed: seed of the split.

    Raises:
        ValueError: `holdout` outside (0, 1).
    """
    from sklearn.datasets import load_digits  # slow to import, and only these two sources need it

    bunch = load_digits()
    return CountData.from_array(bunch.images.astype(np.uint8), bunch.target, 16, holdout, seed, "digits")


@component("dataset")
def patches(size: int = 32, stride: int = 8, holdout: float = 0.2) -> CountData:
    """Crops of two colour photographs (a temple and a flower, 427 x 640): 8-bit RGB images [3, size, size].

    Held-out crops are from the right-hand `holdout` of each photograph's width, training crops from the rest, so that
    no pixel is in both. Crops lie on a grid of `stride` pixels within each part, from the top left; the defaults make
    6,100 training and 1,300 held-out images. The label is the photograph.

    Args:
        size: side of a crop in pixels.
        stride: pixels between neighbouring crops; 1 gives every crop there is.
        holdout: share of the width to hold out.

    Raises:
        ValueError: crops that do not fit into their part of the photographs, or values out of range.
    """
    from sklearn.datasets import load_sample_images

    if size < 1 or stride < 1:
        raise ValueError(f"patches: size and stride must be at least 1, got size={size}, stride={stride}")
    if not 0 < holdout < 1:
        raise ValueError(f"patches: holdout must be a share between 0 and 1 (both excluded), got {holdout}")
    photographs = [torch.from_numpy(image.copy()).permute(2, 0, 1) for image in load_sample_images().images]
    _, height, width = photographs[0].shape
    border = width - round(holdout * width)
    largest = min(height, border, width - border)
    if size > largest:
        raise ValueError(f"patches: size must be at most {largest} with holdout={holdout}, got {size}")
    train, test = (
        torch.stack([_crops(photograph[:, :, part], size, stride) for photograph in photographs])
        for part in (slice(border), slice(border, None))
    )
    train_labels, test_labels = (torch.arange(2).repeat_interleave(part.shape[1]) for part in (train, test))
    return CountData("patches", train.flatten(0, 1), test.flatten(0, 1), 255, train_labels, test_labels)


def _crops(image: Tensor, size: int, stride: int) -> Tensor:
    """All crops of an image [C, H, W] on a grid: [N, C, size, size], row by row."""
    windows = image.unfold(1, size, stride).unfold(2, size, stride)
    return windows.permute(1, 2, 0, 3, 4).reshape(-1, image.shape[0], size, size)
