"""Findings: what looks wrong in counts, such as sample numbers, batches, or a camera's offset.

A finding names the setting that corrects it, where there is one.

References: this project; checked on files of each kind, with and without faults, in
tests/data/test_findings.py.
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

from blackout.config.overrides import format_override

Array = npt.NDArray[Any]

MAX_COMPARED = 20_000  # rows, and columns, that are searched for duplicates
MAX_MOMENT_VALUES = 1 << 22  # values whose moments are computed
MIN_ORDERED_ROWS = 20  # fewer rows may be in order by chance
MAX_LISTED_NAMES = 20  # names in a proposed setting
MAX_SHOWN_NAMES = 5  # names in a message

# Cameras
MIN_OFFSET = 10  # counts; a smaller lowest count is no offset
MIN_OFFSET_PIXELS = 10  # values at the lowest count; at least 1 % of all are needed, too

# Outliers
OUTLIER_RATIO = 100  # least ratio of an outlier to the largest other count
MAX_OUTLIER_SHARE = 0.01  # of all values
FEW_OUTLIERS = 3  # outliers that are allowed above this share
MIN_OUTLIER_VALUES = 100  # data with fewer values are not allowed them
FEW_UNITS = 10  # units; a smaller total is next to an empty sample

# Hot pixels
HOT_RATIO = 3  # least ratio of a pixel's smallest count to its neighbours' largest
MIN_HOT_COUNT = 10

# Columns
MIN_DISTINCTIVE = 10  # entries that differ from the median; columns with fewer agree by chance
RARE_ZERO_SHARE = 0.95  # share of zeros of rare elements, among which all-zero ones are expected
MIN_BATCH_ROWS = 5  # rows with each value of a batch column

# Rows
MIN_NORMALISED_TOTAL = 50
BARCODE_SHARE = 0.8  # share of names that look like barcodes of cells
MIN_GENE_SPREAD = 1.5  # standard deviation of the logarithm of the totals of rows
GENE_SPREAD_RATIO = 3  # least ratio of the spread of rows to that of columns
MIN_DUPLICATE_SHARE = 0.01
MIN_ISOLATED_SHARE = 0.2  # share of duplicates without similar rows

# names of columns that describe samples
SAMPLE_NAMES = re.compile(
    r"(id|index|idx|unnamed.*|(sample|cell|row)_?(id|index|number)|batch|plate|lane|donor|patient"
    r"|subject|animal|mouse|replicate|cluster|labels?|y|class|target|species|outcome|group"
    r"|condition|treatment|cell_?type|sex|age|day|date|time|timepoint|year)"
)
BARCODE = re.compile(r"[ACGT]{8,}([-_.]\w+)?")  # names of cells

NUMBERS = "number the samples, and are not counts"
SAMPLE_COLUMN = (
    "look like a batch or class of the samples, not like counts (or dataset.labels, dataset.group)"
)
CONSTANT = "are constant"
EQUAL = "are equal to another"


class Finding(UserWarning):
    """A warning about something in a file that looks wrong.

    Args:
        message: what looks wrong.
        settings: settings of `blackout.data.counts` that correct it.
    """

    def __init__(self, message: str, **settings: Any) -> None:
        self.settings = settings
        words = [format_override(f"dataset.{name}", value) for name, value in settings.items()]
        super().__init__(": ".join([message, " ".join(words)] if words else [message]))


class Note(UserWarning):
    """A warning that says how a file was read, where nothing has to be done."""


def findings(counts: Tensor, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield warnings about counts that look wrong, such as columns of sample numbers.

    Args:
        counts: whole numbers [N, *shape], on the CPU.
        names: of the elements of vectors; empty without names.
    """
    if len(counts) < 2 or counts.numel() == 0:
        return
    yield from _check_units(counts)
    yield from _check_outliers(counts)
    if counts.ndim == 2:
        array = counts.numpy()
        yield from _check_columns(array, list(names) or [str(k) for k in range(array.shape[1])])
        yield from _check_rows(array, names)
    if counts.ndim == 4:
        yield from _check_hot_pixels(counts)


def _check_units(counts: Tensor) -> Iterator[Finding]:
    """Find a camera's offset and gain.

    The offset is a smallest count that is not chance, the gain a common divisor above it.

    Args:
        counts: [N, *shape].
    """
    stride = max(1, counts.numel() // MAX_MOMENT_VALUES)
    values = counts[::stride].flatten(1).numpy().astype(np.int64)
    lowest = int(counts.min())
    gain = int(np.gcd.reduce(np.unique(values - lowest)))
    if gain > 1 and bool(((counts.long() - lowest) % gain).any()):
        gain = 1

    mean = values.mean(0)
    variance = values.var(0)
    varies = variance > 0
    is_underdispersed = False
    if varies.any():
        fano_factor = float(np.median(variance[varies] / mean[varies]))
        is_underdispersed = fano_factor < 0.5 * max(gain, 1)
    num_lowest = int((values == lowest).sum())
    is_common = num_lowest > max(MIN_OFFSET_PIXELS, 0.01 * values.size)
    has_offset = lowest >= MIN_OFFSET and (is_underdispersed or is_common)

    problems = []
    settings = {}
    if has_offset:
        problems.append(f"no count is below {lowest}, as of a camera's offset")
    if gain > 1:
        problems.append(f"all counts are in steps of {gain}, as of a camera's gain")
    offset = lowest if has_offset else lowest % max(gain, 1)
    if offset:
        settings["offset"] = offset
    if gain > 1:
        settings["gain"] = gain
    if problems:
        yield Finding(", and ".join(problems), **settings)


def _check_outliers(counts: Tensor) -> Iterator[Finding]:
    """Find a few counts far above all others, and empty samples where all others have many units.

    Args:
        counts: [N, *shape].
    """
    threshold, largest_other = _outlier_threshold(counts)
    if threshold is not None:
        is_outlier = counts >= threshold
        num_outliers = int(is_outlier.sum())
        row = int(is_outlier.flatten(1).any(1).int().argmax())
        largest = int(counts.max())
        values = f"{threshold:,}" if threshold == largest else f"{threshold:,} to {largest:,}"
        yield Finding(
            f"{num_outliers} of the counts are {values}, the first in sample {row}, and all "
            f"others at most {largest_other:,}: the model would have to reach them; "
            "leave such samples out"
        )
    totals = counts.flatten(1).sum(1, dtype=torch.int64)
    num_empty = int((totals == 0).sum())
    num_nearly_empty = int(((totals > 0) & (totals < FEW_UNITS)).sum())
    if 3 * num_nearly_empty < num_empty < len(counts) / 4:
        yield Finding(
            f"{num_empty} samples are empty, although only {num_nearly_empty} have 1 to "
            f"{FEW_UNITS - 1} units: leave them out"
        )


def _outlier_threshold(counts: Tensor) -> tuple[int | None, int]:
    """Return the smallest of a few counts that are far above all others, and the largest other.

    The counts are compared in their order, so that outliers do not hide each other.

    Args:
        counts: [N, *shape].

    Returns:
        None where there are no outliers; and the largest of the other counts.
    """
    largest = int(counts.max())
    num_outliers = int(MAX_OUTLIER_SHARE * counts.numel())
    if counts.numel() >= MIN_OUTLIER_VALUES:
        num_outliers = max(num_outliers, FEW_OUTLIERS)
    num_compared = num_outliers + 1
    if largest <= OUTLIER_RATIO * FEW_UNITS or num_outliers == 0:
        return None, largest
    values = torch.topk(counts.flatten(), num_compared).values.long()
    next_values = torch.cat([values[1:], values[-1:]])
    is_gap = values > OUTLIER_RATIO * next_values.clamp(min=FEW_UNITS)
    is_gap[-1] = False
    gaps = is_gap.nonzero().flatten()
    if len(gaps) == 0:
        return None, largest
    last = int(gaps[-1])  # outliers that are far from each other are all outliers
    return int(values[last]), int(values[last + 1])


def _check_hot_pixels(counts: Tensor) -> Iterator[Finding]:
    """Find pixels that are always three times as bright as their neighbours ever are.

    Of two such pixels side by side each is compared with the other's and its own further
    neighbours.

    Args:
        counts: [N, C, H, W].
    """
    smallest = counts.amin(0)
    largest = counts.amax(0)
    neighbours = unfold(largest[:, None].double(), 3, padding=1)
    neighbours[:, 4] = 0  # the pixel itself
    brightest = neighbours.topk(2, dim=1)
    limits = [brightest.values[:, k].view_as(smallest) for k in range(2)]
    is_bright = smallest >= MIN_HOT_COUNT
    is_single = is_bright & (smallest > HOT_RATIO * limits[0])
    is_paired = is_bright & (smallest > HOT_RATIO * limits[1])
    partners = unfold(is_paired[:, None].double(), 3, padding=1)
    has_partner = partners.gather(1, brightest.indices[:, :1]).view_as(smallest) > 0
    is_hot = is_single | (is_paired & has_partner)
    pixels = is_hot.any(0).nonzero().tolist()
    if pixels:
        places = ", ".join(f"[{row}, {column}]" for row, column in pixels[:MAX_SHOWN_NAMES])
        if len(pixels) > MAX_SHOWN_NAMES:
            places += " and more"
        yield Finding(
            f"hot pixels, at {places}: set them to the values around them; "
            "no image has anything else there"
        )


def _check_columns(counts: Array, names: list[str]) -> Iterator[Finding]:
    """Find columns that are sample numbers, batches, constants, or copies of others.

    Args:
        counts: [N, D].
        names: of the columns.
    """
    if counts.shape[1] > MAX_COMPARED:
        return
    flagged: dict[str, list[str]] = {
        problem: [] for problem in (NUMBERS, SAMPLE_COLUMN, CONSTANT, EQUAL)
    }
    first_by_hash: dict[int, int] = {}
    zero_share = (counts == 0).mean(0)
    has_rare_elements = bool(((zero_share > RARE_ZERO_SHARE) & (zero_share < 1)).any())
    for k, column in enumerate(counts.T):
        problem = _column_problem(column, SAMPLE_NAMES.fullmatch(names[k].lower()) is not None)
        is_expected_zero = problem == CONSTANT and has_rare_elements and zero_share[k] == 1
        if problem is not None and not is_expected_zero:
            flagged[problem].append(names[k])
        elif (column != np.median(column)).sum() >= MIN_DISTINCTIVE:
            first = first_by_hash.setdefault(hash(column.tobytes()), k)
            if first != k:
                flagged[EQUAL].append(names[k])
    for problem, flagged_names in flagged.items():
        if not flagged_names:
            continue
        listed = ", ".join(flagged_names[:MAX_SHOWN_NAMES])
        if len(flagged_names) > MAX_SHOWN_NAMES:
            listed += f" and {len(flagged_names) - MAX_SHOWN_NAMES} more"
        settings = {"exclude": flagged_names} if len(flagged_names) <= MAX_LISTED_NAMES else {}
        yield Finding(f"elements that {problem}: {listed}", **settings)


def _column_problem(column: Array, has_sample_name: bool) -> str | None:
    """Return what a column [N] is instead of counts, by its values and its name; None for counts.

    Sample numbers rise or fall throughout, are consecutive in any order, or merely different in a
    column with such a name. Batches have few values, by which rows are sorted, each of at least
    five rows.
    """
    if (column == column[0]).all():
        return CONSTANT if len(column) >= MIN_ORDERED_ROWS else None
    is_consecutive = int(column.max()) - int(column.min()) == len(column) - 1
    starts_sorted = _is_sorted(column[:MIN_ORDERED_ROWS])
    is_candidate = starts_sorted or is_consecutive or has_sample_name
    if len(column) < MIN_ORDERED_ROWS or not is_candidate:
        return SAMPLE_COLUMN if has_sample_name else None
    is_sorted = _is_sorted(column)
    repetitions = np.unique(column, return_counts=True)[1]
    all_different = len(repetitions) == len(column)
    if all_different and (is_sorted or is_consecutive or has_sample_name):
        return NUMBERS
    is_batch = is_sorted and int(repetitions.min()) >= MIN_BATCH_ROWS
    return SAMPLE_COLUMN if has_sample_name or is_batch else None


def _is_sorted(column: Array) -> bool:
    """Return whether values [N] never fall, or never rise."""
    steps = np.diff(column.astype(np.int64))
    return bool((steps >= 0).all() or (steps <= 0).all())


def _check_rows(counts: Array, names: Sequence[str]) -> Iterator[Finding]:
    """Find rows that occur twice, have a common total, or are genes rather than cells.

    Args:
        counts: [N, D].
        names: of the columns; empty without names.
    """
    num_rows, num_columns = counts.shape
    is_large = num_rows >= MIN_ORDERED_ROWS and num_columns >= MIN_ORDERED_ROWS

    # 1. Normalised counts have one total, up to rounding: a variance of 1/12 for each element.
    totals = counts.sum(1, dtype=np.int64) - int(counts.min()) * num_columns
    is_rounded = 0 < totals.var() <= min(num_columns / 4, totals.mean() / 10)
    is_large_table = num_rows >= MIN_ORDERED_ROWS and num_columns > 2
    has_large_counts = totals.mean() >= MIN_NORMALISED_TOTAL and counts.max() > 1
    if is_large_table and has_large_counts and is_rounded:
        yield Finding(
            f"all samples have a total of about {totals.mean():,.0f}, as if normalised: "
            "give the raw counts"
        )

    # 2. Duplicates.
    problem = _describe_duplicates(counts[:MAX_COMPARED])
    if problem is not None:
        yield Finding(
            f"{problem}: held-out samples would be among the training samples; keep one of each"
        )

    # 3. A transposed table: columns have names of cells, or rows differ as genes do.
    num_barcodes = sum(BARCODE.fullmatch(name) is not None for name in names)
    is_transposed = num_barcodes > BARCODE_SHARE * max(len(names), 1)
    if is_large:
        row_spread = float(np.log1p(totals).std())
        column_spread = float(np.log1p(counts.sum(0, dtype=np.int64)).std())
        is_transposed |= (
            row_spread > MIN_GENE_SPREAD and row_spread > GENE_SPREAD_RATIO * column_spread
        )
    if is_transposed:
        yield Finding(
            "rows differ as genes do and columns as cells: rows must be samples; give the transpose"
        )


def _describe_duplicates(counts: Array) -> str | None:
    """Return how many rows occur before, if that is not chance; else None.

    They must be more than ten times as many as independent elements would make, and lie alone: rows
    that agree by chance have neighbours.

    Args:
        counts: [N, D].
    """
    if counts.max() < 2:
        return None

    # 1. Rows that occur before; constant rows do not count.
    row_type = np.dtype((np.void, counts.dtype.itemsize * counts.shape[1]))
    rows = np.ascontiguousarray(counts).view(row_type).ravel()
    _, first_rows, groups = np.unique(rows, return_index=True, return_inverse=True)
    occurs_before = first_rows[groups] < np.arange(len(counts))
    is_constant = (counts == counts[:, :1]).all(1)
    duplicates = np.flatnonzero(occurs_before & ~is_constant)
    if len(duplicates) < max(2, MIN_DUPLICATE_SHARE * len(counts)):
        return None

    # 2. Number of equal pairs that independent elements would make.
    match_probability = 1.0
    for column in counts.T:
        shares = np.unique(column, return_counts=True)[1] / len(counts)
        match_probability *= float((shares**2).sum())
    if match_probability * len(counts) ** 2 / 2 > 0.1 * len(duplicates):
        return None

    # 3. Distances of the duplicates to other rows, in units of the gain.
    compared = counts[: max(1, MAX_MOMENT_VALUES // counts.shape[1])].astype(np.int64)
    gain = max(1, int(np.gcd.reduce(np.unique(compared - int(counts.min())))))
    num_isolated = 0
    checked = duplicates[:MAX_LISTED_NAMES]
    for row in checked:
        distances = np.abs(compared - counts[row]).sum(1)
        num_isolated += bool(((distances == 0) | (distances > 2 * gain)).all())
    if num_isolated < MIN_ISOLATED_SHARE * len(checked):
        return None
    row = duplicates[0]
    return (
        f"{len(duplicates)} of {len(counts)} samples repeat an earlier one, "
        f"such as number {row}, which equals number {first_rows[groups[row]]}"
    )
