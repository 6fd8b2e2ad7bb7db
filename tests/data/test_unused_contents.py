"""Settings and arrays that a file does not use are refused or named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blackout.data import counts
from tests.data.file_checks import (
    MATRIX,
    check,
    refused,
    table,
    write,
)


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


def test_settings_without_an_effect_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", table(head="a,b,c,d,e,f"))
    for settings, word in (
        ({"layer": "nonsense"}, "this file has no layers"),
        ({"letters": "AC"}, "dataset.letters=AC is not used"),
        ({"bins": 3}, "dataset.bins=3 is not used"),
        ({"series": True}, "series is for three axes"),
        ({"tile": 2}, "dataset.tile are for arrays"),
        ({"axes": "NE"}, "dataset.tile are for arrays"),
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
        tmp_path / "x.npz",
        "there is no array dataset.layer=nonsense, only 'counts', 'kind'",
        layer="nonsense",
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
    np.savez(
        tmp_path / "x.npz",
        showers=MATRIX,
        incident_energies=np.random.default_rng(2).random((60, 1)),
    )
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
