"""Jigsaws: images cut into pieces.

References: Zhang et al. 2025, section 4.2 and appendix G.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.component import component
from blackout.data import CountData, cifar10, mnist
from blackout.data import digits as digit_images
from blackout.data.images import StrPath
from blackout.data.torchvision_sets import NUM_VALIDATION
from blackout.errors import ensure
from blackout.permutations.datasets.image_puzzles import ImageItems, ImagePuzzles
from blackout.permutations.datasets.puzzles import draw_integers, first_equal_index
from blackout.protocols import Split
from blackout.random import SampleStreams, StepStreams, fold_seed

NOISE_KEY = 2
NOISE_SPLIT_KEYS: dict[Split, int] = {"test": 0, "train": 1, "val": 2}  # of noise on images
MIN_UNIFORM = 2.0**-50  # smallest uniform of normal noise, so that the noise is finite


class Jigsaws(ImagePuzzles):
    """Images cut into pieces, row by row; remainders at the bottom and on the right are cropped.

    A piece is [C, h, w]. Pieces that are equal without noise are ties.

    Args:
        images: with a test split.
        pieces: per side.
        num_test: number of validation and of test puzzles, from the images of these splits in turn.
        noise: standard deviation of Gaussian noise, which is fixed for each image.
        seed: of everything random.

    Raises:
        ValueError: pieces below 2 or without pixels, or negative noise.

    References: Zhang et al. 2025, section 4.2 and appendix G.2.
    """

    def __init__(
        self, images: CountData, pieces: int, num_test: int, noise: float = 0.0, seed: int = 0
    ) -> None:
        channels, height, width = images.shape
        name = f"jigsaw_{images.name}"
        limit = min(height, width)
        if not 2 <= pieces <= limit:
            raise ValueError(f"{name}: pieces per side must be 2..{limit}, not {pieces}")
        ensure(0 <= noise < float("inf"), f"{name}: noise must not be negative, but is {noise}")
        self._pieces = pieces
        self._noise = noise
        shape = (channels, height // pieces, width // pieces)
        encoder = {"_target_": "blackout.networks.PieceEncoder"}
        items = ImageItems("pieces", pieces**2, shape, encoder)
        super().__init__(name, images, items, num_test, seed)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return the pieces [b, n, C, h, w] of the puzzles, and ties."""
        num_images = self._images.size(split)
        image_index = index
        if split == "train":
            image_index = draw_integers(streams, (len(index),), num_images)
        image_index = image_index % num_images
        images = self._images.batch(split, image_index)["x0"].cpu()
        counts = self._cut_pieces(images)
        items = counts.float() / self.scale
        if self._noise:
            # the random numbers belong to the image, not to the puzzle
            key = fold_seed(self.seed, NOISE_KEY, NOISE_SPLIT_KEYS[split])
            noise_streams = SampleStreams(key, image_index).step(0)
            u = noise_streams.next_draw().uniform((len(image_index), *images.shape[1:]))
            normal = torch.special.ndtri(u.clamp_(MIN_UNIFORM, 1 - MIN_UNIFORM)).float()
            items = items + self._noise * self._cut_pieces(normal)
        return {"items": items, "ties": first_equal_index(counts)}

    def _cut_pieces(self, images: Tensor) -> Tensor:
        """Cut images [b, C, H, W] into pieces [b, pieces^2, C, h, w], row by row."""
        _, h, w = self.item_shape
        p = self._pieces
        grid = images[:, :, : p * h, : p * w].unflatten(2, (p, h)).unflatten(4, (p, w))
        return grid.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


@component("dataset")
def jigsaw_digits(
    pieces: int = 2,
    num_test: int = 1000,
    holdout: float = 0.2,
    seed: int = 0,
    validation: float = 0.1,
) -> Jigsaws:
    """Return jigsaws of scikit-learn's 8x8 digits, which need no download; test images repeat.

    Args:
        pieces: per side, 2 to 8.
        num_test: number of validation and of test puzzles.
        holdout: share of the images for test puzzles.
        seed: of the puzzles.
        validation: share or number of the images for validation puzzles; 0 for none.

    Raises:
        ValueError: values out of range.
    """
    return Jigsaws(digit_images(holdout, validation=validation), pieces, num_test, seed=seed)


@component("dataset")
def jigsaw_mnist(
    pieces: int = 3,
    noise: float = 0.01,
    num_test: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> Jigsaws:
    """Return jigsaws of MNIST with pixel noise.

    Args:
        pieces: per side, 2 to 28.
        noise: standard deviation, of pixels in [0, 1], drawn once for every image.
        num_test: number of validation and of test puzzles.
        seed: of noise and puzzles.
        data_dir: as for `blackout.data.mnist`.
        download: as for `blackout.data.mnist`.
        validation: as for `blackout.data.mnist`.

    Raises:
        UserError: the images cannot be downloaded or read.
        ValueError: values out of range.

    References: Zhang et al. 2025, section 4.2.
    """
    images = mnist(data_dir, download=download, validation=validation)
    return Jigsaws(images, pieces, num_test, noise, seed)


@component("dataset")
def jigsaw_cifar10(
    pieces: int = 3,
    num_test: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> Jigsaws:
    """Return jigsaws of CIFAR-10; arguments and errors are those of `jigsaw_mnist`.

    References: Zhang et al. 2025, section 4.2.
    """
    return Jigsaws(cifar10(data_dir, download, validation), pieces, num_test, seed=seed)
