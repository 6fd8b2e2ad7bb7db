"""What the groups and arrays of an HDF5 file or a .zarr store hold: AnnData, or plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blackout.data.formats.anndata_files import read_anndata
from blackout.data.formats.contents import COUNTS, FileContents, quote_names
from blackout.data.formats.lazy import LazyArray
from blackout.errors import UserError


def read_hierarchy(
    path: Path,
    nodes: dict[str, Any],
    sizes: dict[str, int],
    layer: str | None,
) -> FileContents:
    """Read the arrays of a file.

    Args:
        path: of the file.
        nodes: groups and arrays of the library by place; "" is the root.
        sizes: stored bytes of every array by place.
        layer: array or layer with the counts; None for `X` or the usual names.

    Raises:
        UserError: the file has no such array, or an .h5ad has no table of observations.
    """
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
    if layer is not None and layer not in arrays:
        raise UserError(f"{path}: there is no array {layer!r}, found {quote_names(arrays)}")

    contents: dict[str, Any] = {}
    for place, array in arrays.items():
        stays_lazy = len(array.shape) > 1 and array.dtype.kind in "biuf"
        contents[place] = array if stays_lazy else np.asarray(array)
    if layer is not None:
        contents[COUNTS] = contents.pop(layer)
    return FileContents(contents)
