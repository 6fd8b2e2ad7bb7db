"""The choice of a reader by the suffix of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blackout.data.formats.contents import FileContents
from blackout.data.formats.hdf5 import read_hdf5
from blackout.data.formats.numpy_files import read_numpy
from blackout.data.formats.tables import read_csv, read_parquet
from blackout.data.formats.tiff import read_tiff, read_tiff_folder
from blackout.data.formats.zarr_stores import read_zarr
from blackout.errors import UserError, refuse
from blackout.safe_reading import reading

Reader = Callable[[Path, str | None], FileContents]
READERS: dict[str, Reader] = {
    ".npy": read_numpy,
    ".npz": read_numpy,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".h5ad": read_hdf5,
    ".zarr": read_zarr,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".tif": read_tiff,
    ".tiff": read_tiff,
}
COMPRESSED_SUFFIXES = (".gz", ".xz", ".bz2", ".zip")


def read_file(path: Path, layer: str | None = None) -> FileContents:
    """Read a file by its suffix; a file with an unknown suffix must be NumPy's.

    Args:
        path: .npy, .npz (dense, or a SciPy sparse matrix), .csv, .tsv, .parquet, .h5ad, .zarr, .h5,
            .hdf5, .tif, .tiff, or a folder of .tif files. CSR matrices in an .h5ad or .zarr stay
            there.
        layer: array of an .h5ad (a layer), .zarr or HDF5 file that holds the counts; None for `X`,
            `counts` or the only one.

    Raises:
        UserError: the file is missing, damaged or of another format, has no such layer, or needs an
            optional library that is not installed.
    """
    suffix = path.suffix.lower()
    is_zarr = suffix == ".zarr"
    if path.is_dir() and not is_zarr:
        return read_tiff_folder(path)
    reader = READERS.get(suffix, read_numpy)
    if not (path.is_dir() if is_zarr else path.is_file()):
        kind = "folder" if is_zarr else "file"
        raise UserError(f"{path}: {f'not a {kind}' if path.exists() else f'no such {kind}'}")
    formats = ", ".join(READERS)
    is_compressed = suffix in COMPRESSED_SUFFIXES
    refuse(is_compressed, f"{path}: unpack it first; supported formats are {formats}")
    format_name = ".npy or .npz" if reader is read_numpy else suffix
    with reading(path, f"not a readable {format_name} file of numbers"):
        return reader(path, layer)
