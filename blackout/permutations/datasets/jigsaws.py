"""Images cut into square pieces."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from blackout.component import component
from blackout.data import CountData, cifar10, digits, mnist
from blackout.family import Split
from blackout.permutations.datasets.base import Puzzles, chosen, first_equal
from blackout.random import SampleStreams, StepStreams, fold_seed

StrPath = str | os.PathLike[str]
_NOISE = 2
_NORMAL_LIMIT = 2.0**-50


class Jigsaws(Puzzles):
    """Images cut into pieces x pieces parts, row by row; what does not divide is cropped at the bottom and the right.

    A piece is float32 [C, h, w], counts over the largest. Pieces without noise that are equal are ties.

    Args:
        images: with a held-out split; training puzzles choose among the training images at random.
        pieces: per side.
        held_out: number of test puzzles, of the held-out images in turn.
        noise: standard deviation of Gaussian noise, the same for an image each time.
        seed: of everything random.

    Raises:
        ValueError: pieces below 2 or without pixels, or negative noise.
    """

    def __init__(self, images: CountData, pieces: int, held_out: int, noise: float = 0.0, seed: int = 0) -> None:
        channels, height, width = images.shape
        name = f"jigsaw_{images.name}"
        if not 2 <= pieces <= min(height, width):
            raise ValueError(f"{name}: pieces per side must be 2..{min(height, width)}, not {pieces}")
        if not 0 <= noise < float("inf"):
            raise ValueError(f"{name}: noise must not be negative, but is {noise}")
        self._images, self._pieces, self._noise = images, pieces, noise
        shape = (channels, height // pieces, width // pieces)
        facts = {
            "mean": images.facts["mean"] / images.max_count, "std": images.facts["std"] / images.max_count,
            "encoder": {"_target_": "blackout.networks.PieceEncoder"},
        }  # fmt: skip
        super().__init__(name, "pieces", pieces**2, shape, held_out, seed, facts, float(images.max_count))

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        images = self._images.train if split == "train" else self._images.test
        number = chosen(streams, (len(index),), len(images)) if split == "train" else index % len(images)
        clean = self._cut(images[number])
        items = clean.float() / self.scale
        if self._noise:
            items = items + self._noise * self._cut(self._normal(split, number, images.shape[1:]))
        return {"items": items, "ties": first_equal(clean)}

    def _normal(self, split: Split, number: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers [b, *shape] that belong to the images."""
        streams = SampleStreams(fold_seed(self.seed, _NOISE, split == "train"), number).at(0)
        u = streams.next_draw().uniform((len(number), *shape))
        return torch.special.ndtri(u.clamp_(_NORMAL_LIMIT, 1 - _NORMAL_LIMIT)).float()

    def _cut(self, images: Tensor) -> Tensor:
        """[b, C, H, W] -> [b, pieces^2, C, h, w]."""
        (_, h, w), p = self.item_shape, self._pieces
        cropped = images[:, :, : p * h, : p * w]
        return cropped.unflatten(2, (p, h)).unflatten(4, (p, w)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)

    def _content(self, split: Split) -> str:
        return f"{self._images.fingerprint(split)} {self._noise}"


@component("dataset")
def jigsaw_digits(pieces: int = 2, held_out: int = 1000, holdout: float = 0.2, seed: int = 0) -> Jigsaws:
    """scikit-learn's 8x8 digits, which need no download, cut into pieces; puzzles of the 359 held-out ones repeat.

    Args:
        pieces: per side, 2 to 8.
        held_out: number of test puzzles.
        holdout: share of the images that is held out.
        seed: of the puzzles.

    Raises:
        ValueError: values out of range.
    """
    return Jigsaws(digits(holdout), pieces, held_out, seed=seed)


@component("dataset")
def jigsaw_mnist(
    pieces: int = 3,
    noise: float = 0.01,
    held_out: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
) -> Jigsaws:
    """MNIST with pixel noise (Zhang et al., ICLR 2025), cut into pieces.

    Args:
        pieces: per side, 2 to 28.
        noise: standard deviation, of pixels in [0, 1], drawn once for every image.
        held_out: number of test puzzles.
        seed: of noise and puzzles.
        data_dir, download: as for `blackout.data.mnist`.

    Raises:
        UserError: the images cannot be had.
        ValueError: values out of range.
    """
    return Jigsaws(mnist(data_dir, download=download), pieces, held_out, noise, seed)


@component("dataset")
def jigsaw_cifar10(
    pieces: int = 3, held_out: int = 1000, seed: int = 0, data_dir: StrPath = "data", download: bool = True
) -> Jigsaws:
    """CIFAR-10 cut into pieces; arguments and errors as for `jigsaw_mnist`."""
    return Jigsaws(cifar10(data_dir, download), pieces, held_out, seed=seed)
