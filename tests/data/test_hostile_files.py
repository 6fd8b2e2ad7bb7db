"""Files that would take memory or time, or execute code: each is refused soon, in one line.

A case is a function that makes a file in a folder and returns a function that reads it. Cases of a
library that is not installed are skipped; checks before a library opens a file need no library.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blackout.cli.pages import load_picture
from blackout.data.formats import sparse_matrix
from blackout.errors import UserError
from blackout.safe_reading import available_memory, limit_memory
from tests.data.hostile_files import arrays, runs, scientific, tables_and_images, zarr_stores
from tests.data.hostile_files.writing import Read

CASES = {
    **arrays.CASES,
    **tables_and_images.CASES,
    **zarr_stores.CASES,
    **scientific.CASES,
    **runs.CASES,
}
MAX_SECONDS = 5.0  # of CPU time for a refusal
MAX_BYTES = 1 << 30  # of memory for a refusal


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the folder where a trap would act, with the memory that a refusal may take."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    assert not (tmp_path / "owned").exists()


def refused(read: Read) -> str:
    start = time.process_time()
    with limit_memory(MAX_BYTES), pytest.raises((UserError, ValueError)) as error:
        read()
    assert isinstance(error.value, UserError) or type(error.value) is ValueError
    assert time.process_time() - start < MAX_SECONDS
    message = str(error.value)
    assert message and "\n" not in message and len(message) < 2000, message
    return message


def test_the_memory_limit_works() -> None:
    before = available_memory()
    with limit_memory(1 << 25), pytest.raises(MemoryError):
        np.empty(1 << 31, dtype=np.uint8)  # more than a long session has freed
    assert before > 0 and np.empty(1 << 27, dtype=np.uint8).size


def test_entries_in_one_place_are_added_without_loss() -> None:
    data = np.array([200, 100], dtype=np.uint8)
    zero = np.zeros(2, dtype=np.int32)
    for matrix in (
        sparse_matrix("csr", (1, 1), {"data": data, "indices": zero, "indptr": np.array([0, 2])}),
        sparse_matrix("csc", (1, 1), {"data": data, "indices": zero, "indptr": np.array([0, 2])}),
        sparse_matrix("coo", (1, 1), {"data": data, "row": zero, "col": zero}),
    ):
        assert matrix.toarray().tolist() == [[300]]


def test_shapes_of_few_bits_are_no_smaller() -> None:
    parts = {"data": np.ones(255), "indices": np.zeros(255, np.int32), "indptr": np.arange(256)}
    assert sparse_matrix("csr", np.array([255, 1], np.uint8), parts).sum() == 255


def test_there_are_many_cases() -> None:
    assert len(CASES) > 300


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    refused(CASES[name](tmp_path))


def test_pictures_of_a_run_that_are_pipes_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "final.png")
    assert load_picture(tmp_path / "final.png", "x", tmp_path) is None
    (tmp_path / "b").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    (tmp_path / "b" / "x.png").symlink_to(tmp_path / "x.png")
    assert load_picture(tmp_path / "b" / "x.png", "x", tmp_path / "b") is None
    assert load_picture(tmp_path / "x.png", "x", tmp_path) is not None
