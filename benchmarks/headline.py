"""Default models of digits for README's table of results: `python -m benchmarks.headline RUNS`.

Trains the default model for each of three seeds in the folder RUNS, and scores its final samples:
the Frechet distance to test digits, in the features of a classifier of digits; the same for a
Gaussian copula that is fitted to the training digits, and for as many real digits.

The command writes benchmarks/results/headline.json. README's table has also numbers of `python -m
benchmarks.posterior_accuracy` and `python -m benchmarks.peers.energies`;
`python -m benchmarks.page` writes it.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.measure import arguments, report
from benchmarks.peers.results import format_value

Row = dict[str, Any]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "headline.json"

SEEDS = (0, 1, 2)
SCORE = "frechet_distance_digits"

# of the comparison of image generators; evaluations are those of the default sampler
NUM_EVALUATIONS = 25
PEER_SCORES = {
    "Fréchet distance": "Fréchet distance, other features ↓",
    "forest AUC": "AUC of real against drawn ↓",
}
OWN_METHOD = "blackout"
REAL_IMAGES = "training images"
MIXTURE = "mixture of negative binomials"

HEAD = """\
| task | score | this package | alternative | ideal | repetitions |
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


def measure(runs: Path, quick: bool) -> Iterator[Row]:
    """Train and score the model for every seed."""
    settings = ("trainer.max_steps=20", "callbacks.scores.num_samples=40") if quick else ()
    for seed in SEEDS[:1] if quick else SEEDS:
        yield digits(runs, seed, settings)


def table(headline: Row, images: Row, cells: Row, posteriors: Row, energies: Row) -> str:
    """Return the rows of README's table from the contents of the five files of results."""
    drawn = {
        column: [row[column] for row in headline["rows"]]
        for column in ("value", "alternative", "ideal")
    }
    problems = posteriors["rows"]
    chosen = [row[row["auto takes"]] for row in problems]
    perfect = [row["perfect"] for row in problems]
    particles = [row["smc"] for row in problems]
    simulated = {row["method"]: row for row in cells["rows"] if row["data"] == "simulated"}
    log_z = {row["method"]: row for row in energies["rows"]}
    lines = [
        [
            "8x8 digits, default training",
            "Fréchet distance ↓",
            spread(drawn["value"], 2),
            f"Gaussian copula: {spread(drawn['alternative'], 2)}",
            f"real digits: {spread(drawn['ideal'], 2)}",
            f"{len(drawn['value'])} trainings",
        ],
        *(
            [
                f"8x8 digits, {images['seconds']:.0f} CPU seconds, {NUM_EVALUATIONS} evaluations",
                description,
                score_text(image_row(images, OWN_METHOD), score),
                best_peer(images, score),
                f"training images: {score_text(image_row(images, REAL_IMAGES), score)}",
                count_trainings(images),
            ]
            for score, description in PEER_SCORES.items()
        ),
        [
            "simulated cells",
            "bits per gene ↓",
            bits_text(simulated[OWN_METHOD]),
            f"mixture of negative binomials: {bits_text(simulated[MIXTURE])}; "
            f"scVI: {bits_text(simulated['scVI'])}",
            "unknown",
            count_trainings(cells),
        ],
        [
            "small inverse problems",
            "total variation to exact posterior ↓",
            f"{mean(chosen):.3f}",
            f"particle filter: {versus(chosen, particles)}",
            f"perfect samples: {mean(perfect):.3f}",
            f"{len(problems)} problems",
        ],
        [
            "log Z, critical 16x16 Ising model, 2 CPU seconds",
            "RMS error ↓",
            f"annealing: {root_mean_square(log_z['blackout annealing'])}",
            f"in NumPy: {root_mean_square(log_z['annealing in NumPy'])}",
            "0",
            f"{energies['runs_per_method']} runs",
        ],
    ]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def count_trainings(results: Row) -> str:
    """Return the number of trainings of each method of a comparison in words."""
    return f"{results['trainings']} training{'s' if results['trainings'] > 1 else ''}"


def bits_text(row: Row) -> str:
    """Return bits per gene, with their standard error over trainings where these differ."""
    error = f"{row['bits per gene error']:.3f}"
    return f"{row['bits per gene']:.3f}" + (f" ± {error}" if float(error) else "")


def score_text(row: Row, score: str) -> str:
    """Return a score of a row, with its error where there is one."""
    error = row[f"{score} error"]
    return format_value(row[score]) + ("" if error is None else f" ± {format_value(error)}")


def image_row(images: Row, method: str) -> Row:
    """Return the row of a method at the evaluations of the default sampler."""
    (row,) = [
        row
        for row in images["rows"]
        if row["method"] == method and row["evaluations"] in (None, NUM_EVALUATIONS)
    ]
    return row


def best_peer(images: Row, score: str) -> str:
    """Return the lowest score among the other libraries."""
    rows = [
        row
        for row in images["rows"]
        if row["evaluations"] == NUM_EVALUATIONS and not row["method"].startswith(OWN_METHOD)
    ]
    best = min(rows, key=lambda row: row[score])
    return f"{best['method']}: {score_text(best, score)}"


def versus(chosen: list[float], values: list[float]) -> str:
    """Return a mean, with its mean paired difference ± standard error from the chosen method's."""
    differences = [value - own for value, own in zip(values, chosen, strict=True)]
    error = stdev(differences) / math.sqrt(len(differences))
    return f"{mean(values):.3f} ({mean(differences):+.3f} ± {error:.3f})"


def root_mean_square(row: Row) -> str:
    """Return the error of log Z of a method with its standard error over runs."""
    return f"{row['log Z, RMS error']:.3f} ± {row['log Z, RMS error error']:.3f}"


def spread(values: list[float], decimals: int) -> str:
    """Return mean ± standard deviation over seeds; the value if it is the same for all."""
    deviation = f" ± {stdev(values):.{decimals}f}" if len(set(values)) > 1 else ""
    return f"{mean(values):.{decimals}f}{deviation}"


def main(argv: list[str] | None = None) -> None:
    """Train and score the models; write the results after every training."""
    parser = arguments(__doc__ or "")
    parser.add_argument("runs", type=Path, metavar="RUNS", help="folder of the trainings")
    parser.set_defaults(json=RESULTS, device="cpu", threads=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.quick and options.json == RESULTS:
        options.json = None
    rows: list[Row] = []
    for row in measure(options.runs.resolve(), options.quick):
        rows.append(row)
        command = "python -m benchmarks.headline RUNS"
        report("default models of digits", rows, options, command=command)


if __name__ == "__main__":
    main()
