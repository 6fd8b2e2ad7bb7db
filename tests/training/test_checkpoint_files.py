"""A checkpoint is whole or not there, whatever happens while it is written."""

import contextlib
import errno
import os
import pickle
import zipfile
from types import SimpleNamespace

import pytest
import torch

from blackout.errors import UserError
from blackout.files import remove_parts
from blackout.training import checkpoint_files
from blackout.training.checkpoint_files import (
    check_fits,
    find_checkpoint,
    first_difference,
    read_checkpoint,
    rename_damaged_checkpoint,
    write_checkpoint,
)
from tests import processes


def content(step):
    return {
        "state_dict": {"w": torch.full((300,), float(step))},
        "blackout": {},
        "global_step": step,
    }


def step_of(path):
    checkpoint = read_checkpoint(path)
    assert (checkpoint["state_dict"]["w"] == checkpoint["global_step"]).all()
    return checkpoint["global_step"]


@pytest.fixture
def last(tmp_path):
    """A directory in which two checkpoints were saved."""
    for step in (1, 2):
        write_checkpoint(content(step), tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


def test_the_previous_checkpoint_is_kept_and_both_have_a_hash(last):
    assert step_of(last) == 2 and step_of(last.with_name("previous.ckpt")) == 1
    assert sorted(path.name for path in last.parent.iterdir()) == ["last.ckpt", "previous.ckpt"]
    for path in (last, last.with_name("previous.ckpt")):
        with zipfile.ZipFile(path) as archive:  # still an archive to everybody
            assert archive.testzip() is None and len(archive.comment) == 80
    content_bytes = last.read_bytes()
    for position in range(0, len(content_bytes), 97):
        flipped = bytearray(content_bytes)
        flipped[position] ^= 16
        last.write_bytes(flipped)
        with pytest.raises(UserError, match=r"last\.ckpt (is damaged|cannot be read)"):
            read_checkpoint(last)


@pytest.mark.deep
def test_a_reader_finds_a_complete_checkpoint_while_a_run_saves(tmp_path):
    write_checkpoint(content(0), tmp_path / "last.ckpt")
    code = f"""
import torch
from pathlib import Path
from blackout.training.checkpoint_files import write_checkpoint
for step in range(1, 60):
    weights = {{"w": torch.full((300,), float(step))}}
    content = {{"state_dict": weights, "blackout": {{}}, "global_step": step}}
    write_checkpoint(content, Path({str(tmp_path / "last.ckpt")!r}))
"""
    steps = []
    writer = processes.Process("-c", [code])
    while writer.poll() is None:
        steps.append(step_of(find_checkpoint(tmp_path)))
    assert writer.returncode == 0 and steps == sorted(steps) and len(set(steps)) > 5
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", "previous.ckpt"}


class Killed(BaseException):
    """Stands for a SIGKILL: nothing after it runs."""


CALLS = ("replace", "fsync", "unlink", "link")


def count_calls(monkeypatch, fatal=None, writes=True):
    """Count the calls that change the disk; the fatal one and all after it do nothing."""
    calls = []

    def watch(function):
        def watched(*args, **kwargs):
            if fatal is not None and len(calls) >= fatal:
                raise Killed
            calls.append(function)
            return function(*args, **kwargs)

        return watched

    for name in CALLS:
        monkeypatch.setattr(os, name, watch(getattr(os, name)))
    if writes:
        monkeypatch.setattr(
            checkpoint_files._HashingFile, "write", watch(checkpoint_files._HashingFile.write)
        )
    return calls


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_kill_between_two_disk_operations_leaves_a_checkpoint(tmp_path, monkeypatch, name):
    for step in (1, 2):
        write_checkpoint(content(step), tmp_path / name)
    with monkeypatch.context() as patch:
        total = len(count_calls(patch))
        calls = count_calls(patch)
        write_checkpoint(content(3), tmp_path / name)
        total = len(calls)
    assert total > 5
    for fatal in range(total):
        directory = tmp_path / str(fatal)
        for step in (1, 2):
            write_checkpoint(content(step), directory / name)
        with monkeypatch.context() as patch:
            count_calls(patch, fatal)
            with pytest.raises(Killed):
                write_checkpoint(content(3), directory / name)
        steps = [step_of(path) for path in directory.glob("*.ckpt")]  # none of them is damaged
        assert max(steps) >= 2
        if name == "last.ckpt":
            assert step_of(find_checkpoint(directory)) in (2, 3)
        write_checkpoint(content(4), directory / name)
        assert step_of(directory / name) == 4
        remove_parts(directory)
        assert not [path for path in directory.iterdir() if path.name.startswith(".")]


def test_two_killed_saves_leave_a_readable_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "_sync_directory", lambda path: None)
    with monkeypatch.context() as patch:
        calls = count_calls(patch, writes=False)
        write_checkpoint(content(1), tmp_path / "last.ckpt")
        write_checkpoint(content(2), tmp_path / "last.ckpt")
    for first in range(len(calls)):
        for second in range(len(calls)):
            directory = tmp_path / f"{first}-{second}"
            for step in (1, 2):
                write_checkpoint(content(step), directory / "last.ckpt")
            for step, fatal in ((3, first), (4, second)):
                with monkeypatch.context() as patch, contextlib.suppress(Killed):
                    count_calls(patch, fatal, writes=False)
                    write_checkpoint(content(step), directory / "last.ckpt")
            assert max(step_of(path) for path in directory.glob("*.ckpt")) >= 2
            write_checkpoint(content(5), directory / "last.ckpt")
            assert (
                step_of(directory / "last.ckpt") == 5 and step_of(directory / "previous.ckpt") >= 2
            )


@pytest.mark.parametrize("number", [0, 1, 5, 20])
def test_a_full_disk_leaves_the_files_unchanged(last, monkeypatch, number):
    write = checkpoint_files._HashingFile.write
    calls = []

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            calls.append(1)
            if len(calls) > number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(data)

    def full(self, data):
        if not isinstance(self._file, Full):
            self._file = Full(self._file)
        return write(self, data)

    before = {path.name: path.read_bytes() for path in last.parent.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files._HashingFile, "write", full)
        with pytest.raises(OSError, match="No space left"):
            write_checkpoint(content(3), last)
    assert {path.name: path.read_bytes() for path in last.parent.iterdir()} == before


@pytest.mark.parametrize("damage", ["cut", "one bit", "empty", "a pipe"])
def test_a_damaged_last_gives_way_to_the_previous(last, capsys, damage):
    content_bytes = last.read_bytes()
    if damage == "a pipe":
        last.unlink()
        os.mkfifo(last)
    else:
        flipped = bytearray(content_bytes)
        flipped[len(content_bytes) // 2] ^= 4
        last.write_bytes(
            {"cut": content_bytes[:-9], "one bit": bytes(flipped), "empty": b""}[damage]
        )
    with pytest.raises(UserError, match=r"last\.ckpt"):
        read_checkpoint(last)
    path = find_checkpoint(last.parent)
    assert step_of(path) == 1
    warning = capsys.readouterr().err.splitlines()
    assert (
        len(warning) == 1 and warning[0].startswith("warning: ") and "previous.ckpt" in warning[0]
    )
    assert last.exists()  # reading changes nothing
    # the run continues, and the damaged file does not replace the good one
    rename_damaged_checkpoint(last.parent)
    write_checkpoint(content(2), last)
    assert step_of(last) == 2 and step_of(path) == 1


def test_two_damaged_checkpoints_are_an_error_and_stay(last):
    for name in ("last.ckpt", "previous.ckpt"):
        last.with_name(name).write_bytes(b"half")
    with pytest.raises(UserError, match=r"last\.ckpt is damaged"):
        find_checkpoint(last.parent)
    assert last.read_bytes() == b"half"


def test_no_checkpoint_is_no_error(tmp_path):
    assert find_checkpoint(tmp_path / "nowhere") is None


class Malicious:
    def __reduce__(self):
        return (open, ("owned", "w"))


def test_nothing_is_executed_even_when_the_hash_is_right(last, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in ({"state_dict": {}, "blackout": {}, "x": Malicious()},):
        torch.save(content, last)
        with pytest.raises(UserError, match="more than tensors"):
            read_checkpoint(last)
    last.write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(UserError):
        read_checkpoint(last)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("value", [torch.ones(2), {1, 2}, b"x"])
def test_a_description_of_more_than_plain_values_is_refused(tmp_path, value):
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": {}, "blackout": {"model": {"head": value}}}, path)
    with pytest.raises(UserError, match="is not allowed; use null"):
        read_checkpoint(path)


def test_a_weight_whose_name_is_no_text_is_refused(tmp_path):
    torch.save(
        content(1) | {"state_dict": {"w": torch.ones(1), 5: torch.ones(1)}}, tmp_path / "last.ckpt"
    )
    with pytest.raises(UserError, match="5 is not the name of a weight"):
        read_checkpoint(tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    "name, shape, fits",
    [
        ("exp_avg", (3, 2), True),
        ("step", (), True),
        ("exp_avg", (7,), False),
        ("step", (3, 2), False),
    ],
)
def test_moments_of_another_shape_are_refused(tmp_path, name, shape, fits):
    model = SimpleNamespace(config={}, state_dict=lambda: {"w": torch.ones(3, 2)})
    parts = {
        "loops": {},
        "callbacks": {},
        "lr_schedulers": [],
        "blackout": {},
        "state_dict": model.state_dict(),
    }
    parts["optimizer_states"] = [
        {"state": {0: {name: torch.zeros(shape)}}, "param_groups": [{"lr": 0.1}]}
    ]
    with contextlib.nullcontext() if fits else pytest.raises(UserError, match=name):
        check_fits(parts, model, tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    ("dtype", "differs"),
    [
        (torch.float32, False),
        (torch.float64, False),
        (torch.bfloat16, False),
        (torch.int64, True),
        (torch.bool, True),
        (torch.complex64, True),
        (torch.uint8, True),
    ],
)
def test_weights_of_another_kind_of_numbers_differ(dtype, differs):
    state = {"a": torch.zeros(3), "b": torch.zeros(2)}
    assert first_difference({**state, "b": torch.zeros(2, dtype=dtype)}, state) == (
        "b" if differs else None
    )
