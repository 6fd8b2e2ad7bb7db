"""What all puzzle sources share: streams of random numbers, the order in which items are given, facts."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from blackout.component import component
from blackout.errors import UserError, summary
from blackout.family import Split
from blackout.permutations.group import identity_like
from blackout.random import SampleStreams, StepStreams, fold_seed

Kind: TypeAlias = Literal["strips", "pieces", "points", "tokens", "items"]
# what a puzzle's random numbers are for
_GIVEN, _MADE, _ORDER = 0, 1, 3
_FINGERPRINTED = 16


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

    Raises:
        ValueError: fewer than two items, or no held-out puzzle.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        num_items: int,
        item_shape: tuple[int, ...],
        held_out: int,
        seed: int,
        facts: Mapping[str, Any],
        scale: float = 1.0,
    ) -> None:
        if num_items < 2:
            raise ValueError(f"{name}: a puzzle has at least 2 items, not {num_items}")
        if held_out < 1:
            raise ValueError(f"{name}: held_out must be at least 1, not {held_out}")
        self.name, self.kind, self.num_items, self.item_shape = name, kind, num_items, item_shape
        self.held_out, self.seed, self.scale = held_out, seed, scale
        own = {"num_items": num_items, "item_shape": list(item_shape), "first_fixed": False}
        self.facts: dict[str, Any] = {**own, **facts}

    @abstractmethod
    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Puzzles with the numbers index [b]: `items` in their right order and, where some are alike, `ties`.

        Args:
            streams: each puzzle's own random numbers.
        """

    def __str__(self) -> str:
        """One line for the summary of a run."""
        of = f" of {'x'.join(map(str, self.item_shape))}" if self.item_shape else ""
        return f"{self.name}: {self.num_items} {self.kind}{of}, {self.held_out:,} held-out puzzles"

    def size(self, split: Split) -> int | None:
        """No end of training puzzles, `held_out` test puzzles."""
        return None if split == "train" else self.held_out

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """The puzzles with these numbers [b]: items, given, ties."""
        streams = SampleStreams(fold_seed(self.seed, int(split == "test")), index)
        made = self.make(split, index, streams.at(_MADE))
        order = streams.at(_GIVEN).next_draw().uniform((len(index), self.num_items))
        if self.facts["first_fixed"]:
            order[:, 0] = -1.0
        given = order.argsort(-1)
        return {"ties": identity_like(given), **made, "given": given}

    def fingerprint(self, split: Split) -> str:
        """A hash of the first puzzles and of what else decides them."""
        number = _FINGERPRINTED if split == "train" else min(_FINGERPRINTED, self.held_out)
        batch = self.batch(split, torch.arange(number))
        digest = hashlib.sha256(f"{self} {self.seed} {self._content(split)}".encode())
        for name in ("items", "given"):
            digest.update(batch[name].numpy().tobytes())
        return digest.hexdigest()

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
    """For each of n entries the first one equal to it, int64 [b, n] for x [b, n, ...]."""
    flat = x.flatten(2) if x.ndim > 2 else x.unsqueeze(-1)
    return (flat.unsqueeze(1) == flat.unsqueeze(2)).all(-1).int().argmax(-1)


class OnePermutation(Puzzles):
    """A single permutation to be memorised [Zhang 2025, appendix G.1]: tokens 0..length - 1 in one random order."""

    def __init__(self, length: int, held_out: int, seed: int) -> None:
        encoder = {"_target_": "blackout.networks.TokenEncoder"}
        facts = {"num_tokens": length, "mean": 0.0, "std": 1.0, "encoder": encoder}
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


@contextmanager
def reading(kind: str, item: Tensor) -> Iterator[None]:
    """Inside, a network is shown items for the first time.

    Raises:
        UserError: it cannot read them.
    """
    try:
        yield
    except (ValueError, RuntimeError, IndexError) as error:
        raise UserError(f"network: it cannot read {kind} of shape {list(item.shape)}: {summary(error)}") from error
