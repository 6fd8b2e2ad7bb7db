"""A user's own counts, from a file."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import CountData, held_out_split
from blackout.data.labels import TOTAL, classes, group_split, label_file, levels, named_column
from blackout.data.missing import FINITE, filled, without_missing
from blackout.data.moments import parts as parts_of
from blackout.data.readers import COUNTS, Store, is_number, read_store, to_counts
from blackout.errors import UserError

Array = npt.NDArray[Any]
_MOST_COMPARED = 20_000
"""Columns among which duplicates are looked for."""


@dataclass(frozen=True)
class _Asked:
    """What the settings ask of a file."""

    file: Path
    labels: list[str]
    covariates: list[str]
    bins: int
    group: str | None
    holdout: float
    seed: int
    series: bool | None
    mask: str | None

    @property
    def columns(self) -> set[str]:
        """Names that are no elements of the counts."""
        return {*self.labels, *self.covariates, *([self.group] if self.group else ())}


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
) -> CountData:
    """Counts from a file: [N, D], [N, C, L], [N, H, W] (one channel), [N, C, H, W] or [N, C, D, H, W].

    A file holds either `train` and `test`, optionally with `train_labels` and `test_labels`; or `counts`, or a single
    array of any name, optionally with `labels`, which is split here (by class, if there are labels). In a table (.csv,
    .parquet) every column of numbers that is not asked for by name is an element. Counts may be integers of any type,
    booleans, or floating-point whole numbers. Pickled objects are never loaded. Formats: `stores.read_store`.

    Args:
        path: the file.
        max_count: largest count there can be; None takes the largest there is.
        holdout: share of the samples to hold out, where the file has no split.
        seed: seed of the split.
        layer: which array of an .h5ad, .zarr or HDF5 file holds the counts.
        labels: column(s) or a file with the class of every sample, "total" for the total count; see `labels.classes`.
        bins: parts into which a column of numbers is divided to make classes.
        group: column of what must not be divided between the splits: a donor, an animal.
        series: whether three axes are [N, C, L]; None where L is at least four times as long as C, else [N, H, W].
        mask: which entries were seen, others being missing: "finite" for those that are not NaN, the name of another
            array of the file, or a file; see `missing.without_missing`.
        covariates: column(s) of numbers that a conditional model is told as numbers, "total" for the total count.

    Raises:
        UserError: a file that is missing, damaged or not of this form; counts that are negative, not whole, or above
            `max_count`; labels of another number. The message names the file, the value and its index.
    """
    file = Path(path).expanduser()
    store = read_store(file, layer)
    asked = _Asked(file, _listed(labels), _listed(covariates), bins, group, holdout, seed, series, mask)
    try:
        return _made(_split(store, asked), max_count)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


def _split(store: Store, asked: _Asked) -> dict[str, Any]:
    """The parts of the dataset by name: the split that a file gives, or one made here."""
    if store.tabular or store.features or not {"train", "test"} & store.arrays.keys():
        return _split_here(store, asked)
    if asked.columns or asked.mask not in (None, FINITE):
        raise ValueError(
            "'train' and 'test' are given: labels, covariates, group and mask are for one array to be split"
        )
    return _given_split(store, asked)


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _made(parts: dict[str, Any], max_count: int | None) -> CountData:
    """The dataset of its parts by name, where missing entries have something in their place."""
    for split in ("train", "test"):
        if (seen := parts.get(f"{split}_seen")) is not None:
            parts[split] = filled(parts[split], seen)
    train, test = parts["train"], parts["test"]
    if max_count is None:
        max_count = int(max(train.max(), test.max())) if train.numel() and test.numel() else 1
        if max_count == 0:
            raise ValueError("all counts are zero: there is nothing to learn")
    data = CountData(**parts, max_count=max_count)
    _warn_of_features(data)
    return data


def _given_split(store: Store, asked: _Asked) -> dict[str, Any]:
    if "train" not in store.arrays or "test" not in store.arrays:
        raise ValueError(f"'train' and 'test' must come together, found {_names(store.arrays)}")
    parts: dict[str, Any] = {"name": asked.file.stem, "features": store.features, "annotated": bool(store.features)}
    parts["sample_shape"] = tuple(store.arrays["train"].shape[1:])
    for split in ("train", "test"):
        parts[split], parts[f"{split}_seen"] = _read(split, store.arrays[split], store.arrays, asked)
        parts[f"{split}_labels"] = _to_labels(f"{split}_labels", store.arrays.get(f"{split}_labels"))
    return parts


def _read(name: str, array: Any, arrays: dict[str, Any], asked: _Asked) -> tuple[Tensor, Tensor | None]:
    """Counts, with 0 where entries are missing, and which were seen."""
    array, seen = without_missing(array, asked.mask, arrays)
    data = to_counts(name, array, asked.series)
    return data, None if seen is None else torch.from_numpy(seen).view(data.shape)


def _split_here(store: Store, asked: _Asked) -> dict[str, Any]:
    name, matrix, columns, features = _divided(store, asked.columns | {asked.mask or ""})
    data, seen = _read(name, matrix, columns, asked)
    totals = [part.flatten(1).sum(1, dtype=torch.int64) for _, part in parts_of(data)]
    columns = {TOTAL: torch.cat([torch.zeros(0, dtype=torch.int64), *totals]).numpy(), **columns}
    codes, words = _classes(asked, columns)
    if codes is not None and codes.shape != data.shape[:1]:
        raise ValueError(f"one label per sample is needed, [{len(data)}], got {list(codes.shape)}")
    train, test = _rows(asked, columns, codes)
    values: dict[str, tuple[float, ...]] = {}
    for one in asked.covariates:
        level, values[one] = levels(one, columns)
        codes = torch.from_numpy(level) + (0 if codes is None else codes) * len(values[one])
    parts: dict[str, Any] = {"name": asked.file.stem, "class_names": words, "features": features, "covariates": values}
    parts |= {"sample_shape": tuple(matrix.shape[1:]), "annotated": bool(store.features)}
    for split, rows in (("train", train), ("test", test)):
        parts |= {split: data[rows], f"{split}_labels": None if codes is None else codes[rows]}
        parts[f"{split}_seen"] = None if seen is None else seen[rows]
    return parts


def _rows(asked: _Asked, columns: dict[str, Array], codes: Tensor | None) -> tuple[Tensor, Tensor]:
    """The samples of either split."""
    if asked.group is None:
        return held_out_split(len(columns[TOTAL]), asked.holdout, asked.seed, codes)
    train, test = group_split(named_column(asked.group, columns), asked.holdout, asked.seed)
    return torch.from_numpy(train), torch.from_numpy(test)


def _divided(store: Store, asked: set[str]) -> tuple[str, Any, dict[str, Array], tuple[str, ...]]:
    """(name, counts, columns of observations, names of features) of a store."""
    if store.tabular:
        return _of_table(store.arrays, asked)
    arrays = store.arrays
    candidates = [COUNTS] if COUNTS in arrays else sorted(arrays.keys() - {"labels", *asked})
    if len(candidates) != 1:
        raise ValueError(f"an array named 'counts', or 'train' and 'test', is needed, found {_names(arrays)}")
    columns = {name: array for name, array in arrays.items() if name != candidates[0]}
    return candidates[0], arrays[candidates[0]], columns, store.features


def _of_table(arrays: dict[str, Array], asked: set[str]) -> tuple[str, Array, dict[str, Array], tuple[str, ...]]:
    head = [name for name, column in arrays.items() if name not in asked and column.dtype.kind in "iufb"]
    if not head:
        raise ValueError(f"no column of numbers is left for the counts, found {_names(arrays)}")
    columns = {name: column for name, column in arrays.items() if name not in head}
    for name in columns.keys() - asked:
        fields = [field for field in columns[name].tolist() if field]
        odd = [field for field in fields if not is_number(str(field))]
        if 0 < len(odd) < len(fields) / 2:
            raise ValueError(f"column {name!r} mixes numbers with text such as {str(odd[0])!r}")
    return COUNTS, np.stack([arrays[name] for name in head], axis=1), columns, tuple(head)


def _classes(asked: _Asked, columns: dict[str, Array]) -> tuple[Tensor | None, tuple[str, ...]]:
    """The class of every sample and the names of classes: what was asked for, else `labels`, else none."""
    if not asked.labels:
        given = columns.get("labels")
        if given is not None and (given.dtype.kind in "US" or asked.covariates):
            codes, words = classes(["labels"], columns, asked.bins)
            return torch.from_numpy(codes), words
        return _to_labels("labels", given), ()
    for name in asked.labels:
        if name not in columns and Path(name).expanduser().is_file():
            columns[name] = label_file(Path(name).expanduser())
    codes, words = classes(asked.labels, columns, asked.bins)
    return torch.from_numpy(codes), words


def _names(arrays: dict[str, Any]) -> str:
    return ", ".join(map(repr, arrays)) or "nothing"


def _to_labels(name: str, array: Any) -> Tensor | None:
    if array is None:
        return None
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    return torch.from_numpy(array.astype(np.int64))


def _warn_of_features(data: CountData) -> None:
    """Warn of elements that are constant, or equal to another one, in vectors."""
    if len(data.shape) != 1 or data.shape[0] > _MOST_COMPARED or len(data.train) < 2:
        return
    constant = (data.train == data.train[:1]).all(0)
    seen: set[bytes] = set()
    equal = torch.zeros_like(constant)
    for k in torch.nonzero(~constant).flatten().tolist():
        column = hashlib.sha256(data.train[:, k].numpy().tobytes()).digest()
        equal[k] = column in seen
        seen.add(column)
    for what, marked in (("constant", constant), ("equal to another", equal)):
        which = torch.nonzero(marked).flatten().tolist()
        if which:
            few = ", ".join(data.features[k] if data.features else str(k) for k in which[:5])
            more = f" and {len(which) - 5} more" if len(which) > 5 else ""
            warnings.warn(f"{data.name}: elements that are {what} in training: {few}{more}", stacklevel=3)
