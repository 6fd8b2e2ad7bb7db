"""Reported bits of orders that are uniform: `python -m benchmarks.uniform_orders`.

No model of uniform orders of n items has fewer than log2 n! bits on average. Each data set has 200
such orders in a file, on which `python train.py family=codes dataset=permutations` trains. The
reported test bits must agree with the exact cross-entropy of the trained model, summed over all n!
orders: a number that was chosen on the data it is reported on is too low.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import arguments, report
from blackout import load_model
from blackout.permutations.coded import CodeModel
from blackout.permutations.group import all_permutations

ROOT = Path(__file__).parents[1]
NUM_ITEMS = 6
NUM_ORDERS = 200
NUM_STEPS = 300
NUM_DATA_SETS = 10


def uniform_orders(seed: int) -> Tensor:
    """Return uniform orders, int64 [NUM_ORDERS, NUM_ITEMS]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(NUM_ORDERS, NUM_ITEMS, generator=generator).argsort(1)


@torch.no_grad()
def exact_cross_entropy(model: CodeModel) -> float:
    """Return the mean bits of all orders, each as likely, by a model of few items."""
    orders = all_permutations(model.length)
    bits = model.nll(model.denoiser({}), model.encode(orders), None) / math.log(2)
    return float(bits.mean())


def train(seed: int, folder: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Train on one data set and return what was reported next to the exact cross-entropy."""
    file = folder / f"uniform_{seed}.npy"
    np.save(file, uniform_orders(seed).numpy())
    command = [
        *(sys.executable, "train.py", "family=codes", "dataset=permutations"),
        *(f"dataset.path={file}", f"seed={seed}", f"trainer.max_steps={NUM_STEPS}"),
        *(f"runs_dir={folder}", "run_id=run", "callbacks.progress=null", "callbacks.samples=null"),
        *settings,
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    run = folder / file.stem / "run"
    scores = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    comparison = scores["comparisons"]["test/nll_bits"]
    model = load_model(run / "model")
    assert isinstance(model, CodeModel)
    return {
        "seed": seed,
        "validation bits": scores["values"]["val/nll_bits"],
        "test bits": scores["values"]["test/nll_bits"],
        "error": scores["values"]["test/nll_bits_error"],
        "exact": exact_cross_entropy(model),
        "strongest baseline": comparison["strongest"],
        "verdict": comparison["verdict"],
        "against uniform": comparison["baselines"]["uniform"]["verdict"],
    }


def summarise(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return lines with the mean differences over data sets and their standard errors."""
    entropy = math.log2(math.factorial(NUM_ITEMS))
    lines = []
    for name, bits, reference in (
        ("test bits - exact cross-entropy", "test bits", None),
        ("test bits - log2 n!", "test bits", entropy),
        ("validation bits - exact cross-entropy", "validation bits", None),
    ):
        differences = np.array([row[bits] - (reference or row["exact"]) for row in rows])
        error = differences.std(ddof=1) / math.sqrt(len(differences))
        lines.append(f"{name}: {differences.mean():+.4f} ± {error:.4f}")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Train on every data set and print the table."""
    parser: argparse.ArgumentParser = arguments(__doc__ or "")
    parser.add_argument("settings", nargs="*", help="further settings of train.py")
    options = parser.parse_args(argv)
    number = 2 if options.quick else NUM_DATA_SETS
    settings = ["trainer.max_steps=4", *options.settings] if options.quick else options.settings
    with tempfile.TemporaryDirectory() as folder:
        rows = [train(seed, Path(folder), settings) for seed in range(number)]
    report("uniform orders", rows, options, entropy=math.log2(math.factorial(NUM_ITEMS)))
    print(*summarise(rows), sep="\n")


if __name__ == "__main__":
    main()
