"""Puzzles: lists of items whose right order is known.

Puzzles are made from (seed, split, index) and not stored.

A source of puzzles (`Puzzles`, a `blackout.protocols.Source`) has an unlimited number of training
puzzles, `num_test` test puzzles and `num_validation` validation puzzles.
`source.batch(split, index)` with int64 indices [b] returns

    items           [b, n, *item_shape], items in their right order: float32, or int64 tokens [b, n]
    puzzle_order    int64 [b, n], a uniformly random order: a solver sees items[puzzle_order]
    ties            int64 [b, n], for every position of the right order the first with an equal item

The solution of the puzzle, which takes its items to their right order, is inverse(puzzle_order). If
`facts["first_fixed"]`, the first item is known to come first (a tour may start in any city), and
puzzle_order[..., 0] = 0.

`source.facts` are the statistics that components ask for by name: num_items, item_shape, num_tokens
(tokens only), first_fixed, mean and std (of all values of the items), and `encoder`, the
description of the default encoder (`blackout.networks`). `source.kind` is the kind of items: strips
to be sorted, pieces of an image, points in the plane, tokens, or items of the user. `source.scale`
is the divisor of integers in a user's file (the largest count of images).

A new source is a subclass of `Puzzles` that implements `make`.

Example:
    >>> import torch
    >>> from blackout.permutations.datasets import one_permutation
    >>> from blackout.permutations.group import inverse
    >>> source = one_permutation(length=3, num_test=2)
    >>> batch = source.batch("test", torch.arange(2))
    >>> puzzle = batch["items"].gather(1, batch["puzzle_order"])
    >>> torch.equal(puzzle.gather(1, inverse(batch["puzzle_order"])), batch["items"])
    True
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from blackout.component import Plain
from blackout.errors import ensure
from blackout.files import hash_tensors
from blackout.permutations.group import identity_like
from blackout.protocols import Split
from blackout.random import SampleStreams, StepStreams, fold_seed

Kind: TypeAlias = Literal["strips", "pieces", "points", "tokens", "items"]

# keys of the random numbers of a puzzle, by their use
ORDER_KEY = 0
ITEMS_KEY = 1
SPLIT_KEYS: dict[Split, int] = {"train": 0, "test": 1, "val": 2}  # of puzzles
NUM_HASHED = 16  # puzzles in the fingerprint of a split


@dataclass(eq=False)
class Puzzles(ABC):
    """A source of puzzles; see the module for what a batch holds.

    Args:
        name: short, for logs and directories.
        kind: of the items.
        num_items: n.
        item_shape: of one item; empty for tokens.
        num_test: number of test puzzles.
        seed: of all puzzles.
        facts: further statistics.
        scale: divisor of integers in a user's file.
        num_validation: number of validation puzzles; None for as many as test puzzles.

    Raises:
        ValueError: fewer than two items, no test puzzle, or a negative number of validation
            puzzles.
    """

    name: str
    kind: Kind
    num_items: int
    item_shape: tuple[int, ...]
    num_test: int
    seed: int
    facts: Plain
    scale: float = 1.0
    num_validation: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __post_init__(self) -> None:
        self.num_validation = self.num_test if self.num_validation is None else self.num_validation
        ensure(
            self.num_validation >= 0,
            f"{self.name}: validation puzzles must be at least 0, not {self.num_validation}",
        )
        ensure(
            self.num_items >= 2, f"{self.name}: a puzzle has at least 2 items, not {self.num_items}"
        )
        ensure(self.num_test >= 1, f"{self.name}: num_test must be at least 1, not {self.num_test}")
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

    def convert_units(self, items: Tensor) -> Tensor:
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
        sizes = f"{self.num_validation:,} validation and {self.num_test:,} test puzzles"
        return f"{self.name}: {self.num_items} {self.kind}{shape}, {sizes}"

    def size(self, split: Split) -> int | None:
        """Return the number of puzzles of a split; None for an unlimited number."""
        sizes = {"train": None, "val": self.num_validation, "test": self.num_test}
        return sizes[split]

    def batch(
        self, split: Split, index: Tensor, augment: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return `items`, `puzzle_order` and `ties` of puzzles, see the module.

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
        return {"ties": identity_like(order), **puzzles, "puzzle_order": order}

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
            name=name,
            kind=kind,
            num_items=shape[1],
            item_shape=tuple(shape[2:]),
            num_test=len(lists["test"]),
            seed=seed,
            facts=facts,
            num_validation=len(lists["val"]),
        )

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return the lists [b, n, ...] of the puzzles, and ties."""
        lists = self._lists[split]
        row = draw_integers(streams, (len(index),), len(lists)) if split == "train" else index
        items = lists[row]
        return {"items": items, "ties": first_equal_index(items)}

    def _data_hash(self, split: Split) -> str:
        """Return a hash of the lists of a split."""
        return hash_tensors("", {split: self._lists[split]})


def draw_integers(streams: StepStreams, shape: tuple[int, ...], size: int) -> Tensor:
    """Draw integers uniform on 0..size - 1, int64 of a shape [b, ...]."""
    return streams.next_draw().uniform(shape).mul_(size).long()


def first_equal_index(x: Tensor) -> Tensor:
    """Return the index of the first equal entry of every entry, int64 [b, n], for x [b, n, ...].

    References: this project; checked in tests/permutations/datasets/test_puzzles.py.
    """
    if x.ndim > 2:  # equal numbers in place of equal entries
        x = x.flatten(0, 1).unique(dim=0, return_inverse=True)[1].view(x.shape[:2])
    values, order = x.sort(dim=1, stable=True)
    is_first = torch.ones_like(values, dtype=torch.bool)
    is_first[:, 1:] = values[:, 1:] != values[:, :-1]
    places = torch.arange(values.shape[1], device=x.device) * is_first
    first = order.gather(1, places.cummax(1).values)
    return torch.empty_like(order).scatter(1, order, first)
