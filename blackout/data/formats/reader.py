"""The choice of a reader by the suffix of a file, and advice for formats that are not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blackout.data.formats.compressed import GZIP_SUFFIX, inner_suffix
from blackout.data.formats.contents import FileContents
from blackout.data.formats.hdf5 import read_hdf5
from blackout.data.formats.numpy_files import read_numpy
from blackout.data.formats.tables import read_parquet
from blackout.data.formats.tenx import find_matrix, read_matrix_market
from blackout.data.formats.text_tables import read_csv
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
    ".mtx": read_matrix_market,
}
GZIPPED = (".csv", ".tsv", ".mtx")  # formats that are also read with the suffix .gz
COMPRESSED_SUFFIXES = (GZIP_SUFFIX, ".xz", ".bz2", ".zst", ".zip", ".tar", ".tgz", ".7z")
MICROSCOPY_ADVICE = "save it as OME-TIFF, as Fiji does"
R_ADVICE = "in R, save counts with zellkonverter::writeH5AD, or write.csv"
SHEET_ADVICE = "save each sheet as a .csv"
PICTURE_ADVICE = "dataset=image_folder reads a folder of such images"
PICKLE_ADVICE = "pickled objects are never loaded: save numbers with numpy.save"
# suffix of a known format that is not read -> what to do
OTHER_FORMATS = {
    ".loom": "in Python, scanpy.read_loom('x.loom').write_h5ad('x.h5ad')",
    ".h5mu": "save one modality: mudata.read('x.h5mu')['rna'].write_h5ad('x.h5ad')",
    ".nwb": "save the counts of spikes with numpy.save, after reading them with pynwb",
    ".h5seurat": R_ADVICE,
    ".rds": R_ADVICE,
    ".rda": R_ADVICE,
    ".rdata": R_ADVICE,
    ".fcs": "save the events as .parquet, after reading them with FlowKit or readfcs",
    ".xlsx": SHEET_ADVICE,
    ".xls": SHEET_ADVICE,
    ".ods": SHEET_ADVICE,
    ".feather": "save it as .parquet with pandas",
    ".arrow": "save it as .parquet with pandas",
    ".nc": "in Python, xarray.open_dataset('x.nc').to_zarr('x.zarr')",
    ".mat": "in Python, scipy.io.loadmat('x.mat'), and numpy.savez of its counts",
    ".root": "save the counts with numpy.savez, after reading them with uproot",
    ".fits": "save the counts with numpy.save, after reading them with astropy.io.fits",
    ".czi": MICROSCOPY_ADVICE,
    ".nd2": MICROSCOPY_ADVICE,
    ".lif": MICROSCOPY_ADVICE,
    ".oib": MICROSCOPY_ADVICE,
    ".dcm": "save the counts with numpy.save, after reading them with pydicom",
    ".nii": "save the counts with numpy.save, after reading them with nibabel",
    ".pkl": PICKLE_ADVICE,
    ".pickle": PICKLE_ADVICE,
    ".joblib": PICKLE_ADVICE,
    ".pt": PICKLE_ADVICE,
    ".pth": PICKLE_ADVICE,
    ".txt": "name a table .csv or .tsv",
    ".png": PICTURE_ADVICE,
    ".jpg": PICTURE_ADVICE,
    ".jpeg": PICTURE_ADVICE,
    ".bmp": PICTURE_ADVICE,
    ".gif": PICTURE_ADVICE,
    ".webp": PICTURE_ADVICE,
}


def read_file(path: Path, layer: str | int | None = None) -> FileContents:
    """Read a file by its suffix; a file with an unknown suffix must be NumPy's.

    Args:
        path: .npy, .npz (dense, or a SciPy sparse matrix), .csv, .tsv, .parquet, .h5ad, .zarr, .h5,
            .hdf5 (also of CellRanger), .mtx, .tif, .tiff, a folder of .tif files, or CellRanger's
            folder with a matrix.mtx. .csv, .tsv and .mtx may be gzipped. CSR matrices in an .h5ad,
            .h5 or .zarr stay there.
        layer: array of an .npz, .h5ad (a layer, or `raw`), .zarr or HDF5 file that holds the
            counts, number of a TIFF series, or feature type of CellRanger; None for `X`, `counts`
            or the only one.

    Raises:
        UserError: the file is missing, damaged or of another format, has no such layer, or needs an
            optional library that is not installed.
    """
    layer_name = None if layer is None else str(layer)
    suffix = path.suffix.lower()
    is_zarr = suffix == ".zarr"
    if path.is_dir() and not is_zarr:
        matrix_file = find_matrix(path)
        if matrix_file is None:
            return read_tiff_folder(path, layer_name)
        with reading(matrix_file, "not a readable .mtx file of numbers"):
            return read_matrix_market(matrix_file, layer_name)
    if not (path.is_dir() if is_zarr else path.is_file()):
        kind = "folder" if is_zarr else "file"
        raise UserError(f"{path}: {f'not a {kind}' if path.exists() else f'no such {kind}'}")
    if suffix == GZIP_SUFFIX and inner_suffix(path) in GZIPPED:
        suffix = inner_suffix(path)
    reader = READERS.get(suffix, read_numpy)
    formats = ", ".join(READERS)
    is_compressed = suffix in COMPRESSED_SUFFIXES
    refuse(is_compressed, f"{path}: unpack it first; supported formats are {formats}")
    if suffix in OTHER_FORMATS:
        advice = OTHER_FORMATS[suffix]
        raise UserError(f"{path}: {suffix} files are not read; {advice}; read are {formats}")
    problem = f"not a readable {suffix} file of numbers"
    if reader is read_numpy:
        problem = "not a readable .npy or .npz file of numbers"
    if suffix not in READERS:
        problem = f"{problem}; other formats have their suffix, {formats}"
    with reading(path, problem):
        return reader(path, layer_name)
