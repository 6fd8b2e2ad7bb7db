"""README's table of results: `python -m benchmarks.headline`.

    python -m benchmarks.headline                                        # print the table
    python -m benchmarks.headline --update                               # write it into README.md
    python -m benchmarks.headline --measure RUNS --json benchmarks/results/headline.json

The first two read `results/headline.json` and `results/posterior_methods.json`, which
`python -m benchmarks.posterior_accuracy` writes. `--measure` trains two default models for each of
three seeds in the folder RUNS, and samples from them:

    digits    `python train.py`; Frechet distance of the final samples to test digits, in the
              features of a classifier of digits; the same for a Gaussian copula that is fitted to
              the training digits, and for as many real digits
    ising     `python train.py experiment=flow_ising`; effective sample size of 4,096 chains of the
              flow in 16 steps; the same for annealed importance sampling
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.measure import arguments, report
from blackout import load_model
from blackout.flows.annealed_importance import anneal
from blackout.flows.simulation import Events
from blackout.flows.weights import effective_sample_size

Row = dict[str, Any]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
TABLE = re.compile(
    r"(?<=<!-- results: made by `python -m benchmarks\.headline` -->\n)(.*?)(?=<!-- end of)",
    re.DOTALL,
)

SEEDS = (0, 1, 2)
SCORE = "frechet_distance_digits"
NUM_CHAINS = 4096
FLOW_STEPS = 16
ANNEALING_SWEEPS = 1024  # Gibbs sweeps, one at each intermediate distribution

HEAD = """\
| task | score | this package | alternative | ideal | trainings |
|---|---|---|---|---|---|
"""


def train(runs: Path, name: str, seed: int, settings: tuple[str, ...]) -> Path:
    """Train a model from the repository's root and return its run directory."""
    directory = runs / name / str(seed)
    places = (f"runs_dir={runs}", f"experiment_name={name}", f"run_id={seed}", f"seed={seed}")
    command = [sys.executable, "train.py", *settings, *places, "callbacks.progress=null"]
    subprocess.run(command, cwd=ROOT, check=True)
    return directory


def digits(runs: Path, seed: int, settings: tuple[str, ...]) -> Row:
    """Return Frechet distances of samples, of a Gaussian copula, and of real digits."""
    directory = train(runs, "headline_digits", seed, settings)
    metrics = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
    references = metrics["references"][SCORE]
    return {
        "case": "digits",
        "seed": seed,
        "value": metrics["values"][SCORE],
        "alternative": references["gaussian_copula"],
        "ideal": references["held_out_data"],
    }


def ising(runs: Path, seed: int, settings: tuple[str, ...]) -> Row:
    """Return effective sample sizes of a flow and of annealing without a network."""
    settings = ("experiment=flow_ising", *settings)
    model: Any = load_model(train(runs, "headline_ising", seed, settings))
    chains = torch.arange(NUM_CHAINS)
    paths = Events(FLOW_STEPS).run(model.target, model.rates(), chains, seed)
    annealed = anneal(model.target, NUM_CHAINS, ANNEALING_SWEEPS, seed, power=None)
    return {
        "case": "ising",
        "seed": seed,
        "value": float(effective_sample_size(paths.log_weights)),
        "alternative": float(effective_sample_size(annealed.log_weights)),
        "ideal": 1.0,
    }


def measure(runs: Path, quick: bool) -> Iterator[Row]:
    """Train and score both models for every seed."""
    settings = ("trainer.max_steps=2",) if quick else ()
    for case in (ising, digits):
        for seed in SEEDS[:1] if quick else SEEDS:
            limits = ("callbacks.scores.num_samples=40",) if quick and case is digits else ()
            yield case(runs, seed, (*settings, *limits))


def table(headline: Row, posteriors: Row) -> str:
    """Return the rows of README's table from the contents of the two files of results."""
    by_case = {
        case: {
            column: [row[column] for row in headline["rows"] if row["case"] == case]
            for column in ("value", "alternative", "ideal")
        }
        for case in ("digits", "ising")
    }
    drawn, flow = by_case["digits"], by_case["ising"]
    problems = posteriors["rows"]
    chosen = [row[row["auto takes"]] for row in problems]
    particles = [row["smc"] for row in problems]
    split_gibbs = [row["sgdd"] for row in problems]
    perfect = [row["perfect"] for row in problems]
    lines = [
        [
            "generate 8x8 digits",
            "Fréchet distance ↓",
            spread(drawn["value"], 2),
            f"Gaussian copula: {spread(drawn['alternative'], 2)}",
            f"real digits: {spread(drawn['ideal'], 2)}",
            str(len(drawn["value"])),
        ],
        [
            "solve 12 small inverse problems",
            "total variation to the exact posterior ↓",
            f"{mean(chosen):.3f}",
            f"particle filter: {mean(particles):.3f}; split Gibbs: {mean(split_gibbs):.3f}",
            f"perfect samples: {mean(perfect):.3f}",
            "none",
        ],
        [
            "sample a critical 4x4 Ising model",
            "effective sample size ↑",
            spread(flow["value"], 4),
            f"annealing, {ANNEALING_SWEEPS:,} sweeps: {spread(flow['alternative'], 4)}",
            "1",
            str(len(flow["value"])),
        ],
    ]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def spread(values: list[float], decimals: int) -> str:
    """Return mean ± standard deviation over seeds; the value if it is the same for all."""
    deviation = f" ± {stdev(values):.{decimals}f}" if len(set(values)) > 1 else ""
    return f"{mean(values):.{decimals}f}{deviation}"


def current_table() -> str:
    """Return the table of the files of results in this repository."""
    names = ("headline.json", "posterior_methods.json")
    return table(*(json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in names))


def main(argv: list[str] | None = None) -> None:
    """Print README's table, write it into README.md, or measure."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--measure", type=Path, metavar="RUNS", help="train in this folder")
    parser.add_argument("--update", action="store_true", help="write the table into README.md")
    parser.set_defaults(device="cpu", threads=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.measure is not None:
        rows: list[Row] = []
        for row in measure(options.measure.resolve(), options.quick):
            rows.append(row)
            report("README's results", rows, options)  # written again after every training
        return
    lines = current_table()
    print(lines, end="")
    if options.update:
        page = README.read_text(encoding="utf-8")
        README.write_text(TABLE.sub(lambda _: lines, page), encoding="utf-8")


if __name__ == "__main__":
    main()
