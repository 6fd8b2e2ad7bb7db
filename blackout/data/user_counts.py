"""`dataset=counts`, a user's own counts from a file: columns, splits, conditions, missing entries; files of samples."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.component import Plain, component
from blackout.data.count_data import CountData, divided_parts
from blackout.data.count_statistics import loaded, narrow
from blackout.data.file_formats import (
    COUNTS,
    SparseOnDisk,
    Store,
    blocks,
    is_number,
    load_array,
    read_store,
    sample_shape,
    to_counts,
)
from blackout.data.findings import Finding, findings
from blackout.data.images import read_folder
from blackout.data.labels import TOTAL, Classes, Level, classes, few, label_file, levels, named_column
from blackout.data.on_disk import Rows, Stream, packed, rows_of, stays_on_disk
from blackout.data.splits import SplitRows, split_groups, split_samples, take_validation, validation_size
from blackout.errors import UserError, ensure, refuse
from blackout.files import reading
from blackout.protocols import Split

Array = npt.NDArray[Any]
_SPLITS: tuple[Split, ...] = ("test", "val", "train")


@component("dataset", ask="dataset=counts dataset.path=<file>")
def counts(
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
    """Counts from a file: [N, D], [N, C, L], [N, H, W] (one channel), [N, C, H, W] or [N, C, D, H, W].

    A file holds either `train` and `test`, optionally with `val`, and with `train_labels`, `val_labels` and
    `test_labels`; without `val` validation data are taken from `train`. Or it holds `counts`, or a single array of any
    name, optionally with `labels`, which is split here (by class, if there are labels). In a table (.csv,
    .parquet) every column of numbers that is not asked for by name is an element. Counts may be integers of any type,
    booleans, or floating-point whole numbers. Pickled objects are never loaded. Formats: `file_formats.read_store`.

    Args:
        path: the file.
        max_count: largest count there can be; None takes the largest there is.
        holdout: share of the samples for the test, where the file has no split.
        seed: seed of the split.
        layer: which array of an .h5ad, .zarr or HDF5 file holds the counts.
        labels: column(s) or a file with the class of every sample, "total" for the total count; see `labels.classes`.
        bins: parts into which a column of numbers is divided to make classes.
        group: column of what must not be divided between the splits: a donor, an animal.
        series: whether three axes are [N, C, L]; None where L is at least four times as long as C, else [N, H, W].
        mask: which entries were seen, others being missing: "finite" for those that are not NaN, the name of another
            array of the file, or a file; see `without_missing`.
        covariates: column(s) that a conditional model is told beside the class, and that combine freely with it: words
            such as a batch or condition, numbers as numbers, "total" for the total count.
        columns: the elements of vectors, by name or number; None for all.
        exclude: elements of vectors to leave out, by name or number.
        sequences: column of a table with words of one length, such as DNA, whose letters are the elements; other
            columns of numbers are then no elements, but may be labels.
        letters: of the words; the first is 0.
        offset, gain: what the file holds is offset + gain x counts, as of a camera; samples are written like that, too.
            An offset of None is 0, but the least count of images to be split in memory whose counts are `narrow`;
            a gain of None is 1.
        validation: share or number of the samples for validation, where the file has no `val`; 0 for none.

    Warns:
        Finding: something looks wrong, see `blackout.data.findings`.

    Raises:
        UserError: a file that is missing, damaged or not of this form; counts that are negative, not whole, or above
            `max_count`; labels of another number. The message names the file, the value and its index.
    """
    file, class_columns, scales = Path(path).expanduser(), _listed(labels), _listed(covariates)
    asked = {*class_columns, *scales, *([group] if group else ())}
    store = read_store(file, layer)
    if sequences is not None:
        store = _spelt(file, store, sequences, letters)
    arrays = store.arrays
    gain = 1 if gain is None else gain
    for name, value, least in (("offset", offset or 0, 0), ("gain", gain, 1)):
        if type(value) is not int or value < least:
            raise UserError(f"dataset.{name} must be a whole number of at least {least}, not {value!r}")
    data: Tensor | Rows
    parts: dict[str, Any] = {"name": file.stem, "features": store.features, "layer": layer}
    parts["annotated"] = bool(store.features)
    try:
        if {"train", "test"} & arrays.keys() and not store.tabular and not store.features:
            advice = "labels, covariates, group and mask are for one array to be split"
            ensure(not asked and mask in (None, FINITE), f"'train' and 'test' are given: {advice}")
            ensure({"train", "test"} <= arrays.keys(), f"'train' and 'test' must come together, found {_names(arrays)}")
            for split in [split for split in _SPLITS if split in arrays]:  # the splits that the file gives
                matrix, _ = _selected(arrays[split], (), _listed(columns), _listed(exclude))
                data, seen, offset = _read(split, matrix, mask, arrays, series, offset or 0, gain)
                parts |= {split: data, f"{split}_seen": seen}
                parts[f"{split}_labels"] = _to_labels(f"{split}_labels", arrays.get(f"{split}_labels"))
            if "val" not in arrays:
                parts |= _cut_validation(parts, validation, seed)
        else:
            kept = set(map(str, _listed(columns))) or arrays.keys()
            left_out = (arrays.keys() - kept) | set(map(str, _listed(exclude)))
            name, whole, observed, features = _divided(store, {*asked, mask or ""}, left_out)  # to be split here
            stays = stays_on_disk(tuple(whole.shape), whole.dtype.itemsize, in_memory)
            whole = whole[:] if isinstance(whole, SparseOnDisk) and not stays else whole
            numbers = [one for one in _listed(exclude) if not (store.tabular and str(one) in observed)]
            matrix, features = _selected(whole, features, _listed(columns), numbers, stays)
            try:
                if stays:
                    offset = offset or 0
                    settings = [layer, name, columns, exclude, series, offset, gain, sequences, letters]
                    data, seen = _on_disk(file, name, matrix, mask, settings, series, offset, gain), None
                else:
                    data, seen, offset = _read(name, matrix, mask, observed, series, offset, gain)
            except ValueError as error:
                layers = [f"dataset.layer={one}" for one in store.layers]
                raise ValueError(", or ".join([str(error), *layers])) from None
            totals = data.totals.numpy() if isinstance(data, Rows) else data.flatten(1).numpy().sum(1, dtype=np.int64)
            observed = {TOTAL: totals, **observed}
            codes, words, told = _classes(class_columns, observed, bins, bool(scales))
            if codes is not None and codes.shape != data.shape[:1]:
                raise ValueError(f"one label per sample is needed, [{len(data)}], got {list(codes.shape)}")
            if group is None:
                rows = split_samples(len(data), validation, holdout, seed, codes)
            else:
                rows = split_groups(named_column(group, observed), validation, holdout, seed)
            values: dict[str, tuple[Level, ...]] = {}
            for scale in scales:
                level, values[scale] = levels(scale, observed)
                codes = level + (0 if codes is None else codes) * len(values[scale])
            parts |= {"class_names": words, "class_values": told, "features": features, "covariates": values}
            parts |= divided_parts(rows, {"": data, "_labels": codes, "_seen": seen})
        for finding in findings(loaded(data), parts["features"]):
            warnings.warn(finding, stacklevel=2)
        parts |= {"sample_shape": tuple(matrix.shape[1:]), "offset": offset, "gain": gain}
        return _made(parts, max_count)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


def _cut_validation(parts: Plain, validation: float, seed: int) -> dict[str, Any]:
    """Training and validation parts, by name, of the training data of a file that has no validation data.

    Args:
        parts: `train`, `train_labels` and `train_seen`.
        validation: share or number of the training samples.
        seed: of the choice, by class where there are labels.
    """
    train, labels, seen = (parts[f"train{part}"] for part in ("", "_labels", "_seen"))
    number = validation_size(validation, len(train)) if len(train) else 0
    if not number:
        return {}
    rows = take_validation(len(train), number, seed, labels)
    no_test = torch.empty(0, dtype=torch.int64)
    cut = divided_parts(SplitRows(*rows, no_test), {"": train, "_labels": labels, "_seen": seen})
    return {name: part for name, part in cut.items() if not name.startswith("test")}


def _spelt(path: Path, store: Store, column: str, letters: str) -> Store:
    """A table's words as counts [N, length], beside its other columns."""
    words = np.asarray(store.arrays.get(column)) if store.tabular else np.zeros(0)
    apart = 0 < len(letters) == len(set(letters))
    if words.dtype.kind != "U" or len(set(map(len, words.tolist()))) != 1 or not apart:
        raise UserError(f"{path}: sequences={column} must be a column of words of one length, and letters differ")
    spelt = words.view(np.uint32).reshape(len(words), -1)  # as wide as the longest word
    known = np.array([ord(letter) for letter in letters])
    found = np.searchsorted(known, spelt, sorter=(order := np.argsort(known))).clip(max=len(known) - 1)
    if (strange := known[order[found]] != spelt).any():
        row, place = np.argwhere(strange)[0]
        raise UserError(f"{path}: {words[row][place]!r} at place {place} of row {row} is none of letters={letters}")
    others = {name: values for name, values in store.arrays.items() if name != column}
    return Store({COUNTS: order[found].astype(np.uint8), **others})


def _listed(names: Any) -> list[Any]:
    return [names] if isinstance(names, str | int) else list(names or ())


def _selected(
    matrix: Any, features: tuple[str, ...], columns: list[Any], exclude: list[Any], stays: bool = False
) -> tuple[Any, tuple[str, ...]]:
    """The columns [N, d] of a matrix [N, D] that are asked for, and their names, where they have names.

    They are taken when they are read where the matrix `stays` on the disk.
    """
    if not columns and not exclude:
        return matrix, features
    ensure(len(matrix.shape) == 2, f"columns and exclude are for vectors [N, D], not {list(matrix.shape)}")
    places = {name: k for k, name in enumerate(features or map(str, range(matrix.shape[1])))}
    if unknown := [name for name in map(str, [*columns, *exclude]) if name not in places]:
        raise ValueError(f"there is no column {unknown[0]!r}, only {few(list(places))}")
    left = [name for name in (map(str, columns) if columns else places) if name not in set(map(str, exclude))]
    ensure(left, "columns and exclude leave no column")
    numbers = [places[name] for name in left]
    matrix = matrix if stays or hasattr(matrix, "tocsr") else np.asarray(matrix)
    return _Columns(matrix, numbers) if stays else matrix[:, numbers], tuple(left) if features else ()


class _Columns:
    """Columns of a matrix, by number, taken of the rows that are asked for."""

    def __init__(self, matrix: Any, numbers: list[int]) -> None:
        self._matrix, self._numbers, self.dtype = matrix, numbers, matrix.dtype
        self.shape = (matrix.shape[0], len(numbers))

    def __getitem__(self, rows: slice) -> Any:
        return self._matrix[rows][:, self._numbers]


def _on_disk(
    file: Path, name: str, matrix: Any, mask: str | None, told: list[Any], series: bool | None, offset: int, gain: int
) -> Rows:
    """Counts [N, ...] that stay on the disk, where `told` are the settings that decide them."""
    ensure(mask is None, f"mask={mask}: entries may be missing in memory only: dataset.in_memory=true")
    shape, units = sample_shape(name, tuple(matrix.shape), series), (offset, gain)
    if isinstance(matrix, np.memmap) and matrix.flags.c_contiguous and matrix.dtype.kind in "iu" and units == (0, 1):
        stored = Stream(file, matrix.dtype, matrix.shape, matrix.offset)
        return rows_of(stored, shape, lambda: (block for _, block in blocks(name, stored)))

    return packed(
        file, matrix.shape[0], shape, told, lambda: (_in_units(x, None, *units) for _, x in blocks(name, matrix))
    )


def _in_units(data: Any, seen: Tensor | None, offset: int, gain: int) -> Any:
    """Counts from what a file holds, offset + gain x counts, as an array of its shape, 0 where entries are missing.

    Ours (tests/data/test_findings.py).
    """
    if (offset, gain) == (0, 1):
        return data
    data = data.toarray() if hasattr(data, "toarray") else data
    above = (data.astype(np.int64) - offset) * (1 if seen is None else seen.numpy())
    wrong = (above < 0) | (above % gain != 0)
    if wrong.any():
        told = f"{int(data[wrong][0])} is not {offset} and a whole number of {gain}"
        raise ValueError(f"{told}: dataset.offset or dataset.gain is wrong")
    return (above // gain).astype(data.dtype)


def _divided(store: Store, asked: set[str], left_out: set[str]) -> tuple[str, Any, dict[str, Array], tuple[str, ...]]:
    """(name, counts, columns of observations, names of features) of a store."""
    arrays = store.arrays
    if not store.tabular:
        candidates = [COUNTS] if COUNTS in arrays else sorted(arrays.keys() - {"labels", *asked})
        ensure(len(candidates) == 1, f"an array named 'counts' or 'train' and 'test' is needed, found {_names(arrays)}")
        columns = {name: array for name, array in arrays.items() if name != candidates[0]}
        return candidates[0], arrays[candidates[0]], columns, store.features
    head = [name for name, column in arrays.items() if name not in asked and column.dtype.kind in "iufb"]
    if "" in arrays and "" not in head:
        warnings.warn(Finding("the column without a name is left out, as an index that pandas saved"), stacklevel=3)
    ensure(head, f"no column of numbers is left for the counts, found {_names(arrays)}")
    fractions = [name for name in head if arrays[name].dtype.kind == "f" and np.any(np.mod(arrays[name], 1) > 0)]
    split = [name for name in fractions if name not in left_out]
    if split and len(split) < len(head) / 2:  # else all of them look like something that is not counts
        told = f"dataset.covariates={split[0]} tells it to the model, dataset.exclude=[{split[0]}] leaves it out"
        raise ValueError(f"column {split[0]!r} holds numbers that are not whole: {told}")
    others = arrays.keys() - set(head)
    columns = {name: column for name, column in arrays.items() if name in others}
    for name in sorted(columns.keys() - asked - left_out):
        fields = [field for field in columns[name].tolist() if field]
        odd = [field for field in fields if not is_number(str(field))]
        if 0 < len(odd) < len(fields) / 2:
            raise ValueError(f"column {name!r} mixes numbers with text such as {str(odd[0])!r}")
        what = f"column {name!r} is text and is left out (dataset.labels={name} makes classes of it)"
        warnings.warn(Finding(what, exclude=[name]), stacklevel=3)
    return COUNTS, np.stack([arrays[name] for name in head], axis=1), columns, tuple(head)


def _read(
    name: str, array: Any, mask: str | None, arrays: Plain, series: bool | None, offset: int | None, gain: int
) -> tuple[Tensor, Tensor | None, int]:
    """Counts, with 0 where entries are missing, which were seen, and the offset."""
    array, seen = without_missing(array, mask, arrays)
    read = to_counts(name, array, series)
    there = None if seen is None else torch.from_numpy(seen).view(read.shape)
    offset = int(read.min()) if offset is None and gain == 1 and narrow(read) else offset or 0
    return torch.from_numpy(_in_units(read.numpy(), there, offset, gain)), there, offset


def _classes(names: list[str], columns: dict[str, Array], bins: int, conditional: bool) -> Classes:
    """`classes` of what was asked for, else of `labels`, else none."""
    if not names:
        given = columns.get("labels")
        if given is None or not (given.dtype.kind in "US" or conditional):
            return _to_labels("labels", given), (), {}
        names = ["labels"]
    for name in names:
        if name not in columns and Path(name).expanduser().is_file():
            columns[name] = label_file(Path(name).expanduser())
    return classes(names, columns, bins)


def _to_labels(name: str, array: Any) -> Tensor | None:
    if array is None:
        return None
    array = np.asarray(array)
    ensure(array.dtype.kind in "iu", f"{name} must hold whole numbers, got {array.dtype}")
    return torch.from_numpy(array.astype(np.int64))


def _names(arrays: Plain) -> str:
    return ", ".join(map(repr, arrays)) or "nothing"


def _made(parts: dict[str, Any], max_count: int | None) -> CountData:
    """The dataset of its parts by name, where missing entries have something in their place."""
    splits = [split for split in _SPLITS if split in parts and parts[split].numel()]
    for split in splits:
        if (seen := parts[f"{split}_seen"]) is not None:
            donors = (parts["train"], parts["train_seen"]) if split == "val" else None
            parts[split] = filled(parts[split], seen, donors=donors)
    if max_count is None:
        max_count = max((int(parts[split].max()) for split in splits), default=1)
        ensure(max_count != 0, "all counts are zero: there is nothing to learn")
    return CountData(**parts, max_count=max_count)


FINITE = "finite"
"""The mask by which entries that are NaN are missing."""


def without_missing(array: Any, mask: str | None, arrays: Plain) -> tuple[Any, Array | None]:
    """Counts with 0 where entries are missing, and where there are any, booleans that are True where one was seen.

    Args:
        array: of counts, as the file has them.
        mask: "finite", the name of another array of the file, or a file; True or not 0 where an entry was seen. None if
            all were.
        arrays: of the file by name.

    Raises:
        ValueError: no such mask, of another shape, or NaN in a sparse matrix.
        UserError: a file that cannot be read.
    """
    if mask is None:
        return array, None
    ensure(not hasattr(array, "tocsr"), "a sparse matrix has no missing entries: what is not stored is 0")
    array = np.asarray(array)
    if mask == FINITE:
        seen = np.isfinite(array) if array.dtype.kind == "f" else np.ones(array.shape, dtype=bool)
    else:
        seen = _mask(mask, arrays)
    if seen.shape != array.shape:
        raise ValueError(f"the mask must be of the counts' shape {list(array.shape)}, got {list(seen.shape)}")
    return np.where(seen, array, 0), None if seen.all() else seen


def _mask(mask: str, arrays: Plain) -> Array:
    if mask in arrays:
        stored = arrays[mask]
        array = np.asarray(stored.toarray() if hasattr(stored, "toarray") else stored)
    else:
        file = Path(mask).expanduser()
        ensure(file.is_file(), f"mask={mask} is neither 'finite', nor an array of the file, nor a file")
        array = load_array(file)
    if array.dtype.kind not in "biuf" or not bool((np.isfinite(array) & (array == np.floor(array))).all()):
        raise ValueError(f"a mask holds booleans or whole numbers, not 0 where an entry was seen; got {array.dtype}")
    return array.astype(bool)


def filled(
    counts: Tensor, seen: Tensor, seed: int = 0, donors: tuple[Tensor, Tensor | None] | None = None
) -> Tensor:
    """Counts whose missing entries are values of the same element in other samples, at random.

    This is a hot deck [Andridge 2010]. Means and variances of elements are then right; what elements say of each other
    is weakened where entries are missing, which is for moments alone: training and likelihoods leave these entries out.

    Args:
        counts: [N, *shape].
        seen: bool [N, *shape].
        seed: of the choice.
        donors: other samples, [M, *shape], from which values are taken, and which of their entries were seen, bool
            [M, *shape] or None for all; None takes them from the same samples. Few validation samples need others.

    Raises:
        ValueError: an element that was never seen.
    """
    flat, known = counts.flatten(1).clone(), seen.flatten(1)
    values_of, known_of = flat, known
    if donors is not None:
        values_of = donors[0].flatten(1)
        known_of = torch.ones_like(values_of, dtype=torch.bool) if donors[1] is None else donors[1].flatten(1)
    generator = torch.Generator().manual_seed(seed)
    for element in torch.nonzero(~known.all(0)).flatten().tolist():
        here = known[:, element]
        values = values_of[known_of[:, element], element]
        ensure(len(values), f"element {element} is missing in every sample")
        chosen = torch.randint(len(values), (int((~here).sum()),), generator=generator)
        flat[~here, element] = values[chosen]
    return flat.view(counts.shape)


def read_samples(path: Path, data: CountData) -> Tensor:
    """Samples from a file or folder: `samples` (or the only array) of an .npz, an .npy, or a folder of images.

    Returns:
        Integer counts [n, *shape of the data].

    Raises:
        UserError: unreadable, or not integers of the dataset's shape and range.
    """
    counts = read_folder(path, data.shape) if path.is_dir() else _read_array(path)
    if tuple(counts.shape[1:]) == data.sample_shape:
        counts = counts.reshape(len(counts), *data.shape)
    if counts.ndim == 4 and tuple(counts.shape[1:]) != data.shape:
        counts = counts.permute(0, 3, 1, 2).contiguous()
    if tuple(counts.shape[1:]) != data.shape:
        raise UserError(f"{path}: samples of shape {tuple(counts.shape[1:])} cannot be compared with {data.shape}")
    if (data.offset, data.gain) != (0, 1):
        above = counts.long() - data.offset
        if bool((above % data.gain != 0).any()):
            raise UserError(f"{path}: samples must be {data.offset} and whole numbers of {data.gain}, as the data are")
        counts = above // data.gain
    low, high = int(counts.min()), int(counts.max())
    if low < 0 or high > data.max_count:
        raise UserError(f"{path}: counts {low}..{high} leave {data.name}'s range 0..{data.max_count}")
    return counts


def read_labels(path: Path) -> dict[str, Tensor]:
    """`classes`, int64 [n], where an .npz says of which classes its samples are, as `sample.py` writes it."""
    if path.suffix != ".npz" or not path.is_file():
        return {}
    with reading(path, "not a readable .npz file of samples"), np.load(path, allow_pickle=False) as archive:
        kept = {"classes"} & set(archive.files)
        return {name: torch.from_numpy(np.asarray(archive[name]).astype(np.int64)) for name in kept}


def _read_array(path: Path) -> Tensor:
    refuse(not path.exists(), f"no samples at {path}")
    array = load_array(path, "samples")
    refuse(array.dtype.kind not in "iu", f"{path} holds {array.dtype}; samples are integer counts, for images uint8")
    refuse(array.ndim < 2 or len(array) < 1, f"{path} has shape {array.shape}; samples are [n, ...]")
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.int64) if array.dtype.itemsize > 1 else array))
