"""Data sets of permutations for models of codes: in memory, or made on demand from their index.

Some distributions are known exactly (cycles, Mallows with all phi at once, Plackett-Luce); others
are files of the user. Of puzzles the items are the context, and the solution is the permutation.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Size, Tensor

from blackout.component import component
from blackout.data.splits import SplitRows, split_samples
from blackout.errors import UserError, ensure, error_context, refuse
from blackout.files import hash_tensors
from blackout.permutations.classical import Mallows
from blackout.permutations.codes import FisherYates
from blackout.permutations.datasets import Puzzles, read_samples
from blackout.permutations.distributions import PlackettLuce
from blackout.permutations.group import (
    inverse,
    is_permutation,
    kendall_distance,
    lexicographic_rank,
    num_cycles,
)
from blackout.permutations.metrics import puzzle_scores, rearrange
from blackout.protocols import Samples, Split
from blackout.random import SampleStreams, StepStreams
from blackout.safe_reading import read_text

# (`samples` [b, n] and their contexts) -> scores of each sample by name, [b]; nan for none
SampleScores: TypeAlias = Callable[[Samples], Mapping[str, Tensor]]
# (one context, permutations [m, n]) -> true log-probabilities in nats, float64 [m]
LogProb: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]
# (indices [b], uniforms [b] that distinguish repetitions, or None) -> `x` and contexts
TrainingBatch: TypeAlias = Callable[[Tensor, Tensor | None], dict[str, Tensor]]

MAX_CYCLE_LENGTH = 10  # items of which all cycles (362,880) are held in memory
MAX_HELD_OUT_CYCLES = 2000  # in each of validation and test
NUM_HELD_OUT = 512  # permutations in validation and test of data sets made on demand
NUM_HASHED = 64  # permutations in the fingerprint of an unlimited split
MAX_VOTE_ENTRIES = 10**8  # voters x alternatives of a file of votes

# keys of permutations made on demand; training has 0
TEST_KEY = 1
VALIDATION_KEY = 2
MAX_REPETITIONS = 2**24  # random variants of a training sample

MIN_PHI = 0.1  # of Mallows permutations; the largest is 1, uniform
REPORTED_PHIS = (0.2, 0.5, 0.8, 1.0)  # for which the divergence from the truth is reported

VOTE_SUFFIXES = (".soc", ".soi", ".toc", ".toi")  # of preflib.org
INTEGER = re.compile("[0-9]{1,9}")
STATED_SIZE = re.compile(
    r"^# NUMBER (ALTERNATIVES|VOTERS|UNIQUE ORDERS): *([0-9]{1,18})$", re.MULTILINE
)
ALTERNATIVE = re.compile(r"# ALTERNATIVE NAME ([0-9]{1,9}): *(.*)")


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


def hash_to_uniform(keys: Tensor, seed: int) -> Tensor:
    """Return a uniform number for each key int64 [N], float64 [N], the same on every machine."""
    return SampleStreams(seed, keys).step(0).next_draw().uniform((len(keys), 1)).squeeze(1)


@component("dataset")
def cycles(length: int = 10, share: float = 0.2, seed: int = 0) -> PermutationData:
    """Return the permutations that are a single cycle, some of them held out.

    A hash of the permutation decides whether it is for training. The training set is therefore the
    same everywhere, and no list is needed to look a sample up. Up to 4,000 of the others, evenly
    spaced, are validation and test permutations in turn.

    Args:
        length: items, 2 to 10.
        share: of the (length - 1)! cycles for training, in (0, 1]; 1 trains on all, validation and
            test included.
        seed: of the hash.

    Raises:
        ValueError: values out of range, or a share that leaves no training or fewer than two
            held-out permutations.

    References: Severo et al. 2025, section 5.2.

    Example:
        >>> data = cycles(5, share=0.5)
        >>> data.length, data.size("train") + data.size("val") + data.size("test")
        (5, 24)
    """
    check_length("cycles", length)
    ensure(0 < share <= 1, f"cycles: share must be in (0, 1], not {share}")
    ensure(
        length <= MAX_CYCLE_LENGTH,
        f"cycles: length must be at most {MAX_CYCLE_LENGTH}: all are held in memory; not {length}",
    )
    # 1. split
    x = all_cycles(length)
    num_cycles_total = len(x)
    in_training = hash_to_uniform(lexicographic_rank(x), seed) < share
    ensure(
        bool(in_training.any()),
        f"cycles: share={share} of {num_cycles_total} cycles leaves none to train on",
    )
    train = x[in_training]
    candidates = x if share == 1 else x[~in_training]
    ensure(
        len(candidates) >= 2,
        f"cycles: share={share} of {num_cycles_total} cycles leaves {len(candidates)} for "
        "validation and test, which need 2",
    )
    num_held_out = min(len(candidates), 2 * MAX_HELD_OUT_CYCLES)
    held_out = candidates[torch.linspace(0, len(candidates) - 1, num_held_out).long()]

    # 2. scores and the true distribution
    def sample_scores(samples: Samples) -> Mapping[str, Tensor]:
        """Return whether samples [b, n] are a single cycle, and in the training set."""
        is_cycle = num_cycles(samples["samples"]) == 1
        u = hash_to_uniform(lexicographic_rank(samples["samples"]), seed)
        return {"cyclic": is_cycle.double(), "in_train": (is_cycle & (u < share)).double()}

    def log_prob(context: Mapping[str, Tensor], permutations: Tensor) -> Tensor:
        """Return -log (n - 1)! for cycles, -inf for other permutations [m, n]."""
        log_p = torch.full((len(permutations),), -math.log(num_cycles_total), dtype=torch.float64)
        return log_p.masked_fill(num_cycles(permutations) != 1, -math.inf)

    def make(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """Return training permutations."""
        return {"x": train[index]}

    return PermutationData(
        "cycles",
        make,
        {"x": held_out[::2]},
        sample_scores=sample_scores,
        log_prob=log_prob,
        members=x,
        train_size=len(train),
        validation={"x": held_out[1::2]},
    )


def all_cycles(n: int) -> Tensor:
    """Return the (n - 1)! permutations that are a single cycle, int64 [(n - 1)!, n].

    No Fisher-Yates digit of them but the last is 0.

    References: Sattolo 1986; Severo et al. 2025, section 5.2.
    """
    digits = torch.cartesian_prod(*(torch.arange(1, n - i) for i in range(n - 1)))
    digits = digits.reshape(-1, n - 1)
    last = torch.zeros(len(digits), 1, dtype=torch.int64)
    return FisherYates.decode(torch.cat([digits, last], 1))


@component("dataset")
def mallows(length: int = 8) -> PermutationData:
    """Return Mallows permutations whose dispersion phi is the condition, uniform on [0.1, 1].

    A single network represents all of these distributions.

    Args:
        length: items.

    Raises:
        ValueError: length < 2.

    References: Mallows 1957.

    Example:
        >>> data = mallows(6)
        >>> data.batch("test", torch.arange(2))["condition"].shape
        torch.Size([2, 1])
    """
    check_length("mallows", length)

    def make(index: Tensor, augment: Tensor | None = None, key: int = 0) -> dict[str, Tensor]:
        """Draw phi, the `condition` [b, 1], and a permutation `x` [b, n] for each."""
        streams = SampleStreams(key, index).step(0)
        phi = MIN_PHI + (1 - MIN_PHI) * streams.next_draw().uniform((len(index), 1))
        x = Mallows(length, phi.squeeze(1)).sample(generator=streams)
        return {"x": x, "condition": phi.float()}

    def log_prob(context: Mapping[str, Tensor], permutations: Tensor) -> Tensor:
        """Return log p of permutations [m, n], float64 [m]."""
        phi = context["condition"].double().flatten()[0]
        return Mallows(length, phi).log_prob(permutations)

    def sample_scores(samples: Samples) -> Mapping[str, Tensor]:
        """Return the Kendall distance of samples [b, n] from the identity, and its expectation."""
        phi = samples["condition"].double().squeeze(1)
        expected_distance, _ = Mallows(length, phi).moments()
        distance = kendall_distance(samples["samples"]).double()
        return {"distance": distance, "expected_distance": expected_distance}

    index = torch.arange(NUM_HELD_OUT)
    contexts = {f"phi={phi}": {"condition": torch.tensor([[phi]])} for phi in REPORTED_PHIS}
    return PermutationData(
        "mallows",
        make,
        make(index, key=TEST_KEY),
        sample_scores=sample_scores,
        log_prob=log_prob,
        reported_contexts=contexts,
        validation=make(index, key=VALIDATION_KEY),
    )


@component("dataset")
def plackett_luce(length: int = 5, ratio: float = 2.0) -> PermutationData:
    """Return Plackett-Luce permutations with worths 1, ratio, ratio^2, ...

    Their distribution is not a product of independent digits.

    Args:
        length: items.
        ratio: of consecutive worths.

    Raises:
        ValueError: length < 2, or a ratio that is not positive.

    References: Plackett 1975.

    Example:
        >>> data = plackett_luce(3, ratio=2.0)
        >>> data.batch("test", torch.arange(2))["x"].shape
        torch.Size([2, 3])
    """
    check_length("plackett_luce", length)
    ensure(
        ratio > 0 and math.isfinite(ratio), f"plackett_luce: ratio must be positive, not {ratio}"
    )
    distribution = PlackettLuce(math.log(ratio) * torch.arange(length).double())

    def make(index: Tensor, augment: Tensor | None = None, key: int = 0) -> dict[str, Tensor]:
        """Draw permutations `x` [b, n]."""
        return {"x": distribution.sample(Size([len(index)]), SampleStreams(key, index).step(0))}

    def log_prob(context: Mapping[str, Tensor], permutations: Tensor) -> Tensor:
        """Return log p of permutations [m, n], float64 [m]."""
        return distribution.log_prob(permutations)

    index = torch.arange(NUM_HELD_OUT)
    return PermutationData(
        "plackett_luce",
        make,
        make(index, key=TEST_KEY),
        log_prob=log_prob,
        validation=make(index, key=VALIDATION_KEY),
    )


@component("dataset", ask="dataset=permutations dataset.path=<file>")
def permutations(
    path: str | Path, holdout: float = 0.1, seed: int = 0, validation: float = 0.1
) -> PermutationData:
    """Permutations or votes in a file of the user.

    An `.npy` file has permutations [N, n], rows of 0..n-1. An `.npz` with `train` and `test`, and
    perhaps `val`, keeps these splits. A `.csv` has the same names in every row, the best first.
    `.soc`, `.soi`, `.toc` and `.toi` are votes of preflib.org.

    Ties are broken at random, differently in every training batch, and alternatives that a vote
    leaves out are tied for the last positions: bits are then those of a random order that agrees
    with the vote.

    Args:
        path: the file.
        holdout: share of the rows, or voters, for testing; a file with `test` has its own.
        seed: of the split and of broken ties.
        validation: share or number of the rows, or voters, by which checkpoint and sharpness are
            chosen; 0 for none.

    Raises:
        UserError: a file that is missing, damaged, or in another format; the message names the row.
    """
    file = Path(path).expanduser()
    refuse(not file.is_file(), f"{file}: no such file")
    if file.suffix in (".csv", *VOTE_SUFFIXES):
        levels, labels = read_orders(file) if file.suffix == ".csv" else read_votes(file)
        with error_context(str(file)):
            rows = split_samples(len(levels), validation, holdout, seed)
            return from_levels(file.stem, levels, rows, seed, labels)
    with error_context(str(file)):
        x, rows = read_samples(file, "permutations", validation, holdout, seed)
    refuse(
        x.is_floating_point(),
        f"{file}: integers in an .npy, names in a .csv, or votes (.soc, ...) are needed",
    )
    with error_context(str(file)):
        check_permutations(file.stem, x)
        return from_levels(file.stem, inverse(x), rows, seed)


def from_levels(
    name: str, levels: Tensor, rows: SplitRows, seed: int, labels: tuple[str, ...] = ()
) -> PermutationData:
    """Return orders of items by rising level; items of one level are in random order.

    Args:
        name: of the data set.
        levels: of every item, int64 [N, n].
        rows: of each split.
        seed: of the random orders.
        labels: names of the items.

    References: this project; checked in tests/permutations/coded/test_data.py.
    """
    ensure(
        len(levels) >= 2,
        f"at least 2 samples are needed, one of them to test on, not {len(levels)}",
    )

    def draw_orders(index: Tensor, streams: StepStreams) -> Tensor:
        """Return orders [b, n] of voters [b]; uniforms break ties."""
        u = streams.next_draw().uniform((len(index), levels.shape[1]))
        return (levels[index] + u).argsort(1)

    def make(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """Return training orders."""
        streams = repetition_streams(seed, index, augment)
        return {"x": draw_orders(rows.train[index], streams)}

    def held_out(index: Tensor) -> dict[str, Tensor]:
        """Return validation or test orders, whose keys are negative."""
        return {"x": draw_orders(index, SampleStreams(seed, -1 - index).step(0))}

    return PermutationData(
        name,
        make,
        held_out(rows.test),
        train_size=len(rows.train),
        labels=labels,
        code="insertion",
        validation=held_out(rows.val) if len(rows.val) else None,
    )


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


def read_orders(file: Path) -> tuple[Tensor, tuple[str, ...]]:
    """Read a table without a header whose rows are the names of all items, the best first.

    Returns:
        Levels int64 [N, n] and names, as of `read_votes`.

    Raises:
        UserError: a row that does not have each name once; the message names the line.
    """
    lines = read_text(file).rstrip().splitlines()
    rows = [[name.strip() for name in row] for row in csv.reader(lines)]
    names = sorted(set(rows[0]) - {""}) if rows else []
    index = {name: i for i, name in enumerate(names)}
    for line, row in enumerate(rows, 1):
        refuse(
            sorted(row) != names,
            f"{file}, line {line}: must list each name of the first line once, best first",
        )
    refuse(len(names) < 2, f"{file}: lines of at least two names are needed")
    orders = torch.tensor([[index[name] for name in row] for row in rows])
    return inverse(orders), tuple(names)


def read_votes(file: Path) -> tuple[Tensor, tuple[str, ...]]:
    """Read votes in the format of preflib.org (since 2022).

    Returns:
        The level of every alternative for every voter, int64 [voters, n], 0 for the best and equal
        for ties; and the names of the alternatives.

    Raises:
        UserError: a file that is missing or in another format; the message names the line.
    """
    # 1. the header and the lines of votes, "count: 1,{2,3},4"
    lines = [line.strip() for line in read_text(file).splitlines()]
    matches = [match for line in lines if (match := ALTERNATIVE.fullmatch(line))]
    alternatives = sorted((int(match[1]), match[2]) for match in matches)
    votes = [
        (number, *line.partition(":")[::2])
        for number, line in enumerate(lines, 1)
        if line and line[0] != "#"
    ]
    n = len(alternatives)
    if n < 2 or not votes or [number for number, _ in alternatives] != [*range(1, n + 1)]:
        raise UserError(
            f"{file}: not a file of PrefLib: {n} alternatives and {len(votes)} votes; at least 2 "
            "alternatives, numbered 1, 2, ..., and 1 vote are needed"
        )
    stated = {name: int(size) for name, size in STATED_SIZE.findall("\n".join(lines))}
    # 2. the levels of each vote
    levels = torch.empty(len(votes), n, dtype=torch.int64)
    counts: list[int] = []
    for row, (line, count, vote) in enumerate(votes):
        groups = _parse_vote(vote)
        members = [member for group in groups for member in group]
        are_alternatives = all(INTEGER.fullmatch(a) and 1 <= int(a) <= n for a in members)
        is_count = INTEGER.fullmatch(count.strip())
        distinct = len(set(members)) == len(members)
        if not (are_alternatives and is_count and members and distinct):
            text = f"{count}: {vote}"[:100]
            raise UserError(
                f"{file}, line {line}: a vote must be `COUNT: ALTERNATIVES`, with "
                f"alternatives 1..{n} at most once, not {text!r}"
            )
        levels[row] = len(groups)  # alternatives that the vote leaves out
        for level, group in enumerate(groups):
            levels[row, [int(a) - 1 for a in group]] = level
        counts.append(int(count))
    sizes = {
        "ALTERNATIVES": n,
        "VOTERS": sum(counts),
        "UNIQUE ORDERS": len({vote for _, _, vote in votes}),
    }
    for name, size in stated.items():
        message = f"{file}: it states {size} {name.lower()}, but has {sizes[name]}"
        refuse(size != sizes[name], message)
    # 3. one row for each voter
    num_entries = sum(counts) * n
    if num_entries > MAX_VOTE_ENTRIES:
        raise UserError(
            f"{file}: {num_entries:,} places of all votes together are more than "
            f"{MAX_VOTE_ENTRIES:,}"
        )
    names = tuple(name for _, name in alternatives)
    return levels.repeat_interleave(torch.tensor(counts), 0), names


def _parse_vote(vote: str) -> list[list[str]]:
    """Return the groups of tied alternatives of a vote such as "1,{2,3},4", without spaces."""
    groups = [
        [member.strip() for member in group.strip("{}").split(",") if member.strip()]
        for group in re.findall(r"{[^{}]*}|[^,{}]+", vote)
    ]
    return [group for group in groups if group]


def from_puzzles(puzzles: Puzzles) -> PermutationData:
    """Return puzzles as permutations `x` [b, n] that solve the context `items` [b, n, ...]."""

    def batch(split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """Return puzzles of a split with their solutions.

        The solutions are `x` [b, n], the puzzles `items` [b, n, ...]; `ties` [b, n] says which
        items are equal.
        """
        lists = puzzles.batch(split, index)
        puzzle_order = lists["given"]
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
    if puzzles.validation:
        validation = batch("val", torch.arange(puzzles.validation))
    return PermutationData(
        puzzles.name,
        partial(batch, "train"),
        batch("test", torch.arange(puzzles.held_out)),
        kind=puzzles.kind,
        puzzles=puzzles,
        sample_scores=sample_scores,
        validation=validation,
    )
