"""The parts of `python -m benchmarks.gpu` by name, and the process that runs one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import gpu_numbers, gpu_runs, gpu_speed
from benchmarks.gpu_report import ROOT, DeviceLost, Report, Setup

DEVICE_LOST = 3  # exit code of a part whose device answers no more
RUNS: Mapping[str, Callable[[Setup, Report], None]] = {
    "environment": gpu_numbers.environment,
    "draws": gpu_numbers.draws,
    "parity": gpu_numbers.parity,
    "training": gpu_runs.training,
    "closing": gpu_runs.closing,
    "scores_in_a_group": gpu_runs.scores_in_a_group,
    "sampling": gpu_speed.sampling,
    "resuming": gpu_runs.resuming,
    "scores": gpu_speed.scores,
    "evaluation": gpu_runs.evaluation,
    "profile": gpu_speed.profile,
    "two_devices": gpu_runs.two_devices,
}


def work(name: str, machine: Any, done: set[str], sender: Connection) -> None:
    """Run one part in this process, which becomes the leader of a session."""
    os.setsid()
    sys.path.insert(0, str(ROOT))  # for `train.py`, which names parts of benchmarks
    try:
        setup = Setup(machine.device, machine.quick, machine.folder)
        RUNS[name](setup, Report(sender, done))
    except DeviceLost:
        os._exit(DEVICE_LOST)
