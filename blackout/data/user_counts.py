"""`dataset=counts`: a user's own counts from a file, with splits, classes, covariates and masks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import MAX_LABEL_COUNTS, CountData, split_parts
from blackout.data.count_statistics import is_underdispersed, load_samples
from blackout.data.findings import Finding, findings
from blackout.data.formats import (
    COUNTS,
    FileContents,
    LazySparseMatrix,
    is_number,
    iterate_blocks,
    read_file,
    sample_shape,
    to_counts,
)
from blackout.data.labels import (
    TOTAL,
    Classes,
    Level,
    format_names,
    get_column,
    make_classes,
    make_levels,
    read_label_file,
)
from blackout.data.missing import FINITE, Donors, impute_missing, mask_missing
from blackout.data.on_disk import DiskCounts, FileArray, pack_rows, scan_rows, stays_on_disk
from blackout.data.splits import (
    SplitRows,
    split_groups,
    split_samples,
    take_validation,
    validation_size,
)
from blackout.errors import UserError, ensure
from blackout.protocols import Split

Array = npt.NDArray[Any]
SPLITS: tuple[Split, ...] = ("test", "val", "train")


@dataclass(frozen=True)
class FileLayout:
    """Where the counts are in a file; see `counts` for the meaning of each field."""

    layer: str | None
    columns: list[str | int]
    exclude: list[str | int]
    mask: str | None
    series: bool | None
    sequences: str | None
    letters: str
    in_memory: bool | None


@dataclass(frozen=True)
class Holdout:
    """Which samples are held out; see `counts` for the meaning of each field."""

    fraction: float
    validation: float
    seed: int
    group: str | None


@dataclass(frozen=True)
class Units:
    """What a stored number means: offset + gain x count; see `counts` for an offset of None."""

    offset: int | None
    gain: int


@dataclass(frozen=True)
class CountTable:
    """Counts of all samples, before they are split, and what the file says about them.

    Attributes:
        counts: [N, *shape].
        observed: bool [N, *shape]; None if no entry is missing.
        columns: of observations, by name, [N] each, and the total counts.
        features: names of the elements, where the file has them.
        sample_shape: of a sample in the file.
        offset: value of count 0 in the file.
    """

    counts: Tensor | DiskCounts
    observed: Tensor | None
    columns: dict[str, Array]
    features: tuple[str, ...]
    sample_shape: tuple[int, ...]
    offset: int


@component("dataset", ask="dataset=counts dataset.path=<file>")
def counts(  # noqa: PLR0913 - built from YAML
    path: str | os.PathLike[str],
    max_count: int | None = None,
    holdout: float = 0.1,
    seed: int = 0,
    layer: str | None = None,
    labels: str | Sequence[str] | None = None,
    bins: int = 10,
    group: str | None = None,
    series: bool | None = None,
    mask: str | None = None,
    covariates: str | Sequence[str] | None = None,
    columns: str | Sequence[str | int] | None = None,
    exclude: str | Sequence[str | int] | None = None,
    offset: int | None = None,
    gain: int | None = None,
    sequences: str | None = None,
    letters: str = "ACGT",
    in_memory: bool | None = None,
    validation: float = 0.1,
) -> CountData:
    """Read counts [N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W] from a file.

    A file holds either `train` and `test`, optionally with `val`, and with `train_labels`,
    `val_labels` and `test_labels`; without `val`, validation data are taken from `train`. Or it
    holds `counts`, or a single array of any name, optionally with `labels`, which is split here (by
    class, if there are labels). In a table (.csv, .parquet) every column of numbers that is not
    used otherwise is an element.

    Counts may be integers of any type, booleans, or floating-point whole numbers. Pickled objects
    are never loaded. Formats: `blackout.data.formats.read_file`.

    Args:
        path: of the file.
        max_count: largest possible count; None takes the largest of the file.
        holdout: fraction of the samples for the test, where the file has no split.
        seed: of the random split.
        layer: array of an .h5ad, .zarr or HDF5 file that holds the counts.
        labels: column(s), or a file, with the class of every sample; "total" for the total count.
            See `labels.make_classes`.
        bins: number of quantile bins of a numeric label column.
        group: column of donors, animals, ...; no group is in two splits.
        series: whether three axes are [N, C, L]; None where L is at least four times C, else [N, H,
            W].
        mask: which entries were observed: "finite" for those that are not NaN, the name of another
            array of the file, or a file. See `missing.mask_missing`.
        covariates: column(s) that a conditional model gets besides the class, and that combine
            freely with it: texts such as a batch, numbers as numbers, "total" for the total count.
        columns: elements of vectors to keep, by name or number; None for all.
        exclude: elements of vectors to drop, by name or number.
        offset: the file holds offset + gain x counts, as of a camera; samples are written like
            that, too. None is 0, or the smallest value of images in memory that are
            `is_underdispersed`.
        gain: see `offset`; None is 1.
        sequences: column of a table with words of one length, such as DNA, whose letters are the
            elements; other columns of numbers may be labels.
        letters: of the words; the first letter is 0.
        in_memory: whether counts are held in memory; None leaves large files on disk.
        validation: fraction or number of the samples for validation, where the file has no `val`; 0
            for none.

    Warns:
        Finding: something looks wrong, with the setting that fixes it.

    Raises:
        UserError: a missing, damaged or unsuitable file, or counts that are negative, not whole, or
            above `max_count`. The message names the file, the value and its index.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "counts.npy")
        >>> np.save(path, np.arange(60).reshape(20, 3))
        >>> counts(path, holdout=0.2).size("test")
        4
    """
    file = Path(path).expanduser()
    label_columns = _as_list(labels)
    covariate_columns = _as_list(covariates)
    metadata = {*label_columns, *covariate_columns, *_as_list(group)}
    layout = FileLayout(
        layer=layer,
        columns=_as_list(columns),
        exclude=_as_list(exclude),
        mask=mask,
        series=series,
        sequences=sequences,
        letters=letters,
        in_memory=in_memory,
    )
    split_plan = Holdout(holdout, validation, seed, group)

    # 1. Read the arrays of the file; sequences become counts.
    contents = read_file(file, layer)
    if sequences is not None:
        contents = _encode_sequences(file, contents, sequences, letters)
    units = _check_units(offset, gain)
    parts: dict[str, Any] = {
        "name": file.stem,
        "layer": layer,
        "features": contents.features,
        "from_anndata": bool(contents.features),
        "gain": units.gain,
    }
    try:
        if _has_given_split(contents):
            # 2. Use the splits of the file; validation data are taken from the training data.
            ensure(not metadata and mask in (None, FINITE), _GIVEN_SPLIT_MESSAGE)
            parts |= _read_given_split(contents, layout, units)
            if "val" not in contents.arrays:
                parts |= _take_validation_parts(parts, validation, seed)
            inspected = parts.pop("inspected")
        else:
            # 2. Find the counts; select elements, mask missing entries, convert units.
            table = _read_table(file, contents, layout, units, metadata)
            inspected = table.counts

            # 3. The class and the levels of covariates of every sample.
            classes = _read_classes(label_columns, table.columns, bins, bool(covariate_columns))
            class_labels = classes.labels
            if class_labels is not None and class_labels.shape != table.counts.shape[:1]:
                found = f"[{len(table.counts)}], got {list(class_labels.shape)}"
                raise ValueError(f"one label per sample is needed, {found}")
            combined_labels, levels = _add_covariates(
                class_labels,
                covariate_columns,
                table.columns,
            )

            # 4. Hold out samples of every class, or whole groups.
            rows = _split(table, class_labels, split_plan)
            arrays = {"": table.counts, "_labels": combined_labels, "_observed": table.observed}
            parts |= split_parts(rows, arrays)
            parts |= {
                "class_names": classes.names,
                "class_values": classes.values,
                "covariates": levels,
                "features": table.features,
                "sample_shape": table.sample_shape,
                "offset": table.offset,
            }

        # 5. Warn about counts that look wrong, and assemble the data set.
        for finding in findings(load_samples(inspected), parts["features"]):
            warnings.warn(finding, stacklevel=2)
        return _make_dataset(parts, max_count)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


_GIVEN_SPLIT_MESSAGE = (
    "'train' and 'test' are given: labels, covariates, group and mask are for one array to be split"
)


def _as_list(names: Any) -> list[Any]:
    if isinstance(names, str | int):
        return [names]
    return list(names or ())


def _check_units(offset: int | None, gain: int | None) -> Units:
    """Check offset and gain, and replace a gain of None by 1."""
    units = Units(offset, 1 if gain is None else gain)
    for name, value, minimum in (("offset", offset or 0, 0), ("gain", units.gain, 1)):
        if type(value) is not int or value < minimum:
            allowed = f"a whole number of at least {minimum}"
            raise UserError(f"dataset.{name} must be {allowed}, not {value!r}")
    return units


def _encode_sequences(
    path: Path,
    contents: FileContents,
    column: str,
    letters: str,
) -> FileContents:
    """Return a table's words as counts [N, length], with its other columns."""
    words = np.asarray(contents.arrays.get(column)) if contents.is_table else np.zeros(0)
    has_unique_letters = 0 < len(letters) == len(set(letters))
    has_one_length = words.dtype.kind == "U" and len(set(map(len, words.tolist()))) == 1
    if not has_one_length or not has_unique_letters:
        allowed = "must be a column of words of one length, and letters must differ"
        raise UserError(f"{path}: sequences={column} {allowed}")
    code_points = words.view(np.uint32).reshape(len(words), -1)  # as wide as the longest word
    alphabet = np.array([ord(letter) for letter in letters])
    order = np.argsort(alphabet)
    position = np.searchsorted(alphabet, code_points, sorter=order).clip(max=len(alphabet) - 1)
    is_unknown = alphabet[order[position]] != code_points
    if is_unknown.any():
        row, place = np.argwhere(is_unknown)[0]
        location = f"{words[row][place]!r} at place {place} of row {row}"
        raise UserError(f"{path}: {location} is not one of letters={letters}")
    others = {name: values for name, values in contents.arrays.items() if name != column}
    return FileContents({COUNTS: order[position].astype(np.uint8), **others})


def _has_given_split(contents: FileContents) -> bool:
    has_split = bool({"train", "test"} & contents.arrays.keys())
    return has_split and not contents.is_table and not contents.features


def _read_given_split(contents: FileContents, layout: FileLayout, units: Units) -> dict[str, Any]:
    """Read the splits of a file: parts of `CountData`, and `inspected`, the training counts."""
    arrays = contents.arrays
    found = _format_array_names(arrays)
    is_complete = {"train", "test"} <= arrays.keys()
    ensure(is_complete, f"'train' and 'test' must come together, found {found}")
    units = Units(units.offset or 0, units.gain)
    parts: dict[str, Any] = {"offset": units.offset}
    for split in SPLITS:
        if split not in arrays:
            continue
        matrix, _ = _select_columns(arrays[split], (), layout.columns, layout.exclude)
        counts, observed, _ = _load_counts(split, matrix, arrays, layout, units)
        parts[split] = counts
        parts[f"{split}_observed"] = observed
        label_name = f"{split}_labels"
        parts[label_name] = _to_labels(label_name, arrays.get(label_name))
        parts["inspected"] = counts
        parts["sample_shape"] = tuple(matrix.shape[1:])
    return parts


def _take_validation_parts(
    parts: Mapping[str, Any],
    validation: float,
    seed: int,
) -> dict[str, Any]:
    """Divide the training data of a file without validation data.

    Args:
        parts: `train`, `train_labels` and `train_observed`.
        validation: fraction or number of the training samples.
        seed: of the random split, by class where there are labels.
    """
    train = parts["train"]
    labels = parts["train_labels"]
    num_validation = validation_size(validation, len(train)) if len(train) else 0
    if num_validation == 0:
        return {}
    train_rows, val_rows = take_validation(len(train), num_validation, seed, labels)
    rows = SplitRows(train_rows, val_rows, torch.empty(0, dtype=torch.int64))
    arrays = {"": train, "_labels": labels, "_observed": parts["train_observed"]}
    divided = split_parts(rows, arrays)
    return {name: part for name, part in divided.items() if not name.startswith("test")}


def _read_table(
    file: Path,
    contents: FileContents,
    layout: FileLayout,
    units: Units,
    metadata: set[str],
) -> CountTable:
    """Read the counts of all samples, in memory or on disk."""
    # 1. Find counts and columns of observations.
    names = contents.arrays.keys()
    dropped = (names - (set(map(str, layout.columns)) or names)) | set(map(str, layout.exclude))
    used = {*metadata, layout.mask or ""}
    if contents.is_table:
        name, matrix, columns, features = _find_table_counts(contents.arrays, used, dropped)
    else:
        name, matrix, columns = _find_array_counts(contents.arrays, used)
        features = contents.features

    # 2. Select elements.
    stays = stays_on_disk(tuple(matrix.shape), matrix.dtype.itemsize, layout.in_memory)
    if isinstance(matrix, LazySparseMatrix) and not stays:
        matrix = matrix[:]
    exclude = layout.exclude
    if contents.is_table:  # columns of observations are no elements
        exclude = [column for column in exclude if str(column) not in columns]
    matrix, features = _select_columns(matrix, features, layout.columns, exclude, stays)

    # 3. Convert the counts, or check them on disk.
    counts: Tensor | DiskCounts
    try:
        if stays:
            units = Units(units.offset or 0, units.gain)
            counts = _open_on_disk(file, name, matrix, layout, units)
            observed = None
            offset = units.offset or 0
        else:
            counts, observed, offset = _load_counts(name, matrix, columns, layout, units)
    except ValueError as error:
        hints = [f"dataset.layer={layer}" for layer in contents.layers]
        raise ValueError(", or ".join([str(error), *hints])) from None

    # 4. Total counts can be used like a column.
    if isinstance(counts, DiskCounts):
        totals = counts.totals.numpy()
    else:
        totals = counts.flatten(1).numpy().sum(1, dtype=np.int64)
    columns = {TOTAL: totals, **columns}
    return CountTable(counts, observed, columns, features, tuple(matrix.shape[1:]), offset)


def _find_array_counts(
    arrays: Mapping[str, Any],
    used: set[str],
) -> tuple[str, Any, dict[str, Array]]:
    """Return name and array of the counts, and all other arrays."""
    name = COUNTS
    if COUNTS not in arrays:
        candidates = sorted(arrays.keys() - {"labels", *used})
        needed = "an array named 'counts' or 'train' and 'test' is needed"
        found = _format_array_names(arrays)
        ensure(len(candidates) == 1, f"{needed}, found {found}")
        name = candidates[0]
    columns = {other: array for other, array in arrays.items() if other != name}
    return name, arrays[name], columns


def _find_table_counts(
    arrays: Mapping[str, Any], used: set[str], dropped: set[str]
) -> tuple[str, Any, dict[str, Array], tuple[str, ...]]:
    """Return name, matrix [N, D] and features of the counts of a table, and its other columns."""
    # 1. Columns of numbers that are not used otherwise are elements.
    elements = []
    for name, column in arrays.items():
        if name not in used and column.dtype.kind in "iufb":
            elements.append(name)
    if "" in arrays and "" not in elements:
        message = "the column without a name is left out, as an index that pandas saved"
        warnings.warn(Finding(message), stacklevel=4)
    found = _format_array_names(arrays)
    ensure(elements, f"no column of numbers is left for the counts, found {found}")

    # 2. A few columns with fractions are not counts; if most are, the error names a value.
    fractional = []
    for name in elements:
        is_float = arrays[name].dtype.kind == "f"
        if is_float and name not in dropped and np.any(np.mod(arrays[name], 1) > 0):
            fractional.append(name)
    if fractional and len(fractional) < len(elements) / 2:
        name = fractional[0]
        condition = f"dataset.covariates={name} conditions the model on it"
        drop = f"dataset.exclude=[{name}] leaves it out"
        raise ValueError(f"column {name!r} holds numbers that are not whole: {condition}, {drop}")

    # 3. Other columns: a number with a typing error makes a column text.
    columns = {name: column for name, column in arrays.items() if name not in set(elements)}
    for name in sorted(columns.keys() - used - dropped):
        fields = [field for field in columns[name].tolist() if field]
        texts = [field for field in fields if not is_number(str(field))]
        if 0 < len(texts) < len(fields) / 2:
            example = f"text such as {str(texts[0])!r}"
            raise ValueError(f"column {name!r} mixes numbers with {example}")
        hint = f"dataset.labels={name} makes classes of it"
        message = f"column {name!r} is text and is left out ({hint})"
        warnings.warn(Finding(message, exclude=[name]), stacklevel=4)
    matrix = np.stack([arrays[name] for name in elements], axis=1)
    return COUNTS, matrix, columns, tuple(elements)


def _select_columns(
    matrix: Any,
    features: tuple[str, ...],
    columns: Sequence[str | int],
    exclude: Sequence[str | int],
    stays: bool = False,
) -> tuple[Any, tuple[str, ...]]:
    """Select columns of a matrix [N, D], by name or number, and their names, where they have names.

    Where the matrix `stays` on disk, they are selected when rows are read.
    """
    if not columns and not exclude:
        return matrix, features
    message = f"columns and exclude are for vectors [N, D], not {list(matrix.shape)}"
    ensure(len(matrix.shape) == 2, message)
    names = features or tuple(map(str, range(matrix.shape[1])))
    numbers_by_name = {name: number for number, name in enumerate(names)}
    for name in map(str, [*columns, *exclude]):
        if name not in numbers_by_name:
            found = format_names(list(numbers_by_name))
            raise ValueError(f"there is no column {name!r}, only {found}")

    excluded = set(map(str, exclude))
    kept = list(map(str, columns)) if columns else list(numbers_by_name)
    selected = [name for name in kept if name not in excluded]
    ensure(selected, "columns and exclude leave no column")
    numbers = [numbers_by_name[name] for name in selected]
    selected_features = tuple(selected) if features else ()
    if stays:
        return _ColumnSelection(matrix, numbers), selected_features
    if not hasattr(matrix, "tocsr"):
        matrix = np.asarray(matrix)
    return matrix[:, numbers], selected_features


class _ColumnSelection:
    """Columns of a matrix on disk, selected when rows are read."""

    def __init__(self, matrix: Any, numbers: list[int]) -> None:
        self._matrix = matrix
        self._numbers = numbers
        self.dtype = matrix.dtype
        self.shape = (matrix.shape[0], len(numbers))

    def __getitem__(self, rows: slice) -> Any:
        return self._matrix[rows][:, self._numbers]


def _load_counts(
    name: str, array: Any, arrays: Mapping[str, Any], layout: FileLayout, units: Units
) -> tuple[Tensor, Tensor | None, int]:
    """Return counts, 0 where entries are missing; the observed entries; and the offset."""
    array, mask = mask_missing(array, layout.mask, arrays)
    values = to_counts(name, array, layout.series)
    observed = None if mask is None else torch.from_numpy(mask).view(values.shape)
    offset = units.offset or 0
    if units.offset is None and units.gain == 1 and is_underdispersed(values):
        offset = int(values.min())
    counts = _from_units(values.numpy(), observed, offset, units.gain)
    return torch.from_numpy(counts), observed, offset


def _open_on_disk(
    file: Path,
    name: str,
    matrix: Any,
    layout: FileLayout,
    units: Units,
) -> DiskCounts:
    """Return counts [N, ...] that stay on disk."""
    message = f"mask={layout.mask}: missing entries need dataset.in_memory=true"
    ensure(layout.mask is None, message)
    shape = sample_shape(name, tuple(matrix.shape), layout.series)
    offset = units.offset or 0
    gain = units.gain

    # 1. Rows that lie one after the other in the file are read from it.
    is_mapped = isinstance(matrix, np.memmap) and matrix.flags.c_contiguous
    if is_mapped and matrix.dtype.kind in "iu" and (offset, gain) == (0, 1):
        stored = FileArray(file, matrix.dtype, matrix.shape, matrix.offset)
        return scan_rows(stored, shape, lambda: (rows for _, rows in iterate_blocks(name, stored)))

    # 2. Others are written to a folder in which they do.
    request = [
        layout.layer,
        name,
        layout.columns,
        layout.exclude,
        layout.series,
        offset,
        gain,
        layout.sequences,
        layout.letters,
    ]

    def blocks() -> Iterator[Any]:
        for _, rows in iterate_blocks(name, matrix):
            yield _from_units(rows, None, offset, gain)

    return pack_rows(file, matrix.shape[0], shape, request, blocks)


def _from_units(values: Any, observed: Tensor | None, offset: int, gain: int) -> Any:
    """Return (values - offset) / gain, and 0 where entries are missing.

    Raises:
        ValueError: a value is not offset + gain x a count.
    """
    if (offset, gain) == (0, 1):
        return values
    values = values.toarray() if hasattr(values, "toarray") else values
    difference = values.astype(np.int64) - offset
    if observed is not None:
        difference *= observed.numpy()
    is_wrong = (difference < 0) | (difference % gain != 0)
    if is_wrong.any():
        value = int(values[is_wrong][0])
        message = f"{value} is not {offset} plus a multiple of {gain}"
        raise ValueError(f"{message}: dataset.offset or dataset.gain is wrong")
    return (difference // gain).astype(values.dtype)


def _read_classes(
    names: list[str],
    columns: dict[str, Array],
    bins: int,
    has_covariates: bool,
) -> Classes:
    """Make classes of columns or files; without names, of the array `labels`, if there is one."""
    if not names:
        labels = columns.get("labels")
        if labels is None or not (labels.dtype.kind in "US" or has_covariates):
            return Classes(_to_labels("labels", labels))
        names = ["labels"]
    columns = dict(columns)
    for name in names:
        file = Path(name).expanduser()
        if name not in columns and file.is_file():
            columns[name] = read_label_file(file)
    return make_classes(names, columns, bins)


def _to_labels(name: str, array: Any) -> Tensor | None:
    if array is None:
        return None
    array = np.asarray(array)
    ensure(array.dtype.kind in "iu", f"{name} must hold whole numbers, got {array.dtype}")
    largest = int(array.max(initial=0))
    max_classes = max(MAX_LABEL_COUNTS, len(array))
    ensure(
        largest < max_classes,
        f"{name} must be below {max_classes:,}, got {largest:,}, because a model has weights for "
        "every class: number the classes 0, 1, 2, ...",
    )
    return torch.from_numpy(array.astype(np.int64))


def _add_covariates(
    class_labels: Tensor | None, names: Sequence[str], columns: Mapping[str, Array]
) -> tuple[Tensor | None, dict[str, tuple[Level, ...]]]:
    """Return labels of classes and covariates (see `CountData.covariates`), and the levels."""
    labels = class_labels
    levels: dict[str, tuple[Level, ...]] = {}
    for name in names:
        codes, levels[name] = make_levels(name, columns)
        labels = codes if labels is None else codes + labels * len(levels[name])
    return labels, levels


def _split(table: CountTable, labels: Tensor | None, holdout: Holdout) -> SplitRows:
    if holdout.group is None:
        num_samples = len(table.counts)
        return split_samples(
            num_samples,
            holdout.validation,
            holdout.fraction,
            holdout.seed,
            labels,
        )
    groups = get_column(holdout.group, table.columns)
    return split_groups(groups, holdout.validation, holdout.fraction, holdout.seed)


def _make_dataset(parts: dict[str, Any], max_count: int | None) -> CountData:
    """Impute missing entries, find the largest count, and make the data set of its parts."""
    splits = [split for split in SPLITS if split in parts and parts[split].numel()]
    for split in splits:
        observed = parts[f"{split}_observed"]
        if observed is None:
            continue
        donors = None
        if split == "val":  # a few samples may lack an element; the training data come last
            donors = Donors(parts["train"], parts["train_observed"])
        parts[split] = impute_missing(parts[split], observed, donors=donors)
    if max_count is None:
        max_count = max((int(parts[split].max()) for split in splits), default=1)
        ensure(max_count != 0, "all counts are zero: there is nothing to learn")
    return CountData(**parts, max_count=max_count)


def _format_array_names(arrays: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, arrays)) or "nothing"
