"""Samples of counts, training and sampling in one file: `python -m benchmarks.all --json FILE`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import counts, sampling, training
from benchmarks.measure import arguments

# device -> batch sizes of training and sampling
_BATCHES = {"cuda": (128, 256), "cpu": (16, 16)}


def main(argv: list[str] | None = None) -> None:
    """Run the three programs and collect their results."""
    options = arguments(__doc__).parse_args(argv)
    common = [
        "--device",
        options.device,
        "--threads",
        str(options.threads),
        "--repetitions",
        str(options.repetitions),
    ]
    common += ["--quick"] if options.quick else []
    training_batch, sampling_batch = _BATCHES.get(
        torch.device(options.device).type, _BATCHES["cpu"]
    )
    programs: dict[str, tuple[Any, list[str]]] = {
        "counts": (counts, []),
        "training": (training, ["--batch", str(training_batch)]),
        "sampling": (sampling, ["--batch", str(sampling_batch)]),
    }
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (program, program_options) in programs.items():
            file = Path(folder) / "part.json"
            program.main([*common, *program_options, "--json", str(file)])
            results[name] = json.loads(file.read_text(encoding="utf-8"))
            if options.json is not None:  # partial results, in case the next program fails
                options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
