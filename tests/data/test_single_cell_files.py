"""AnnData, Cell Ranger's files, compression by plugins, and formats that are not read."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from tests.data.file_checks import (
    MATRIX,
    NAMES,
    check,
    refused,
    write,
)


def test_raw_of_anndata_is_a_layer_and_names_must_be_unique(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "x.h5ad"
    genes = pandas.DataFrame(index=[f"g{k}" for k in range(6)])
    cells = pandas.DataFrame(
        {"kind": pandas.Categorical(["x", None, "y"] * 20)}, index=[f"c{k}" for k in range(60)]
    )
    with pandas.option_context("future.infer_string", False):
        annotated = anndata.AnnData(np.log1p(MATRIX[:, :4]), obs=cells, var=genes[:4])
        annotated.raw = anndata.AnnData(
            scipy.sparse.csr_matrix(MATRIX.astype(np.float32)), var=genes, obs=cells
        )
        annotated.write_h5ad(path)
        refused(path, "dataset.layer=raw")
        for layer in ("raw", "raw/X"):
            assert check(path, MATRIX, "kind", layer=layer).features == tuple(genes.index)
        refused(path, "no dataset.layer=nonsense, only 'raw'", layer="nonsense")
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
    refused(tmp_path, "has matrix.mtx, matrix.mtx.gz: remove all but one")


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


def test_compression_by_a_plugin_is_read_or_named(
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
def test_an_unsupported_format_names_a_way_to_convert_it(tmp_path: Path, suffix: str) -> None:
    refused(
        write(tmp_path / f"x.{suffix}", "x"),
        "unpack it" if suffix == "csv.xz" else "files are not read; ",
    )
