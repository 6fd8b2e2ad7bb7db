"""Counts in the formats of the sciences; what needs a library that is not installed is skipped."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from blackout.data import counts
from blackout.data.formats import read_file
from blackout.errors import UserError

GENERATOR = np.random.default_rng(0)
MATRIX = GENERATOR.poisson(GENERATOR.gamma(0.3, 3.0, (60, 5)))
TYPES = np.array(["T cell", "B cell", "NK"])[np.arange(60) % 3]
DOSES = np.repeat([0.5, 1.25, 7.5, 9.75], 15)


def sorted_rows(data: Any) -> list[tuple[int, ...]]:
    return sorted(map(tuple, torch.cat([data.train, data.val, data.test]).tolist()))


def write_table(path: Path, separator: str = ",", head: bool = True) -> Path:
    rows = [["type", "dose", *(f"gene {k}" for k in range(5))]] if head else []
    rows += [
        [kind, str(dose), *map(str, row)]
        for kind, dose, row in zip(TYPES, DOSES, MATRIX.tolist(), strict=True)
    ]
    path.write_text("\n".join(separator.join(row) for row in rows) + "\n")
    return path


@pytest.fixture(autouse=True)
def _all_text_is_written() -> Iterator[None]:
    """Text of pandas 3 too, which anndata refuses unless it is told otherwise."""
    settings = (
        importlib.import_module("anndata").settings if importlib.util.find_spec("anndata") else None
    )
    has_setting = hasattr(settings, "allow_write_nullable_strings")
    with (
        settings.override(allow_write_nullable_strings=True)
        if has_setting
        else contextlib.nullcontext()
    ):
        yield


def write_anndata(path: Path) -> None:
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    pandas = pytest.importorskip("pandas")
    observed = pandas.DataFrame(
        {"type": TYPES, "dose": DOSES}, index=[f"cell {k}" for k in range(60)]
    )
    named = pandas.DataFrame(index=[f"gene {k}" for k in range(5)])
    sparse = scipy.sparse.csr_matrix(MATRIX.astype(np.float32))
    annotated = anndata.AnnData(
        np.log1p(MATRIX), obs=observed, var=named, layers={"counts": sparse}
    )
    annotated.write_h5ad(path) if path.suffix == ".h5ad" else annotated.write_zarr(path)


def write(path: Path) -> dict[str, Any]:
    """Write the matrix in the format of the suffix, and return the arguments of `counts` for it."""
    kind = path.suffix
    if kind in (".csv", ".tsv"):
        write_table(path, "," if kind == ".csv" else "\t")
        return {"labels": "type", "group": "dose"}
    if kind == ".npz":
        scipy.sparse.save_npz(path, scipy.sparse.csc_matrix(MATRIX.astype(np.float64)))
    elif kind == ".parquet":
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        pandas.DataFrame(MATRIX, columns=[f"gene {k}" for k in range(5)]).assign(
            type=TYPES
        ).to_parquet(path)
    elif kind == ".h5ad":
        write_anndata(path)
        return {"layer": "counts", "labels": ["type", "dose"]}
    elif kind == ".zarr":
        pytest.importorskip("zarr", reason="zarr is not installed").save(str(path), MATRIX)
    elif kind == ".h5":
        h5py = pytest.importorskip("h5py", reason="h5py is not installed")
        with h5py.File(path, "w") as file:
            file["run/photons"] = MATRIX
            file["type"] = TYPES.astype("S8")
        return {"layer": "run/photons", "labels": "type"}
    elif kind == ".tif":
        tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
        frames = MATRIX.reshape(60, 1, 5).astype(np.uint16)
        tifffile.imwrite(path, frames, metadata={"axes": "TYX"})
    return {}


@pytest.mark.parametrize("kind", ["npz", "csv", "tsv", "parquet", "h5ad", "zarr", "h5", "tif"])
def test_every_format_gives_the_same_counts(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    data = counts(path, **write(path))
    rows = torch.cat([data.train, data.val, data.test]).flatten(1)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, MATRIX.tolist()))
    if kind == "h5ad":
        assert data.features == tuple(f"gene {k}" for k in range(5))


@pytest.mark.parametrize(
    ("kind", "library"), [("parquet", "pyarrow.parquet"), ("h5ad", "h5py"), ("tif", "tifffile")]
)
def test_a_library_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, library: str
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    (tmp_path / f"x.{kind}").write_bytes(b"")
    with pytest.raises(UserError, match=rf"read by {library}, which is not installed: pip install"):
        read_file(tmp_path / f"x.{kind}")


def test_a_layer_of_anndata_is_a_mask(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    is_observed = np.random.default_rng(1).random(MATRIX.shape) > 0.2
    anndata.AnnData(MATRIX, layers={"seen": scipy.sparse.csr_matrix(is_observed)}).write_h5ad(
        tmp_path / "x.h5ad"
    )
    data = counts(tmp_path / "x.h5ad", mask="seen")
    assert data.train_observed is not None and data.test_observed is not None
    assert data.val_observed is not None
    assert int(
        data.train_observed.sum() + data.val_observed.sum() + data.test_observed.sum()
    ) == int(is_observed.sum())


def test_damaged_rows_on_disk_are_one_line(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("counts", data=MATRIX, chunks=(20, 5), compression="gzip")
        chunk = dataset.id.get_chunk_info(1)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)
    with pytest.raises(UserError, match="rows from 0 on cannot be read") as error:
        counts(path)
    assert "\n" not in str(error.value)


def test_a_sparse_matrix_stays_small(tmp_path: Path) -> None:
    scipy.sparse.save_npz(
        tmp_path / "s.npz", scipy.sparse.random(9000, 30, 0.1, "csr", random_state=0, dtype=bool)
    )
    data = counts(tmp_path / "s.npz")
    assert data.train.dtype == torch.uint8 and (data.max_count, len(data.train)) == (1, 7200)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": "kind", "group": "dose"}, "no column 'kind', found 'total', 'type', 'dose'"),
        ({"labels": "dose", "group": "donor"}, "no column 'donor'"),
        ({"labels": "dose", "holdout": 2.0}, "fraction between 0 and 1"),
        ({"labels": "type"}, "'dose' holds numbers that are not whole"),
        ({"labels": ["type", "dose"], "bins": 0}, "bins must be at least 1"),
    ],
)
def test_missing_columns_are_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        counts(write_table(tmp_path / "x.csv"), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", "every row needs as many fields as the first"),
        ("", "the table is empty"),
        ("a,a\n1,2\n3,4\n", "two columns have the name 'a'"),
        ("a,b\n1,\n3,4\n", "whole numbers, not nan"),
        ("a,b\n1,.5\n3,.25\n", "these look log-transformed"),
        ("a,b\nx,y\nz,w\n", "no column of numbers"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        counts(tmp_path / "x.csv")


def test_a_folder_of_frames_is_their_stack(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nor a folder of"):
        read_file(tmp_path)
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    frames = 300 * MATRIX.reshape(20, 5, 3)
    for k, frame in enumerate(frames):
        tifffile.imwrite(tmp_path / f"{k:02d}.tif", frame.astype(np.uint16))
    assert np.array_equal(read_file(tmp_path).arrays["counts"], frames)
    tifffile.imwrite(tmp_path / "99.tiff", frames[0, :3].astype(np.uint16))
    with pytest.raises(UserError, match=r"99\.tiff: the shape is \[3, 3\], that of 00\.tif is"):
        counts(tmp_path)


def test_labels_are_names_numbers_and_both(tmp_path: Path) -> None:
    path = write_table(tmp_path / "x.csv")
    data = counts(path, labels=["type", "dose"], bins=2)
    assert data.num_classes == 6 and data.class_names[0] == "B cell, dose 0.5..1.25"
    totals = counts(path, labels="total", group="dose", bins=3)
    assert totals.class_names[0].startswith("total 0..") and totals.train_labels is not None
    data = counts(path, labels="dose", covariates=["type", "total"], bins=2)
    assert (
        data.covariates["type"] == ("B cell", "NK", "T cell")
        and data.class_names[0] == "dose 0.5..1.25"
    )
    means = torch.stack(
        [totals.train[totals.train_labels == k].float().sum(1).mean() for k in range(3)]
    )
    assert bool((means.diff() > 0).all())


def test_labels_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", MATRIX)
    (tmp_path / "types.txt").write_text("\n".join(TYPES) + "\n")
    data = counts(tmp_path / "x.npy", labels=str(tmp_path / "types.txt"))
    assert data.class_names == ("B cell", "NK", "T cell")
    (tmp_path / "types.txt").write_text("one\n")
    with pytest.raises(UserError, match=r"must have one value per sample, \[60\], not \[1\]"):
        counts(tmp_path / "x.npy", labels=str(tmp_path / "types.txt"))


def test_no_group_is_in_two_splits(tmp_path: Path) -> None:
    donors = np.arange(60) // 6
    np.savez(
        tmp_path / "x.npz", counts=np.concatenate([MATRIX, donors[:, None]], axis=1), donor=donors
    )
    data = counts(tmp_path / "x.npz", group="donor", holdout=0.3)
    train, val, test = (set(part[:, -1].tolist()) for part in (data.train, data.val, data.test))
    assert (len(train), len(val), len(test)) == (6, 1, 3) and len(train | val | test) == 10


def test_constant_and_equal_features_are_findings(tmp_path: Path) -> None:
    odd = np.column_stack([MATRIX, MATRIX[:, 0], np.full(60, 3)])
    np.save(tmp_path / "x.npy", odd)
    with pytest.warns(UserWarning, match=r"constant: 6: dataset\.exclude=\[6\]") as warned:
        counts(tmp_path / "x.npy")
    assert any("equal to another: 5" in str(warning.message) for warning in warned)


def test_settings_that_an_error_advises_work(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,c,dose\n" + "1,2,4,.5\n3,4,0,.25\n" * 6)
    with pytest.raises(
        UserError, match=r"'dose' holds .* not whole: dataset\.covariates=dose conditions"
    ):
        counts(tmp_path / "x.csv")
    assert counts(tmp_path / "x.csv", covariates="dose").shape == (3,)
    assert counts(tmp_path / "x.csv", exclude=["dose"]).features == ("a", "b", "c")
    assert counts(tmp_path / "x.csv", columns=["c", "a"]).features == ("c", "a")
    np.savez(tmp_path / "x.npz", counts=MATRIX, labels=np.array(["a", "b"] * 30, dtype=object))
    with pytest.raises(UserError, match=r"text by array\.astype\(str\)"):
        counts(tmp_path / "x.npz")
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    anndata.AnnData(np.log1p(MATRIX), layers={"counts": MATRIX}).write_h5ad(tmp_path / "x.h5ad")
    with pytest.raises(UserError, match=r"give the raw counts, or dataset\.layer=counts"):
        counts(tmp_path / "x.h5ad")


def test_layers_of_anndata_named_like_splits_are_no_split(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    layers = {"train": MATRIX + 1, "test": MATRIX + 2}
    anndata.AnnData(MATRIX, layers=layers).write_h5ad(tmp_path / "x.h5ad")
    data = counts(tmp_path / "x.h5ad")
    assert int(data.train.sum() + data.val.sum() + data.test.sum()) == int(MATRIX.sum())
    with pytest.raises(UserError, match="one value per sample"):
        counts(tmp_path / "x.h5ad", group="train")


def test_an_empty_dataset_of_hdf5_does_no_harm(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["counts"] = MATRIX
        file["note"] = h5py.Empty("f4")
    assert counts(tmp_path / "x.h5").shape == (MATRIX.shape[1],)
