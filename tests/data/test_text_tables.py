"""Text and Parquet tables: headers, indices, ambiguous numbers and missing values."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackout.data import counts
from tests.data.file_checks import (
    MATRIX,
    NAMES,
    check,
    messages,
    refused,
    table,
    write,
)


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
        (table() + "inf,1,2,3,4,5\n", "not inf"),
        (table() + '1,"3,4,5,6,7\n', "unexpected end of data"),
        (",b\n" + table(MATRIX[:, :2]), "repeats values, so that it is no index"),
    ],
)
def test_ambiguous_numbers_are_refused(tmp_path: Path, text: str, word: str) -> None:
    refused(write(tmp_path / "x.csv", text), word)
    refused(tmp_path / "x.csv", word, mask="finite")


def test_words_for_missing_values_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "NA,3,4,5,6,7\n" + table() + "1,NaN,<NA>,4,NULL,6\n")
    refused(path, "not nan at index [0, 0]; dataset.mask=finite")
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
    with messages() as collected:
        counts(path, exclude=["words", "day"])
    assert collected == {"note": [], "finding": []}
    frame.assign(kind=["x", None, "y"] * 20).to_parquet(path)
    refused(path, "column 'kind' has missing entries", labels="kind")
