"""What Linux has and macOS may lack is not needed: here it is hidden, on Linux.

This is no test on macOS, where nothing has been tried.
"""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from blackout.data.on_disk import FileArray
from blackout.preemption import HANDLED_SIGNALS
from blackout.safe_reading import available_memory, limit_memory
from tests.cli.conftest import TINY

LINUX_FOLDERS = ("/proc", "/sys")


@pytest.fixture
def like_macos(monkeypatch):
    """Hide the files of the Linux kernel and the functions that other systems lack."""
    read_text = Path.read_text
    exists = Path.exists

    def read_other_text(path, *args, **kwargs):
        if str(path).startswith(LINUX_FOLDERS):
            raise FileNotFoundError(path)
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_other_text)
    monkeypatch.setattr(
        Path, "exists", lambda path: not str(path).startswith(LINUX_FOLDERS) and exists(path)
    )
    for name in (
        "preadv",
        "sched_getaffinity",
        "posix_fallocate",
        "copy_file_range",
        "memfd_create",
    ):
        monkeypatch.delattr(os, name, raising=False)


def test_memory_without_proc(like_macos):
    assert available_memory() > 1 << 20
    with limit_memory(1 << 20):  # no limit, as the size of the process is not known
        assert len(bytearray(1 << 24)) == 1 << 24


def test_arrays_on_disk_without_preadv(like_macos, tmp_path):
    assert not hasattr(os, "preadv")
    rows = np.arange(60, dtype=np.int32).reshape(20, 3)
    (tmp_path / "rows").write_bytes(b"head" + rows.tobytes())
    array = FileArray(tmp_path / "rows", np.int32, rows.shape, offset=4)
    np.testing.assert_array_equal(array[2:9], rows[2:9])


def test_large_reads_are_divided(monkeypatch, tmp_path):
    monkeypatch.setattr("blackout.data.on_disk.MAX_READ_BYTES", 7)
    rows = np.arange(60, dtype=np.int32).reshape(20, 3)
    (tmp_path / "rows").write_bytes(rows.tobytes())
    np.testing.assert_array_equal(FileArray(tmp_path / "rows", np.int32, rows.shape)[0:20], rows)


def test_handled_signals_are_those_of_posix():
    assert {signal.Signals(number).name for number in HANDLED_SIGNALS} <= {
        "SIGTERM",
        "SIGHUP",
        "SIGUSR1",
        "SIGUSR2",
        "SIGINT",
    }


def test_train_and_sample(like_macos, run, tmp_path):
    trained = run("train", *TINY, "trainer.max_steps=2", f"runs_dir={tmp_path}", "run_id=a")
    assert trained.code == 0, trained.err
    outcome = run("sample", f"ckpt={tmp_path}/digits/a", "num_samples=2")
    assert outcome.code == 0, outcome.err
    assert (outcome.folder / "samples.npz").exists()
