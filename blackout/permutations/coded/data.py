"""What a model of codes is trained on: permutations in memory, or made on the fly from their number.

Sources whose law is known (cycles, Mallows for every phi at once, Plackett-Luce), permutations of one's own, and
puzzles as permutations to be coded: the items as they are given, and the permutation that puts them right.
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
from blackout.permutations.group import inverse, is_permutation, kendall_distance, num_cycles, number
from blackout.permutations.metrics import arranged, puzzle_scores
from blackout.protocols import Samples, Split
from blackout.random import SampleStreams, StepStreams
from blackout.safe_reading import read_text

Judge: TypeAlias = Callable[[Samples], Mapping[str, Tensor]]
"""(`samples` [b, n] and their contexts) -> figures of each sample by name, [b]; NaN where one has none."""
Truth: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""(one context, permutations [m, n]) -> their true log-probabilities in nats, float64 [m]."""
Maker: TypeAlias = Callable[[Tensor, Tensor | None], dict[str, Tensor]]
"""(numbers [b], uniforms [b] that tell repetitions apart, or None) -> `x` and contexts of training samples."""
_ENUMERATED = 10
"""Most items whose cycles are all held in memory."""
_HELD_OUT, _FIRST = 2000, 64
_MADE_HELD_OUT = 512
_TEST, _VALIDATION = 1, 2  # seeds of permutations that are made; those to train on have 0
_REPETITIONS = 2**24
_MOST_PLACES, _NUMBER = 10**8, re.compile("[0-9]{1,9}")
_ALTERNATIVE = re.compile(r"# ALTERNATIVE NAME ([0-9]{1,9}): *(.*)")
VOTES = (".soc", ".soi", ".toc", ".toi")
_LEAST_PHI, _PHIS = 0.1, (0.2, 0.5, 0.8, 1.0)


@dataclass(frozen=True, eq=False)
class PermutationData:
    """Permutations `x`, int64 [N, n], each with its context, if it has any: a `blackout.protocols.Source`.

    Contexts are further arrays [N, ...]: `items` int64 [N, n] (tokens), `condition` float32 [N, d] (numbers), or others
    that the judge alone reads.

    Attributes:
        name: short name for logs and file names.
        train: makes `x` and contexts of training samples.
        test: the same of the test samples.
        validation: the same of the validation samples; None for none.
        num_tokens: size of the vocabulary where `items` are tokens; None without.
        kind: what the items are, for pictures: rankings, or a puzzle's kind; None for bare permutations.
        puzzles: where the permutations come from, if they solve puzzles.
        judge: figures of single samples.
        truth: the law of the data, where it is known.
        members: all permutations that occur, equally often, int64 [M, n]; None where that is not so.
        train_size: training samples; None for any number.
        shown: contexts under which a known law is reported, named: {"phi=0.2": {"condition": ...}}; unless given none.
        kept: what a model keeps of the source, such as the user's numbers of items.
        code: that a model is of unless it is told otherwise.
        labels: what items are called.

    Raises:
        ValueError: no samples, what is no permutation, or fewer than 2 items.
    """

    name: str
    train: Maker
    test: Mapping[str, Tensor]
    num_tokens: int | None = None
    kind: str | None = None
    puzzles: Puzzles | None = None
    judge: Judge | None = None
    truth: Truth | None = None
    members: Tensor | None = None
    train_size: int | None = None
    shown: Mapping[str, Mapping[str, Tensor]] = field(default_factory=lambda: {"": {}})
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    code: str = "fisher_yates"
    labels: tuple[str, ...] = ()
    validation: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        check_permutations(self.name, self.test["x"])
        if self.validation is not None:
            check_permutations(self.name, self.validation["x"])

    def __str__(self) -> str:
        size = "any number" if self.train_size is None else f"{self.train_size:,}"
        sizes = f"{size} training, {self.size('val'):,} validation and {self.size('test'):,} test"
        return f"{self.name}, {sizes} permutations of {self.length} items"

    @property
    def length(self) -> int:
        """Items of a permutation."""
        return self.test["x"].shape[1]

    @property
    def facts(self) -> dict[str, Any]:
        """`num_items`, and where there are contexts `num_conditions`, or what the encoder of items asks for."""
        facts: dict[str, Any] = {"num_items": self.length, **(self.puzzles.facts if self.puzzles else {})}
        if self.num_tokens is not None:
            facts |= {"num_tokens": self.num_tokens, "item_shape": []}
            facts["encoder"] = {"_target_": "blackout.networks.TokenEncoder"}
        if "condition" in self.test:
            facts["num_conditions"] = self.test["condition"].shape[1]
        return facts

    def size(self, split: Split) -> int | None:
        """Number of samples of a split; None for any number."""
        if split == "train":
            return self.train_size
        return len(self._held_out(split)["x"])

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """`x` and contexts of the samples with these numbers, [b, ...]."""
        if split == "train":
            return self.train(index, augment)
        return {name: values[index] for name, values in self._held_out(split).items()}

    def _held_out(self, split: Split) -> Mapping[str, Tensor]:
        """`x` and contexts of all validation or test samples."""
        if split == "test":
            return self.test
        return self.validation or {name: values[:0] for name, values in self.test.items()}

    def fingerprint(self, split: Split) -> str:
        """SHA-256 (hex) of the split's arrays; where there is any number of samples, of the first."""
        size = self.size(split)
        return hash_tensors(self.name, self.batch(split, torch.arange(_FIRST if size is None else size)))

    def to(self, device: torch.device) -> PermutationData:
        """The same: training samples are made on the CPU."""
        return self


def check_permutations(name: str, x: Tensor) -> None:
    """Refuse what are no permutations [N, n] of at least 2 items.

    Raises:
        ValueError: saying what is wrong, and in which row.
    """
    ensure(x.ndim == 2 and len(x), f"{name}: permutations [N, n], at least one, are needed, not {list(x.shape)}")
    check_length(name, x.shape[1])
    if not bool((good := is_permutation(x)).all()):
        row = int((~good).nonzero()[0, 0])
        raise ValueError(f"{name}: row {row} is no permutation of 0..{x.shape[1] - 1}: {x[row].tolist()}"[:300])


def check_length(name: str, length: int) -> None:
    """Refuse lengths below 2.

    Raises:
        ValueError: it is.
    """
    ensure(length >= 2, f"{name}: length must be at least 2, not {length}")


def hash_share(key: Tensor, seed: int) -> Tensor:
    """A uniform number of each key, int64 [N]: the same ones for ever; float64 [N]."""
    return SampleStreams(seed, key).step(0).next_draw().uniform((len(key), 1)).squeeze(1)


@component("dataset")
def cycles(length: int = 10, share: float = 0.2, seed: int = 0) -> PermutationData:
    """All permutations that are one cycle, `share` of them to train on, the others held out [Severo 2025, section 5.2].

    Permutations are [N, n]. Which ones is decided by a hash of the permutation: the training set is the same
    everywhere, and whether a sample is in it needs no list. Of those held out up to 4,000, evenly spaced, are
    validation and test permutations in turn.

    Args:
        length: 2 to 10.
        share: of the (length - 1)! cycles, in (0, 1]; 1 trains on all, those for validation and test among them.
        seed: of the hash.

    Raises:
        ValueError: values outside these limits, or a share that leaves nothing to train on, or fewer than two held out.
    """
    check_length("cycles", length)
    ensure(0 < share <= 1, f"cycles: share must be in (0, 1], not {share}")
    ensure(length <= _ENUMERATED, f"cycles: length must be at most {_ENUMERATED}: all are held in memory; not {length}")
    x = all_cycles(length)
    drawn = hash_share(number(x), seed) < share
    ensure(bool(drawn.any()), f"cycles: share={share} of {len(x)} cycles leaves none to train on")
    rest = x if share == 1 else x[~drawn]
    ensure(len(rest) >= 2, f"cycles: share={share} of {len(x)} cycles leaves {len(rest)} for validation and test, of 2")

    def judge(samples: Samples) -> Mapping[str, Tensor]:
        """Whether samples [b, n] are one cycle, and in the training set, [b] each."""
        cyclic = num_cycles(samples["samples"]) == 1
        inside = cyclic & (hash_share(number(samples["samples"]), seed) < share)
        return {"cyclic": cyclic.double(), "in_train": inside.double()}

    def truth(context: Mapping[str, Tensor], points: Tensor) -> Tensor:
        """-log (n - 1)! of every permutation [m, n] that is one cycle, else -inf: float64 [m]
        [Severo 2025, section 5.2].
        """
        log_p = torch.full((len(points),), -math.log(len(x)), dtype=torch.float64)
        return log_p.masked_fill(num_cycles(points) != 1, -math.inf)

    held_out = rest[torch.linspace(0, len(rest) - 1, min(len(rest), 2 * _HELD_OUT)).long()]
    train = x[drawn]

    def make(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        return {"x": train[index]}

    return PermutationData(
        "cycles", make, {"x": held_out[::2]}, judge=judge, truth=truth, members=x, train_size=len(train),
        validation={"x": held_out[1::2]},
    )  # fmt: skip


def all_cycles(n: int) -> Tensor:
    """The (n - 1)! permutations that are one cycle, int64 [(n - 1)!, n]: no Fisher-Yates digit but the last is 0.

    [Sattolo 1986], [Severo 2025, section 5.2].
    """
    digits = torch.cartesian_prod(*(torch.arange(1, n - i) for i in range(n - 1))).reshape(-1, n - 1)
    return FisherYates.decode(torch.cat([digits, torch.zeros(len(digits), 1, dtype=torch.int64)], 1))


@component("dataset")
def mallows(length: int = 8) -> PermutationData:
    """Mallows orders [N, length] for every phi between .1 and 1, which the model is told: one network for all of them.

    [Mallows 1957].

    Raises:
        ValueError: a length below 2.
    """
    check_length("mallows", length)

    def make(index: Tensor, augment: Tensor | None = None, seed: int = 0) -> dict[str, Tensor]:
        """phi uniform on [.1, 1], `condition` [b, 1], and a draw of each law, `x` [b, n]: see `Mallows`."""
        streams, size = SampleStreams(seed, index).step(0), len(index)
        phi = _LEAST_PHI + (1 - _LEAST_PHI) * streams.next_draw().uniform((size, 1))
        return {"x": Mallows(length, phi.squeeze(1)).sample(generator=streams), "condition": phi.float()}

    def truth(context: Mapping[str, Tensor], points: Tensor) -> Tensor:
        """log p of permutations [m, n], float64 [m]: see `Mallows`."""
        return Mallows(length, context["condition"].double().flatten()[0]).log_prob(points)

    def judge(samples: Samples) -> Mapping[str, Tensor]:
        """The distance of every sample [b, n] and its mean under the law, [b] each: see `Mallows.moments`."""
        exact, _ = Mallows(length, samples["condition"].double().squeeze(1)).moments()
        return {"distance": kendall_distance(samples["samples"]).double(), "expected_distance": exact}

    test, validation = (make(torch.arange(_MADE_HELD_OUT), seed=stream) for stream in (_TEST, _VALIDATION))
    shown = {f"phi={phi}": {"condition": torch.tensor([[phi]])} for phi in _PHIS}
    return PermutationData(
        "mallows", make, test, judge=judge, truth=truth, shown=shown, validation=validation
    )


@component("dataset")
def plackett_luce(length: int = 5, ratio: float = 2.0) -> PermutationData:
    """Orders [N, length] drawn without replacement by weights 1, ratio, ratio^2, ...: no product of digits is this law.

    [Plackett 1975].

    Raises:
        ValueError: a length below 2, or a ratio that is not positive.
    """
    check_length("plackett_luce", length)
    ensure(ratio > 0 and math.isfinite(ratio), f"plackett_luce: ratio must be positive, not {ratio}")
    law = PlackettLuce(math.log(ratio) * torch.arange(length).double())

    def make(index: Tensor, augment: Tensor | None = None, seed: int = 0) -> dict[str, Tensor]:
        """Draws of the law, `x` [b, n]: see `PlackettLuce`."""
        return {"x": law.sample(Size([len(index)]), SampleStreams(seed, index).step(0))}

    test, validation = (make(torch.arange(_MADE_HELD_OUT), seed=stream) for stream in (_TEST, _VALIDATION))
    return PermutationData(
        "plackett_luce", make, test, truth=lambda _, x: law.log_prob(x), validation=validation
    )


@component("dataset", ask="dataset=permutations dataset.path=<file>")
def permutations(
    path: str | Path, holdout: float = 0.1, seed: int = 0, validation: float = 0.1
) -> PermutationData:
    """Your own: an `.npy` file of permutations [N, n], rows of 0..n-1; a `.csv` with an order of the same names in
    every row, the best first; or votes from preflib.org, .soc .soi .toc .toi. An `.npz` with `train` and `test`, and
    perhaps `val`, keeps these splits.

    Ties are broken at random, anew in every training batch, and alternatives that a vote leaves out are tied for the
    last places: bits are then those of a random order that agrees with the vote.

    Args:
        path: the file.
        holdout: share of the rows, or voters, to test on; a file with `test` has its own.
        seed: of the split and of broken ties.
        validation: share or number of the rows, or voters, by which checkpoint and sharpness are chosen; 0 for none.

    Raises:
        UserError: a file that is missing, damaged, or holds anything else; the message names the row.
    """
    file = Path(path).expanduser()
    refuse(not file.is_file(), f"{file}: no such file")
    if file.suffix in (".csv", *VOTES):
        levels, labels = read_orders(file) if file.suffix == ".csv" else read_votes(file)
        with error_context(str(file)):
            return from_levels(file.stem, levels, split_samples(len(levels), validation, holdout, seed), seed, labels)
    with error_context(str(file)):
        x, rows = read_samples(file, "permutations", validation, holdout, seed)
    refuse(x.is_floating_point(), f"{file}: integers in an .npy, names in a .csv, or votes (.soc, ...) are needed")
    with error_context(str(file)):
        check_permutations(file.stem, x)
        return from_levels(file.stem, inverse(x), rows, seed)


def from_levels(
    name: str, levels: Tensor, rows: SplitRows, seed: int, labels: tuple[str, ...] = ()
) -> PermutationData:
    """Orders of items by rising levels, int64 [N, n]; where several are of one level, in a random order of these.

    Ours (tests/permutations/coded/test_data.py).
    """
    ensure(len(levels) >= 2, f"at least 2 samples are needed, one of them to test on, not {len(levels)}")
    train, chosen, test = rows

    def orders(voters: Tensor, streams: StepStreams) -> Tensor:
        """Orders [b, n] by levels plus uniforms, which break ties: see `from_levels`."""
        return (levels[voters] + streams.next_draw().uniform((len(voters), levels.shape[1]))).argsort(1)

    def make(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """Votes `x` [b, n]: see `from_levels`."""
        return {"x": orders(train[index], repeated(seed, index, augment))}

    held_out = [{"x": orders(part, SampleStreams(seed, -1 - part).step(0))} for part in (chosen, test)]
    return PermutationData(
        name, make, held_out[1], train_size=len(train), labels=labels, code="insertion",
        validation=held_out[0] if len(chosen) else None,
    )  # fmt: skip


def repeated(seed: int, index: Tensor, augment: Tensor | None) -> StepStreams:
    """Random numbers of training samples [b], others at every repetition, which the uniforms [b] tell apart."""
    again = torch.zeros_like(index) if augment is None else (augment.double() * _REPETITIONS).long()
    return SampleStreams(seed, index * _REPETITIONS + again).step(0)


def read_orders(file: Path) -> tuple[Tensor, tuple[str, ...]]:
    """A table without a head, in whose every row are the names of all items, the best first; see `read_votes`."""
    rows = [[name.strip() for name in row] for row in csv.reader(read_text(file).rstrip().splitlines())]
    names = {name: place for place, name in enumerate(sorted(set(rows[0]) - {""} if rows else ()))}
    for line, row in enumerate(rows, 1):
        refuse(sorted(row) != [*names], f"{file}, line {line}: each name of the first line is needed once, best first")
    refuse(len(names) < 2, f"{file}: lines of at least two names are needed")
    return inverse(torch.tensor([[names[name] for name in row] for row in rows])), tuple(names)


def read_votes(file: Path) -> tuple[Tensor, tuple[str, ...]]:
    """Votes in a file of preflib.org, of its form since 2022: a level for every voter and alternative.

    Returns:
        Levels int64 [voters, n], 0 the best, the same for alternatives that are tied; and the names of alternatives.

    Raises:
        UserError: no such file, or anything else in it; the message names the line.
    """
    lines = [line.strip() for line in read_text(file).splitlines()]
    named = sorted((int(one[1]), one[2]) for line in lines if (one := _ALTERNATIVE.fullmatch(line)))
    votes = [(i, *line.partition(":")[::2]) for i, line in enumerate(lines, 1) if line and line[0] != "#"]
    if (n := len(named)) < 2 or not votes or [k for k, _ in named] != [*range(1, n + 1)]:
        raise UserError(f"{file}: {n} alternatives and {len(votes)} votes are no file of PrefLib with NAME 1, 2, ...")
    levels, voters = torch.empty(len(votes), n, dtype=torch.int64), list[int]()
    for row, (line, count, vote) in enumerate(votes):
        groups = [[a for a in one.strip("{}").split(",") if a.strip()] for one in re.findall(r"{[^{}]*}|[^,{}]+", vote)]
        groups = [group for group in groups if group]
        chosen = [a.strip() for group in groups for a in group]
        whole = all(_NUMBER.fullmatch(a) and 1 <= int(a) <= n for a in chosen) and _NUMBER.fullmatch(count.strip())
        if not whole or not chosen or len(set(chosen)) < len(chosen):
            what = f"{count}: {vote}"[:100]
            raise UserError(f"{file}, line {line}: not a number of voters and alternatives 1..{n}, each once: {what}")
        levels[row] = len(groups)
        for level, group in enumerate(groups):
            levels[row, [int(a) - 1 for a in group]] = level
        voters.append(int(count))
    if (total := sum(voters) * n) > _MOST_PLACES:
        raise UserError(f"{file}: {total:,} places of all votes together are more than {_MOST_PLACES:,}")
    return levels.repeat_interleave(torch.tensor(voters), 0), tuple(label for _, label in named)


def from_puzzles(puzzles: Puzzles) -> PermutationData:
    """The same source for models of codes: `x` solves the puzzle `items`, [b, n] and [b, n, ...]."""

    def batch(split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """Puzzles with the numbers int64 [b] as `x` [b, n], `items` as given [b, n, ...] and `ties` [b, n]."""
        made = puzzles.batch(split, index)
        given = made["given"]
        return {"x": inverse(given), "items": arranged(made["items"], given), "ties": made["ties"]}

    def judge(samples: Samples) -> Mapping[str, Tensor]:
        if "target" not in samples:
            return {}
        ties = samples.get("ties")
        scores = puzzle_scores(puzzles.kind, samples["items"], samples["samples"], samples["target"], ties)
        return {name: values.double() for name, values in scores.items()}

    test = batch("test", torch.arange(puzzles.held_out))
    validation = batch("val", torch.arange(puzzles.validation)) if puzzles.validation else None
    return PermutationData(
        puzzles.name, partial(batch, "train"), test, kind=puzzles.kind, puzzles=puzzles, judge=judge,
        validation=validation,
    )  # fmt: skip
