"""Small data sets that come with scikit-learn: digits, and patches of two photographs."""

from __future__ import annotations

from importlib.metadata import distribution
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import CountData
from blackout.errors import ensure


@component("dataset", partial_for=("source",))
def digits(holdout: float = 0.2, seed: int = 0, validation: float = 0.1) -> CountData:
    """Read 1,797 handwritten digits [1, 8, 8] with counts 0, ..., 16 and ten classes.

    Each value is the number of ink pixels in a 4 x 4 block of a 32 x 32 scan. All splits have the
    same fractions of classes.

    Args:
        holdout: fraction of the images for the test.
        seed: of the random split.
        validation: fraction or number of the images for validation; 0 for none.

    Raises:
        ValueError: a fraction out of range.

    Example:
        >>> data = digits()
        >>> data.shape, data.max_count, data.size("train")
        ((1, 8, 8), 16, 1258)

    References: Alpaydin and Kaynak 1998, as scikit-learn has them.
    """
    # the file that `sklearn.datasets.load_digits` reads; importing it takes a second
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), np.int64, delimiter=",")
    images = rows[:, :-1].reshape(-1, 8, 8)
    labels = rows[:, -1]
    return CountData.from_array(images, labels, 16, holdout, seed, "digits", validation)


@component("dataset")
def patches(
    size: int = 32,
    stride: int = 8,
    holdout: float = 0.2,
    validation: float = 0.1,
) -> CountData:
    """Crop two colour photographs (a temple and a flower, 427 x 640): 8-bit images [3, size, size].

    Test crops are from the right-hand `holdout` of each photograph's width, validation crops from
    the `validation` of the width to the left of it, and training crops from the rest, so that no
    pixel is in two splits. Crops lie on a grid of `stride` pixels within each part, from the top
    left. The defaults give 5,300 training, 500 validation and 1,300 test images. The label is the
    photograph.

    Args:
        size: side of a crop in pixels.
        stride: pixels between neighbouring crops; 1 gives every crop there is.
        holdout: fraction of the width for test crops.
        validation: fraction of the width for validation crops; 0 for none.

    Raises:
        ValueError: crops that do not fit into their part of the photographs, or values out of
            range.

    References: the photographs are scikit-learn's.

    Example:
        >>> data = patches(size=64, stride=32)
        >>> data.shape, data.size("train")
        ((3, 64, 64), 312)
    """
    from sklearn.datasets import load_sample_images  # only here: it is slow to import

    # 1. Check the arguments.
    values = f"not size={size}, stride={stride}"
    ensure(size >= 1 and stride >= 1, f"patches: size and stride must be at least 1, {values}")
    allowed = "a fraction between 0 and 1 (both excluded)"
    ensure(0 < holdout < 1, f"patches: holdout must be {allowed}, not {holdout}")
    allowed = f"a fraction of at least 0 that leaves some of the width next to holdout={holdout}"
    is_valid = 0 <= validation < 1 - holdout
    ensure(is_valid, f"patches: validation must be {allowed}, not {validation}")

    # 2. Divide the width.
    images = load_sample_images().images
    photographs = [torch.from_numpy(image.copy()).permute(2, 0, 1) for image in images]
    _, height, width = photographs[0].shape
    test_start = width - round(holdout * width)
    val_start = test_start - round(validation * width)
    columns = {
        "train": slice(0, val_start),
        "val": slice(val_start, test_start),
        "test": slice(test_start, width),
    }
    if val_start == test_start:
        del columns["val"]
    max_size = min(height, *(part.stop - part.start for part in columns.values()))
    fractions = f"holdout={holdout} and validation={validation}"
    ensure(
        size <= max_size,
        f"patches: size must be at most {max_size} with {fractions}, not {size}",
    )

    # 3. Crop.
    parts: dict[str, Any] = {}
    for split, part in columns.items():
        crops = [_crop_grid(photograph[:, :, part], size, stride) for photograph in photographs]
        parts[split] = torch.cat(crops)
        parts[f"{split}_labels"] = torch.arange(2).repeat_interleave(len(crops[0]))
    return CountData("patches", max_count=255, **parts)


def _crop_grid(image: Tensor, size: int, stride: int) -> Tensor:
    """Return all crops of an image [C, H, W] on a grid: [N, C, size, size], row by row."""
    windows = image.unfold(1, size, stride).unfold(2, size, stride)
    return windows.permute(1, 2, 0, 3, 4).reshape(-1, image.shape[0], size, size)
