"""Sparse matrices whose indices are checked: SciPy would write wherever they point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from blackout.counts import LARGEST_COUNT
from blackout.data.formats.contents import Array
from blackout.errors import ensure


def sparse_matrix(kind: str, shape: Any, parts: Mapping[str, Array]) -> Any:
    """Make a SciPy CSR matrix, after checking that all indices and pointers are inside.

    Args:
        kind: csr, csc or coo.
        shape: numbers of rows and columns.
        parts: `data`, with `indices` and `indptr` for csr and csc, with `row` and `col` for coo.

    Raises:
        ValueError: the parts are not such a matrix.
    """
    import scipy.sparse  # only here: it takes long to import

    sides = np.asarray(shape)
    data = parts["data"]
    is_shape = sides.shape == (2,) and sides.dtype.kind in "iu"
    if not is_shape or not 0 <= sides.min() <= sides.max() <= LARGEST_COUNT:
        allowed = "the shape of a sparse matrix must be two whole numbers"
        raise ValueError(f"{allowed}, not {sides.tolist()!r:.100}")
    allowed = "sparse matrices are read as csr, csc or coo"
    ensure(
        kind in ("csr", "csc", "coo"), f"{allowed}, not {kind!r:.100}: save matrix.tocsr() instead"
    )
    names = ("row", "col") if kind == "coo" else ("indices", "indptr")
    positions = tuple(parts[name] for name in names)
    if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in positions) or data.ndim != 1:
        message = "must be one-dimensional, indices and pointers whole numbers"
        raise ValueError(f"data, indices and pointers of a sparse matrix {message}")
    ensure(data.dtype.kind in "biuf", f"a sparse matrix must hold numbers, not {data.dtype}")

    num_rows, num_columns = map(int, sides)
    if data.dtype.itemsize < 8 and (kind == "coo" or data.dtype == np.float16):
        data = data.astype(np.float64)  # SciPy adds entries with one position, which may overflow
    if kind == "coo":  # SciPy checks these indices
        return scipy.sparse.coo_matrix((data, positions), (num_rows, num_columns)).tocsr()
    # SciPy does not check pointers if the last one is 0
    num_pointers = num_columns if kind == "csc" else num_rows
    if not are_row_pointers(positions[1], num_pointers, len(data)):
        message = f"indptr of a sparse matrix does not fit its shape {sides.tolist()}"
        raise ValueError(f"{message}: the file is damaged, write it again")
    make = getattr(scipy.sparse, f"{kind}_matrix")
    matrix = make((data, *positions), (num_rows, num_columns))
    matrix.check_format()
    return (matrix if matrix.has_canonical_format else matrix.astype(np.float64)).tocsr()


def are_row_pointers(pointers: Array, num_rows: int, num_entries: int) -> bool:
    """Return whether pointers [num_rows + 1] increase from 0 to the number of entries."""
    ends = pointers.astype(np.int64)
    if len(ends) != num_rows + 1 or ends[0] != 0 or ends[-1] != num_entries:
        return False
    return bool((np.diff(ends) >= 0).all())
