"""Counts of genes in cells: `python -m benchmarks.peers.cells`.

    blackout    `python train.py dataset=counts`, with its defaults
    scVI        scvi-tools' SCVI with its defaults and the better of two learning rates, by the bits
                per gene of validation cells; samples are drawn from its prior
    mixture     of independent negative binomial counts, by EM; the number of components is chosen
                on a tenth of the training cells
    copula      Gaussian copula with the empirical distribution of every gene
    independent negative binomial counts of every gene

Two data sets: cells that `benchmarks.science_data` simulates, and the 700 blood cells that scanpy
has (10x Genomics, 765 genes), whose counts are restored from their stored logarithms. Bits per gene
are of test cells. Those of blackout are an upper bound (the evidence bound with its ends), those of
scVI an estimate by 500 importance weights, which is an upper bound in the mean, and those of the
negative binomials exact; the copula has none. The forest separates samples from as many test cells
(judges.py). `training cells` are what perfect samples would get.

The second table, peers_cell_steps.json, has the same models of simulated cells with fewer steps,
compared with validation cells.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks import count_baselines, science_data
from benchmarks.peers.comparison import resampled_images, summarise
from benchmarks.peers.judges import two_sample_auc
from benchmarks.peers.results import Row, make_parser, parse, write_results
from blackout import load_model
from blackout.data import CountData, counts
from blackout.diffusion.evaluations import evaluations_per_sample
from blackout.diffusion.likelihood_estimates import continuous_nats, strict_bits
from blackout.evaluation import copula_samples, frechet_distance

Array = npt.NDArray[Any]
# of a method: its scores except those of the judge, and samples [n, genes]
Result = tuple[Row, Tensor]

ROOT = Path(__file__).resolve().parents[2]
HOLDOUT = 0.2  # share of the cells for the test
NUM_SIMULATED_CELLS = 2000
UNITS = 1e4  # total count to which scanpy's cells were scaled before the logarithm
SCVI_RATES = (1e-3, 4e-3)  # the first is its default
STEPS = (6, 12, 25, 50)  # of the table of steps; 50 is the default
BATCH_SIZES = (64, 512, 1024)  # 256 is the default
COMPONENTS = 30  # principal components of the Fréchet distance
SCORES = ("bits per gene", "forest AUC", "training CPU s", "ms per cell")
STEP_SCORES = ("forest AUC", "Fréchet distance", "ms per cell")


def simulated_cells(number: int = NUM_SIMULATED_CELLS, seed: int = 0) -> Array:
    """Return simulated cells [number, 200]; genes depend on the number and the seed."""
    return science_data.cells(np.random.default_rng(seed), number)["counts"]


def blood_cells() -> Array:
    """Return counts of 700 peripheral blood cells [700, 765] that scanpy installs.

    The file has log(1 + 10^4 count / total); totals are known, so that rounding restores counts.
    """
    import scanpy

    table = scanpy.datasets.pbmc68k_reduced()
    logarithms = table.raw.X.toarray().astype(np.float64)
    totals = table.obs["n_counts"].to_numpy()[:, None]
    return np.rint(np.expm1(logarithms) * totals / UNITS).astype(np.int64)


def child_seconds() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def train_blackout(file: Path, runs: Path, seed: int, overrides: list[str]) -> tuple[Any, float]:
    """Return the model that `python train.py dataset=counts` trains, and its CPU seconds.

    Args:
        file: of the counts.
        runs: folder of the run.
        seed: of the training.
        overrides: further settings.
    """
    run_id = f"{file.stem}_{seed}"
    command = [
        sys.executable,
        "train.py",
        "dataset=counts",
        f"dataset.path={file}",
        f"runs_dir={runs}",
        "experiment_name=cells",
        f"run_id={run_id}",
        f"seed={seed}",
        "callbacks.progress=null",
        "callbacks.scores=null",
        *overrides,
    ]
    start = child_seconds()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return load_model(runs / "cells" / run_id), child_seconds() - start


def draw(
    model: Any, number: int, seed: int, num_steps: int | None = None, batch_size: int | None = None
) -> tuple[Tensor, float]:
    """Return samples of a model, and CPU milliseconds per sample.

    Args:
        model: trained.
        number: of samples.
        seed: of them.
        num_steps: None for the model's.
        batch_size: samples per evaluation; None for the model's.
    """
    sampler = model.sampler
    if num_steps is not None:
        sampler = replace(sampler, num_steps=num_steps)
    if batch_size is not None:
        sampler = replace(sampler, batch_size=batch_size)
    start = time.process_time()
    samples = model.sample(number, seed, sampler=sampler)
    return samples, 1000 * (time.process_time() - start) / number


def blackout_result(model: Any, seconds: float, data: CountData, seed: int) -> Result:
    """Return bits per gene of a trained model, and samples."""
    test = torch.as_tensor(data.test)
    bits = strict_bits(model, test, continuous_nats(model, test))
    samples, milliseconds = draw(model, len(test), seed)
    row = {
        "bits per gene": None if bits is None else float(bits.mean()),
        "training CPU s": seconds,
        "ms per cell": milliseconds,
    }
    return row, samples


def scvi_result(data: CountData, seed: int, lr: float) -> Result:
    """Train scVI, and return its bits per gene and samples of its prior."""
    number = len(data.test)
    result = count_baselines.scvi(data, seed, lr, number)
    row = {
        "bits per gene": result["bits"],
        "training CPU s": result["training CPU s"],
        "ms per cell": 1000 * result["sampling CPU s"] / number,
        "bits of validation cells": result["bits of validation data"],
        "lr": lr,
    }
    return row, torch.from_numpy(result["samples"])


def mixture_result(mixture: count_baselines.Mixture, data: CountData, seed: int) -> Result:
    """Return bits per gene of a fitted mixture, and samples."""
    number = len(data.test)
    start = time.process_time()
    samples = mixture.sample(number, seed)
    milliseconds = 1000 * (time.process_time() - start) / number
    row = {
        "bits per gene": mixture.bits(count_baselines.flat(data.test)),
        "training CPU s": None,
        "ms per cell": milliseconds,
    }
    return row, torch.from_numpy(samples)


def fit_mixture(train: Array, seed: int) -> count_baselines.Mixture:
    """Fit a mixture of negative binomials whose number of components a tenth of the cells chooses.

    Args:
        train: training cells [n, genes].
        seed: of the fits.
    """
    is_validation = np.arange(len(train)) % 10 == 0
    bits = {
        number: count_baselines.Mixture(train[~is_validation], number, seed).bits(
            train[is_validation]
        )
        for number in count_baselines.COMPONENTS
        if number < len(train) / 4
    }
    best = min(bits, key=bits.__getitem__)
    return count_baselines.Mixture(train, best, seed)


def simple_results(data: CountData, seed: int) -> Iterator[tuple[str, Result]]:
    """Yield results of the methods without a network, by name."""
    train = count_baselines.flat(data.train)
    mixture = fit_mixture(train, seed)
    yield "mixture of negative binomials", mixture_result(mixture, data, seed)
    independent = count_baselines.Mixture(train, 1, seed)
    yield "independent negative binomials", mixture_result(independent, data, seed)
    no_bits = {"bits per gene": None, "training CPU s": None, "ms per cell": None}
    counts_of_training = torch.as_tensor(data.train)
    yield "Gaussian copula", (no_bits, copula_samples(counts_of_training, len(data.test), seed))
    yield "training cells", (no_bits, resampled_images(counts_of_training, len(data.test), seed))


def judged(name: str, result: Result, data: CountData, dataset: str, seed: int) -> Row:
    """Return the row of a run: its scores and those of the forest."""
    row, samples = result
    area, error = two_sample_auc(samples.long(), torch.as_tensor(data.test).long())
    run = {"method": f"{dataset}: {name}", "evaluations": None, "training": seed, **row}
    run |= {"forest AUC": area, "forest AUC block error": error}
    print(run, flush=True)
    return run


def principal_components(data: CountData) -> Callable[[Tensor], Array]:
    """Return the projection of log(1 + counts) to principal components of training cells."""
    from sklearn.decomposition import PCA

    projection = PCA(COMPONENTS, random_state=0).fit(np.log1p(count_baselines.flat(data.train)))

    def project(samples: Tensor) -> Array:
        projected: Array = projection.transform(np.log1p(samples.numpy()))
        return projected

    return project


def step_runs(model: Any, data: CountData, seed: int, steps: tuple[int, ...]) -> Iterator[Row]:
    """Yield scores against validation cells by number of steps, and times by batch size."""
    val = torch.as_tensor(data.val)
    project = principal_components(data)
    reference = project(val)
    for num_steps in steps:
        samples, milliseconds = draw(model, len(val), seed + 100, num_steps)
        features = project(samples)
        area, error = two_sample_auc(samples.long(), val.long())
        distance = frechet_distance(
            features.mean(0), np.cov(features.T), reference.mean(0), np.cov(reference.T)
        )
        scores: Row = {"forest AUC": area, "forest AUC block error": error}
        scores["Fréchet distance"] = distance
        yield step_run(model, seed, num_steps, model.sampler.batch_size, milliseconds, scores)
    for batch_size in BATCH_SIZES:
        _, milliseconds = draw(model, max(BATCH_SIZES), seed, steps[0], batch_size)
        # samples do not depend on the batch size, so that they need no scores
        scores = {"forest AUC": None, "forest AUC block error": None, "Fréchet distance": None}
        yield step_run(model, seed, steps[0], batch_size, milliseconds, scores)


def step_run(
    model: Any, seed: int, num_steps: int, batch_size: int, milliseconds: float, scores: Row
) -> Row:
    """Return a run of the table of steps."""
    sampler = replace(model.sampler, num_steps=num_steps)
    run = {
        "method": f"{num_steps} steps, batches of {batch_size}",
        "evaluations": evaluations_per_sample(model, sampler),
        "training": seed,
        **scores,
        "ms per cell": milliseconds,
    }
    print(run, flush=True)
    return run


def choose_scvi_rate(data: CountData) -> tuple[float, list[Row]]:
    """Return the rate with the fewest bits per gene of validation cells, and all trials."""
    trials = [scvi_result(data, 0, lr)[0] for lr in SCVI_RATES]
    bits = [trial["bits of validation cells"] for trial in trials]
    return SCVI_RATES[bits.index(min(bits))], trials


def write(
    options: argparse.Namespace, runs: list[Row], steps: list[Row], tuning: list[Row]
) -> None:
    """Write the tables of all finished runs."""
    rows = []
    for row in summarise(runs, SCORES):
        data, _, method = row["method"].partition(": ")
        scores = {
            name: value for name, value in row.items() if name not in ("method", "evaluations")
        }
        rows.append({"data": data, "method": method, **scores})
    write_results(
        options,
        "genes of cells",
        rows,
        trainings=max(run["training"] for run in runs) + 1,
        holdout=HOLDOUT,
        tuning=tuning,
        runs=runs,
    )
    if steps:
        file = options.json.with_name(options.json.name.replace("cells", "cell_steps"))
        step_options = argparse.Namespace(command=options.command, quick=options.quick, json=file)
        write_results(
            step_options,
            "simulated cells by number of steps, against validation cells",
            summarise(steps, STEP_SCORES),
            runs=steps,
        )


def main(argv: list[str] | None = None) -> None:
    """Train and judge all methods on both data sets."""
    parser = make_parser("cells", __doc__ or "", seconds=0)
    parser.set_defaults(trainings=3)
    parser.add_argument(
        "--datasets", nargs="*", choices=("simulated", "blood"), default=["simulated", "blood"]
    )
    options = parse(parser, argv)
    overrides = [f"dataset.holdout={HOLDOUT}"]
    steps: tuple[int, ...] = STEPS
    number = NUM_SIMULATED_CELLS
    if options.quick:
        options.trainings, options.datasets = 1, ["simulated"]
        overrides.append("trainer.max_steps=2")
        steps, number = (2, 3), 300
    runs: list[Row] = []
    step_table: list[Row] = []
    tuning: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        # 1. Data, and the learning rate of scVI.
        files: dict[str, Path] = {}
        sources: dict[str, CountData] = {}
        rates: dict[str, float] = {}
        for dataset in options.datasets:
            table = simulated_cells(number) if dataset == "simulated" else blood_cells()
            files[dataset] = Path(folder) / f"{dataset}.npz"
            np.savez_compressed(files[dataset], counts=table)
            sources[dataset] = counts(files[dataset], holdout=HOLDOUT)
            if not options.quick:
                rates[dataset], trials = choose_scvi_rate(sources[dataset])
                tuning += [{"data": dataset, **trial} for trial in trials]

        # 2. Trainings in turns.
        for seed in range(options.trainings):
            for dataset, data in sources.items():
                file = files[dataset]
                model, seconds = train_blackout(file, Path(folder) / "runs", seed, overrides)
                result = blackout_result(model, seconds, data, seed)
                runs.append(judged("blackout", result, data, dataset, seed))
                if dataset == "simulated":
                    step_table += step_runs(model, data, seed, steps)
                if not options.quick:
                    result = scvi_result(data, seed, rates[dataset])
                    runs.append(judged("scVI", result, data, dataset, seed))
                for name, result in simple_results(data, seed):
                    runs.append(judged(name, result, data, dataset, seed))
                write(options, runs, step_table, tuning)


if __name__ == "__main__":
    main()
