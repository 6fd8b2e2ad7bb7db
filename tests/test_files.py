"""Atomic writing of files, JSON without infinities, and errors that name the file."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from blackout.errors import UserError, summary
from blackout.files import (
    copy_privacy,
    creating,
    replacing,
    replacing_folder,
    save_tensors,
    write_json,
)
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


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_writers_of_a_new_file_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "new" / "file.txt"

    def write_in_turn() -> None:
        with creating(path) as first_part, creating(path) as second_part:
            first_part.write_text("one")
            second_part.write_text("other")

    with pytest.raises(UserError, match="in the meantime"):
        write_in_turn()
    assert path.read_text() == "other" and list(path.parent.iterdir()) == [path]
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="in the meantime"), creating(path) as part:
        part.write_text("three")
    assert path.is_symlink() and not path.exists() and list(path.parent.iterdir()) == [path]


def test_what_is_replaced_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json({}, path)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    path.chmod(0o600)
    write_json({"a": 1}, path)
    assert path.stat().st_mode & 0o777 == 0o600
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    with replacing_folder(folder) as part:
        (part / "a").touch()
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "a").exists()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("mode", "expected"), [(0o600, 0o700), (0o640, 0o750), (0o644, 0o755), (0o666, 0o755)]
)
def test_a_folder_made_of_a_file_is_as_private(tmp_path: Path, mode: int, expected: int) -> None:
    source, folder = tmp_path / "a", tmp_path / "b"
    source.touch()
    source.chmod(mode)
    folder.mkdir()
    folder.chmod(0o755)
    copy_privacy(source, folder)
    assert folder.stat().st_mode & 0o777 == expected


@pytest.mark.parametrize("writing", [replacing, creating])
def test_a_full_disk_is_named_by_the_file_and_what_to_do(tmp_path: Path, writing: Any) -> None:
    path = tmp_path / "file.txt"
    with pytest.raises(OSError) as raised, writing(path):
        raise OSError(errno.ENOSPC, "No space left on device")  # as of an open file
    assert (
        summary(raised.value)
        == f"{path}: No space left on device; remove files, or choose a folder on another disk"
    )

    def write_into_a_folder() -> None:
        with writing(path) as part:
            part.mkdir()
            try:
                part.write_text("a")
            finally:
                part.rmdir()

    with pytest.raises(IsADirectoryError) as named:
        write_into_a_folder()
    assert summary(named.value) == f"{path}: Is a directory"


def test_a_folder_comes_back_if_a_signal_stops_its_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, moves = tmp_path / "folder", []
    folder.mkdir()
    (folder / "old").touch()
    replace = os.replace

    def stopped(old: Path, new: Path) -> None:
        moves.append(new)
        if len(moves) == 2:
            raise KeyboardInterrupt
        replace(old, new)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt), replacing_folder(folder) as part:
        (part / "new").touch()
    assert [path.name for path in folder.iterdir()] == ["old"] and list(tmp_path.iterdir()) == [
        folder
    ]
