"""Puzzles made of images: pieces of a picture to be put together, and numbers written by hand to be sorted."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from blackout.component import component
from blackout.data import CountData, cifar10, mnist
from blackout.data import digits as digit_images
from blackout.family import Split
from blackout.permutations.datasets.base import Kind, Puzzles, chosen, first_equal
from blackout.random import SampleStreams, StepStreams, fold_seed

StrPath = str | os.PathLike[str]
_NOISE = 2
_NORMAL_LIMIT = 2.0**-50
_MOST_DIGITS = 18
"""Numbers of so many digits fit int64."""


class ImagePuzzles(Puzzles):
    """Items cut out of images with a held-out split, float32 counts over the largest.

    Args:
        images: training puzzles choose among the training images at random.
        encoder: the description of the encoder of the items; see `Puzzles` for the others.
    """

    def __init__(
        self, name: str, kind: Kind, num_items: int, item_shape: tuple[int, ...], held_out: int, seed: int,
        images: CountData, encoder: dict[str, Any],
    ) -> None:  # fmt: skip
        self._images, scale = images, images.max_count
        facts = {"mean": images.facts["mean"] / scale, "std": images.facts["std"] / scale, "encoder": encoder}
        super().__init__(name, kind, num_items, item_shape, held_out, seed, facts, float(scale))

    def _content(self, split: Split) -> str:
        return self._images.fingerprint(split)


class Jigsaws(ImagePuzzles):
    """Images cut into pieces x pieces parts, row by row; what does not divide is cropped at the bottom and the right.

    A piece is [C, h, w]. Pieces without noise that are equal are ties. [Zhang 2025, appendix G.2].

    Args:
        images: with a held-out split.
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
        self._pieces, self._noise = pieces, noise
        shape, encoder = (channels, height // pieces, width // pieces), {"_target_": "blackout.networks.PieceEncoder"}
        super().__init__(name, "pieces", pieces**2, shape, held_out, seed, images, encoder)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        images = self._images.train if split == "train" else self._images.test
        number = chosen(streams, (len(index),), len(images)) if split == "train" else index % len(images)
        clean = self._cut(images[number])
        items = clean.float() / self.scale
        if self._noise:  # normal numbers that belong to the images
            own = SampleStreams(fold_seed(self.seed, _NOISE, split == "train"), number).at(0)
            u = own.next_draw().uniform((len(number), *images.shape[1:]))
            normal = torch.special.ndtri(u.clamp_(_NORMAL_LIMIT, 1 - _NORMAL_LIMIT)).float()
            items = items + self._noise * self._cut(normal)
        return {"items": items, "ties": first_equal(clean)}

    def _cut(self, images: Tensor) -> Tensor:
        """[b, C, H, W] -> [b, pieces^2, C, h, w]."""
        (_, h, w), p = self.item_shape, self._pieces
        cropped = images[:, :, : p * h, : p * w]
        return cropped.unflatten(2, (p, h)).unflatten(4, (p, w)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)

    def _content(self, split: Split) -> str:
        return f"{super()._content(split)} {self._noise}"


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
    return Jigsaws(digit_images(holdout), pieces, held_out, seed=seed)


@component("dataset")
def jigsaw_mnist(
    pieces: int = 3,
    noise: float = 0.01,
    held_out: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
) -> Jigsaws:
    """MNIST with pixel noise, cut into pieces [Zhang 2025, section 4.2].

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


class Sorting(ImagePuzzles):
    """Lists of numbers, each a strip [1, H, digits * W] of images of digits side by side; the right order is rising.

    [Zhang 2025, section 4.1]. Batches also hold `values`, int64 [b, n], the numbers; equal numbers are ties.

    Args:
        images: of digits, with labels.
        length: numbers in a list.
        places: digits of a number.
        held_out: number of test lists, of held-out images.
        seed: of everything random.

    Raises:
        ValueError: length below 2, or places outside 1..18.
    """

    def __init__(self, images: CountData, length: int, places: int, held_out: int, seed: int = 0) -> None:
        name = f"sort_{images.name}"
        if length < 2:
            raise ValueError(f"{name}: length must be at least 2, not {length}")
        if not 1 <= places <= _MOST_DIGITS:
            raise ValueError(f"{name}: digits must be 1..{_MOST_DIGITS}, not {places}")
        self._places = places
        channels, height, width = images.shape
        encoder = {"_target_": "blackout.networks.StripEncoder", "parts": places}
        super().__init__(name, "strips", length, (channels, height, places * width), held_out, seed, images, encoder)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        of = self._images
        images, labels = (of.train, of.train_labels) if split == "train" else (of.test, of.test_labels)
        assert labels is not None
        number = chosen(streams, (len(index), self.num_items, self._places), len(images))
        powers = 10 ** torch.arange(self._places - 1, -1, -1)
        values, order = (labels[number] * powers).sum(-1).sort(stable=True)
        number = number.gather(1, order.unsqueeze(-1).expand_as(number))
        strips = images[number].permute(0, 1, 3, 4, 2, 5).flatten(4)  # [b, n, C, H, places * W]
        return {"items": strips.float() / self.scale, "values": values, "ties": first_equal(values)}


@component("dataset")
def sort_digits(length: int = 5, digits: int = 2, held_out: int = 1000, holdout: float = 0.2, seed: int = 0) -> Sorting:
    """Numbers made of scikit-learn's 8x8 digits, which need no download.

    Args:
        length: numbers in a list.
        digits: of a number.
        held_out: number of test lists.
        holdout: share of the images that is held out.
        seed: of the lists.

    Raises:
        ValueError: values out of range.
    """
    return Sorting(digit_images(holdout), length, digits, held_out, seed)


@component("dataset")
def sort_mnist(
    length: int = 5,
    digits: int = 4,
    held_out: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
) -> Sorting:
    """Numbers made of MNIST's digits, four of them as published.

    Args:
        length: numbers in a list.
        digits: of a number.
        held_out: number of test lists.
        seed: of the lists.
        data_dir, download: as for `blackout.data.mnist`.

    Raises:
        UserError: the images cannot be had.
        ValueError: values out of range.
    """
    return Sorting(mnist(data_dir, download=download), length, digits, held_out, seed)
