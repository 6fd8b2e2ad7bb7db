"""Check and measure a GPU in at most twelve minutes: `python -m benchmarks.gpu`.

    python -m benchmarks.gpu                         all parts, the most important ones first
    python -m benchmarks.gpu --only draws,parity     some of them
    python -m benchmarks.gpu --seconds 240           skip the parts for which no time is left
    python -m benchmarks.gpu --json gpu.jsonl        also write each result to a file
    python -m benchmarks.gpu --data FOLDER           where CIFAR-10 is, for the last part
    python -m benchmarks.gpu --cpu-smoke             the same on a CPU with tiny sizes

The last part, `first_run`, trains on CIFAR-10 by `train.py` for some minutes, draws 5,000 samples
by `sample.py` and scores them if Inception's weights have been downloaded. Its figures cannot be
compared with those of the paper, as each of its results says.

Every part runs in its own process with a time limit. Each result is one line of JSON: part, case,
passed (true, false, or null for a measurement) and figures. A table of all results follows. The
exit code is 1 if a check failed, and 2 if there is no GPU or an option is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.gpu.parts import PARTS, run_part
from benchmarks.gpu.report import Row, Setup

TIME_BUDGET = 720.0  # default of --seconds
CPU_SLOWDOWN = 4  # factor of all time limits on a CPU
CASE_WIDTH = 44  # columns of the table
FIGURES_WIDTH = 90


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--cpu-smoke", action="store_true", help="on a CPU, in tiny sizes; times mean nothing"
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of CIFAR-10")
    parser.add_argument("--only", metavar="PARTS", help=f"comma-separated: {','.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=TIME_BUDGET, help="for all parts together")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    options = parser.parse_args(argv)

    names = options.only.split(",") if options.only else list(PARTS)
    for name in names:
        if name not in PARTS:
            parser.error(f"--only {name}: no such part; choose from {', '.join(PARTS)}")
    if not options.cpu_smoke and not torch.cuda.is_available():
        print(
            "error: no GPU that PyTorch can use; --cpu-smoke runs all parts on a CPU",
            file=sys.stderr,
        )
        return 2

    # cuBLAS reads this once per process; runs with trainer.deterministic=true need it
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        device = torch.device("cpu" if options.cpu_smoke else "cuda")
        setup = Setup(device, options.cpu_smoke, Path(folder), options.data.resolve())
        for row in run_parts(names, setup, options.seconds):
            line = json.dumps(row)
            print(line, flush=True)
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
            rows.append(row)
    print("\n".join(format_table(rows)))
    return int(any(row["passed"] is False for row in rows))


def run_parts(names: Sequence[str], setup: Setup, seconds: float) -> Iterator[Row]:
    """Run parts in order and yield their results; skip those for which too little time is left."""
    slowdown = CPU_SLOWDOWN if setup.device.type == "cpu" else 1
    deadline = time.monotonic() + slowdown * seconds
    for name in names:
        part = PARTS[name]
        remaining = deadline - time.monotonic()
        if remaining < slowdown * part.min_seconds:
            note = f"skipped: {remaining:.0f} s of --seconds are left"
            yield {"part": name, "case": "(whole part)", "passed": None, "note": note}
        else:
            yield from run_part(name, setup, min(slowdown * part.max_seconds, remaining))


def format_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one line per result, and a summary."""
    statuses = {True: "ok", False: "FAILS", None: "-"}
    for row in rows:
        case = row["case"][:CASE_WIDTH]
        figures = ", ".join(
            f"{name} {value}"
            for name, value in row.items()
            if name not in ("part", "case", "passed")
        )
        status = statuses[row["passed"]]
        line = f"{row['part']:<18} {case:<{CASE_WIDTH}} {status:<6} {figures[:FIGURES_WIDTH]}"
        yield line.rstrip()
    outcomes = [row["passed"] for row in rows]
    passed, failed, measured = (outcomes.count(outcome) for outcome in (True, False, None))
    yield f"{passed} passed, {failed} failed, {measured} measured"


if __name__ == "__main__":
    sys.exit(main())
