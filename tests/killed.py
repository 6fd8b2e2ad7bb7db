"""Runs that are killed once they have saved, and go on: what comes out must be what comes out of one piece."""

from __future__ import annotations

import csv
import hashlib
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests import processes
from tests.soak.result import timeless


def killed_and_continued(run: Callable[..., Any], settings: Sequence[object], directory: Path) -> Path:
    """Train whole, and killed and continued, and compare.

    Args:
        run: the fixture.
        settings: of `train.py`, without run_id.
        directory: where the two runs will be, under `whole` and `cut`.

    Returns:
        The undisturbed run's directory.
    """
    whole = run("train", *settings, "run_id=whole")
    assert whole.code == 0, whole.err
    kill([*settings, "run_id=cut"], directory / "cut")
    again = run("train", *settings, "run_id=cut")
    assert again.code == 0, again.err
    assert_same(directory / "cut", directory / "whole")
    return directory / "whole"


def assert_same(cut: Path, whole: Path, ended_at: int | None = None) -> None:
    """Both runs came out the same, or what did not.

    Args:
        cut: the run in parts.
        whole: the run in one piece.
        ended_at: step at which the run in parts had ended before; what it was validated and tested with there, the
            other run does not have.
    """
    one, two = outcome(cut), outcome(whole)
    for row in one["metrics"]:
        if row["step"] == str(ended_at):
            for name in [name for name in row if name.startswith(("val/", "test/"))]:
                del row[name]
    different = [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
    if "metrics" in different:
        different += [pair for pair in zip(one["metrics"], two["metrics"], strict=False) if pair[0] != pair[1]]
    assert not different, different


def kill(settings: Sequence[object], directory: Path, seconds: float = 120) -> None:
    """Start or continue a run in a process of its own, and kill it at its next checkpoint; it may end before."""
    last = directory / "checkpoints/last.ckpt"
    before = last.stat().st_mtime_ns if last.exists() else None
    process, deadline = processes.Process("train", settings), time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if last.exists() and last.stat().st_mtime_ns != before:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def outcome(directory: Path) -> dict[str, Any]:
    """Weights, averages and buffers, the exported model, the closing samples, and metrics.csv without the clock."""
    checkpoint = torch.load(directory / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    files = ("model/model.safetensors", "samples/final.npz")
    return {
        **{name: value.numpy().tobytes() for name, value in checkpoint.items()},
        **{file: hashlib.sha256((directory / file).read_bytes()).hexdigest() for file in files},
        "metrics": [timeless(row) for row in csv.DictReader((directory / "metrics.csv").open())],
    }
