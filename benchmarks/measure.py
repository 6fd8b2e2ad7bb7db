"""Timing of alternatives in turns, and a common format of results."""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes, for a check that it runs; times mean nothing",
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="of torch (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="of torch, on a CPU (default: %(default)s)",
    )
    parser.add_argument(
        "--repetitions", type=int, default=5, help="of every case (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, default=None, help="file for the results")
    return parser


def interleaved(
    cases: Mapping[str, Callable[[], Any]], repetitions: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the seconds of every case, run in turn `repetitions` times after an unmeasured round.

    Disturbances of the machine then affect all alternatives alike. On one CPU thread they are CPU
    seconds, which other processes affect least.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repetition in range(repetitions + 1):
        for name, run in cases.items():
            synchronise(device)
            start = clock()
            run()
            synchronise(device)
            if repetition:
                seconds[name].append(clock() - start)
    return seconds


def first_call(run: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of the first call, which compiles a network."""
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, minimum and maximum."""
    return {"median": median(seconds), "least": min(seconds), "greatest": max(seconds)}


def peak_memory(device: torch.device) -> float:
    """Return the peak memory in GiB, of the device or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the FLOP/s of a square matrix product, the practical rate of dense arithmetic."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = interleaved({"matmul": lambda: a @ b}, 5, device)["matmul"]
    return 2 * size**3 / min(seconds)


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in cpuinfo.read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else model,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def report(
    title: str, rows: Sequence[Mapping[str, Any]], options: argparse.Namespace, **facts: Any
) -> None:
    """Print a table and write it as JSON on request."""
    place = (
        machine(torch.device(options.device))
        | {"repetitions": options.repetitions, "quick": options.quick}
        | facts
    )
    print(f"{title}  ({', '.join(f'{name} {value}' for name, value in place.items())})")
    names = list(rows[0])
    cells = [names] + [[_text(row[name]) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    for line in cells:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
    if options.json is not None:
        options.json.write_text(
            json.dumps({"title": title, "machine": place, "rows": list(rows)}, indent=2) + "\n",
            encoding="utf-8",
        )


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
