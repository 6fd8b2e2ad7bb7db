"""Any finite generator matrix [Santos 2023, appendix B]: from an array or a file, or written out in a description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from blackout.component import component
from blackout.data.file_formats import load_arrays, sparse_matrix
from blackout.diffusion.processes.uniform_absorbing import DenseGenerator
from blackout.errors import UserError, ensure

Matrix: TypeAlias = str | Path | np.ndarray | list | Any
"""A `.npy` or sparse `.npz` file's name, an array or nested list, or a SciPy sparse matrix."""

_TOLERANCE = 1e-8
"""How far, relative to the largest rate or to 1, a row may sum from what it should."""


def load_matrix(matrix: Matrix) -> np.ndarray:
    """The array of any of these forms.

    Raises:
        UserError: the file cannot be read as a matrix.
    """
    if not isinstance(matrix, (str, Path)):
        return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)
    try:
        loaded = load_arrays(Path(matrix))
        if isinstance(loaded, dict):
            return sparse_matrix(str(loaded["format"].astype(str)), loaded["shape"], loaded).toarray()
    except (ValueError, KeyError) as error:
        advice = "the matrix must be a .npy array, or .npz for a SciPy sparse one"
        raise UserError(f"{matrix} cannot be read as a matrix: {error}; {advice}") from None
    return loaded


def without_files(config: Mapping[str, Any]) -> dict[str, Any]:
    """A process's configuration with the matrix written out in place of its file's name, so that it can travel.

    Raises:
        UserError: the file cannot be read as a matrix.
    """
    named = isinstance(config.get("matrix"), (str, Path))
    return {**config, "matrix": load_matrix(config["matrix"]).tolist()} if named else dict(config)


def check_matrix(matrix: np.ndarray, kind: str, total: float) -> None:
    """Raises ValueError, naming the offending entry, unless all [..., S, S] have rows of rates or chances of this sum.

    Args:
        matrix: any array.
        kind: what it is, for the message.
        total: 1, or 0, of a generator, whose diagonal alone is not positive.
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] < 2:
        raise ValueError(f"a {kind} is a square matrix of two states or more, not of shape {matrix.shape}")
    ensure(matrix.dtype.kind in "fiu", f"a {kind} holds real numbers, not {matrix.dtype}")
    ensure(np.isfinite(matrix).all(), f"a {kind} has entries that are not finite")
    exempt = np.eye(matrix.shape[-1], dtype=bool) & (total == 0)
    for place in np.argwhere((matrix < 0) & ~exempt):
        off = ", off its diagonal" if total == 0 else ""
        told = f"{place.tolist()} is {matrix[tuple(place)]:g} (from the state of its row to that of its column)"
        raise ValueError(f"a {kind} has no negative entries{off}, but {told}")
    sums = matrix.sum(-1, dtype=np.float64)
    worst = np.unravel_index(int(np.abs(sums - total).argmax()), sums.shape)
    if abs(sums[worst] - total) > _TOLERANCE * (total or np.abs(matrix).max()):
        where = f"row {worst[-1]}" + (f" of step {worst[0] + 1}" if matrix.ndim > 2 else "")
        raise ValueError(f"the rows of a {kind} sum to {total:g}, but {where} sums to {sums[worst]:g}")


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
    ensure(loaded.ndim == 2, f"a generator is one matrix [S, S], not of shape {loaded.shape}")
    check_matrix(loaded, "generator", 0.0)
    return DenseGenerator(max_count, torch.from_numpy(np.ascontiguousarray(loaded, dtype=np.float64)), ordered)
