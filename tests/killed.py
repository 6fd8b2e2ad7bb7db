"""Runs that are killed after a checkpoint and resumed must equal uninterrupted runs."""

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


def killed_and_continued(
    run: Callable[..., Any], settings: Sequence[object], directory: Path
) -> Path:
    """Train a run without interruption, and one that is killed and resumed, and compare them.

    Args:
        run: the fixture.
        settings: of `train.py`, without run_id.
        directory: parent of the two runs, `whole` and `cut`.

    Returns:
        The uninterrupted run's directory.
    """
    uninterrupted = run("train", *settings, "run_id=whole")
    assert uninterrupted.code == 0, uninterrupted.err
    kill([*settings, "run_id=cut"], directory / "cut")
    resumed = run("train", *settings, "run_id=cut")
    assert resumed.code == 0, resumed.err
    assert_same(directory / "cut", directory / "whole")
    return directory / "whole"


def assert_same(cut: Path, uninterrupted: Path, ended_at: int | None = None) -> None:
    """Assert that both runs have the same results.

    Args:
        cut: the run in parts.
        uninterrupted: the run in one piece.
        ended_at: step at which the run in parts had ended before. Only that run has validation and
            test scores at this step.
    """
    cut_outcome = outcome(cut)
    whole_outcome = outcome(uninterrupted)
    for row in cut_outcome["metrics"]:
        if row["step"] == str(ended_at):
            for name in [name for name in row if name.startswith(("val/", "test/"))]:
                del row[name]
    different = [
        name
        for name in sorted(cut_outcome.keys() | whole_outcome.keys())
        if cut_outcome.get(name) != whole_outcome.get(name)
    ]
    if "metrics" in different:
        different += [
            pair
            for pair in zip(cut_outcome["metrics"], whole_outcome["metrics"], strict=False)
            if pair[0] != pair[1]
        ]
    assert not different, different


def kill(settings: Sequence[object], directory: Path, seconds: float = 120) -> None:
    """Start or continue a run in a separate process, and kill it at its next checkpoint.

    The run may end before.
    """
    checkpoint = directory / "checkpoints/last.ckpt"
    previous_time = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
    process = processes.Process("train", settings)
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if checkpoint.exists() and checkpoint.stat().st_mtime_ns != previous_time:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def outcome(directory: Path) -> dict[str, Any]:
    """Return the weights, averages, buffers, exported model, final samples, and metrics without
    timings."""
    checkpoint = torch.load(directory / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    files = ("model/model.safetensors", "samples/final.npz")
    return {
        **{name: value.numpy().tobytes() for name, value in checkpoint.items()},
        **{file: hashlib.sha256((directory / file).read_bytes()).hexdigest() for file in files},
        "metrics": [timeless(row) for row in csv.DictReader((directory / "metrics.csv").open())],
    }
