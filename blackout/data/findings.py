"""Findings: what looks wrong in a file of counts, such as sample numbers, batches, or a camera's offset.

A finding names the setting that corrects it, where there is one.

References: this project; checked on files of each kind, and on files without faults, in tests/data/test_findings.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import unfold

Array = npt.NDArray[Any]
_MOST_COMPARED = 20_000
"""Columns among which duplicates are looked for, and rows."""
_FEWEST = 20
"""Rows from which an order of rows is no chance."""
_MOST_NUMBERS = 1 << 22
"""Numbers of which moments are taken."""
_ABOUT_SAMPLES = re.compile(
    r"(id|index|idx|unnamed.*|(sample|cell|row)_?(id|index|number)|batch|plate|lane|donor|patient|subject|animal|mouse"
    r"|replicate|cluster|labels?|y|class|target|species|outcome|group|condition|treatment|cell_?type|sex|age|day|date"
    r"|time|timepoint|year)"
)
_NUMBERS = "number the samples, and are no counts"
_ABOUT = (
    "look like a batch or class of the samples, not like counts (or dataset.labels, dataset.group)"
)
_CONSTANT, _EQUAL = "are constant", "are equal to another"
_RARE, _SURE, _FAR, _EMPTY = 0.95, 10, 100, 10
"""Zeros of an element beside which others without any units are no surprise; counts that tell equal from rare ones;
times the next count from which on one is far off; units of which samples have as few only by chance.
"""
_LISTED = 20
"""Names in a setting that is proposed, at most."""
_BARCODE = re.compile(r"[ACGT]{8,}([-_.]\w+)?")


class Finding(UserWarning):
    """A warning about something in a file that looks wrong.

    Args:
        message: what looks wrong.
        settings: settings of `blackout.data.counts` that correct it.
    """

    def __init__(self, message: str, **settings: Any) -> None:
        self.settings = settings
        words = [f"dataset.{name}={format_setting(value)}" for name, value in settings.items()]
        super().__init__(": ".join([message, " ".join(words)] if words else [message]))


def format_setting(value: Any) -> str:
    """Return the value of a setting as it is typed on the command line."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def findings(counts: Tensor, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield what looks wrong in counts.

    Args:
        counts: whole numbers [N, *shape], on the CPU.
        names: of the elements of vectors; empty without names.
    """
    if len(counts) > 1 and counts.numel():
        yield from _units(counts)
        yield from _strays(counts)
        if counts.ndim == 2:
            yield from _columns(
                counts.numpy(), list(names) or list(map(str, range(counts.shape[1])))
            )
            yield from _rows(counts.numpy(), names)
        if counts.ndim == 4:
            yield from _hot(counts)


def _units(counts: Tensor) -> Iterator[Finding]:
    """A camera's offset and gain, of counts [N, *shape]: a least value that is none by chance, and a common divisor of
    what is above it.

    Ours (tests/data/test_findings.py).
    """
    few = counts[:: max(1, counts.numel() // _MOST_NUMBERS)].flatten(1).numpy().astype(np.int64)
    low = int(counts.min())
    gain = int(np.gcd.reduce(np.unique(few - low)))
    gain = gain if gain > 1 and not bool(((counts.long() - low) % gain).any()) else 1
    mean, varying = few.mean(0), few.var(0) > 0
    narrow = (
        bool(varying.any()) and float(np.median(few.var(0)[varying] / mean[varying])) < 0.5 * gain
    )
    camera = low >= 10 and (narrow or int((few == low).sum()) > max(_SURE, 0.01 * few.size))
    told = [f"no count is below {low}, as of a camera's offset"] if camera else []
    told += [f"all counts are in steps of {gain}, as of a camera's gain"] if gain > 1 else []
    settings = {"offset": low if camera else low % gain, "gain": gain if gain > 1 else 0}
    if told:
        yield Finding(
            ", and ".join(told), **{name: value for name, value in settings.items() if value}
        )


def _strays(counts: Tensor) -> Iterator[Finding]:
    """A few of counts [N, *shape] far above all others, and a few samples without units where all others have many.

    Ours (tests/data/test_findings.py).
    """
    top, totals = int(counts.max()), counts.flatten(1).sum(1, dtype=torch.int64)
    below, times = int((counts * (counts < top)).max()), int((counts == top).sum())
    if top > _FAR * max(below, _EMPTY) and times <= 0.01 * counts.numel():
        row = int((counts == top).flatten(1).any(1).int().argmax())
        what = f"{times} of the counts are {top:,}, the first in sample {row}, and all others at most {below:,}"
        yield Finding(f"{what}: the model would have to reach them; leave such samples out")
    empty, few = int((totals == 0).sum()), int(((totals > 0) & (totals < _EMPTY)).sum())
    if 3 * few < empty < len(counts) / 4:
        yield Finding(
            f"{empty} samples are empty, where {few} have less than {_EMPTY} units: leave them out"
        )


def _hot(counts: Tensor) -> Iterator[Finding]:
    """Pixels [N, C, H, W] that are in every image three times as bright as their neighbours are in any.

    Ours (tests/data/test_findings.py).
    """
    least, most = counts.amin(0), counts.amax(0)
    around = unfold(most[:, None].double(), 3, padding=1)
    around[:, 4] = 0  # the pixel itself
    hot = ((least > 3 * around.amax(1).view_as(least)) & (least >= _SURE)).any(0).nonzero().tolist()
    if hot:
        places = ", ".join(f"[{row}, {column}]" for row, column in hot[:5]) + (
            " and more" if len(hot) > 5 else ""
        )
        yield Finding(
            f"hot pixels, at {places}: set them to what is around them; no image has anything else there"
        )


def _columns(counts: Array, names: list[str]) -> Iterator[Finding]:
    """Columns of counts [N, D] that are numbers of samples, batches, constants, or copies of others.

    Ours (tests/data/test_findings.py).
    """
    if counts.shape[1] > _MOST_COMPARED:
        return
    marked: dict[str, list[str]] = {what: [] for what in (_NUMBERS, _ABOUT, _CONSTANT, _EQUAL)}
    first: dict[int, int] = {}
    zeros = (counts == 0).mean(0)
    rare = bool(((zeros > _RARE) & (zeros < 1)).any())
    for k, column in enumerate(counts.T):
        kind = _kind(column, _ABOUT_SAMPLES.fullmatch(names[k].lower()) is not None)
        if kind is not None and not (kind == _CONSTANT and rare and zeros[k] == 1):
            marked[kind].append(names[k])
        elif (column != np.median(column)).sum() >= _SURE and first.setdefault(
            hash(column.tobytes()), k
        ) != k:
            marked[_EQUAL].append(names[k])
    for what, which in marked.items():
        if which:
            few = ", ".join(which[:5]) + (f" and {len(which) - 5} more" if len(which) > 5 else "")
            yield Finding(
                f"elements that {what}: {few}",
                **({"exclude": which} if len(which) <= _LISTED else {}),
            )


def _kind(column: Array, named: bool) -> str | None:
    """What a column [N] is in place of counts, by its values and by whether its name says so.

    Ours (tests/data/test_findings.py).

    Numbers of samples rise or fall throughout, or are consecutive in any order, or merely different, by name. Batches
    have few values, by which rows are sorted, each of at least five rows.
    """
    if (column == column[0]).all():
        return _CONSTANT if len(column) >= _FEWEST else None
    start = np.sign(np.diff(column[:_FEWEST].astype(np.int64)))
    sorted_ = bool((start >= 0).all() or (start <= 0).all())
    consecutive = int(column.max()) - int(column.min()) == len(column) - 1
    if len(column) < _FEWEST or not (sorted_ or consecutive or named):
        return _ABOUT if named else None
    steps, times = np.diff(column.astype(np.int64)), np.unique(column, return_counts=True)[1]
    sorted_ = bool((steps >= 0).all() or (steps <= 0).all())
    if len(times) == len(column) and (sorted_ or consecutive or named):
        return _NUMBERS
    return _ABOUT if named or (sorted_ and int(times.min()) >= 5) else None


def _rows(counts: Array, names: Sequence[str]) -> Iterator[Finding]:
    """Rows of counts [N, D] that occur twice, have one total, or are genes rather than cells.

    Ours (tests/data/test_findings.py).
    """
    number, size = counts.shape
    totals = counts.sum(1, dtype=np.int64) - int(counts.min()) * size
    rounded = (
        0 < totals.var() <= min(size / 4, totals.mean() / 10)
    )  # a twelfth for each; whole ones have one total
    if number >= _FEWEST and size > 2 and totals.mean() >= 50 and rounded and counts.max() > 1:
        yield Finding(
            f"all samples have a total of about {totals.mean():,.0f}, as if normalised: give the raw counts"
        )
    if (twice := _duplicates(counts[:_MOST_COMPARED])) is not None:
        yield Finding(
            f"{twice}: held-out samples would be among the training samples; keep one of each"
        )
    of_cells = sum(_BARCODE.fullmatch(name) is not None for name in names) > 0.8 * max(
        len(names), 1
    )
    if number >= _FEWEST and size >= _FEWEST:
        rows, columns = (
            float(np.log1p(sums).std()) for sums in (totals, counts.sum(0, dtype=np.int64))
        )
        of_cells |= rows > 1.5 and rows > 3 * columns
    if of_cells:
        yield Finding(
            "rows differ as genes do and columns as cells: rows must be samples; give the transpose"
        )


def _duplicates(counts: Array) -> str | None:
    """How many rows of counts [N, D] occur before, where they are more than ten times those that independent elements
    would make, and lie alone: rows that agree by chance have neighbours.

    Ours (tests/data/test_findings.py).
    """
    if counts.max() < 2:
        return None
    rows = np.ascontiguousarray(counts).view(
        np.dtype((np.void, counts.dtype.itemsize * counts.shape[1]))
    )
    _, first, which = np.unique(rows.ravel(), return_index=True, return_inverse=True)
    again = np.flatnonzero(
        (first[which] < np.arange(len(counts))) & (counts != counts[:, :1]).any(1)
    )
    if len(again) < max(2, 0.01 * len(counts)):
        return None
    alike = 1.0
    for column in counts.T:
        alike *= float(((np.unique(column, return_counts=True)[1] / len(counts)) ** 2).sum())
    if alike * len(counts) ** 2 / 2 > 0.1 * len(again):
        return None
    some, low = (
        counts[: max(1, _MOST_NUMBERS // counts.shape[1])].astype(np.int64),
        int(counts.min()),
    )
    near = 2 * max(1, int(np.gcd.reduce(np.unique(some - low))))
    apart = [np.abs(some - counts[k]).sum(1) for k in again[:_LISTED]]
    if sum(bool(((far == 0) | (far > near)).all()) for far in apart) < 0.2 * len(apart):
        return None
    known = first[which[again[0]]]
    return f"{len(again)} of {len(counts)} samples occur before, as number {again[0]}, which is number {known}"
