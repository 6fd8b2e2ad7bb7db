"""What the groups and arrays of an HDF5 file or a .zarr store hold: AnnData, or plain arrays."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blackout.data.formats.anndata_files import read_anndata
from blackout.data.formats.axes import named_axes
from blackout.data.formats.contents import COUNTS, FileContents, decode_text, quote_names
from blackout.data.formats.lazy import LazyArray
from blackout.data.formats.tenx import find_tenx_matrices, read_tenx_hdf5
from blackout.errors import UserError

# attributes by which other programs convert stored numbers, and their values where they are absent
UNITS = {"scale_factor": 1, "add_offset": 0}
NO_DATA = ("_FillValue", "missing_value")  # attributes with the number of a missing entry


def read_hierarchy(
    path: Path,
    nodes: dict[str, Any],
    sizes: dict[str, int],
    layer: str | None,
    unread: Mapping[str, str] | None = None,
) -> FileContents:
    """Read the arrays of a file.

    Args:
        path: of the file.
        nodes: groups and arrays of the library by place; "" is the root.
        sizes: stored bytes of every array by place.
        layer: array or layer with the counts; None for `X` or the usual names.
        unread: descriptions of what no setting can use, by place.

    Raises:
        UserError: the file has no such array, or an .h5ad has no table of observations.
    """
    # 1. AnnData and CellRanger's files have readers of their own.
    arrays = {
        place: LazyArray(node, path, sizes[place])
        for place, node in nodes.items()
        if hasattr(node, "dtype")
    }
    if "obs" in nodes and "_index" in nodes["obs"].attrs:
        return read_anndata(path, nodes, arrays, layer)
    if path.suffix.lower() == ".h5ad":
        message = "there is no table `obs`; save the file again with a recent anndata"
        raise UserError(f"{path}: {message}")
    matrices = find_tenx_matrices(nodes)
    if matrices and layer not in arrays:
        return read_tenx_hdf5(path, arrays, matrices, layer)
    if layer is not None and layer not in arrays:
        actual = quote_names(arrays)
        raise UserError(f"{path}: there is no array dataset.layer={layer}, only {actual}")

    # 2. All arrays, with the names of their axes and the units of their numbers.
    contents: dict[str, Any] = {}
    axis_names: dict[str, tuple[str, ...]] = {}
    axes: dict[str, str] = {}
    unread_nodes = dict(unread or {})
    no_data: dict[str, float] = {}
    units: dict[str, str] = {}
    for place, array in arrays.items():
        if place == COUNTS and layer is not None and layer != COUNTS:
            unread_nodes[place] = "not the chosen array"
            continue
        name = COUNTS if place == layer else place
        stays_lazy = len(array.shape) > 1 and array.dtype.kind in "biuf"
        contents[name] = array if stays_lazy else np.asarray(array)
        names = _axis_names(nodes, place)
        letters = named_axes(names) if len(names) == len(array.shape) else None
        if letters is not None:
            axes[name] = letters
        if any(names):
            axis_names[name] = tuple(names)
        attributes = dict(nodes[place].attrs)
        units |= _units(name, attributes)
        no_data |= _no_data(name, attributes)
    return FileContents(
        contents,
        axis_names=axis_names,
        axes=axes,
        unread=unread_nodes,
        units=units,
        no_data=no_data,
    )


def _axis_names(nodes: Mapping[str, Any], place: str) -> list[str]:
    """Return the names that a file gives to the axes of an array; empty without names.

    They are HDF5's dimension scales, zarr's `dimension_names`, xarray's `_ARRAY_DIMENSIONS`, or the
    axes of OME-Zarr.
    """
    node = nodes[place]
    if "DIMENSION_LABELS" in node.attrs or "DIMENSION_LIST" in node.attrs:
        return [axis.label or next(iter(axis.keys()), "") for axis in node.dims]
    names = getattr(getattr(node, "metadata", None), "dimension_names", None)
    names = names or node.attrs.get("_ARRAY_DIMENSIONS")
    if names is None:
        parent = nodes.get(place.rpartition("/")[0])
        attributes = {} if parent is None else dict(parent.attrs)
        images = attributes.get("ome", attributes).get("multiscales") or [{}]
        axes = images[0].get("axes", ())
        # until version 0.3 of OME-Zarr an axis is its name alone
        names = [axis if isinstance(axis, str) else axis["name"] for axis in axes]
    return [decode_text(name) for name in names]


def _units(name: str, attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the factors by which other programs convert stored numbers, as text by array."""
    factors = []
    for attribute, neutral in UNITS.items():
        value = attributes.get(attribute, neutral)
        if np.size(value) != 1 or np.ravel(value)[0] != neutral:
            factors.append(f"{attribute}={value}"[:60])
    return {name: " and ".join(factors)} if factors else {}


def _no_data(name: str, attributes: Mapping[str, Any]) -> dict[str, float]:
    """Return the number of missing entries by array, unless it is NaN."""
    for attribute in NO_DATA:
        value = attributes.get(attribute)
        if isinstance(value, str):  # as xarray writes fractions to zarr
            value = np.frombuffer(base64.b64decode(value), "<f8")
        values = np.ravel(value) if value is not None else np.zeros(0)
        if values.size == 1 and values.dtype.kind in "iuf" and np.isfinite(values[0]):
            return {name: float(values[0])}
    return {}
