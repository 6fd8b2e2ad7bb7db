"""Counts and labels in memory, as `from_data` takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import blackout
from blackout import from_data
from blackout.data import CountData
from blackout.errors import UserError

MATRIX = np.random.default_rng(0).poisson(5.0, (60, 6))
KINDS = np.array(["x", "y", "z"] * 20)


def check(data: Any, labels: Any = None) -> CountData:
    """Counts of the data are those of the matrix."""
    data_set = CountData.from_array(data, labels)
    rows = torch.cat([data_set.train, data_set.val, data_set.test]).tolist()
    assert sorted(rows) == sorted(MATRIX.tolist())
    return data_set


def test_arrays_of_any_library_are_the_same_counts() -> None:
    for data in (
        MATRIX,
        MATRIX.tolist(),
        torch.from_numpy(MATRIX),
        scipy.sparse.csr_matrix(MATRIX),
    ):
        check(data)
    check(torch.from_numpy(MATRIX).double().requires_grad_())
    check(np.ma.masked_greater(MATRIX, 99))
    with pytest.raises(ValueError, match="masked entries are missing"):
        check(np.ma.masked_greater(MATRIX, 9))


def test_labels_are_texts_or_numbers() -> None:
    named = check(MATRIX, KINDS)
    assert named.class_names == ("x", "y", "z")
    assert check(MATRIX, KINDS.astype(object)).class_names == ("x", "y", "z")
    assert check(MATRIX, torch.arange(60) % 3).num_classes == 3
    assert check(MATRIX, KINDS == "x").num_classes == 2
    for labels, word in (
        (KINDS[:5], r"labels must be one per sample, \[60\], not \[5\]"),
        ([None, "x", "y"] * 20, "missing entries: 20 of 60"),
        (np.arange(60) / 2, "labels must be whole numbers or texts"),
        ("kind", "there is no column 'kind'"),
    ):
        with pytest.raises(ValueError, match=word):
            check(MATRIX, labels)


def test_tables_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(MATRIX, columns=list("abcdef"))
    assert check(table).features == tuple("abcdef")
    check(table.astype("Int64"))
    labelled = check(table.assign(kind=KINDS), "kind")
    assert labelled.class_names == ("x", "y", "z") and labelled.features == tuple("abcdef")
    check(table, pandas.Categorical(KINDS, categories=["z", "y", "x", "unused"]))
    with pytest.raises(ValueError, match="column 'kind' is no number: labels='kind', or drop it"):
        check(table.assign(kind=KINDS))
    with pytest.raises(ValueError, match="two columns have the name"):
        check(pandas.concat([table, table], axis=1))


def test_anndata_brings_names_and_columns() -> None:
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    cells = pandas.DataFrame({"kind": KINDS}, index=[f"c{k}" for k in range(60)])
    sparse = scipy.sparse.csr_matrix(MATRIX.astype(np.float32))
    annotated = anndata.AnnData(sparse, obs=cells, var=pandas.DataFrame(index=list("abcdef")))
    data = check(annotated, "kind")
    assert (
        data.class_names == ("x", "y", "z")
        and data.features == tuple("abcdef")
        and data.from_anndata
    )
    with pytest.raises(ValueError, match="no column 'nonsense', found 'kind'"):
        check(annotated, "nonsense")


def test_axes_of_xarray_have_names() -> None:
    xarray = pytest.importorskip("xarray")
    check(xarray.DataArray(MATRIX.T, dims=("gene", "cell")))
    frames = np.random.default_rng(0).poisson(5.0, (8, 9, 30))
    data_set = CountData.from_array(xarray.DataArray(frames, dims=("y", "x", "time")))
    assert data_set.shape == (1, 8, 9)
    with pytest.raises(ValueError, match="a Dataset has several arrays: give one of 'counts'"):
        check(xarray.Dataset({"counts": (("cell", "gene"), MATRIX)}))


def test_a_model_of_labelled_data_is_conditional() -> None:
    model = from_data(MATRIX, labels=KINDS, batch_size=8).model
    assert model.source().class_names == ("x", "y", "z")
    assert model.config["data"]["num_classes"] == 3
    for settings, word in (
        ({"family": "energy"}, "labels are for family=blackout"),
        ({"labels": KINDS[:3]}, "labels must be one per sample"),
    ):
        with pytest.raises(UserError, match=word):
            from_data(MATRIX, **{"labels": KINDS, **settings})


def test_only_public_names_are_listed() -> None:
    assert dir(blackout) == ["BlackoutDiffusion", "__version__", "from_data", "load_model"]
