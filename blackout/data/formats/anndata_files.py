"""AnnData in HDF5 files and .zarr stores: a reader, and a writer of .h5ad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blackout.data.formats.contents import (
    COUNTS,
    SHADOWED_COLUMN,
    Array,
    FileContents,
    decode_text,
    quote_names,
)
from blackout.data.formats.lazy import LazyArray, LazySparseMatrix
from blackout.data.formats.sparse import sparse_matrix
from blackout.errors import UserError, ensure
from blackout.files import replacing

RAW = "raw"  # AnnData's matrix of all genes before they were selected, often the only raw counts
RAW_NAMES = (RAW, "raw/X", "raw.X")


def read_anndata(
    path: Path,
    nodes: dict[str, Any],
    arrays: dict[str, LazyArray],
    layer: str | None,
) -> FileContents:
    """Read the counts, the other layers and the observations of AnnData.

    Args:
        path: of the file.
        nodes: groups and arrays of the library by place.
        arrays: the arrays by place.
        layer: with the counts; "raw" for `.raw`, None for `X`.

    Raises:
        UserError: there is no such layer, or no X.
    """
    # 1. The layer that holds the counts.
    layers = [
        place.removeprefix("layers/")
        for place in nodes
        if place.startswith("layers/") and place.count("/") == 1
    ]
    has_raw = "raw/X" in nodes
    is_raw = has_raw and layer in RAW_NAMES and layer not in layers
    layer_names = quote_names([*layers, RAW] if has_raw else layers)
    if layer is not None and layer not in layers and not is_raw:
        raise UserError(f"{path}: there is no dataset.layer={layer}, only {layer_names}")
    if layer is None and "X" not in nodes:
        names = layer_names if layers or has_raw else "no layers"
        raise UserError(f"{path}: there is no X; dataset.layer names one of {names}")

    # 2. Counts, and other layers, of which one may be a mask.
    contents: dict[str, Any] = {}
    for name in layers:
        if name != layer:
            contents[name] = _read_matrix(nodes, arrays, f"layers/{name}")
    place = "X" if layer is None else f"layers/{layer}"
    table = "var"
    if is_raw:
        place = "raw/X"
        table = "raw/var"
        contents.clear()  # layers have the elements of X, which are others
    contents[COUNTS] = _read_matrix(nodes, arrays, place)

    # 3. Columns of observations, and names of the elements.
    unread = {}
    for name in map(decode_text, nodes["obs"].attrs.get("column-order", ())):
        if name == COUNTS:
            unread[f"obs/{name}"] = SHADOWED_COLUMN
        else:
            contents[name] = _read_column(nodes, arrays, f"obs/{name}")
    index_name = decode_text(nodes[table].attrs["_index"])
    features = _read_column(nodes, arrays, f"{table}/{index_name}").astype(str)

    # 4. What no setting reads.
    available = (*layers, RAW) if has_raw else tuple(layers)
    if has_raw and not is_raw:
        unread[RAW] = "the counts of dataset.layer=raw"
    for name in nodes:
        if name.startswith("obsm/") and name.count("/") == 1:
            unread[name] = "an array of samples"
    return FileContents(
        contents,
        tuple(features.tolist()),
        layers=available if layer is None else (),
        unread=unread,
    )


def write_h5ad(
    path: Path,
    counts: Any,
    indices: Array,
    features: Sequence[str],
    columns: Mapping[str, Array],
    **extra: Any,
) -> None:
    """Write samples as an .h5ad file of AnnData; the file appears only when it is complete.

    Args:
        path: of the file.
        counts: sparse matrix [N, D], for `X`.
        indices: numbers of the samples, int64 [N].
        features: names of the D columns.
        columns: of `obs`, by name, [N] each.
        extra: `layers`, `obsm` and `uns` of AnnData.

    Raises:
        ImportError: anndata is not installed.
    """
    import anndata
    import pandas

    # names as plain strings: anndata does not write the string type of pandas 3
    with pandas.option_context("future.infer_string", False), replacing(path) as part:
        observations = pandas.DataFrame(columns, index=[f"sample {index}" for index in indices])
        data = anndata.AnnData(counts, obs=observations, **extra)
        data.var_names = list(features)
        data.write_h5ad(part)


def _read_matrix(nodes: dict[str, Any], arrays: dict[str, LazyArray], place: str) -> Any:
    """Return a matrix of AnnData; dense ones and CSR matrices stay on disk."""
    if place in arrays:
        return arrays[place]
    # the second names are those of anndata before 0.7
    attributes = nodes[place].attrs
    encoding = attributes.get("encoding-type", attributes.get("h5sparse_format", ""))
    kind = decode_text(encoding).removesuffix("_matrix")
    parts = {name: arrays[f"{place}/{name}"] for name in ("data", "indices", "indptr")}
    shape = np.asarray(attributes.get("shape", attributes.get("h5sparse_shape")))
    if kind == "csr":
        return LazySparseMatrix(shape, parts)
    return sparse_matrix(kind, shape, {name: np.asarray(part) for name, part in parts.items()})


def _read_column(nodes: dict[str, Any], arrays: dict[str, LazyArray], place: str) -> Array:
    """Return a column of a table, [N]: numbers with NaN, or text with "", for missing entries."""
    folder, _, name = place.rpartition("/")
    codes_place = f"{place}/codes"
    categories_place = f"{place}/categories"
    if f"{folder}/__categories/{name}" in arrays:  # as anndata wrote categories before 0.8
        codes_place = place
        categories_place = f"{folder}/__categories/{name}"

    if categories_place in nodes:
        codes = np.asarray(arrays[codes_place])
        # categories may be masked arrays themselves (pandas 3)
        categories = _read_column(nodes, arrays, categories_place)
        is_valid = codes.ndim == 1 and codes.dtype.kind in "iu" and categories.ndim == 1
        ensure(is_valid, f"{place} is not a column of categories")
        if len(codes) and not -1 <= int(codes.min()) <= int(codes.max()) < len(categories):
            content = f"categories {codes.min()}..{codes.max()} of {len(categories)}"
            raise ValueError(f"{place} has {content}: the file is damaged, write it again")
        if (codes < 0).any() or not len(categories):
            return np.append(categories, _missing_value(categories))[codes]  # -1: the last one
        return categories[codes]

    if f"{place}/values" in arrays:
        values = np.asarray(arrays[f"{place}/values"])
        mask = np.asarray(arrays[f"{place}/mask"]).astype(bool)
        return np.where(mask, _missing_value(values), values)
    return np.asarray(arrays[place])


def _missing_value(values: Array) -> float | str:
    return np.nan if values.dtype.kind in "biuf" else ""
