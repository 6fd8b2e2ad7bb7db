"""Puzzles: sets of items whose right order is known, made from (seed, split, index) and never stored.

A puzzle source (`Puzzles`, a `blackout.protocols.Source`) has no end of training puzzles, `held_out` puzzles to test on
and `validation` puzzles by which choices are made, the same every time. `source.batch(split, index)` with int64 numbers
[b] gives

    items   [b, n, *item_shape], the items in their right order: float32, or int64 tokens [b, n]
    given   int64 [b, n], a uniformly random order, the puzzle: what a solver sees is items[given]
    ties    int64 [b, n], for every place of the right order the first place whose item cannot be told from its own

and the solution of the puzzle, the permutation that takes the items given to their right order, is inverse(given).
Where `facts["first_fixed"]`, the first item is known to come first (any city may begin a tour): given[..., 0] = 0.

`source.facts` are what components ask for by name: num_items, item_shape, num_tokens (tokens only), first_fixed, mean
and std (of all numbers in the items), and `encoder`, the description of the item encoder (`blackout.networks`) that
suits them; a network with an argument `encoder` gets it unless the settings choose another. `source.kind` says what
the items are: strips to be sorted, pieces of an image, points in the plane, tokens, or a user's own items.

`source.scale` is the number that whole numbers in a user's file are divided by (the largest count of the images).
A new source subclasses `Puzzles` and implements `make`; a dataset is a function that returns one. Here are pieces of
pictures to be put together, numbers written by hand to be sorted, and items of a user's own; tours are in
`blackout.permutations.tours`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import Plain, component
from blackout.data import CountData, cifar10, mnist
from blackout.data import digits as digit_images
from blackout.data.formats import load_array, load_arrays
from blackout.data.images import StrPath
from blackout.data.splits import SplitRows, split_samples, take_validation, validation_size
from blackout.data.torchvision_sets import NUM_VALIDATION
from blackout.errors import UserError, ensure, refuse
from blackout.files import hash_tensors
from blackout.permutations.group import identity_like, is_permutation
from blackout.permutations.metrics import MOST_RELEVANT
from blackout.protocols import Split
from blackout.random import SampleStreams, StepStreams, fold_seed
from blackout.safe_reading import check_size, reading, stored_bytes

__all__ = [
    "Kind", "Puzzles", "items", "jigsaw_cifar10", "jigsaw_digits", "jigsaw_mnist", "one_permutation", "read_puzzles",
    "sort_digits", "sort_mnist",
]  # fmt: skip

Kind: TypeAlias = Literal["strips", "pieces", "points", "tokens", "items"]
# what a puzzle's random numbers are for
_GIVEN, _MADE, _ORDER = 0, 1, 3
_FINGERPRINTED = 16
STREAMS: dict[Split, int] = {"train": 0, "test": 1, "val": 2}  # keys of the puzzles of each split
LISTS = (".svm", ".svmlight", ".libsvm", ".txt")


@dataclass(eq=False)
class Puzzles(ABC):
    """A source of puzzles; see `blackout.permutations.datasets` for what a batch holds.

    Args:
        name: short, for logs and directories.
        kind: of items.
        num_items: n.
        item_shape: of one item; empty for tokens.
        held_out: number of test puzzles.
        seed: decides all puzzles.
        facts: further ones.
        scale: what whole numbers in a user's file are divided by.
        validation: number of validation puzzles; None for as many as test puzzles.

    Raises:
        ValueError: fewer than two items, no test puzzle, or a negative number of validation puzzles.
    """

    name: str
    kind: Kind
    num_items: int
    item_shape: tuple[int, ...]
    held_out: int
    seed: int
    facts: Plain
    scale: float = 1.0
    validation: int | None = None

    def __post_init__(self) -> None:
        self.validation = self.held_out if self.validation is None else self.validation
        ensure(self.validation >= 0, f"{self.name}: validation puzzles must be at least 0, not {self.validation}")
        ensure(self.num_items >= 2, f"{self.name}: a puzzle has at least 2 items, not {self.num_items}")
        ensure(self.held_out >= 1, f"{self.name}: held_out must be at least 1, not {self.held_out}")
        own = {"num_items": self.num_items, "item_shape": list(self.item_shape), "first_fixed": False}
        self.facts = {**own, **self.facts}

    @abstractmethod
    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Puzzles with the numbers index [b]: `items` in their right order and, where some are alike, `ties`.

        Args:
            streams: each puzzle's own random numbers.
        """

    def __str__(self) -> str:
        """One line for the summary of a run."""
        of = f" of {'x'.join(map(str, self.item_shape))}" if self.item_shape else ""
        sizes = f"{self.validation:,} validation and {self.held_out:,} test puzzles"
        return f"{self.name}: {self.num_items} {self.kind}{of}, {sizes}"

    def size(self, split: Split) -> int | None:
        """No end of training puzzles, `validation` and `held_out` ones of the others."""
        sizes = {"train": None, "val": self.validation, "test": self.held_out}
        return sizes[split]

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """The puzzles with these numbers [b]: items, given, ties."""
        streams = SampleStreams(fold_seed(self.seed, STREAMS[split]), index)
        made = self.make(split, index, streams.step(_MADE))
        order = streams.step(_GIVEN).next_draw().uniform((len(index), self.num_items))
        if self.facts["first_fixed"]:
            order[:, 0] = -1.0
        given = order.argsort(-1)
        return {"ties": identity_like(given), **made, "given": given}

    def fingerprint(self, split: Split) -> str:
        """A hash of the first puzzles and of what else decides them."""
        size = self.size(split)
        number = _FINGERPRINTED if size is None else min(_FINGERPRINTED, size)
        batch = self.batch(split, torch.arange(number))
        return hash_tensors(f"{self} {self.seed} {self._content(split)}", batch)

    def _content(self, split: Split) -> str:
        """A hash of what puzzles are made from, where that is more than random numbers."""
        return ""

    def to(self, device: torch.device) -> Puzzles:
        """The same: puzzles are made on the CPU."""
        return self


def chosen(streams: StepStreams, shape: tuple[int, ...], number: int) -> Tensor:
    """Uniform on 0..number - 1, int64 of `shape` [b, ...]."""
    return streams.next_draw().uniform(shape).mul_(number).long()


def first_equal(x: Tensor) -> Tensor:
    """For each of n entries the first one equal to it, int64 [b, n] for x [b, n, ...].

    Ours (tests/permutations/test_datasets.py).
    """
    flat = x.flatten(2) if x.ndim > 2 else x.unsqueeze(-1)
    return (flat.unsqueeze(1) == flat.unsqueeze(2)).all(-1).int().argmax(-1)


class StoredPuzzles(Puzzles):
    """Puzzles of lists in memory, training ones in random order; see `Puzzles` for the other arguments.

    Args:
        values: lists [N, n, ...] in their right order, by split.
    """

    def __init__(self, name: str, kind: Kind, values: Mapping[Split, Tensor], seed: int, facts: Plain) -> None:
        self._rows = values
        shape, sizes = values["train"].shape, {split: len(rows) for split, rows in values.items()}
        super().__init__(
            name, kind, shape[1], tuple(shape[2:]), sizes["test"], seed, facts, validation=sizes["val"]
        )

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Puzzles with the numbers index [b], arrays [b, n, ...]: see `Puzzles.make`."""
        rows = self._rows[split]
        lists = rows[chosen(streams, (len(index),), len(rows)) if split == "train" else index]
        return {"items": lists, "ties": first_equal(lists)}

    def _content(self, split: Split) -> str:
        return hash_tensors("", {split: self._rows[split]})


@component("dataset")
def one_permutation(length: int = 10, held_out: int = 1000, seed: int = 0) -> StoredPuzzles:
    """A single permutation to be memorised [Zhang 2025, appendix G.1]: tokens 0..length - 1 in one random order.

    Args:
        length: tokens.
        held_out: number of validation and of test puzzles: the one permutation in other random orders.
        seed: of the permutation and the puzzles.

    Raises:
        ValueError: values out of range.
    """
    order = torch.randperm(length, generator=torch.Generator().manual_seed(fold_seed(seed, _ORDER)))
    facts = {"num_tokens": length, "mean": 0.0, "std": 1.0, "encoder": {"_target_": "blackout.networks.TokenEncoder"}}
    repeated = order.repeat(max(held_out, 0), 1)
    values: dict[Split, Tensor] = {"train": order[None], "val": repeated, "test": repeated}
    return StoredPuzzles("one_permutation", "tokens", values, seed, facts)


@component("dataset", ask="dataset=items dataset.path=<file>")
def items(path: StrPath, holdout: float = 0.1, seed: int = 0, validation: float = 0.1) -> Puzzles:
    """Your own lists, in their right order: an .npz with `items` [N, n, ...], numbers of any kind.

    Images [N, n, C, h, w] or [N, n, h, w] are pieces, everything else plain numbers. An .npz with `train` and `test`,
    and perhaps `val`, keeps these splits. Or an svmlight file of lists of any length, by falling relevance: see
    `RankedLists`.

    Args:
        path: of the file.
        holdout: share of the lists to test on; a file with `test` has its own.
        seed: of split and puzzles.
        validation: share or number of the lists by which choices are made; 0 for none.

    Raises:
        UserError: no such file, or not of this form.
        ValueError: a share out of range.
    """
    file = Path(path).expanduser()
    if file.suffix in LISTS:
        return RankedLists(file.stem, read_lists(file), holdout, validation, seed)
    values, rows = read_samples(file, "items", validation, holdout, seed)
    if values.ndim < 2 or values.shape[0] < 2 or values.shape[1] < 2 or not values.numel():
        raise UserError(f"{file}: items must be [N, n, ...], N and n at least 2, not {list(values.shape)}")
    if values.ndim in (2, 4):  # single numbers, and grey images without their channel
        values = values.unsqueeze(2)
    values = values.float().contiguous()
    split = taken(values, rows)
    train = split["train"]
    image = values.ndim == 5 and values.shape[2] in (1, 3)
    std = float(train.double().std(correction=0))
    facts = {
        "mean": float(train.double().mean()),
        "std": std if std > 0 else 1.0,
        "encoder": {"_target_": f"blackout.networks.{'PieceEncoder' if image else 'ItemEncoder'}"},
    }
    return StoredPuzzles(file.stem, "pieces" if image else "items", split, seed, facts)


def divide(values: Tensor, validation: float, holdout: float, seed: int) -> dict[Split, Tensor]:
    """Divide rows [N, ...] into those of the splits, see `split_samples`."""
    return taken(values, split_samples(len(values), validation, holdout, seed))


def taken(values: Tensor, rows: SplitRows) -> dict[Split, Tensor]:
    """Return the rows [N, ...] of each split."""
    return {"train": values[rows.train], "val": values[rows.val], "test": values[rows.test]}


def read_samples(
    file: Path, name: str, validation: float, holdout: float, seed: int
) -> tuple[Tensor, SplitRows]:
    """Return all samples in an .npy or .npz file, [N, ...], and which of them are of which split.

    Splits that an .npz gives, `train`, `test` and perhaps `val`, are kept; without `val` validation samples are taken
    from `train`. Another array is divided at random.

    Args:
        file: the file.
        name: of the array in an .npz that is to be divided.
        validation: share or number of the samples for validation; 0 for none.
        holdout: share of the samples to test on.
        seed: of the choice.

    Raises:
        UserError: no such file or array, a split without samples or of another shape, or what is no finite number.
        ValueError: shares out of range.
    """
    loaded = load_arrays(file)
    arrays = loaded if isinstance(loaded, dict) else {}
    if not {"train", "test"} & arrays.keys():
        values = finite_numbers(load_array(file, name), file)
        return values, split_samples(max(1, len(values)) if values.ndim else 1, validation, holdout, seed)
    refuse(not {"train", "test"} <= arrays.keys(), f"{file}: `train` and `test` must come together")
    parts = [finite_numbers(arrays[split], file) for split in ("train", "val", "test") if split in arrays]
    shapes = [list(part.shape) for part in parts]
    alike = all(len(shape) and shape[0] and shape[1:] == shapes[0][1:] for shape in shapes)
    refuse(not alike, f"{file}: train, val and test must be [N, ...] of one shape, not {shapes}")
    numbers = list(torch.arange(sum(map(len, parts))).split([len(part) for part in parts]))
    if "val" in arrays:
        return torch.cat(parts), SplitRows(*numbers)
    train, test = numbers
    number = validation_size(validation, len(train))
    rest, chosen = take_validation(len(train), number, seed) if number else (train, train[:0])
    return torch.cat(parts), SplitRows(rest, chosen, test)


class RankedLists(Puzzles):
    """Items of lists of any length; the right order is by falling relevance, equals in a random order, anew each time.

    Ours (tests/permutations/test_datasets.py).

    Shorter lists are filled with zeros, which come last. Batches also hold `relevance`, int64 [b, n], of these 0.

    Args:
        lists: of `read_lists`.
        holdout: share of the lists to test on.
        validation: share or number of the lists by which choices are made.

    Raises:
        ValueError: a share out of range, or no list of two items.
    """

    def __init__(
        self, name: str, lists: tuple[Tensor, Tensor, Tensor], holdout: float, validation: float, seed: int
    ) -> None:
        """Means and deviations of the training items' numbers, [F] each, with which all are `scaled`."""
        numbers, self._relevance, rows = lists
        self._rows = divide(rows, validation, holdout, seed)
        trained = self._rows["train"].unique()
        known = numbers[trained[trained < len(numbers)]]  # lists are filled up with the number of all items
        self._mean, self._std = known.mean(0), known.std(0, correction=0).clamp(min=1e-6)
        self._items = self.scaled(numbers)
        facts = {"mean": 0.0, "std": 1.0, "encoder": {"_target_": "blackout.networks.ItemEncoder"}}
        shape, sizes = tuple(self._items.shape[1:]), {split: len(part) for split, part in self._rows.items()}
        super().__init__(
            name, "items", rows.shape[1], shape, sizes["test"], seed, facts, validation=sizes["val"]
        )

    def scaled(self, numbers: Tensor) -> Tensor:
        """Numbers [N, F] of items in units of the training items' deviation, and a 1; then zeros: [N + 1, F + 1].

        Ours (tests/permutations/test_datasets.py).
        """
        x = (numbers - self._mean) / self._std
        return F.pad(torch.cat([x, torch.ones_like(x[:, :1])], 1).float(), (0, 0, 0, 1))

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Puzzles with the numbers index [b], arrays [b, n, ...], by falling relevance: see `Puzzles.make` and the
        class.
        """
        rows = self._rows[split]
        rows = rows[chosen(streams, (len(index),), len(rows)) if split == "train" else index]
        order = (streams.next_draw().uniform(tuple(rows.shape)) - self._relevance[rows]).argsort(1)
        rows = rows.gather(1, order)
        relevance = self._relevance[rows]
        return {"items": self._items[rows], "ties": first_equal(relevance), "relevance": relevance.clamp(min=0)}


def read_lists(file: Path, features: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Items of an svmlight file, `2 qid:7 1:0.5 3:1.2` on every line, which are a list where they have one qid.

    Args:
        features: of an item; None for as many as occur.

    Returns:
        Numbers of items, float64 [N, features]; their relevance, int64 [N + 1], in the end -1; and the items of every
        list, [lists, n], filled up with N.

    Raises:
        UserError: no such file, or another one.
    """
    from sklearn.datasets import load_svmlight_file

    with reading(file, "not an svmlight file"):
        sparse, labels, query = load_svmlight_file(str(file), n_features=features, query_id=True)
        check_size(file, 16 * math.prod(sparse.shape), stored_bytes(file))
        x = torch.from_numpy(sparse.toarray())
    whole = (labels == np.floor(labels)) & (labels >= 0) & (labels <= MOST_RELEVANT)
    if not len(query) == len(labels) > 0 or not whole.all() or not bool(x.isfinite().all()):
        raise UserError(f"{file}: every line needs a relevance, a whole number 0..{MOST_RELEVANT}, and a qid")
    _, own, sizes = torch.from_numpy(query).unique(return_inverse=True, return_counts=True)
    place, rows = torch.arange(int(sizes.max())), own.argsort(stable=True)
    at = (sizes.cumsum(0) - sizes).unsqueeze(1) + place
    lists = torch.where(place < sizes.unsqueeze(1), rows[at.clamp(max=len(x) - 1)], len(x))
    return x, F.pad(torch.from_numpy(labels).long(), (0, 1), value=-1), lists


def read_puzzles(path: StrPath, source: Puzzles) -> dict[str, Tensor]:
    """Puzzles to be solved: an .npz with `items` [N, n, ...] as they lie, and `truth` [N, n] where it is known; for
    `RankedLists` an svmlight file.

    Whole numbers are counts, divided by the source's scale; fractions are taken as they are.

    Returns:
        `items` [N, n, *item_shape] and, if given, `truth`, the permutations that take them to their right order.

    Raises:
        UserError: no such file, or not puzzles of the source's kind.
    """
    file = Path(path).expanduser()
    if file.suffix in LISTS and isinstance(source, RankedLists):
        numbers, relevance, lists = read_lists(file, source.item_shape[0] - 1)
        if (more := lists.shape[1] - source.num_items) > 0:
            raise UserError(f"{file}: a list has {more} items more than the {source.num_items} of the model's longest")
        lists = F.pad(lists, (0, -more), value=len(numbers))
        known = relevance[lists]
        best = known.argsort(dim=1, descending=True, stable=True)
        return {"items": source.scaled(numbers)[lists], "truth": best, "relevance": known.clamp(min=0)}
    loaded = load_arrays(file)
    arrays = loaded if isinstance(loaded, dict) else {"items": loaded}
    refuse("items" not in arrays, f"{file}: an array `items` is needed, found {', '.join(arrays) or 'nothing'}")
    values = finite_numbers(arrays["items"], file)
    expected = (source.num_items, *source.item_shape)
    if values.ndim == len(expected) and source.item_shape[:1] == (1,):
        values = values.unsqueeze(2)  # grey images without their channel
    if values.ndim < 2 or tuple(values.shape[1:]) != expected or not len(values):
        raise UserError(f"{file}: items must be [N, {', '.join(map(str, expected))}], not {list(values.shape)}")
    if source.kind == "tokens":
        if values.is_floating_point() or not bool(is_permutation(values).all()):
            raise UserError(f"{file}: items must be tokens, each of 0..{source.num_items - 1} once in a list")
    else:
        values = values.float() if values.is_floating_point() else values.float() / source.scale
        low, high = (float(end) for end in values.aminmax())
        # noise reaches a little beyond black and white
        if source.scale > 1 and not -0.5 <= low <= high <= 1.5:
            allowed = f"whole numbers 0..{source.scale:.0f} or fractions of 1"
            raise UserError(f"{file}: items must be {allowed}, but reach {low:g}..{high:g}")
    if "truth" not in arrays:
        return {"items": values}
    truth = torch.from_numpy(arrays["truth"].astype(np.int64)) if arrays["truth"].dtype.kind in "iu" else None
    if truth is None or truth.shape != values.shape[:2] or not bool(is_permutation(truth).all()):
        raise UserError(f"{file}: truth must be permutations, whole numbers {list(values.shape[:2])}")
    return {"items": values, "truth": truth}


def finite_numbers(array: np.ndarray, file: Path) -> Tensor:
    """The array of a file as float64 or int64, of the same shape.

    Raises:
        UserError: it holds no numbers, or some that are not finite.
    """
    refuse(array.dtype.kind not in "iufb", f"{file}: numbers are needed, not {array.dtype}")
    refuse(not np.isfinite(array).all(), f"{file}: holds numbers that are not finite")
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))


_NOISE = 2
_NOISE_STREAMS: dict[Split, int] = {"test": 0, "train": 1, "val": 2}
_NORMAL_LIMIT = 2.0**-50
_MOST_DIGITS = 18
"""Numbers of so many digits fit int64."""


class ImagePuzzles(Puzzles):
    """Items cut out of images, float32 counts over the largest; those of a split come from its images alone.

    Without validation images there are no validation puzzles.

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
        validation = held_out if images.size("val") else 0
        super().__init__(
            name, kind, num_items, item_shape, held_out, seed, facts, float(scale), validation
        )

    def _content(self, split: Split) -> str:
        return self._images.fingerprint(split)


class Jigsaws(ImagePuzzles):
    """Images cut into pieces x pieces parts, row by row; what does not divide is cropped at the bottom and the right.

    A piece is [C, h, w]. Pieces without noise that are equal are ties. [Zhang 2025, appendix G.2].

    Args:
        images: with a test split.
        pieces: per side.
        held_out: number of validation and of test puzzles, of the images of these splits in turn.
        noise: standard deviation of Gaussian noise, the same for an image each time.
        seed: of everything random.

    Raises:
        ValueError: pieces below 2 or without pixels, or negative noise.
    """

    def __init__(self, images: CountData, pieces: int, held_out: int, noise: float = 0.0, seed: int = 0) -> None:
        """Pieces of [C, H // pieces, W // pieces]."""
        channels, height, width = images.shape
        name = f"jigsaw_{images.name}"
        if not 2 <= pieces <= min(height, width):
            raise ValueError(f"{name}: pieces per side must be 2..{min(height, width)}, not {pieces}")
        ensure(0 <= noise < float("inf"), f"{name}: noise must not be negative, but is {noise}")
        self._pieces, self._noise = pieces, noise
        shape, encoder = (channels, height // pieces, width // pieces), {"_target_": "blackout.networks.PieceEncoder"}
        super().__init__(name, "pieces", pieces**2, shape, held_out, seed, images, encoder)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Puzzles with the numbers index [b], arrays [b, n, C, h, w]: pieces and their noise as in the class."""
        size = self._images.size(split)
        number = chosen(streams, (len(index),), size) if split == "train" else index % size
        images = self._images.batch(split, number)["x0"].cpu()
        clean = self._cut(images)
        items = clean.float() / self.scale
        if self._noise:  # normal numbers that belong to the images
            own = SampleStreams(fold_seed(self.seed, _NOISE, _NOISE_STREAMS[split]), number).step(0)
            u = own.next_draw().uniform((len(number), *images.shape[1:]))
            normal = torch.special.ndtri(u.clamp_(_NORMAL_LIMIT, 1 - _NORMAL_LIMIT)).float()
            items = items + self._noise * self._cut(normal)
        return {"items": items, "ties": first_equal(clean)}

    def _cut(self, images: Tensor) -> Tensor:
        """[b, C, H, W] -> [b, pieces^2, C, h, w], row by row: see the class."""
        (_, h, w), p = self.item_shape, self._pieces
        cropped = images[:, :, : p * h, : p * w]
        return cropped.unflatten(2, (p, h)).unflatten(4, (p, w)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


@component("dataset")
def jigsaw_digits(
    pieces: int = 2, held_out: int = 1000, holdout: float = 0.2, seed: int = 0, validation: float = 0.1
) -> Jigsaws:
    """scikit-learn's 8x8 digits, which need no download, cut into pieces; puzzles of the 359 test images repeat.

    Args:
        pieces: per side, 2 to 8.
        held_out: number of validation and of test puzzles.
        holdout: share of the images for test puzzles.
        seed: of the puzzles.
        validation: share or number of the images for validation puzzles; 0 for none.

    Raises:
        ValueError: values out of range.
    """
    return Jigsaws(digit_images(holdout, validation=validation), pieces, held_out, seed=seed)


@component("dataset")
def jigsaw_mnist(
    pieces: int = 3,
    noise: float = 0.01,
    held_out: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> Jigsaws:
    """MNIST with pixel noise, cut into pieces [Zhang 2025, section 4.2].

    Args:
        pieces: per side, 2 to 28.
        noise: standard deviation, of pixels in [0, 1], drawn once for every image.
        held_out: number of validation and of test puzzles.
        seed: of noise and puzzles.
        data_dir, download, validation: as for `blackout.data.mnist`.

    Raises:
        UserError: the images cannot be had.
        ValueError: values out of range.
    """
    images = mnist(data_dir, download=download, validation=validation)
    return Jigsaws(images, pieces, held_out, noise, seed)


@component("dataset")
def jigsaw_cifar10(
    pieces: int = 3,
    held_out: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> Jigsaws:
    """CIFAR-10 cut into pieces; arguments and errors as for `jigsaw_mnist`."""
    return Jigsaws(cifar10(data_dir, download, validation), pieces, held_out, seed=seed)


class Sorting(ImagePuzzles):
    """Lists of numbers, each a strip [1, H, digits * W] of images of digits side by side; the right order is rising.

    [Zhang 2025, section 4.1]. Batches also hold `values`, int64 [b, n], the numbers; equal numbers are ties.

    Args:
        images: of digits, with labels.
        length: numbers in a list.
        places: digits of a number.
        held_out: number of validation and of test lists, of images of these splits.
        seed: of everything random.

    Raises:
        ValueError: length below 2, or places outside 1..18.
    """

    def __init__(self, images: CountData, length: int, places: int, held_out: int, seed: int = 0) -> None:
        name = f"sort_{images.name}"
        ensure(length >= 2, f"{name}: length must be at least 2, not {length}")
        ensure(1 <= places <= _MOST_DIGITS, f"{name}: digits must be 1..{_MOST_DIGITS}, not {places}")
        self._places = places
        channels, height, width = images.shape
        encoder = {"_target_": "blackout.networks.StripEncoder", "parts": places}
        super().__init__(name, "strips", length, (channels, height, places * width), held_out, seed, images, encoder)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Puzzles with the numbers index [b], strips [b, n, C, H, digits * W] by rising numbers: see the class."""
        number = chosen(streams, (len(index), self.num_items, self._places), self._images.size(split))
        drawn = self._images.batch(split, number.flatten())
        labels = drawn["label"].view_as(number)
        images = drawn["x0"].cpu().unflatten(0, number.shape)  # [b, n, places, C, H, W]
        powers = 10 ** torch.arange(self._places - 1, -1, -1)
        values, order = (labels * powers).sum(-1).sort(stable=True)
        rows = torch.arange(len(index)).unsqueeze(1)
        digits = images[rows, order].float() / self.scale
        strips = digits.permute(0, 1, 3, 4, 2, 5).flatten(4)  # [b, n, C, H, places * W]
        return {"items": strips, "values": values, "ties": first_equal(values)}


@component("dataset")
def sort_digits(
    length: int = 5,
    digits: int = 2,
    held_out: int = 1000,
    holdout: float = 0.2,
    seed: int = 0,
    validation: float = 0.1,
) -> Sorting:
    """Numbers made of scikit-learn's 8x8 digits, which need no download.

    Args:
        length: numbers in a list.
        digits: of a number.
        held_out: number of validation and of test lists.
        holdout: share of the images for test lists.
        seed: of the lists.
        validation: share or number of the images for validation lists; 0 for none.

    Raises:
        ValueError: values out of range.
    """
    return Sorting(digit_images(holdout, validation=validation), length, digits, held_out, seed=seed)


@component("dataset")
def sort_mnist(
    length: int = 5,
    digits: int = 4,
    held_out: int = 1000,
    seed: int = 0,
    data_dir: StrPath = "data",
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> Sorting:
    """Numbers made of MNIST's digits, four of them as published.

    Args:
        length: numbers in a list.
        digits: of a number.
        held_out: number of validation and of test lists.
        seed: of the lists.
        data_dir, download, validation: as for `blackout.data.mnist`.

    Raises:
        UserError: the images cannot be had.
        ValueError: values out of range.
    """
    images = mnist(data_dir, download=download, validation=validation)
    return Sorting(images, length, digits, held_out, seed)
