"""What works, waits and is slow on a GPU: `python -m benchmarks.gpu`, in at most eight minutes.

    python -m benchmarks.gpu                         all parts, the most important ones first
    python -m benchmarks.gpu --only draws,parity     some of them
    python -m benchmarks.gpu --seconds 240           parts for which no time is left say so
    python -m benchmarks.gpu --json gpu.jsonl        write each result to a file, too
    python -m benchmarks.gpu --device cpu --quick    in miniature on a CPU: whether it runs

Every part is a process with a time limit, which ends with all that it has started. A result is a
line of JSON: part, case, passed (true, false, or null for a measurement), figures. A table follows.
The exit code is 1 if a check failed, and 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks import gpu_parts

Row: TypeAlias = dict[str, Any]
PARTS = {  # name: (time limit in seconds, the least that is worth starting with)
    "environment": (40, 10),
    "draws": (60, 15),
    "parity": (60, 15),
    "training": (170, 40),
    "closing": (40, 15),
    "scores_in_a_group": (20, 10),
    "sampling": (60, 15),
    "resuming": (80, 30),
    "scores": (40, 10),
    "evaluation": (40, 15),
    "profile": (40, 15),
    "two_devices": (60, 30),
}
CPU_FACTOR = 4  # of the limits, where a CPU does it
SECONDS = 480  # for all parts, by default
MOST_RESTARTS = 3  # of a part that loses the device
CASE_WIDTH = 44  # columns of the table
FIGURES_WIDTH = 90


@dataclass(frozen=True)
class Machine:
    """Where and how the parts run.

    Args:
        device: cuda or cpu.
        quick: in miniature.
        folder: for all files.
    """

    device: str
    quick: bool
    folder: str


def run_part(name: str, machine: Machine, limit: float) -> Iterator[Row]:
    """Results of a part, as they come; one that loses the device goes on with the cases left."""
    deadline = time.monotonic() + limit
    done: set[str] = set()
    for _ in range(MOST_RESTARTS):
        began = time.monotonic()
        process, receiver = _start(name, machine, done)
        try:
            for row in _received(receiver, deadline):
                done.add(row["case"])
                yield {"part": name, **row}
            timed_out = time.monotonic() >= deadline
        finally:
            _stop(process)
        seconds = round(time.monotonic() - began, 1)
        end: Row = {"part": name, "case": "(the part)", "passed": None, "seconds": seconds}
        if timed_out:
            yield end | {"note": "stopped at its time limit: cases that are missing were not run"}
            return
        if process.exitcode == 0:
            yield end
            return
        yield end | {"passed": False, "note": f"exit code {process.exitcode}"}
        if process.exitcode != gpu_parts.DEVICE_LOST:
            return


def _start(name: str, machine: Machine, done: set[str]) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.gpu_parts"])  # imports once, touches no GPU
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=gpu_parts.work, args=(name, machine, done, sender))
    process.start()
    sender.close()
    return process, receiver


def _received(receiver: Connection, deadline: float) -> Iterator[Row]:
    while receiver.poll(max(0.0, deadline - time.monotonic())):
        try:
            yield receiver.recv()
        except EOFError:  # the part has ended
            return


def _stop(process: Any) -> None:
    """End a part with all that it has started, which are in a session of their own."""
    process.join(1)
    with contextlib.suppress(ProcessLookupError):  # none of them is left
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def table(rows: list[Row]) -> Iterator[str]:
    """The results, a line each, and a summary."""
    marks = {True: "ok", False: "FAILS", None: "-"}
    for row in rows:
        figures = {k: v for k, v in row.items() if k not in ("part", "case", "passed")}
        text = ", ".join(f"{name} {value}" for name, value in figures.items())
        name = f"{row['part']:<18} {row['case'][:CASE_WIDTH]:<{CASE_WIDTH}}"
        yield f"{name} {marks[row['passed']]:<6} {text[:FIGURES_WIDTH]}"
    numbers = [sum(row["passed"] is mark for row in rows) for mark in (True, False, None)]
    yield "{} passed, {} failed, {} measured".format(*numbers)


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="in miniature: figures mean nothing")
    parser.add_argument("--only", default="", help=f"parts, with commas: {','.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all parts")
    parser.add_argument("--json", type=Path, help="write each result to this file, too")
    options = parser.parse_args(argv)
    chosen = [name for name in options.only.split(",") if name] or list(PARTS)
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        parser.error(f"--only {unknown[0]}: no such part; one of {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "error: benchmarks.gpu needs a GPU and PyTorch finds none here; "
            "--device cpu --quick runs it in miniature",
            file=sys.stderr,
        )
        return 2
    if options.device == "cpu" and not options.quick:
        parser.error("--device cpu takes hours: add --quick")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # for trainer.deterministic=true
        machine = Machine(options.device, options.quick, folder)
        return _run(chosen, machine, options.seconds, options.json)


def _run(chosen: list[str], machine: Machine, seconds: float, file: Path | None) -> int:
    factor = CPU_FACTOR if machine.device == "cpu" else 1
    deadline = time.monotonic() + factor * seconds
    rows: list[Row] = []
    for name in chosen:
        limit, least = (factor * value for value in PARTS[name])
        left = deadline - time.monotonic()
        if left < least:
            note = f"left out: {left:.0f} s of --seconds are left"
            skipped: Row = {"part": name, "case": "(the part)", "passed": None, "note": note}
            results: Iterator[Row] = iter([skipped])
        else:
            results = run_part(name, machine, min(limit, left))
        for row in results:
            rows.append(row)
            line = json.dumps(row)
            print(line, flush=True)
            if file is not None:
                with file.open("a") as lines:
                    lines.write(f"{line}\n")
    print(*table(rows), sep="\n")
    return int(any(row["passed"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
