"""Timing of alternatives side by side, and one form for all results."""

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
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for a check that it runs; times mean nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch, on a CPU")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None, help="where to write the results too")
    return parser


def interleaved(
    cases: Mapping[str, Callable[[], Any]], repetitions: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of every case, run in turn `repetitions` times after one unmeasured round.

    Taking turns lets a disturbance of the machine strike all alternatives alike. On one thread of a CPU they are
    seconds of processor time, which others' work on the machine changes least.
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
    """Seconds of the first call, in which a compiled network is compiled."""
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": median(seconds), "least": min(seconds), "greatest": max(seconds)}


def peak_memory(device: torch.device) -> float:
    """GiB: allocated on the device at most so far, or by the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """FLOP/s of a square matrix product: what the hardware gives to dense arithmetic, in practice."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = interleaved({"matmul": lambda: a @ b}, 5, device)["matmul"]
    return 2 * size**3 / min(seconds)


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else model,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def report(title: str, rows: Sequence[Mapping[str, Any]], options: argparse.Namespace, **facts: Any) -> None:
    """Print one table and write it as JSON where that was asked for."""
    place = machine(torch.device(options.device)) | {"repetitions": options.repetitions, "quick": options.quick} | facts
    print(f"{title}  ({', '.join(f'{name} {value}' for name, value in place.items())})")
    names = list(rows[0])
    cells = [names] + [[_text(row[name]) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if options.json is not None:
        options.json.write_text(json.dumps({"title": title, "machine": place, "rows": list(rows)}, indent=2) + "\n", encoding="utf-8")


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
