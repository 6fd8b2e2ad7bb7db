"""Permutations with contexts as a data set: in memory, or made on demand from their index.

Data sets are in `blackout.permutations.coded.datasets`. Of puzzles the items are the context, and
the solution is the permutation (`data_from_puzzles`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.files import hash_tensors
from blackout.permutations.datasets import Puzzles
from blackout.permutations.group import inverse, is_permutation
from blackout.permutations.metrics import puzzle_scores, rearrange
from blackout.protocols import Samples, Split
from blackout.random import SampleStreams, StepStreams

# (`samples` [b, n] and their contexts) -> scores of each sample by name, [b]; nan for none
SampleScores: TypeAlias = Callable[[Samples], Mapping[str, Tensor]]
# (one context, permutations [m, n]) -> true log-probabilities in nats, float64 [m]
LogProb: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]
# (indices [b], uniforms [b] that distinguish repetitions, or None) -> `x` and contexts
TrainingBatch: TypeAlias = Callable[[Tensor, Tensor | None], dict[str, Tensor]]

NUM_HELD_OUT = 512  # permutations in validation and test of data sets made on demand
NUM_HASHED = 64  # permutations in the fingerprint of an unlimited split
# keys of permutations made on demand; training has 0
TEST_KEY = 1
VALIDATION_KEY = 2
MAX_REPETITIONS = 2**24  # random variants of a training sample


@dataclass(frozen=True, eq=False)
class PermutationData:
    """Permutations `x`, int64 [N, n], with their contexts: a `blackout.protocols.Source`.

    Contexts are further arrays [N, ...]: `items` int64 [N, n] (tokens), `condition` float32 [N, d],
    or others that only `sample_scores` uses.

    Attributes:
        name: short name for logs and file names.
        train: makes `x` and contexts of training samples.
        test: `x` and contexts of test samples.
        num_tokens: size of the vocabulary if `items` are tokens; None otherwise.
        kind: of the items, for pictures: rankings, or the kind of a puzzle; None for bare
            permutations.
        puzzles: the puzzles that the permutations solve; None otherwise.
        sample_scores: scores of single samples; None for none.
        log_prob: the true distribution, if it is known.
        members: all permutations of the data, if they are equally frequent, int64 [M, n]; None
            otherwise.
        train_size: number of training samples; None for an unlimited number.
        reported_contexts: contexts for which the divergence from the truth is reported, by name,
            such as {"phi=0.2": {"condition": ...}}; by default no context.
        buffers: tensors that are exported with a model, such as the user's names of items.
        code: default code of a model.
        labels: names of the items.
        validation: `x` and contexts of validation samples; None for none.

    Raises:
        ValueError: no samples, rows that are no permutations, or fewer than 2 items.
    """

    name: str
    train: TrainingBatch
    test: Mapping[str, Tensor]
    num_tokens: int | None = None
    kind: str | None = None
    puzzles: Puzzles | None = None
    sample_scores: SampleScores | None = None
    log_prob: LogProb | None = None
    members: Tensor | None = None
    train_size: int | None = None
    reported_contexts: Mapping[str, Mapping[str, Tensor]] = field(default_factory=lambda: {"": {}})
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    code: str = "fisher_yates"
    labels: tuple[str, ...] = ()
    validation: Mapping[str, Tensor] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __post_init__(self) -> None:
        check_permutations(self.name, self.test["x"])
        if self.validation is not None:
            check_permutations(self.name, self.validation["x"])

    def __str__(self) -> str:
        """Return one line for the summary of a run."""
        size = "any number" if self.train_size is None else f"{self.train_size:,}"
        sizes = f"{size} training, {self.size('val'):,} validation and {self.size('test'):,} test"
        return f"{self.name}, {sizes} permutations of {self.length} items"

    @property
    def length(self) -> int:
        """The number of items n."""
        return self.test["x"].shape[1]

    @property
    def item_names(self) -> list[str]:
        """Names of all items: labels, the user's own numbers, or 0, 1, 2, ..."""
        if self.labels:
            return list(self.labels)
        if "item_names" in self.buffers:
            return [str(name) for name in self.buffers["item_names"].tolist()]
        return [str(item) for item in range(self.num_tokens or self.length)]

    @property
    def facts(self) -> dict[str, Any]:
        """What networks are built from: the number of items, and the facts of their contexts.

        `num_items` is always there, `num_conditions` where samples have a condition, and what an
        encoder needs where the contexts have items.
        """
        facts: dict[str, Any] = {"num_items": self.length}
        if self.puzzles is not None:
            facts |= self.puzzles.facts
        if self.num_tokens is not None:
            facts["num_tokens"] = self.num_tokens
            facts["item_shape"] = []
            facts["encoder"] = {"_target_": "blackout.networks.TokenEncoder"}
        if "condition" in self.test:
            facts["num_conditions"] = self.test["condition"].shape[1]
        return facts

    def size(self, split: Split) -> int | None:
        """Return the number of samples of a split; None for an unlimited number."""
        if split == "train":
            return self.train_size
        return len(self._held_out(split)["x"])

    def batch(
        self, split: Split, index: Tensor, augment: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return `x` and contexts of samples, [b, ...].

        Args:
            split: of the samples.
            index: int64 [b].
            augment: uniforms [b] that distinguish repetitions of training samples; None for none.
        """
        if split == "train":
            return self.train(index, augment)
        return {name: values[index] for name, values in self._held_out(split).items()}

    def _held_out(self, split: Split) -> Mapping[str, Tensor]:
        """Return `x` and contexts of all validation or test samples."""
        if split == "test":
            return self.test
        return self.validation or {name: values[:0] for name, values in self.test.items()}

    def fingerprint(self, split: Split) -> str:
        """Return the SHA-256 (hex) of the arrays of a split.

        Of an unlimited split only the first samples are hashed.
        """
        size = self.size(split)
        index = torch.arange(NUM_HASHED if size is None else size)
        return hash_tensors(self.name, self.batch(split, index))

    def to(self, device: torch.device) -> PermutationData:
        """Return itself: training samples are made on the CPU."""
        return self


def check_permutations(name: str, x: Tensor) -> None:
    """Refuse arrays that are not permutations [N, n] of at least 2 items.

    Raises:
        ValueError: another shape, or a row that is no permutation.
    """
    ensure(
        x.ndim == 2 and len(x),
        f"{name}: permutations [N, n], at least one, are needed, not {list(x.shape)}",
    )
    check_length(name, x.shape[1])
    valid = is_permutation(x)
    if not bool(valid.all()):
        row = int((~valid).nonzero()[0, 0])
        message = f"{name}: row {row} is no permutation of 0..{x.shape[1] - 1}: {x[row].tolist()}"
        raise ValueError(message[:300])


def check_length(name: str, length: int) -> None:
    """Refuse permutations of fewer than 2 items.

    Raises:
        ValueError: length < 2.
    """
    ensure(length >= 2, f"{name}: length must be at least 2, not {length}")


def repetition_streams(seed: int, index: Tensor, augment: Tensor | None) -> StepStreams:
    """Return random numbers of training samples that differ between repetitions.

    Args:
        seed: of the data set.
        index: of the samples, int64 [b].
        augment: uniforms [b] that distinguish repetitions; None for none.
    """
    repetition = torch.zeros_like(index)
    if augment is not None:
        repetition = (augment.double() * MAX_REPETITIONS).long()
    return SampleStreams(seed, index * MAX_REPETITIONS + repetition).step(0)


def data_from_puzzles(puzzles: Puzzles) -> PermutationData:
    """Return puzzles as permutations `x` [b, n] that solve the context `items` [b, n, ...]."""

    def batch(split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """Return puzzles of a split with their solutions.

        The solutions are `x` [b, n], the puzzles `items` [b, n, ...]; `ties` [b, n] says which
        items are equal.
        """
        lists = puzzles.batch(split, index)
        puzzle_order = lists["puzzle_order"]
        return {
            "x": inverse(puzzle_order),
            "items": rearrange(lists["items"], puzzle_order),
            "ties": lists["ties"],
        }

    def sample_scores(samples: Samples) -> Mapping[str, Tensor]:
        """Return the scores of puzzles with a known solution."""
        if "target" not in samples:
            return {}
        scores = puzzle_scores(
            puzzles.kind,
            samples["items"],
            samples["samples"],
            samples["target"],
            samples.get("ties"),
        )
        return {name: values.double() for name, values in scores.items()}

    validation: dict[str, Tensor] | None = None
    if puzzles.num_validation:
        validation = batch("val", torch.arange(puzzles.num_validation))
    return PermutationData(
        puzzles.name,
        partial(batch, "train"),
        batch("test", torch.arange(puzzles.num_test)),
        kind=puzzles.kind,
        puzzles=puzzles,
        sample_scores=sample_scores,
        validation=validation,
    )
