"""Any finite generator matrix [Santos 2023, appendix B]: from an array or a file, or written out in a description."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from blackout.component import component
from blackout.data.file_formats import sparse_matrix
from blackout.diffusion.processes.uniform_absorbing import DenseGenerator
from blackout.errors import UserError, ensure, refuse
from blackout.files import load_arrays

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
        loaded = load_arrays(Path(matrix))
        if isinstance(loaded, dict):
            return sparse_matrix(str(loaded["format"].astype(str)), loaded["shape"], loaded)
    except (ValueError, KeyError) as error:
        advice = "the matrix must be a .npy array, or .npz for a SciPy sparse one"
        raise UserError(f"{matrix} cannot be read as a matrix: {error}; {advice}") from None
    return loaded


def _check_written_out(matrix: Mapping[str, Any]) -> None:
    """Raises UserError unless these are the entries of a sparse matrix, as `without_files` writes them."""
    shape, lists = matrix.get("shape"), [matrix.get(name) for name in ("row", "column", "value")]
    sizes = {len(entries) if isinstance(entries, list) else -1 for entries in lists}
    refuse(len(sizes) > 1 or -1 in sizes, "a sparse matrix that is written out has as many rows and columns as values")
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


_TOLERANCE = 1e-8
"""How far, relative to the largest rate, a row may sum from 0."""


@component("process")
def from_generator(max_count: int = 255, matrix: Matrix | None = None, ordered: bool = False) -> DenseGenerator:
    """The jump process of a generator matrix Q: Q_ij >= 0 is the rate from state i to j, and rows sum to 0.

    Data levels are states 0..max_count; states above are the process's own.

    Args:
        max_count: largest data level.
        matrix: an array [S, S], a `.npy` file of one, a SciPy sparse matrix, or its `.npz` file.
        ordered: whether several jumps in one step add up, as for counts.

    Raises:
        UserError: the file cannot be read.
        ValueError: not a generator, or too few states for the data.
    """
    ensure(matrix is not None, "matrix must be given: a .npy file with the generator, or .npz for a SciPy sparse one")
    loaded = load_matrix(matrix)
    check_generator(loaded)
    return DenseGenerator(max_count, torch.from_numpy(np.ascontiguousarray(dense(loaded), dtype=np.float64)), ordered)


def check_generator(matrix: Any) -> None:
    """Raises ValueError, naming the offending entry, unless `matrix` is a generator."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 2:
        raise ValueError(f"a generator is a square matrix of two states or more, not of shape {tuple(matrix.shape)}")
    ensure(matrix.dtype.kind in "fiu", f"a generator holds real numbers, not {matrix.dtype}")
    rates = np.asarray(dense(matrix), dtype=np.float64)
    ensure(np.isfinite(rates).all(), "the generator has entries that are not finite")
    for i, j in np.argwhere((rates < 0) & ~np.eye(len(rates), dtype=bool)):
        raise ValueError(
            f"rates must not be negative, but the generator's entry [{i}, {j}] is {rates[i, j]:g} "
            "(off the diagonal Q[i, j] >= 0 is the rate from i to j)"
        )
    total = rates.sum(1)
    worst = int(np.abs(total).argmax())
    if abs(total[worst]) > _TOLERANCE * np.abs(rates).max():
        raise ValueError(
            f"the rows of a generator sum to 0, but row {worst} sums to {total[worst]:g} "
            "(its diagonal must be minus the sum of the other entries)"
        )
