"""Numbers written by hand, to be sorted."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from blackout.component import component
from blackout.data import CountData, mnist
from blackout.data import digits as digit_images
from blackout.family import Split
from blackout.permutations.datasets.base import Puzzles, chosen, first_equal
from blackout.random import StepStreams, fold_seed

_MOST_DIGITS = 18
"""Numbers of so many digits fit int64."""


class Sorting(Puzzles):
    """Lists of numbers, each a strip [1, H, digits * W] of images of digits side by side; the right order is rising.

    Batches also hold `values`, int64 [b, n], the numbers; equal numbers are ties.

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
        self._images, self._places = images, places
        channels, height, width = images.shape
        facts = {
            "mean": images.facts["mean"] / images.max_count, "std": images.facts["std"] / images.max_count,
            "encoder": {"_target_": "blackout.networks.StripEncoder", "parts": places},
        }  # fmt: skip
        shape = (channels, height, places * width)
        super().__init__(name, "strips", length, shape, held_out, seed, facts, float(images.max_count))

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        train = split == "train"
        images = self._images.train if train else self._images.test
        labels = self._images.train_labels if train else self._images.test_labels
        assert labels is not None
        number = chosen(streams, (len(index), self.num_items, self._places), len(images))
        powers = 10 ** torch.arange(self._places - 1, -1, -1)
        values = (labels[number] * powers).sum(-1)
        values, order = values.sort(stable=True)
        number = number.gather(1, order.unsqueeze(-1).expand_as(number))
        strips = images[number].permute(0, 1, 3, 4, 2, 5).flatten(4)  # [b, n, C, H, places * W]
        return {"items": strips.float() / self.scale, "values": values, "ties": first_equal(values)}

    def _content(self, split: Split) -> str:
        return self._images.fingerprint(split)


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
    data_dir: str | os.PathLike[str] = "data",
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


# --- A single permutation to be memorised: n tokens in one fixed order.

_ORDER = 3


class OnePermutation(Puzzles):
    """The tokens 0..length - 1, always in the same right order, a random one."""

    def __init__(self, length: int, held_out: int, seed: int) -> None:
        facts = {
            "num_tokens": length, "mean": 0.0, "std": 1.0, "encoder": {"_target_": "blackout.networks.TokenEncoder"},
        }  # fmt: skip
        super().__init__("one_permutation", "tokens", length, (), held_out, seed, facts)
        self.order = torch.randperm(length, generator=torch.Generator().manual_seed(fold_seed(seed, _ORDER)))

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        return {"items": self.order.repeat(len(index), 1)}


@component("dataset")
def one_permutation(length: int = 10, held_out: int = 1000, seed: int = 0) -> OnePermutation:
    """One permutation of `length` tokens, shuffled in every puzzle.

    Args:
        length: tokens.
        held_out: number of test puzzles.
        seed: of the permutation and the puzzles.

    Raises:
        ValueError: values out of range.
    """
    return OnePermutation(length, held_out, seed)
