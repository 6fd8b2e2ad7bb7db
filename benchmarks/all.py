"""Draws of counts, training and sampling on a machine, in one file: `python -m benchmarks.all --json FILE`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import counts, sampling, training
from benchmarks.measure import arguments

_BATCHES = {"cuda": (128, 256), "cpu": (16, 16)}
"""Of training and sampling."""


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__).parse_args(argv)
    common = ["--device", options.device, "--threads", str(options.threads), "--repetitions", str(options.repetitions)]
    common += ["--quick"] if options.quick else []
    of_training, of_sampling = _BATCHES.get(torch.device(options.device).type, _BATCHES["cpu"])
    programs: dict[str, tuple[Any, list[str]]] = {
        "counts": (counts, []),
        "training": (training, ["--batch", str(of_training)]),
        "sampling": (sampling, ["--batch", str(of_sampling)]),
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (program, own) in programs.items():
            part = Path(folder) / "part.json"
            program.main([*common, *own, "--json", str(part)])
            found[name] = json.loads(part.read_text(encoding="utf-8"))
            if options.json is not None:  # so that it is there if the next one fails
                options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
