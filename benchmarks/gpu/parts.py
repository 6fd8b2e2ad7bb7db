"""The parts of `python -m benchmarks.gpu`, and the processes that run them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.gpu import first_run, numerics, programs, speed
from benchmarks.gpu.report import ROOT, DeviceLostError, Report, Row, Setup

MAX_STARTS = 3  # of a part that loses the GPU
DEVICE_LOST = 3  # exit code of such a part


@dataclass(frozen=True)
class Part:
    """A part and its time limits.

    Args:
        run: reports the cases of the part.
        max_seconds: after which it is stopped.
        min_seconds: below which it is not started.
    """

    run: Callable[[Setup, Report], None]
    max_seconds: float
    min_seconds: float


# In order of importance. The limits add up to more than the time for all parts; few reach theirs.
PARTS = {
    "environment": Part(numerics.check_environment, 40, 10),
    "draws": Part(numerics.check_draws, 60, 15),
    "parity": Part(numerics.check_parity, 60, 15),
    "training": Part(programs.measure_training, 170, 40),
    "closing": Part(programs.check_closing, 40, 15),
    "process_group": Part(programs.check_process_group, 20, 10),
    "sampling": Part(speed.measure_sampling, 60, 15),
    "resuming": Part(programs.check_resuming, 80, 30),
    "scores": Part(speed.measure_scores, 40, 10),
    "evaluation": Part(programs.check_evaluation, 40, 15),
    "profile": Part(speed.profile_training, 40, 15),
    "two_devices": Part(programs.check_two_devices, 60, 30),
    "first_run": Part(first_run.measure_first_run, 300, 120),
}


def run_part(name: str, setup: Setup, seconds: float) -> Iterator[Row]:
    """Run a part and yield its results; after a loss of the GPU continue with the other cases."""
    deadline = time.monotonic() + seconds
    finished: set[str] = set()
    for _ in range(MAX_STARTS):
        # 1. Start a process and receive its results.
        start = time.monotonic()
        process, receiver = _start_process(name, setup, frozenset(finished))
        try:
            for row in _receive(receiver, deadline):
                finished.add(row["case"])
                yield {"part": name, **row}
            timed_out = time.monotonic() >= deadline
        finally:
            _stop_process(process)

        # 2. Report how it ended.
        summary: Row = {"part": name, "case": "(whole part)", "passed": None}
        summary["seconds"] = round(time.monotonic() - start, 1)
        if timed_out:
            yield summary | {"note": "stopped at its time limit; cases may be missing"}
            return
        if process.exitcode == 0:
            yield summary
            return
        yield summary | {"passed": False, "note": f"exit code {process.exitcode}"}
        if process.exitcode != DEVICE_LOST:
            return


def _start_process(name: str, setup: Setup, finished: frozenset[str]) -> tuple[Any, Connection]:
    # The server imports everything once; it never uses the GPU, so that it can be forked.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.gpu.parts"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(name, setup, finished, sender))
    process.start()
    sender.close()
    return process, receiver


def work(name: str, setup: Setup, finished: frozenset[str], sender: Connection) -> None:
    """Run a part in this process, which starts a session, so that its children can be stopped."""
    os.setsid()
    sys.path.insert(0, str(ROOT))  # commands name components of `benchmarks`
    try:
        PARTS[name].run(setup, Report(sender, finished))
    except DeviceLostError:
        os._exit(DEVICE_LOST)  # without cleaning up, which would use the GPU


def _receive(receiver: Connection, deadline: float) -> Iterator[Row]:
    while receiver.poll(max(0.0, deadline - time.monotonic())):
        try:
            yield receiver.recv()
        except EOFError:  # the process has ended
            return


def _stop_process(process: Any) -> None:
    """Stop a process and all that it has started."""
    process.join(2)  # long enough to end by itself
    with contextlib.suppress(ProcessLookupError):  # the whole session has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
