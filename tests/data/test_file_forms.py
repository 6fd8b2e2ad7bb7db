"""Files that a reader may mistake for something else give the right counts, a note or an error."""

from __future__ import annotations

import contextlib
import gzip
import logging
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from blackout.cli.inspect import main
from blackout.data import counts
from blackout.data.findings import Finding, Note, findings
from blackout.data.formats import read_file, tiff
from blackout.errors import UserError

GENERATOR = np.random.default_rng(0)
MATRIX = GENERATOR.poisson(5.0, (60, 6))
FRAMES = GENERATOR.poisson(5.0, (30, 16, 16)).astype(np.uint16)
NAMES = "abcdef"
ROOT = Path(__file__).parents[2]


def all_rows(data: Any) -> list[list[int]]:
    """All samples as sorted flat rows."""
    return sorted(torch.cat([data.train, data.val, data.test]).flatten(1).tolist())


def sorted_rows(array: Any) -> list[list[int]]:
    return sorted(np.asarray(array).reshape(len(array), -1).tolist())


@contextlib.contextmanager
def messages() -> Iterator[dict[str, list[str]]]:
    """What is said meanwhile, as `note` and `finding`."""
    said: dict[str, list[str]] = {"note": [], "finding": []}
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield said
    for one in recorded:
        if isinstance(one.message, Note):
            said["note"].append(str(one.message))
        elif isinstance(one.message, Finding):
            said["finding"].append(str(one.message))


def check(path: Path, expected: Any, *words: str, **settings: Any) -> Any:
    """Counts of a file are the expected ones, and every word is in a note or finding."""
    with messages() as said:
        data = counts(path, **settings)
    assert all_rows(data) == sorted_rows(expected)
    spoken = " | ".join([*said["note"], *said["finding"]])
    assert all(word in spoken for word in words), spoken
    return data


def refused(path: Path, word: str, **settings: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError) as error:
            counts(path, **settings)
    assert word in str(error.value) and "\n" not in str(error.value), error.value


def table(rows: Any = MATRIX, head: str = "", separator: str = ",") -> str:
    lines = [separator.join(map(str, row)) for row in rows]
    return "\n".join(([head] if head else []) + lines) + "\n"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- several arrays in a file, and axes with names


def test_series_of_one_shape_are_joined_and_others_are_named(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(tmp_path / "many.tif") as file:
        for frame in FRAMES:
            file.write(frame)
    check(tmp_path / "many.tif", FRAMES)
    with tifffile.TiffWriter(tmp_path / "thumbnail.tif") as file:
        file.write(FRAMES[0, :8, :8])
        file.write(FRAMES)
    refused(
        tmp_path / "thumbnail.tif", "0: YX 8x8 uint16; 1: QYX 30x16x16 uint16): dataset.layer=1"
    )
    check(tmp_path / "thumbnail.tif", FRAMES, layer=1)
    refused(tmp_path / "thumbnail.tif", "no series '7', only 0 to 1", layer="7")
    with tifffile.TiffWriter(tmp_path / "positions.ome.tif", ome=True) as file:
        for k in range(3):
            file.write(FRAMES[10 * k : 10 * k + 10], metadata={"axes": "TYX"})
    check(tmp_path / "positions.ome.tif", FRAMES, "T samples")


def test_axes_have_the_meaning_that_the_file_gives_them(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    stack = GENERATOR.poisson(3.0, (20, 4, 2, 8, 9)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "x.tif", stack, imagej=True, metadata={"axes": "TZCYX"})
    data = check(tmp_path / "x.tif", stack.swapaxes(1, 2), "T samples, Z depth, C channels")
    assert data.shape == (2, 4, 8, 9)
    colours = GENERATOR.integers(0, 256, (20, 8, 9, 3)).astype(np.uint8)
    tifffile.imwrite(tmp_path / "x.tif", colours, photometric="rgb")
    assert check(tmp_path / "x.tif", np.moveaxis(colours, -1, 1)).shape == (3, 8, 9)
    volume = stack[0].swapaxes(0, 1)
    tifffile.imwrite(tmp_path / "x.ome.tif", volume, metadata={"axes": "CZYX"}, ome=True)
    refused(tmp_path / "x.ome.tif", "one image of 8 x 9 pixels: dataset.tile=2")
    assert check(tmp_path / "x.ome.tif", volume.swapaxes(0, 1), axes="CNYX").shape == (2, 8, 9)
    tifffile.imwrite(tmp_path / "x.tif", FRAMES, imagej=True)
    check(tmp_path / "x.tif", FRAMES, axes="NYX")
    np.save(tmp_path / "x.npy", colours)
    assert check(tmp_path / "x.npy", np.moveaxis(colours, -1, 1), axes="NYXC").shape == (3, 8, 9)
    refused(tmp_path / "x.npy", "axes=NYX names 3 axes, but the array has 4", axes="NYX")
    refused(tmp_path / "x.npy", "not those of counts", axes="NYCC")


def test_names_of_axes_in_hdf5_and_zarr_are_used(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["counts"] = MATRIX.T
        file["counts"].dims[0].label = "gene"
        file["counts"].dims[1].label = "cell"
    check(tmp_path / "x.h5", MATRIX, "gene elements, cell samples")
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["counts"] = MATRIX
        file["counts"].dims[0].label = "run"
    check(tmp_path / "y.h5", MATRIX, "axes are called 'run', ''")
    zarr = pytest.importorskip("zarr")
    group = zarr.open(str(tmp_path / "x.zarr"), mode="w")
    array = np.moveaxis(FRAMES, 0, -1)
    made = group.create_array if hasattr(group, "create_array") else group.create_dataset
    made("counts", data=array).attrs["_ARRAY_DIMENSIONS"] = ["y", "x", "time"]
    check(tmp_path / "x.zarr", FRAMES, "time samples")
    axes = ["y", "x", "t"]
    for version, ome_axes in (("0.3", axes), ("0.4", [{"name": name} for name in axes])):
        path = tmp_path / f"{version}.zarr"
        group = zarr.open(str(path), mode="w")
        made = group.create_array if hasattr(group, "create_array") else group.create_dataset
        made("0", data=array)
        group.attrs["multiscales"] = [{"version": version, "axes": ome_axes}]
        check(path, FRAMES, "t samples")


def test_frames_are_in_natural_order_and_what_a_tiff_says_besides_is_named(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    folder = tmp_path / "frames"
    folder.mkdir()
    for k in range(12):
        tifffile.imwrite(folder / f"img_{k + 1}.tif", FRAMES[k])
    write(folder / "notes.txt", "x")
    contents = read_file(folder)
    assert np.array_equal(contents.arrays["counts"], FRAMES[:12])
    assert (
        "img_1.tif to img_12.tif" in " ".join(contents.notes) and "notes.txt" in contents.notes[-1]
    )
    tifffile.imwrite(tmp_path / "x.tif", FRAMES, photometric="miniswhite")
    check(tmp_path / "x.tif", FRAMES, "0 is white")
    empty = FRAMES.astype(np.int32) - 1
    tifffile.imwrite(tmp_path / "x.tif", empty, extratags=[(42113, "s", 0, "-1", True)])
    refused(tmp_path / "x.tif", "entries are -1, which stands for no data")
    assert counts(tmp_path / "x.tif", mask="finite").train_observed is not None
    tifffile.imwrite(tmp_path / "x.tif", FRAMES, imagej=True)
    content = (tmp_path / "x.tif").read_bytes()
    refused(write(tmp_path / "half.tif", content[: len(content) // 2]), "the file is damaged")


def test_a_warning_of_tifffile_about_any_file_of_a_folder_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile = pytest.importorskip("tifffile")
    for k in range(3):
        tifffile.imwrite(tmp_path / f"{k}.tif", FRAMES[k])

    def read_series(series: Any) -> Any:
        if np.array_equal(series.asarray(), FRAMES[1]):
            logging.getLogger("tifffile").warning("an odd tag")
        return original(series)

    original = tiff._read_series
    monkeypatch.setattr(tiff, "_read_series", read_series)
    assert read_file(tmp_path).warnings == ("1.tif: tifffile: an odd tag",)


def test_a_large_image_is_cut_into_tiles(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    image = GENERATOR.poisson(5.0, (40, 70)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "x.tif", image)
    refused(tmp_path / "x.tif", "one image of 40 x 70 pixels: dataset.tile=8 cuts tiles")
    tiles = [image[i : i + 16, j : j + 16] for i in (0, 16) for j in (0, 16, 32, 48)]
    check(tmp_path / "x.tif", tiles, "2 x 4 tiles", "last 8 rows and 6 columns", tile=16)
    overlapping = [image[i : i + 16, j : j + 16] for i in (0, 8, 16, 24) for j in range(0, 55, 8)]
    check(tmp_path / "x.tif", overlapping, "tiles overlap", tile=16, stride=8)
    check(tmp_path / "x.tif", image, axes="NE")
    refused(tmp_path / "x.tif", "tile=64 is larger than the images of 40 x 70", tile=64)
    refused(tmp_path / "x.tif", "dataset.tile is needed", stride=8)
    np.save(tmp_path / "x.npy", FRAMES)
    with messages():
        data = counts(tmp_path / "x.npy", tile=8, group="image", holdout=0.3)
    halves = FRAMES.reshape(30, 2, 8, 2, 8).swapaxes(2, 3).reshape(120, 64)
    assert all_rows(data) == sorted(halves.tolist()) and len(data.test) % 4 == 0


# --- tables


@pytest.mark.parametrize(
    ("text", "rows", "word"),
    [
        (table(head="0,1,2,3,4,5"), MATRIX, "has the names"),
        (
            ",0,1,2,3,4,5\n" + table([[k, *row] for k, row in enumerate(MATRIX)]),
            MATRIX,
            "left out, as an index",
        ),
        (table(head="2001,2002,2003,2004,2005,2006"), MATRIX, "has the names"),
        (
            table([[f"r{k}", *row] for k, row in enumerate(MATRIX)], head="a,b,c,d,e,f"),
            MATRIX,
            "left out, as an index",
        ),
        (
            "# made by hand\n" + table(head="a,b,c,d,e,f"),
            MATRIX,
            "1 lines that begin with # are comments",
        ),
        (table(head="# a,b,c,d,e,f"), MATRIX, ""),
        (
            table(head="a,b,c,d,e,f,").replace("\n", ",\n").replace("f,,", "f,"),
            MATRIX,
            "an empty column",
        ),
        (table() + ",,,,,\n,,,,,\n", MATRIX, "2 rows without any value"),
        ("\ufeff" + table(head="a,b,c,d,e,f").replace("\n", "\r\n"), MATRIX, ""),
        (table(separator=";"), MATRIX, ""),
    ],
)
def test_headers_and_indices_of_tables_are_no_samples(
    tmp_path: Path, text: str, rows: Any, word: str
) -> None:
    check(write(tmp_path / "x.csv", text), rows, word)
    check(write(tmp_path / "x.csv.gz", gzip.compress(text.encode())), rows, word)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (table(MATRIX[:, :2], head="0,1"), "may be names or a sample"),
        (table([["dog", *row[:2]] for row in MATRIX], head="dog,7,3"), "may be names or a sample"),
        (table(head="a,b,c,d,e,f") + "1_000,1,2,3,4,5\n", "'1_000': write numbers without marks"),
        (table(head="a,b,c,d,e,f") + '"1,234",1,2,3,4,5\n', "'1,234': write numbers without marks"),
        (
            table([[f"{row[0]},5", f"{row[1]},5"] for row in MATRIX], "a;b", ";"),
            "write decimal points",
        ),
        ("a;b\n1.000;2\n" + table(MATRIX[:, :2], separator=";"), "may be a thousand or a fraction"),
        (table() + "1\0,1,2,3,4,5\n", "NUL character"),
        (table() + "inf,1,2,3,4,5\n", "got inf"),
        (table() + '1,"3,4,5,6,7\n', "unexpected end of data"),
        (",b\n" + table(MATRIX[:, :2]), "repeats values, so that it is no index"),
    ],
)
def test_numbers_that_may_be_others_are_refused(tmp_path: Path, text: str, word: str) -> None:
    refused(write(tmp_path / "x.csv", text), word)
    refused(tmp_path / "x.csv", word, mask="finite")


def test_words_for_missing_values_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "NA,3,4,5,6,7\n" + table() + "1,NaN,<NA>,4,NULL,6\n")
    refused(path, "got nan at index [0, 0]; dataset.mask=finite")
    data = counts(path, mask="finite")
    masks = [data.train_observed, data.val_observed, data.test_observed]
    assert sum(int((~mask).sum()) for mask in masks if mask is not None) == 4
    for word in ("", "NA", "nan"):
        rows = [[*row, "x" if k % 3 else word] for k, row in enumerate(MATRIX)]
        write(path, table(rows, "a,b,c,d,e,f,kind"))
        for setting in ({"labels": "kind"}, {"covariates": "kind"}, {"group": "kind"}):
            refused(
                path,
                "column 'kind' has missing entries: 20 of 60, the first in sample 0",
                **setting,
            )
    np.save(tmp_path / "x.npy", MATRIX)
    labels = write(tmp_path / "labels.txt", "\n".join("x" if k % 3 else "" for k in range(60)))
    refused(tmp_path / "x.npy", "has missing entries: 20 of 60", labels=str(labels))
    write(labels, "\n".join(str(k % 12) for k in range(60)))
    assert counts(tmp_path / "x.npy", labels=str(labels)).class_names == tuple(map(str, range(12)))


def test_an_index_of_pandas_is_no_element_and_other_columns_are_named(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(MATRIX, columns=list(NAMES))
    path = tmp_path / "x.parquet"
    frame[frame.a > 2].sample(frac=1, random_state=0).to_parquet(path)
    check(path, MATRIX[MATRIX[:, 0] > 2], "'__index_level_0__' is the index")
    frame.set_index("a").to_parquet(path)
    check(path, MATRIX[:, 1:], "'a' is the index")
    odd = frame.assign(words=[[1, 2]] * 60, day=pandas.Timestamp("2020-01-01"))
    odd.to_parquet(path)
    check(
        path, MATRIX, "'words' is left out, as it is list", "'day' is left out, as it is timestamp"
    )
    with messages() as said:
        counts(path, exclude=["words", "day"])
    assert said == {"note": [], "finding": []}
    frame.assign(kind=["x", None, "y"] * 20).to_parquet(path)
    refused(path, "column 'kind' has missing entries", labels="kind")


# --- settings and arrays that a file does not use


def test_a_column_called_counts_or_finite_is_an_element(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", table(head="counts,finite,c,d,e,f"))
    assert check(path, MATRIX).features == ("counts", "finite", "c", "d", "e", "f")
    check(path, MATRIX, mask="finite")


def test_a_column_called_counts_does_not_replace_sequences_or_a_matrix(tmp_path: Path) -> None:
    rows = [["ACGT", 7], ["TTGA", 8]] * 30
    letters = [[0, 1, 2, 3], [3, 3, 2, 0]] * 30
    path = write(tmp_path / "x.csv", table(rows, "seq,counts"))
    check(path, letters, "counts (a column with the name of the counts", sequences="seq")
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    cells = pandas.DataFrame({"counts": np.arange(60)}, index=[f"c{k}" for k in range(60)])
    with pandas.option_context("future.infer_string", False):
        anndata.AnnData(MATRIX.astype(float), obs=cells).write_h5ad(tmp_path / "x.h5ad")
    check(tmp_path / "x.h5ad", MATRIX, "obs/counts (a column with the name of the counts")


def test_settings_that_a_form_does_not_use_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", table(head="a,b,c,d,e,f"))
    for settings, word in (
        ({"layer": "nonsense"}, "this file has no layers"),
        ({"letters": "AC"}, "dataset.letters=AC is not used"),
        ({"bins": 3}, "dataset.bins=3 is not used"),
        ({"series": True}, "series is for three axes"),
        ({"tile": 2}, "axes and tile are for arrays"),
        ({"axes": "NE"}, "axes and tile are for arrays"),
    ):
        refused(path, word, **settings)
    np.savez(tmp_path / "x.npz", train=MATRIX, test=MATRIX[:9])
    refused(tmp_path / "x.npz", "dataset.holdout=0.5 is not used", holdout=0.5)
    refused(tmp_path / "x.npz", "dataset.tile=2 is not used", tile=2)
    np.savez(tmp_path / "x.npz", train=MATRIX, test=MATRIX[:9], val=MATRIX[:5])
    refused(tmp_path / "x.npz", "dataset.validation=0.3 is not used", validation=0.3)
    refused(tmp_path / "x.npz", "dataset.seed=3 is not used", seed=3)
    np.savez(tmp_path / "x.npz", counts=MATRIX, kind=np.array(["x", "y"] * 30))
    refused(
        tmp_path / "x.npz", "there is no array 'nonsense', found 'counts', 'kind'", layer="nonsense"
    )
    refused(tmp_path / "x.npz", "bins=3 is not used", labels="kind", bins=3)


def test_other_arrays_of_a_file_are_named(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz", counts=MATRIX, mask=MATRIX > 2, time=np.arange(60), other=MATRIX + 1
    )
    check(
        tmp_path / "x.npz",
        MATRIX,
        "not used of this file: other, time",
        "dataset.mask=mask observes",
    )
    check(tmp_path / "x.npz", MATRIX + 1, "counts (not the chosen array)", layer="other")
    np.savez(tmp_path / "x.npz", showers=MATRIX, incident_energies=GENERATOR.random((60, 1)))
    assert counts(tmp_path / "x.npz", layer="showers", labels="incident_energies").num_classes == 10
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["counts"] = MATRIX
        file["link"] = h5py.SoftLink("/counts")
        file["records"] = np.zeros(3, [("a", int)])
    check(tmp_path / "x.h5", MATRIX, "link (a link to /counts)", "records (an array of")
    for attribute, value, word in (
        ("scale_factor", 0.1, "scale_factor=0.1"),
        ("_FillValue", 7, "are 7, which"),
    ):
        path = tmp_path / f"{attribute}.h5"
        with h5py.File(path, "w") as file:
            file["counts"] = MATRIX
            file["counts"].attrs[attribute] = value
        refused(path, word)


# --- AnnData and 10x


def test_raw_of_anndata_is_a_layer_and_names_must_be_unique(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "x.h5ad"
    genes = pandas.DataFrame(index=[f"g{k}" for k in range(6)])
    cells = pandas.DataFrame(
        {"kind": pandas.Categorical(["x", None, "y"] * 20)}, index=[f"c{k}" for k in range(60)]
    )
    with pandas.option_context("future.infer_string", False):
        made = anndata.AnnData(np.log1p(MATRIX[:, :4]), obs=cells, var=genes[:4])
        made.raw = anndata.AnnData(
            scipy.sparse.csr_matrix(MATRIX.astype(np.float32)), var=genes, obs=cells
        )
        made.write_h5ad(path)
        refused(path, "dataset.layer=raw")
        for layer in ("raw", "raw/X"):
            assert check(path, MATRIX, "kind", layer=layer).features == tuple(genes.index)
        refused(path, "no layer 'nonsense', found 'raw'", layer="nonsense")
        refused(path, "column 'kind' has missing entries", layer="raw", labels="kind")
        names = pandas.DataFrame(index=["G1", "G2", "G1", "d", "e", "f"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = tmp_path / "y.h5ad"
            anndata.AnnData(MATRIX.astype(float), var=names).write_h5ad(path)
    refused(path, "2 columns have the name 'G1', numbers [0, 2]", columns=["G1", "G2"])
    check(path, MATRIX, "1 elements have the name of another")
    check(path, MATRIX[:, [1, 3, 4, 5]], exclude=["G1"])


def write_tenx(folder: Path, matrix: Any, types: list[str], num_entries: int | None = None) -> None:
    entries = scipy.sparse.coo_matrix(matrix)
    lines = [
        f"{i + 1} {j + 1} {v}"
        for i, j, v in zip(entries.row, entries.col, entries.data, strict=True)
    ]
    sizes = f"{matrix.shape[0]} {matrix.shape[1]} {num_entries or len(lines)}"
    head = [
        "%%MatrixMarket matrix coordinate integer general",
        '%metadata_json: {"format": 2}',
        sizes,
    ]
    features = [f"ENS{k}\tname {k}\t{kind}" for k, kind in enumerate(types)]
    barcodes = [f"ACGT{k}-1" for k in range(60)]
    for name, text in (
        ("matrix.mtx", [*head, *lines]),
        ("features.tsv", features),
        ("barcodes.tsv", barcodes),
    ):
        write(folder / f"{name}.gz", gzip.compress(("\n".join(text) + "\n").encode()))


def test_a_folder_of_cellranger_is_cells_x_genes(tmp_path: Path) -> None:
    genes = ["Gene Expression"] * 6
    write_tenx(tmp_path, MATRIX.T, genes)
    for path in (tmp_path, tmp_path / "matrix.mtx.gz"):
        assert check(path, MATRIX).features == tuple(f"name {k}" for k in range(6))
    write_tenx(tmp_path, MATRIX.T, [*genes[:4], "Antibody Capture", "Antibody Capture"])
    refused(tmp_path, "2 'Antibody Capture', 4 'Gene Expression': dataset.layer='Gene Expression'")
    check(tmp_path, MATRIX[:, :4], layer="Gene Expression")
    write_tenx(tmp_path, MATRIX, genes)
    refused(tmp_path, "its matrix is 60 x 6, but there are 6 features and 60 barcodes")
    write_tenx(tmp_path, MATRIX.T, genes, num_entries=999)
    refused(tmp_path, "its header announces 999 entries")
    write(tmp_path / "matrix.mtx", "x")
    refused(tmp_path, "has matrix.mtx, matrix.mtx.gz: leave one")


@pytest.mark.parametrize("version", [2, 3])
def test_an_h5_of_cellranger_is_cells_x_genes(tmp_path: Path, version: int) -> None:
    h5py = pytest.importorskip("h5py")
    columns = scipy.sparse.csc_matrix(MATRIX.T)
    group = "matrix" if version == 3 else "GRCh38"
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in ("data", "indices", "indptr", "shape"):
            file[f"{group}/{name}"] = np.asarray(getattr(columns, name))
        file[f"{group}/barcodes"] = np.array([f"ACGT{k}-1" for k in range(60)], "S")
        place = f"{group}/features/name" if version == 3 else f"{group}/gene_names"
        file[place] = np.array(list(NAMES), "S")
    assert check(tmp_path / "x.h5", MATRIX).features == tuple(NAMES)


def test_a_compression_of_a_plugin_is_named_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py")
    plugin = pytest.importorskip("hdf5plugin")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("counts", data=MATRIX, **plugin.Zstd())
    check(tmp_path / "x.h5", MATRIX)
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    refused(tmp_path / "x.h5", "counts is compressed by")
    refused(tmp_path / "x.h5", "pip install hdf5plugin")


@pytest.mark.parametrize(
    "suffix", ["loom", "nwb", "h5mu", "rds", "fcs", "xlsx", "pkl", "png", "csv.xz"]
)
def test_a_known_format_that_is_not_read_leads_on(tmp_path: Path, suffix: str) -> None:
    refused(
        write(tmp_path / f"x.{suffix}", "x"),
        "unpack it" if suffix == "csv.xz" else "files are not read; ",
    )


# --- findings that mask each other, and the command of inspect


def test_strays_and_hot_pixels_do_not_hide_each_other() -> None:
    strays = torch.from_numpy(np.random.default_rng(1).poisson(5.0, (200, 8)))
    strays[17, 3] = 100_000
    strays[40, 2] = 60_000
    (stray,) = findings(strays)
    assert "2 of the counts are 60,000 to 100,000, the first in sample 17" in str(stray)
    frames = torch.from_numpy(np.random.default_rng(1).poisson(5.0, (60, 1, 12, 12)))
    frames[:, 0, 4, 5] += 200
    frames[:, 0, 4, 6] += 200
    (hot,) = findings(frames)
    assert "[4, 5], [4, 6]" in str(hot)
    frames[:, 0, 4, :] += 200  # a bright line is no fault
    assert list(findings(frames)) == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_clean_file_on_disk_has_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", FRAMES)
    main([str(tmp_path / "x.npy"), "dataset.in_memory=false"])
    out = capsys.readouterr().out
    assert "finding:" not in out and "dataset.in_memory=false" in out
    write(
        tmp_path / "x.csv", "," + table([[k, *row] for k, row in enumerate(MATRIX)], "a,b,c,d,e,f")
    )
    main([str(tmp_path / "x.csv")])
    assert "note:    the column without a name is left out" in capsys.readouterr().out


ODD_NAMES = (
    "a=b",
    "a b",
    "ä[1]",
    "x,y",
    "{z}",
    "it's",
    'q"t',
    "$HOME ${x}",
    "a\\b",
    "(1)",
    "#1",
    "~t",
    "null",
    "a\nb",
)


def test_the_printed_command_is_accepted_for_any_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell splits what is printed, and Hydra reads the words."""
    from hydra import compose, initialize_config_dir

    from blackout.files import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        for name in ODD_NAMES:
            folder = tmp_path / name
            folder.mkdir()
            column = name.removeprefix("#")
            head = ",".join([f'"{column}"'.replace('q"t', 'q""t'), *NAMES])
            write(folder / "x.csv", table([[k, *row] for k, row in enumerate(MATRIX)], head))
            with pytest.raises(SystemExit):  # with a finding, the column of numbers
                main([str(folder / "x.csv")])
            (line,) = [
                line
                for line in capsys.readouterr().out.splitlines()
                if line.startswith("command: ")
            ]
            script = f"printf '%s\\0' {line.removeprefix('command: ')}"
            words = subprocess.run(
                ["bash", "-c", script], capture_output=True, check=True
            ).stdout.decode()
            settings = words.split("\0")[2:-1]
            config = compose("train", settings)
            assert config.dataset.path == str(folder / "x.csv")
            assert list(map(str, config.dataset.exclude)) == [column]
            main([str(folder / "x.csv"), *settings[2:]])
            assert "finding:" not in capsys.readouterr().out


@pytest.mark.deep
def test_the_printed_command_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a=b [ä], it's" / "x y.npy"
    path.parent.mkdir()
    np.save(path, MATRIX)
    main([str(path)])
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("command: ")
    ]
    command = line.removeprefix("command: ").replace("python", shlex.quote(sys.executable), 1)
    command = f"{command} debug=fast runs_dir={shlex.quote(str(tmp_path / 'runs'))} run_id=a"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
