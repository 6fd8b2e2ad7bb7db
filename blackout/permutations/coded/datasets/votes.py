"""Permutations and votes in files of the user: arrays, tables of names, and PrefLib's formats."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import torch
from torch import Tensor

from blackout.component import component
from blackout.data.splits import SplitRows, split_samples
from blackout.errors import UserError, ensure, error_context, refuse
from blackout.permutations.coded.data import PermutationData, check_permutations, repetition_streams
from blackout.permutations.datasets.array_files import read_samples
from blackout.permutations.group import inverse
from blackout.random import SampleStreams, StepStreams
from blackout.safe_reading import read_text

VOTE_SUFFIXES = (".soc", ".soi", ".toc", ".toi")  # of preflib.org
INTEGER = re.compile("[0-9]{1,9}")
STATED_SIZE = re.compile(
    r"^# NUMBER (ALTERNATIVES|VOTERS|UNIQUE ORDERS): *([0-9]{1,18})$", re.MULTILINE
)
ALTERNATIVE = re.compile(r"# ALTERNATIVE NAME ([0-9]{1,9}): *(.*)")
MAX_VOTE_ENTRIES = 10**8  # voters x alternatives of a file of votes


@component("dataset", command_line="dataset=permutations dataset.path=<file>")
def permutations(
    path: str | Path, holdout: float = 0.1, seed: int = 0, validation: float = 0.1
) -> PermutationData:
    """Read permutations or votes from a file of the user.

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
            return data_from_levels(file.stem, levels, rows, seed, labels)
    with error_context(str(file)):
        x, rows = read_samples(file, "permutations", validation, holdout, seed)
    refuse(
        x.is_floating_point(),
        f"{file}: an array must hold integers; a .csv holds names, and a .soc or .toc votes",
    )
    with error_context(str(file)):
        check_permutations(file.stem, x)
        return data_from_levels(file.stem, inverse(x), rows, seed)


def data_from_levels(
    name: str, levels: Tensor, rows: SplitRows, seed: int, labels: tuple[str, ...] = ()
) -> PermutationData:
    """Return orders of items by rising level; items of one level are in random order.

    Args:
        name: of the data set.
        levels: of every item, int64 [N, n].
        rows: of each split.
        seed: of the random orders.
        labels: names of the items.

    References: this project; checked in tests/permutations/coded/datasets/test_votes.py.
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
            f"{file}: votes times alternatives must be at most {MAX_VOTE_ENTRIES:,}, "
            f"not {num_entries:,}: leave out some votes"
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
