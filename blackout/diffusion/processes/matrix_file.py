"""Matrices that define a process: from files, arrays, or written out in a model's description."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from blackout.errors import UserError
from blackout.files import opened

Matrix: TypeAlias = str | Path | np.ndarray | list | dict | Any
"""A `.npy` or sparse `.npz` file's name, an array or nested list, a SciPy sparse matrix, or the plain form of one."""

_LARGEST_SIDE = 2**24


def load_matrix(matrix: Matrix) -> Any:
    """An array or SciPy sparse matrix from any of these forms.

    Raises:
        UserError: the file cannot be read as a matrix.
    """
    if isinstance(matrix, dict):
        _check_written_out(matrix)
        import scipy.sparse as sparse

        return sparse.coo_array((matrix["value"], (matrix["row"], matrix["column"])), shape=tuple(matrix["shape"]))
    if not isinstance(matrix, (str, Path)):
        return matrix if is_sparse(matrix) else np.asarray(matrix)
    try:
        opened(Path(matrix)).close()
        loaded = _load_sparse(matrix) if Path(matrix).suffix == ".npz" else np.load(matrix, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"no file {matrix}: the matrix must be a .npy array, or .npz for a SciPy sparse one") from None
    except Exception as error:  # numpy, zipfile and scipy have a dozen ways to say that this is no array
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{matrix} cannot be read as a matrix: {reason}") from None
    if not (isinstance(loaded, np.ndarray) or is_sparse(loaded)):
        raise UserError(f"{matrix} holds {type(loaded).__name__}, not one array")
    return loaded


def _check_written_out(matrix: Mapping[str, Any]) -> None:
    """Raises UserError unless these are the entries of a sparse matrix, as `without_files` writes them."""
    shape, lists = matrix.get("shape"), [matrix.get(name) for name in ("row", "column", "value")]
    sizes = {len(entries) if isinstance(entries, list) else -1 for entries in lists}
    if len(sizes) > 1 or -1 in sizes:
        raise UserError("a sparse matrix that is written out has as many rows and columns as values")
    if not isinstance(shape, list) or [type(side) for side in shape] != [int, int]:
        raise UserError("a sparse matrix that is written out has a shape of two whole numbers")
    if not 0 < min(shape) <= max(shape) <= _LARGEST_SIDE:
        raise UserError(f"a sparse matrix has 1 to {_LARGEST_SIDE} rows and columns, not {shape}")


def is_sparse(matrix: Any) -> bool:
    """Whether it is a SciPy sparse matrix, without loading SciPy where nobody has."""
    return "scipy.sparse" in sys.modules and sys.modules["scipy.sparse"].issparse(matrix)


def dense(matrix: Any) -> np.ndarray:
    """The array of a sparse or dense matrix."""
    return matrix.toarray() if is_sparse(matrix) else matrix


def _load_sparse(path: str | Path) -> Any:
    import scipy.sparse as sparse

    return sparse.load_npz(path)


def without_files(config: Mapping[str, Any]) -> dict[str, Any]:
    """A process's configuration with the matrix written out in place of its file's name, so that it can travel.

    Raises:
        UserError: the file cannot be read as a matrix.
    """
    if not isinstance(config.get("matrix"), (str, Path)):
        return dict(config)
    loaded = load_matrix(config["matrix"])
    if not is_sparse(loaded):
        return {**config, "matrix": loaded.tolist()}
    import scipy.sparse as sparse

    entries = sparse.coo_array(loaded)
    plain = {"shape": list(entries.shape), "row": entries.row.tolist(), "column": entries.col.tolist()}
    return {**config, "matrix": {**plain, "value": entries.data.tolist()}}
