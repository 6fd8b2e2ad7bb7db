"""Counts and labels in memory: arrays, tensors, tables of pandas, AnnData and xarray.

The libraries are recognised by what their objects offer, so that none of them is imported here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.formats.axes import arrange_axes, named_axes
from blackout.data.labels import (
    DEFAULT_BINS,
    TOTAL,
    Classes,
    drop_unit_axes,
    format_names,
    make_classes,
)
from blackout.errors import ensure

Array = npt.NDArray[Any]
LABELS = "labels"  # name of labels that are no column


@dataclass(frozen=True)
class ArrayData:
    """Counts in memory and what comes with them.

    Attributes:
        counts: dense array or SciPy sparse matrix, [N, ...].
        columns: of observations by name, [N] each.
        features: names of the elements, where there are any.
        is_anndata: whether the data are AnnData.
        is_series: whether three axes are a series; None where axes have no names.
    """

    counts: Any
    columns: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    is_anndata: bool = False
    is_series: bool | None = None


def read_arrays(data: Any, labels: Any = None) -> ArrayData:
    """Return counts and columns of data in memory.

    Args:
        data: a tensor, an array, a SciPy sparse matrix, AnnData (its X and obs), a DataFrame, or an
            xarray.DataArray, whose axes are ordered by their names.
        labels: name of the column that has labels, and is therefore no element; or anything else.

    Raises:
        ValueError: masked entries, columns of text that are not used, or several arrays.

    Example:
        >>> read_arrays([[1, 2], [3, 4]]).counts.shape
        (2, 2)
    """
    if isinstance(data, Tensor):
        return ArrayData(data.detach().cpu().numpy())
    if hasattr(data, "toarray"):  # a sparse matrix
        return ArrayData(data)
    if hasattr(data, "obs") and hasattr(data, "var_names"):
        features = tuple(map(str, data.var_names))
        ensure(data.X is not None, "AnnData has no X: set adata.X to the counts")
        counts = data.X if hasattr(data.X, "toarray") else np.asarray(data.X)
        return ArrayData(counts, data.obs, features, is_anndata=True)
    if hasattr(data, "data_vars"):
        names = format_names(list(map(str, data.data_vars)))
        raise ValueError(f"a Dataset has several arrays: give one of {names}")
    if hasattr(data, "dims") and hasattr(data, "coords"):
        return _read_named_axes(data)
    if hasattr(data, "columns") and hasattr(data, "dtypes"):
        return _read_table(data, labels)
    is_masked = isinstance(data, np.ma.MaskedArray) and bool(np.ma.getmaskarray(data).any())
    message = "masked entries are missing: save the counts with NaN, and use dataset.mask=finite"
    ensure(not is_masked, message)
    return ArrayData(np.asarray(data))


def read_classes(labels: Any, data: ArrayData) -> Classes:
    """Return the classes of samples.

    Args:
        labels: whole numbers or texts [N], the name of a column of the data, or None.
        data: of the samples.

    Raises:
        ValueError: no such column, missing entries, another number of labels, or fractions.
    """
    if labels is None:
        return Classes(None)
    name = LABELS
    if isinstance(labels, str):
        column_names = format_names(list(map(str, data.columns)))
        ensure(
            labels in data.columns, f"there is no column {labels!r}, found {column_names or 'none'}"
        )
        name = labels
        labels = data.columns[labels]
    if isinstance(labels, Tensor):
        labels = labels.cpu()
    array = drop_unit_axes(_to_text(np.asarray(labels)))
    num_samples = data.counts.shape[0]
    message = f"labels must be one per sample, [{num_samples}], not {list(array.shape)}"
    ensure(array.shape == (num_samples,), message)
    if array.dtype.kind in "iub" and name == LABELS:
        return Classes(torch.from_numpy(array.astype(np.int64)))
    is_whole = array.dtype.kind != "f" or bool((array == np.floor(array)).all())
    ensure(is_whole, "labels must be whole numbers or texts, and none may be missing")
    totals = np.zeros(num_samples)  # only their number matters here
    return make_classes([name], {TOTAL: totals, name: array}, DEFAULT_BINS)


def _read_named_axes(data: Any) -> ArrayData:
    """Return an array whose axes have names, in the order of counts."""
    names = [str(name) for name in data.dims]
    axes = named_axes(names)
    if axes is None:
        return ArrayData(np.asarray(data.values))
    ensure("N" in axes, f"axes {format_names(names)} have no samples: give several images")
    return ArrayData(arrange_axes(data.values, axes), is_series="L" in axes)


def _read_table(data: Any, labels: Any) -> ArrayData:
    """Return the columns of numbers of a table as counts, and all columns by name.

    Raises:
        ValueError: a column of something else that is not the labels.
    """
    elements = []
    repeated = [name for name, count in Counter(data.columns).items() if count > 1]
    ensure(not repeated, f"two columns have the name {format_names(repeated[:1])}: rename one")
    for name in data.columns:
        values = np.asarray(data[name])
        is_label = isinstance(labels, str) and name == labels
        if is_label:
            continue
        if values.dtype.kind == "O":  # numbers with missing entries, or something else
            is_number = all(isinstance(value, int | float | np.number) for value in values)
            ensure(is_number, f"column {name!r} is no number: labels={str(name)!r}, or drop it")
        allowed = f"column {name!r} holds {values.dtype}: drop it, or give it as labels"
        ensure(values.dtype.kind in "iufbO", allowed)
        elements.append(name)
    ensure(elements, f"the table has no column of numbers, only {format_names(list(data.columns))}")
    counts = np.stack([np.asarray(data[name]) for name in elements], axis=1)
    if counts.dtype.kind == "O":
        counts = counts.astype(float)
    return ArrayData(counts, data, tuple(map(str, elements)))


def _to_text(array: Array) -> Array:
    """Return labels, with objects as text and "" for what is missing."""
    if array.dtype.kind != "O":
        return array
    words = [str(value) for value in array.ravel()]
    texts = ["" if word == "None" else word for word in words]  # NaN and NA stay what they are
    return np.array(texts).reshape(array.shape)
