"""How many cells a model of gene counts needs: `python -m benchmarks.peers.cell_numbers`.

    blackout    `python train.py dataset=counts`, with its defaults
    mixture     of independent negative binomial counts, by EM; the number of components is chosen
                on a tenth of the training cells
    independent negative binomial counts of every gene

All are fitted to n simulated cells of `benchmarks.science_data`, of which a tenth is for
validation, and compared by their bits per gene of the same test cells: those of blackout are an
upper bound (the evidence bound with its ends), the others are exact. Every training has other
cells, so that errors include their choice.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import count_baselines
from benchmarks.peers.cells import Array, fit_mixture, simulated_cells, train_blackout
from benchmarks.peers.comparison import summarise
from benchmarks.peers.judges import mean_and_error
from benchmarks.peers.results import Row, make_parser, parse, write_results
from blackout.data import counts
from blackout.diffusion.likelihood_estimates import continuous_nats, strict_bits

NUMBERS = (100, 300, 1000, 3000)  # of cells, those for validation included
NUM_TEST_CELLS = 400
SEED = 1  # of the simulated cells: other genes and cells than those by which defaults were chosen
MAX_TRAININGS = 3  # of one table, whose genes depend on its number of cells
BITS = "bits per gene"
MIXTURE = "mixture of negative binomials"


def training_cells(table: Array, training: int, number: int) -> Array:
    """Return the cells of a training [number, genes]; those of fewer cells are among them.

    Args:
        table: all cells; the first are for the test.
        training: its number; those of two trainings have no cell in common.
        number: of cells.
    """
    start = NUM_TEST_CELLS + training * max(NUMBERS)
    return table[start : start + number]


def measure(file: Path, runs: Path, seed: int, overrides: list[str]) -> dict[str, float]:
    """Return the bits per gene of test cells by method.

    Args:
        file: of the counts, with `train` and `test`.
        runs: folder of the run.
        seed: of the training.
        overrides: further settings of it.
    """
    data = counts(file)
    model, _ = train_blackout(file, runs, seed, overrides)
    test = torch.as_tensor(data.test)
    bits = strict_bits(model, test, continuous_nats(model, test))
    assert bits is not None  # pure death has a bound for its ends
    train = count_baselines.flat(data.train)
    independent = count_baselines.Mixture(train, 1, seed)
    return {
        "blackout": float(bits.mean()),
        MIXTURE: fit_mixture(train, seed).bits(count_baselines.flat(data.test)),
        "independent negative binomials": independent.bits(count_baselines.flat(data.test)),
    }


def differences(runs: Sequence[Row]) -> Row:
    """Return blackout's bits less those of the mixture of the same cells: mean and error."""
    bits = {(run["method"], run["training"]): run[BITS] for run in runs}
    trainings = sorted({run["training"] for run in runs})
    mean, error = mean_and_error(
        [bits["blackout", training] - bits[MIXTURE, training] for training in trainings]
    )
    return {"difference": mean, "difference error": error}


def write(options: argparse.Namespace, runs: list[Row]) -> None:
    """Write the table of all numbers of cells that have been measured."""
    rows: list[Row] = []
    for number in sorted({run["cells"] for run in runs}):
        members = [run for run in runs if run["cells"] == number]
        for row in summarise(members, [BITS]):
            del row["evaluations"]
            difference = differences(members) if row["method"] == "blackout" else {}
            rows.append({"cells": number, **row, "difference": None, **difference})
    write_results(
        options,
        "bits per gene of simulated cells by the number of cells",
        rows,
        trainings=options.trainings,
        test_cells=NUM_TEST_CELLS,
        runs=runs,
    )


def main(argv: list[str] | None = None) -> None:
    """Train all methods for every number of cells."""
    parser = make_parser("cell_numbers", __doc__ or "", seconds=0)
    parser.add_argument(
        "--numbers",
        type=int,
        nargs="+",
        choices=NUMBERS,
        default=NUMBERS,
        help="of cells, those for validation included",
    )
    options = parse(parser, argv)
    overrides: list[str] = []  # the file has its splits
    if options.quick:
        options.trainings = 1
        options.numbers = NUMBERS[:1]
        overrides = ["trainer.max_steps=2"]
    if not 1 <= options.trainings <= MAX_TRAININGS:
        parser.error(f"--trainings must be 1 to {MAX_TRAININGS}, not {options.trainings}")
    table = simulated_cells(NUM_TEST_CELLS + MAX_TRAININGS * max(NUMBERS), SEED)
    runs: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in options.numbers:
            for training in range(options.trainings):
                file = Path(folder) / f"cells_{number}_{training}.npz"
                train = training_cells(table, training, number)
                np.savez_compressed(file, train=train, test=table[:NUM_TEST_CELLS])
                bits = measure(file, Path(folder) / "runs", training, overrides)
                for method, value in bits.items():
                    run = {"cells": number, "method": method, "evaluations": None}
                    runs.append({**run, "training": training, BITS: value})
                    print(runs[-1], flush=True)
            write(options, runs)


if __name__ == "__main__":
    main()
