"""Puzzles: lists of items whose right order is known.

Puzzles are made from (seed, split, index) and not stored.

A source of puzzles (`Puzzles`, a `blackout.protocols.Source`) has an unlimited number of training
puzzles, `held_out` test puzzles and `validation` validation puzzles. `source.batch(split, index)`
with int64 indices [b] returns

    items   [b, n, *item_shape], the items in their right order: float32, or int64 tokens [b, n]
    given   int64 [b, n], a uniformly random order, the puzzle: a solver sees items[given]
    ties    int64 [b, n], for every position of the right order the first one with an equal item

The solution of the puzzle, which takes its items to their right order, is inverse(given). If
`facts["first_fixed"]`, the first item is known to come first (a tour may start in any city), and
given[..., 0] = 0.

`source.facts` are the statistics that components ask for by name: num_items, item_shape, num_tokens
(tokens only), first_fixed, mean and std (of all values of the items), and `encoder`, the
description of the default encoder (`blackout.networks`). `source.kind` is the kind of items: strips
to be sorted, pieces of an image, points in the plane, tokens, or items of the user. `source.scale`
is the divisor of integers in a user's file (the largest count of images).

A new source is a subclass of `Puzzles` that implements `make`; a data set is a function that
returns one. This file has jigsaws, sorting of handwritten numbers, and items of the user; tours are
in `blackout.permutations.tours`.

Example:
    >>> import torch
    >>> from blackout.permutations.group import inverse
    >>> source = one_permutation(length=3, held_out=2)
    >>> batch = source.batch("test", torch.arange(2))
    >>> puzzle = batch["items"].gather(1, batch["given"])
    >>> torch.equal(puzzle.gather(1, inverse(batch["given"])), batch["items"])
    True
"""

from __future__ import annotations

import math
import warnings
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
from blackout.data.findings import Note
from blackout.data.formats import load_array, load_arrays
from blackout.data.images import StrPath
from blackout.data.splits import (
    DEFAULT_HOLDOUT,
    SplitRows,
    split_samples,
    take_validation,
    validation_size,
)
from blackout.data.torchvision_sets import NUM_VALIDATION
from blackout.errors import UserError, ensure, error_context, refuse
from blackout.files import hash_tensors
from blackout.permutations.group import identity_like, is_permutation
from blackout.permutations.metrics import MAX_RELEVANCE
from blackout.protocols import Split
from blackout.random import SampleStreams, StepStreams, fold_seed
from blackout.safe_reading import check_size, reading, stored_bytes

__all__ = [
    "Kind",
    "Puzzles",
    "items",
    "jigsaw_cifar10",
    "jigsaw_digits",
    "jigsaw_mnist",
    "one_permutation",
    "read_puzzles",
    "sort_digits",
    "sort_mnist",
]

Kind: TypeAlias = Literal["strips", "pieces", "points", "tokens", "items"]

# keys of the random numbers of a puzzle, by their use
ORDER_KEY = 0
ITEMS_KEY = 1
NOISE_KEY = 2
PERMUTATION_KEY = 3  # the order of `one_permutation`
SPLIT_KEYS: dict[Split, int] = {"train": 0, "test": 1, "val": 2}  # of puzzles
NOISE_SPLIT_KEYS: dict[Split, int] = {"test": 0, "train": 1, "val": 2}  # of noise on images

NUM_HASHED = 16  # puzzles in the fingerprint of a split
LIST_SUFFIXES = (".svm", ".svmlight", ".libsvm", ".txt")
MIN_UNIFORM = 2.0**-50  # smallest uniform of normal noise, so that the noise is finite
MAX_DIGITS = 18  # digits of a number that fits int64


@dataclass(eq=False)
class Puzzles(ABC):
    """A source of puzzles; see the module for what a batch holds.

    Args:
        name: short, for logs and directories.
        kind: of the items.
        num_items: n.
        item_shape: of one item; empty for tokens.
        held_out: number of test puzzles.
        seed: of all puzzles.
        facts: further statistics.
        scale: divisor of integers in a user's file.
        validation: number of validation puzzles; None for as many as test puzzles.

    Raises:
        ValueError: fewer than two items, no test puzzle, or a negative number of validation
            puzzles.
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __post_init__(self) -> None:
        self.validation = self.held_out if self.validation is None else self.validation
        ensure(
            self.validation >= 0,
            f"{self.name}: validation puzzles must be at least 0, not {self.validation}",
        )
        ensure(
            self.num_items >= 2, f"{self.name}: a puzzle has at least 2 items, not {self.num_items}"
        )
        ensure(self.held_out >= 1, f"{self.name}: held_out must be at least 1, not {self.held_out}")
        defaults = {
            "num_items": self.num_items,
            "item_shape": list(self.item_shape),
            "first_fixed": False,
        }
        self.facts = {**defaults, **self.facts}

    @abstractmethod
    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Make puzzles: `items` in their right order and, if some may be equal, `ties`.

        Args:
            split: of the puzzles.
            index: int64 [b].
            streams: random numbers of every puzzle.
        """

    def convert(self, items: Tensor) -> Tensor:
        """Return items of a user's file in the units of these puzzles; here they are the same.

        Args:
            items: [N, n, *item_shape].

        Raises:
            ValueError: they are in other units.
        """
        return items

    def __str__(self) -> str:
        """Return one line for the summary of a run."""
        shape = f" of {'x'.join(map(str, self.item_shape))}" if self.item_shape else ""
        sizes = f"{self.validation:,} validation and {self.held_out:,} test puzzles"
        return f"{self.name}: {self.num_items} {self.kind}{shape}, {sizes}"

    def size(self, split: Split) -> int | None:
        """Return the number of puzzles of a split; None for an unlimited number."""
        sizes = {"train": None, "val": self.validation, "test": self.held_out}
        return sizes[split]

    def batch(
        self, split: Split, index: Tensor, augment: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return `items`, `given` and `ties` of puzzles, see the module.

        Args:
            split: of the puzzles.
            index: int64 [b].
            augment: ignored: every training index is a new puzzle.
        """
        streams = SampleStreams(fold_seed(self.seed, SPLIT_KEYS[split]), index)
        puzzles = self.make(split, index, streams.step(ITEMS_KEY))
        u = streams.step(ORDER_KEY).next_draw().uniform((len(index), self.num_items))
        if self.facts["first_fixed"]:
            u[:, 0] = -1.0
        order = u.argsort(-1)
        return {"ties": identity_like(order), **puzzles, "given": order}

    def fingerprint(self, split: Split) -> str:
        """Return a hash of the first puzzles, and of the data they are made from."""
        size = self.size(split)
        num_puzzles = NUM_HASHED if size is None else min(NUM_HASHED, size)
        batch = self.batch(split, torch.arange(num_puzzles))
        return hash_tensors(f"{self} {self.seed} {self._data_hash(split)}", batch)

    def _data_hash(self, split: Split) -> str:
        """Return a hash of the data that the puzzles of a split are made from.

        It is empty if puzzles are made from random numbers alone.
        """
        return ""

    def to(self, device: torch.device) -> Puzzles:
        """Return itself: puzzles are made on the CPU."""
        return self


def draw_integers(streams: StepStreams, shape: tuple[int, ...], size: int) -> Tensor:
    """Draw integers uniform on 0..size - 1, int64 of a shape [b, ...]."""
    return streams.next_draw().uniform(shape).mul_(size).long()


def first_equal(x: Tensor) -> Tensor:
    """Return the index of the first equal entry of every entry, int64 [b, n], for x [b, n, ...].

    References: this project; checked in tests/permutations/test_datasets.py.
    """
    if x.ndim > 2:  # equal numbers in place of equal entries
        x = x.flatten(0, 1).unique(dim=0, return_inverse=True)[1].view(x.shape[:2])
    values, order = x.sort(dim=1, stable=True)
    is_first = torch.ones_like(values, dtype=torch.bool)
    is_first[:, 1:] = values[:, 1:] != values[:, :-1]
    places = torch.arange(values.shape[1], device=x.device) * is_first
    first = order.gather(1, places.cummax(1).values)
    return torch.empty_like(order).scatter(1, order, first)


class StoredPuzzles(Puzzles):
    """Puzzles of lists in memory, training lists in random order.

    Args:
        name: see `Puzzles`.
        kind: see `Puzzles`.
        lists: in their right order, [N, n, ...], by split.
        seed: see `Puzzles`.
        facts: see `Puzzles`.
    """

    def __init__(
        self, name: str, kind: Kind, lists: Mapping[Split, Tensor], seed: int, facts: Plain
    ) -> None:
        self._lists = lists
        shape = lists["train"].shape
        super().__init__(
            name,
            kind,
            shape[1],
            tuple(shape[2:]),
            len(lists["test"]),
            seed,
            facts,
            validation=len(lists["val"]),
        )

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return the lists [b, n, ...] of the puzzles, and ties."""
        lists = self._lists[split]
        row = draw_integers(streams, (len(index),), len(lists)) if split == "train" else index
        items = lists[row]
        return {"items": items, "ties": first_equal(items)}

    def _data_hash(self, split: Split) -> str:
        """Return a hash of the lists of a split."""
        return hash_tensors("", {split: self._lists[split]})


@component("dataset")
def one_permutation(length: int = 10, held_out: int = 1000, seed: int = 0) -> StoredPuzzles:
    """A single permutation to be memorised: tokens 0..length - 1 in one random order.

    Args:
        length: tokens.
        held_out: number of validation and of test puzzles, the permutation in other random orders.
        seed: of the permutation and the puzzles.

    Raises:
        ValueError: values out of range.

    References: Zhang et al. 2025, appendix G.1.
    """
    generator = torch.Generator().manual_seed(fold_seed(seed, PERMUTATION_KEY))
    permutation = torch.randperm(length, generator=generator)
    facts = {
        "num_tokens": length,
        "mean": 0.0,
        "std": 1.0,
        "encoder": {"_target_": "blackout.networks.TokenEncoder"},
    }
    copies = permutation.repeat(max(held_out, 0), 1)
    lists: dict[Split, Tensor] = {"train": permutation[None], "val": copies, "test": copies}
    return StoredPuzzles("one_permutation", "tokens", lists, seed, facts)


@component("dataset", ask="dataset=items dataset.path=<file>")
def items(path: StrPath, holdout: float = 0.1, seed: int = 0, validation: float = 0.1) -> Puzzles:
    """Lists of the user in their right order.

    An .npz file has `items` [N, n, ...], numbers of any kind. Images [N, n, C, h, w] or [N, n, h,
    w] are pieces, and everything else plain numbers. An .npz with `train` and `test`, and perhaps
    `val`, keeps these splits. An svmlight file has lists of any length by falling relevance, see
    `RankedLists`.

    Args:
        path: the file.
        holdout: share of the lists for testing; a file with `test` has its own.
        seed: of the split and the puzzles.
        validation: share or number of the lists for validation; 0 for none.

    Raises:
        UserError: a file that is missing or in another format.
        ValueError: a share out of range.
    """
    file = Path(path).expanduser()
    if file.suffix in LIST_SUFFIXES:
        return RankedLists(file.stem, read_lists(file), holdout, validation, seed)
    # 1. read
    values, rows = read_samples(file, "items", validation, holdout, seed)
    if values.ndim < 2 or values.shape[0] < 2 or values.shape[1] < 2 or not values.numel():
        raise UserError(
            f"{file}: items must be [N, n, ...], N and n at least 2, not {list(values.shape)}"
        )
    if values.ndim in (2, 4):
        values = values.unsqueeze(2)  # single numbers, and grey images without their channel
    lists = split_rows(_to_float(values, file).contiguous(), rows)
    # 2. describe
    train = lists["train"]
    are_images = train.ndim == 5 and train.shape[2] in (1, 3)
    encoder = "PieceEncoder" if are_images else "ItemEncoder"
    std = float(train.double().std(correction=0))
    facts = {
        "mean": float(train.double().mean()),
        "std": std if std > 0 else 1.0,
        "encoder": {"_target_": f"blackout.networks.{encoder}"},
    }
    return StoredPuzzles(file.stem, "pieces" if are_images else "items", lists, seed, facts)


def split_at_random(
    values: Tensor, validation: float, holdout: float, seed: int
) -> dict[Split, Tensor]:
    """Divide rows [N, ...] at random into those of the splits, see `split_samples`."""
    return split_rows(values, split_samples(len(values), validation, holdout, seed))


def split_rows(values: Tensor, rows: SplitRows) -> dict[Split, Tensor]:
    """Return the rows [N, ...] of each split."""
    return {"train": values[rows.train], "val": values[rows.val], "test": values[rows.test]}


def read_samples(
    file: Path, name: str, validation: float, holdout: float, seed: int
) -> tuple[Tensor, SplitRows]:
    """Read all samples of an .npy or .npz file, and choose those of each split.

    Splits of an .npz, `train`, `test` and perhaps `val`, are kept; without `val` validation samples
    are taken from `train`. Any other array is divided at random.

    Args:
        file: the file.
        name: array of an .npz that is divided.
        validation: share or number of the samples for validation; 0 for none.
        holdout: share of the samples for testing.
        seed: of the choice.

    Returns:
        Samples [N, ...] and the rows of each split.

    Raises:
        UserError: a missing file or array, a split without samples or of another shape, or values
            that are no finite numbers.
        ValueError: shares out of range.
    """
    loaded = load_arrays(file)
    arrays = loaded if isinstance(loaded, dict) else {}
    # 1. a single array
    if not {"train", "test"} & arrays.keys():
        if len(arrays) > 1:
            name_other_arrays(arrays, {name})
        values = finite_numbers(load_array(file, name), file)
        num_samples = max(1, len(values)) if values.ndim else 1
        return values, split_samples(num_samples, validation, holdout, seed)
    # 2. an array for each split
    refuse(not {"train", "test"} <= arrays.keys(), f"{file}: `train` and `test` must come together")
    names = [split for split in ("train", "val", "test") if split in arrays]
    message = f"{file}: dataset.holdout={holdout} is not used: the file has its own test data"
    refuse(holdout != DEFAULT_HOLDOUT, message)
    name_other_arrays(arrays, set(names))
    parts = [finite_numbers(arrays[split], file) for split in names]
    shapes = [list(part.shape) for part in parts]
    same_shape = all(len(shape) and shape[0] and shape[1:] == shapes[0][1:] for shape in shapes)
    refuse(
        not same_shape, f"{file}: train, val and test must be [N, ...] of one shape, not {shapes}"
    )
    sizes = [len(part) for part in parts]
    rows = list(torch.arange(sum(sizes)).split(sizes))
    if "val" in arrays:
        return torch.cat(parts), SplitRows(*rows)
    # 3. validation samples from the training samples
    train, test = rows
    num_validation = validation_size(validation, len(train))
    validation_rows = train[:0]
    if num_validation:
        train, validation_rows = take_validation(len(train), num_validation, seed)
    return torch.cat(parts), SplitRows(train, validation_rows, test)


def name_other_arrays(arrays: Mapping[str, np.ndarray], used: set[str]) -> None:
    """Warn about arrays of a file that are not used.

    Warns:
        Note: their names.
    """
    unused = sorted(arrays.keys() - used)
    if unused:
        warnings.warn(Note(f"not used of this file: {', '.join(unused[:10])}"), stacklevel=3)


class RankedLists(Puzzles):
    """Lists of any length, in the order of falling relevance; equal relevances in random order.

    Shorter lists are padded with items of zeros, which come last. Batches also hold `relevance`,
    int64 [b, n], which is 0 for padding.

    Args:
        name: see `Puzzles`.
        lists: result of `read_lists`.
        holdout: share of the lists for testing.
        validation: share or number of the lists for validation.
        seed: see `Puzzles`.

    Raises:
        ValueError: a share out of range, or no list of two items.

    References: this project; checked in tests/permutations/test_datasets.py.
    """

    def __init__(
        self,
        name: str,
        lists: tuple[Tensor, Tensor, Tensor],
        holdout: float,
        validation: float,
        seed: int,
    ) -> None:
        features, self._relevance, rows = lists
        self._lists = split_at_random(rows, validation, holdout, seed)
        # statistics of the training items; padding has the index of no item
        train_items = self._lists["train"].unique()
        train_features = features[train_items[train_items < len(features)]]
        self._mean = train_features.mean(0)
        self._std = train_features.std(0, correction=0).clamp(min=1e-6)
        self._items = self.standardise(features)
        facts = {"mean": 0.0, "std": 1.0, "encoder": {"_target_": "blackout.networks.ItemEncoder"}}
        super().__init__(
            name,
            "items",
            rows.shape[1],
            tuple(self._items.shape[1:]),
            len(self._lists["test"]),
            seed,
            facts,
            validation=len(self._lists["val"]),
        )

    def standardise(self, features: Tensor) -> Tensor:
        """Return features [N, F] standardised by the training items, float32 [N + 1, F + 1].

        A last feature of 1 distinguishes items from padding, which is the last row, all zeros.
        """
        x = (features - self._mean) / self._std
        return F.pad(torch.cat([x, torch.ones_like(x[:, :1])], 1).float(), (0, 0, 0, 1))

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return the items [b, n, F + 1] of puzzles by falling relevance.

        With them come their ties and their relevance, [b, n] each.
        """
        lists = self._lists[split]
        row = draw_integers(streams, (len(index),), len(lists)) if split == "train" else index
        items = lists[row]
        # relevances are integers, so that uniforms break ties only
        u = streams.next_draw().uniform(tuple(items.shape))
        items = items.gather(1, (u - self._relevance[items]).argsort(1))
        relevance = self._relevance[items]
        return {
            "items": self._items[items],
            "ties": first_equal(relevance),
            "relevance": relevance.clamp(min=0),
        }


def read_lists(file: Path, num_features: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Read lists of an svmlight file, with items such as `2 qid:7 1:0.5 3:1.2`.

    Items with the same qid form a list.

    Args:
        file: the file.
        num_features: of an item; None for as many as occur.

    Returns:
        Features of the items, float64 [N, num_features]; their relevance, int64 [N + 1], with a
        last entry of -1 for padding; and the items of every list, [lists, n], padded with N.

    Raises:
        UserError: a file that is missing or in another format.
    """
    from sklearn.datasets import load_svmlight_file

    # 1. read
    with reading(file, "not an svmlight file"):
        sparse, labels, query = load_svmlight_file(
            str(file), n_features=num_features, query_id=True
        )
        check_size(file, 16 * math.prod(sparse.shape), stored_bytes(file))
        features = torch.from_numpy(sparse.toarray())
    is_relevance = (labels == np.floor(labels)) & (labels >= 0) & (labels <= MAX_RELEVANCE)
    complete = len(query) == len(labels) > 0
    if not complete or not is_relevance.all() or not bool(features.isfinite().all()):
        raise UserError(
            f"{file}: every line needs a relevance, a whole number 0..{MAX_RELEVANCE}, and a qid"
        )
    # 2. group items by list
    _, list_of_item, sizes = torch.from_numpy(query).unique(return_inverse=True, return_counts=True)
    position = torch.arange(int(sizes.max()))
    items = list_of_item.argsort(stable=True)
    first = (sizes.cumsum(0) - sizes).unsqueeze(1)
    index = (first + position).clamp(max=len(features) - 1)
    lists = torch.where(position < sizes.unsqueeze(1), items[index], len(features))
    relevance = F.pad(torch.from_numpy(labels).long(), (0, 1), value=-1)
    return features, relevance, lists


def read_puzzles(path: StrPath, source: Puzzles) -> dict[str, Tensor]:
    """Read puzzles of the user.

    An .npz file has `items` [N, n, ...] as they lie, and `truth` [N, n] if it is known. Integers
    are counts, which are divided by the source's scale; fractions are used as they are. For
    `RankedLists` it is an svmlight file.

    Args:
        path: the file.
        source: of the model, whose kind of puzzles the file must have.

    Returns:
        `items` [N, n, *item_shape] and perhaps `truth`, the permutations that take them to their
        right order.

    Raises:
        UserError: a file that is missing, or that does not hold puzzles of the source's kind.
    """
    file = Path(path).expanduser()
    if file.suffix in LIST_SUFFIXES and isinstance(source, RankedLists):
        return _read_ranked_puzzles(file, source)
    loaded = load_arrays(file)
    arrays = loaded if isinstance(loaded, dict) else {"items": loaded}
    names = ", ".join(arrays) or "nothing"
    refuse("items" not in arrays, f"{file}: an array `items` is needed, found {names}")
    name_other_arrays(arrays, {"items", "truth"})
    items = _read_items(arrays["items"], file, source)
    if "truth" not in arrays:
        return {"items": items}
    is_integer = arrays["truth"].dtype.kind in "iu"
    truth = torch.from_numpy(arrays["truth"].astype(np.int64)) if is_integer else None
    if truth is None or truth.shape != items.shape[:2] or not bool(is_permutation(truth).all()):
        raise UserError(
            f"{file}: truth must be permutations, whole numbers {list(items.shape[:2])}"
        )
    return {"items": items, "truth": truth}


def _read_ranked_puzzles(file: Path, source: RankedLists) -> dict[str, Tensor]:
    """Read lists to be ranked, with the order of falling relevance as the truth.

    Raises:
        UserError: see `read_lists`; or a list that is longer than those of the model.
    """
    features, relevance_of_item, lists = read_lists(file, source.item_shape[0] - 1)
    excess = lists.shape[1] - source.num_items
    if excess > 0:
        raise UserError(
            f"{file}: a list has {excess} items more than the {source.num_items} of the "
            "model's longest"
        )
    lists = F.pad(lists, (0, -excess), value=len(features))
    relevance = relevance_of_item[lists]
    truth = relevance.argsort(dim=1, descending=True, stable=True)
    items = source.standardise(features)[lists]
    return {"items": items, "truth": truth, "relevance": relevance.clamp(min=0)}


def _read_items(array: np.ndarray, file: Path, source: Puzzles) -> Tensor:
    """Return the items of puzzles, [N, n, *item_shape].

    Raises:
        UserError: another shape, tokens that are no permutation, points in other units, or pixels
            far outside their range.
    """
    values = finite_numbers(array, file)
    expected = (source.num_items, *source.item_shape)
    if values.ndim == len(expected) and source.item_shape[:1] == (1,):
        values = values.unsqueeze(2)  # grey images without their channel
    if values.ndim < 2 or tuple(values.shape[1:]) != expected or not len(values):
        shape = ", ".join(map(str, expected))
        raise UserError(f"{file}: items must be [N, {shape}], not {list(values.shape)}")
    if source.kind == "tokens":
        if values.is_floating_point() or not bool(is_permutation(values).all()):
            raise UserError(
                f"{file}: items must be tokens, each of 0..{source.num_items - 1} once in a list"
            )
        return values
    are_counts = not values.is_floating_point()
    if source.kind == "points":
        with error_context(str(file)):
            return source.convert(values).float()
    values = _to_float(values, file)
    if are_counts:
        values = values / source.scale
    low, high = (float(end) for end in values.aminmax())
    # noise reaches a little beyond black and white
    if source.scale > 1 and not -0.5 <= low <= high <= 1.5:
        raise UserError(
            f"{file}: items must be whole numbers 0..{source.scale:.0f} or fractions of 1, "
            f"but reach {low:g}..{high:g}"
        )
    return values


def _to_float(values: Tensor, file: Path) -> Tensor:
    """Return numbers as float32.

    Raises:
        UserError: whole numbers that would lose digits.
    """
    is_changed = not values.is_floating_point() and bool((values.float().long() != values).any())
    message = "holds whole numbers above 16,777,216, which lose digits: subtract a number from them"
    refuse(is_changed, f"{file}: {message}")
    return values.float()


def finite_numbers(array: np.ndarray, file: Path) -> Tensor:
    """Return an array of a file as float64 or int64, of the same shape.

    Raises:
        UserError: values that are no numbers, or not finite.
    """
    refuse(array.dtype.kind not in "iufb", f"{file}: numbers are needed, not {array.dtype}")
    refuse(not np.isfinite(array).all(), f"{file}: holds numbers that are not finite")
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))


@dataclass(frozen=True)
class ImageItems:
    """The items that a puzzle cuts from images.

    Attributes:
        kind: see `Puzzles`.
        number: of items in a puzzle.
        shape: of one item.
        encoder: description of the encoder of the items.
    """

    kind: Kind
    number: int
    shape: tuple[int, ...]
    encoder: dict[str, Any]


class ImagePuzzles(Puzzles):
    """Items cut from images, float32 counts divided by the largest; each split has its own images.

    Without validation images there are no validation puzzles.

    Args:
        name: see `Puzzles`.
        images: training puzzles draw from the training images.
        items: what is cut from the images.
        held_out: see `Puzzles`.
        seed: see `Puzzles`.
    """

    def __init__(
        self, name: str, images: CountData, items: ImageItems, held_out: int, seed: int
    ) -> None:
        self._images = images
        scale = images.max_count
        facts = {
            "mean": images.facts["mean"] / scale,
            "std": images.facts["std"] / scale,
            "encoder": items.encoder,
        }
        super().__init__(
            name,
            items.kind,
            items.number,
            items.shape,
            held_out,
            seed,
            facts,
            float(scale),
            validation=held_out if images.size("val") else 0,
        )

    def _data_hash(self, split: Split) -> str:
        """Return the fingerprint of the images of a split."""
        return self._images.fingerprint(split)


class Jigsaws(ImagePuzzles):
    """Images cut into pieces, row by row; remainders at the bottom and on the right are cropped.

    A piece is [C, h, w]. Pieces that are equal without noise are ties.

    Args:
        images: with a test split.
        pieces: per side.
        held_out: number of validation and of test puzzles, from the images of these splits in turn.
        noise: standard deviation of Gaussian noise, which is fixed for each image.
        seed: of everything random.

    Raises:
        ValueError: pieces below 2 or without pixels, or negative noise.

    References: Zhang et al. 2025, section 4.2 and appendix G.2.
    """

    def __init__(
        self, images: CountData, pieces: int, held_out: int, noise: float = 0.0, seed: int = 0
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
        super().__init__(name, images, items, held_out, seed)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return the pieces [b, n, C, h, w] of the puzzles, and ties."""
        num_images = self._images.size(split)
        image_index = index
        if split == "train":
            image_index = draw_integers(streams, (len(index),), num_images)
        image_index = image_index % num_images
        images = self._images.batch(split, image_index)["x0"].cpu()
        counts = self._cut(images)
        items = counts.float() / self.scale
        if self._noise:
            # the random numbers belong to the image, not to the puzzle
            key = fold_seed(self.seed, NOISE_KEY, NOISE_SPLIT_KEYS[split])
            noise_streams = SampleStreams(key, image_index).step(0)
            u = noise_streams.next_draw().uniform((len(image_index), *images.shape[1:]))
            normal = torch.special.ndtri(u.clamp_(MIN_UNIFORM, 1 - MIN_UNIFORM)).float()
            items = items + self._noise * self._cut(normal)
        return {"items": items, "ties": first_equal(counts)}

    def _cut(self, images: Tensor) -> Tensor:
        """Cut images [b, C, H, W] into pieces [b, pieces^2, C, h, w], row by row."""
        _, h, w = self.item_shape
        p = self._pieces
        grid = images[:, :, : p * h, : p * w].unflatten(2, (p, h)).unflatten(4, (p, w))
        return grid.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


@component("dataset")
def jigsaw_digits(
    pieces: int = 2,
    held_out: int = 1000,
    holdout: float = 0.2,
    seed: int = 0,
    validation: float = 0.1,
) -> Jigsaws:
    """Jigsaws of scikit-learn's 8x8 digits, which need no download; the 359 test images repeat.

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
    """Jigsaws of MNIST with pixel noise.

    Args:
        pieces: per side, 2 to 28.
        noise: standard deviation, of pixels in [0, 1], drawn once for every image.
        held_out: number of validation and of test puzzles.
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
    """Jigsaws of CIFAR-10; arguments and errors are those of `jigsaw_mnist`.

    References: Zhang et al. 2025, section 4.2.
    """
    return Jigsaws(cifar10(data_dir, download, validation), pieces, held_out, seed=seed)


class Sorting(ImagePuzzles):
    """Lists of numbers to be sorted, each a strip [1, H, digits * W] of images of digits.

    Batches also hold `values`, int64 [b, n], the numbers; equal numbers are ties.

    Args:
        images: of digits, with labels.
        length: numbers in a list.
        digits: of a number.
        held_out: number of validation and of test lists, from the images of these splits.
        seed: of everything random.

    Raises:
        ValueError: length below 2, or digits outside 1..18.

    References: Zhang et al. 2025, section 4.1.
    """

    def __init__(
        self, images: CountData, length: int, digits: int, held_out: int, seed: int = 0
    ) -> None:
        name = f"sort_{images.name}"
        ensure(length >= 2, f"{name}: length must be at least 2, not {length}")
        ensure(1 <= digits <= MAX_DIGITS, f"{name}: digits must be 1..{MAX_DIGITS}, not {digits}")
        self._digits = digits
        channels, height, width = images.shape
        shape = (channels, height, digits * width)
        encoder = {"_target_": "blackout.networks.StripEncoder", "parts": digits}
        items = ImageItems("strips", length, shape, encoder)
        super().__init__(name, images, items, held_out, seed)

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
    """Sorting of numbers made of scikit-learn's 8x8 digits, which need no download.

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
    return Sorting(
        digit_images(holdout, validation=validation), length, digits, held_out, seed=seed
    )


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
    """Sorting of numbers made of MNIST's digits, four of them as in the paper.

    Args:
        length: numbers in a list.
        digits: of a number.
        held_out: number of validation and of test lists.
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
    return Sorting(images, length, digits, held_out, seed)
