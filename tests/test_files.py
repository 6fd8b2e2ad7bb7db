"""Atomic writing of files, JSON without infinities, and errors that name the file."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blackout.files import replacing, save_tensors, write_json
from blackout.safe_reading import file_error


@pytest.mark.parametrize("durably", [False, True])
def test_files_are_written_completely_or_not_at_all(tmp_path: Path, durably: bool) -> None:
    path = tmp_path / "new" / "file.txt"
    with replacing(path, durably) as part:
        part.write_text("one")
        assert not path.exists()

    def interrupted() -> None:
        with replacing(path, durably) as part:
            part.write_text("tw")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "one" and list(path.parent.iterdir()) == [path]


def test_writers_of_the_same_file_do_not_interfere(tmp_path: Path) -> None:
    path = tmp_path / "cache.npz"
    with replacing(path, durably=True) as first, replacing(path, durably=True) as second:
        assert first != second and first.suffix == second.suffix == ".npz"
        first.write_text("one")
        second.write_text("other")
    assert path.read_text() == "one"


def test_json_has_no_infinity(tmp_path: Path) -> None:
    write_json({"a": [1.5, math.nan], "b": (math.inf, "text")}, tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [1.5, None], "b": [None, "text"]}


def test_failed_writes_of_tensors_raise_os_errors(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError) as error:
        save_tensors({"x": torch.zeros(2)}, tmp_path / "folder")
    assert error.value.errno == errno.EISDIR
    save_tensors({"x": torch.arange(3)}, tmp_path / "file", {"accuracy": "1"})
    assert load_file(tmp_path / "file")["x"].tolist() == [0, 1, 2]


def test_errors_name_the_file_and_not_its_descriptor() -> None:
    cause = ValueError("cannot identify image file <_io.BufferedReader name=3>")
    assert (
        str(file_error(Path("a/b.png"), "no image", cause))
        == "a/b.png: no image (cannot identify image file b.png)"
    )


def test_tensor_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    save_tensors({"x": torch.zeros(2)}, tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "a").stat().st_mode
