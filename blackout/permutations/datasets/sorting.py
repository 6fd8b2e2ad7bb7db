"""Lists of numbers, written with images of digits, to be sorted.

References: Zhang et al. 2025, section 4.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.component import component
from blackout.data import CountData, mnist
from blackout.data import digits as digit_images
from blackout.data.images import StrPath
from blackout.data.torchvision_sets import NUM_VALIDATION
from blackout.errors import ensure
from blackout.permutations.datasets.image_puzzles import ImageItems, ImagePuzzles
from blackout.permutations.datasets.puzzles import draw_integers, first_equal_index
from blackout.protocols import Split
from blackout.random import StepStreams

MAX_DIGITS = 18  # digits of a number that fits int64


class Sorting(ImagePuzzles):
    """Lists of numbers to be sorted, each a strip [1, H, digits * W] of images of digits.

    Batches also hold `values`, int64 [b, n], the numbers; equal numbers are ties.

    Args:
        images: of digits, with labels.
        length: numbers in a list.
        digits: of a number.
        num_test: number of validation and of test lists, from the images of these splits.
        seed: of everything random.

    Raises:
        ValueError: length below 2, or digits outside 1..18.

    References: Zhang et al. 2025, section 4.1.
    """

    def __init__(
        self, images: CountData, length: int, digits: int, num_test: int, seed: int = 0
    ) -> None:
        name = f"sort_{images.name}"
        ensure(length >= 2, f"{name}: length must be at least 2, not {length}")
        ensure(1 <= digits <= MAX_DIGITS, f"{name}: digits must be 1..{MAX_DIGITS}, not {digits}")
        self._digits = digits
        channels, height, width = images.shape
        shape = (channels, height, digits * width)
        encoder = {"_target_": "blackout.networks.StripEncoder", "parts": digits}
        items = ImageItems("strips", length, shape, encoder)
        super().__init__(name, images, items, num_test, seed)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return strips [b, n, C, H, digits * W] by rising numbers, the numbers, and ties."""
        shape = (len(index), self.num_items, self._digits)
        image_index = draw_integers(streams, shape, self._images.size(split))
        batch = self._images.batch(split, image_index.flatten())
        labels = batch["label"].view_as(image_index)
        images = batch["x0"].cpu().unflatten(0, image_index.shape)  # [b, n, digits, C, H, W]
        powers = 10 ** torch.arange(self._digits - 1, -1, -1)
        values, order = (labels * powers).sum(-1).sort(stable=True)
        rows = torch.arange(len(index)).unsqueeze(1)
        sorted_images = images[rows, order].float() / self.scale
        strips = sorted_images.permute(0, 1, 3, 4, 2, 5).flatten(4)  # [b, n, C, H, digits * W]
        return {"items": strips, "values": values, "ties": first_equal_index(values)}


@component("dataset")
def sort_digits(
    length: int = 5,
    digits: int = 2,
    num_test: int = 1000,
    holdout: float = 0.2,
    seed: int = 0,
    validation: float = 0.1,
) -> Sorting:
    """Return lists of numbers made of scikit-learn's 8x8 digits, which need no download.

    Args:
        length: numbers in a list.
        digits: of a number.
        num_test: number of validation and of test lists.
        holdout: share of the images for test lists.
        seed: of the lists.
        validation: share or number of the images for validation lists; 0 for none.

    Raises:
        ValueError: values out of range.
    """
    return Sorting(
        digit_images(holdout, validation=validation), length, digits, num_test, seed=seed
    )


@component("dataset")
def sort_mnist(
    length: int = 5,
    digits: int = 4,
    num_test: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> Sorting:
    """Return lists of numbers made of MNIST's digits, four for each number as in the paper.

    Args:
        length: numbers in a list.
        digits: of a number.
        num_test: number of validation and of test lists.
        seed: of the lists.
        data_dir: as for `blackout.data.mnist`.
        download: as for `blackout.data.mnist`.
        validation: as for `blackout.data.mnist`.

    Raises:
        UserError: the images cannot be downloaded or read.
        ValueError: values out of range.

    References: Zhang et al. 2025, section 4.1.
    """
    images = mnist(data_dir, download=download, validation=validation)
    return Sorting(images, length, digits, num_test, seed)
