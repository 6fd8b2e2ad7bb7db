"""What a model of codes is trained on: permutations in memory, or made on the fly from their number."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blackout.family import Samples, Split
from blackout.permutations.datasets import Puzzles
from blackout.permutations.group import is_permutation
from blackout.random import SampleStreams

Judge: TypeAlias = Callable[[Samples], Mapping[str, Tensor]]
"""(`samples` [b, n] and their contexts) -> figures of each sample by name, [b]; NaN where one has none."""
Truth: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""(one context, permutations [m, n]) -> their true log-probabilities in nats, float64 [m]."""
Maker: TypeAlias = Callable[[Tensor, Tensor | None], dict[str, Tensor]]
"""(numbers [b], uniforms [b] that tell repetitions apart, or None) -> `x` and contexts of training samples."""


@dataclass(frozen=True, eq=False)
class PermutationData:
    """Permutations `x`, int64 [N, n], each with its context, if it has any: a `blackout.family.Source`.

    Contexts are further arrays [N, ...]: `items` int64 [N, n] (tokens), `condition` float32 [N, d] (numbers), or others
    that the judge alone reads.

    Attributes:
        name: short name for logs and file names.
        train: `x` and contexts of the training samples; or a function that makes any number of them.
        test: the same of the held-out samples.
        num_tokens: size of the vocabulary where `items` are tokens; None without.
        kind: what the items are, for pictures: words, rankings, or a puzzle's kind; None for bare permutations.
        puzzles: where the permutations come from, if they solve puzzles.
        item_facts: what an encoder of items that are no tokens asks for.
        judge: figures of single samples.
        truth: the law of the data, where it is known.
        members: all permutations that occur, equally often, int64 [M, n]; None where that is not so.
        train_size: samples of a training set that is made on the fly; None for any number.
        shown: contexts under which the law is reported, named: {"phi=0.2": {"condition": ...}}.
        kept: what a model keeps of the source, such as the user's numbers of items.

    Raises:
        ValueError: no samples, what is no permutation, or fewer than 2 items.
    """

    name: str
    train: Mapping[str, Tensor] | Maker
    test: Mapping[str, Tensor]
    num_tokens: int | None = None
    kind: str | None = None
    puzzles: Puzzles | None = None
    item_facts: Mapping[str, Any] = field(default_factory=dict)
    judge: Judge | None = None
    truth: Truth | None = None
    members: Tensor | None = None
    train_size: int | None = None
    shown: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split in (self.train, self.test):
            if isinstance(split, Mapping):
                check_permutations(self.name, split["x"])
        if isinstance(self.train, Mapping) and self.train["x"].shape[1:] != self.test["x"].shape[1:]:
            raise ValueError(f"{self.name}: training and held-out permutations are of different lengths")

    def __str__(self) -> str:
        size = self.size("train")
        sizes = "any number" if size is None else f"{size:,}"
        return f"{self.name}, {sizes} + {len(self.test['x']):,} held out, permutations of {self.length} items"

    @property
    def length(self) -> int:
        """Items of a permutation."""
        return self.test["x"].shape[1]

    @property
    def facts(self) -> dict[str, Any]:
        """`num_items`, and where there are contexts `num_conditions`, or what the encoder of items asks for."""
        facts: dict[str, Any] = {"num_items": self.length, **self.item_facts}
        if self.num_tokens is not None:
            encoder = {"_target_": "blackout.networks.TokenEncoder"}
            facts |= {"num_tokens": self.num_tokens, "item_shape": [], "encoder": encoder}
        if "condition" in self.test:
            facts["num_conditions"] = self.test["condition"].shape[1]
        return facts

    def size(self, split: Split) -> int | None:
        """Number of samples of a split; None where they are made on the fly."""
        part = self.train if split == "train" else self.test
        return len(part["x"]) if isinstance(part, Mapping) else self.train_size

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """`x` and contexts of the samples with these numbers, [b, ...]."""
        part = self.train if split == "train" else self.test
        if not isinstance(part, Mapping):
            return part(index, augment)
        return {name: values[index.to(values.device)] for name, values in part.items()}

    def fingerprint(self, split: Split) -> str:
        """SHA-256 (hex) of the split's arrays; of what is made on the fly, of the first samples."""
        size = self.size(split)
        made = split == "train" and not isinstance(self.train, Mapping)
        first = self.batch(split, torch.arange(min(size or 64, 64) if made else size or 0))
        digest = hashlib.sha256(f"{self.name}\n".encode())
        for name, values in first.items():
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.contiguous().cpu().numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device) -> PermutationData:
        """The same, with the training samples on `device`."""
        if not isinstance(self.train, Mapping):
            return self
        moved = copy.copy(self)
        object.__setattr__(moved, "train", {name: values.to(device) for name, values in self.train.items()})
        return moved


def check_permutations(name: str, x: Tensor) -> None:
    """Refuse what are no permutations [N, n] of at least 2 items.

    Raises:
        ValueError: saying what is wrong, and in which row.
    """
    if x.ndim != 2 or not len(x):
        raise ValueError(f"{name}: permutations [N, n], at least one, are needed, not {list(x.shape)}")
    check_length(name, x.shape[1])
    if not bool((good := is_permutation(x)).all()):
        row = int((~good).nonzero()[0, 0])
        raise ValueError(f"{name}: row {row} is no permutation of 0..{x.shape[1] - 1}: {x[row].tolist()}"[:300])


def check_length(name: str, length: int) -> None:
    """Refuse lengths below 2.

    Raises:
        ValueError: it is.
    """
    if length < 2:
        raise ValueError(f"{name}: length must be at least 2, not {length}")


def check_share(name: str, share: float) -> None:
    """Refuse shares outside (0, 1].

    Raises:
        ValueError: it is.
    """
    if not 0 < share <= 1:
        raise ValueError(f"{name}: share must be in (0, 1], not {share}")


def ranks(x: Tensor) -> Tensor:
    """A number of each permutation [N, n], different ones for different ones, to 20 items; int64 [N]."""
    from blackout.permutations.codes import Lehmer

    digits, n = Lehmer.encode(x), x.shape[1]
    places = torch.tensor([math.factorial(n - 1 - i) for i in range(n)], device=x.device)
    return (digits * places).sum(1)


def hash_share(key: Tensor, seed: int) -> Tensor:
    """A uniform number of each key, int64 [N]: the same ones for ever; float64 [N]."""
    return SampleStreams(seed, key).at(0).next_draw().uniform((len(key), 1)).squeeze(1)


def held_out(number: int, holdout: float, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of the training and held-out samples, at least one each.

    Raises:
        ValueError: holdout outside (0, 1), or fewer than 2 samples.
    """
    if not 0 < holdout < 1:
        raise ValueError(f"holdout must be between 0 and 1, not {holdout}")
    if number < 2:
        raise ValueError(f"at least 2 samples are needed, one of them held out, not {number}")
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    size = min(max(1, round(number * holdout)), number - 1)
    return order[size:].sort().values, order[:size].sort().values
