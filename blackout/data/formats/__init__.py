"""Readers of .npy, .npz, .csv, .parquet, .h5ad, .zarr, HDF5, CellRanger's and TIFF files.

A file becomes named arrays (`read_file`), and an array becomes whole numbers (`to_counts`). NumPy's
files and tables of text need no further library; the others are of the extra `science`.
"""

from blackout.data.formats.anndata_files import write_h5ad
from blackout.data.formats.axes import AXES, arrange_axes, check_axes, describe_axes
from blackout.data.formats.contents import COUNTS, MISSING_WORDS, FileContents, is_number
from blackout.data.formats.lazy import LazySparseMatrix
from blackout.data.formats.numpy_files import load_array, load_arrays
from blackout.data.formats.reader import read_file
from blackout.data.formats.sparse import sparse_matrix
from blackout.data.formats.text_tables import refuse_local_number
from blackout.data.formats.whole_numbers import (
    check_range,
    iterate_blocks,
    sample_shape,
    to_counts,
)

__all__ = [
    "AXES",
    "COUNTS",
    "MISSING_WORDS",
    "FileContents",
    "LazySparseMatrix",
    "arrange_axes",
    "check_axes",
    "check_range",
    "describe_axes",
    "is_number",
    "iterate_blocks",
    "load_array",
    "load_arrays",
    "read_file",
    "refuse_local_number",
    "sample_shape",
    "sparse_matrix",
    "to_counts",
    "write_h5ad",
]
