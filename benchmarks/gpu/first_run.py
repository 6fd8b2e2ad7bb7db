"""A first run on CIFAR-10 by the real programs: short training, 5,000 samples, FID and IS.

Its figures cannot be compared with those of the paper: training is three hundred times shorter,
sampling takes a tenth of the steps, and papers score 50,000 samples.
"""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.programs import SINGLE_DEVICE, TOY_SCORES, run_folder, run_program, small_run
from benchmarks.gpu.report import Report, Setup

NUM_STEPS = 1000  # of training; the paper's run has 300,000
NUM_SAMPLES = 5000  # papers score 50,000
NUM_SAMPLING_STEPS = 100  # the paper's sampler has 1,000
BATCH_SIZE = 256
NOTE = "of this short run: not a figure of the paper"
CIFAR10_FOLDER = "cifar-10-batches-py"  # in torchvision's layout
INCEPTION_FILE = "weights-inception-2015-12-05-6726825d.pth"  # torch-fidelity's
RUN_ID = "first"


def measure_first_run(setup: Setup, report: Report) -> None:
    """Train, draw samples and score them, and report each step's seconds and values."""
    if not setup.quick and not (setup.data / CIFAR10_FOLDER).is_dir():
        report.add("training", None, note=f"skipped: {setup.data} has no {CIFAR10_FOLDER}")
        return
    with report.case("training"):
        seconds = _run("train", training_arguments(setup))
        images = _training_images(setup)
        rows = read_rows(run_folder(setup, RUN_ID) / "metrics.csv", "train/loss")
        losses = [float(row["train/loss"]) for row in rows]
        if not losses:
            raise ValueError("metrics.csv has no values of train/loss")
        report.add(
            "training",
            all(map(math.isfinite, losses)),
            note=NOTE,
            seconds=seconds,
            images=images,
            first_loss=losses[0],
            last_loss=losses[-1],
        )
    case = "samples"
    with report.case(case):
        out = setup.folder / "first_samples"
        scored = setup.quick or inception_file() is not None
        seconds = _run("sample", sampling_arguments(setup, out, scored=scored))
        values: dict[str, Any] = {}
        if scored:
            values = json.loads((out / "metrics.json").read_text(encoding="utf-8"))["values"]
        numbers = [value for value in values.values() if isinstance(value, int | float)]
        note = NOTE if scored else f"{NOTE}; no scores: {INCEPTION_FILE} was not downloaded"
        passed = (out / "samples.npz").exists() and all(map(math.isfinite, numbers))
        report.add(case, passed, note=note, seconds=seconds, **values)


def training_arguments(setup: Setup) -> list[str]:
    """Return the arguments of `train.py`."""
    common = [
        "metrics=none",
        f"run_id={RUN_ID}",
        "ema_decay=0.99",  # that of the recipe is for a run three hundred times longer
        f"trainer.max_steps={4 if setup.quick else NUM_STEPS}",
        f"trainer.log_every_n_steps={1 if setup.quick else 20}",
    ]
    if setup.quick:
        return [*small_run(setup), *common]
    return [
        "dataset=cifar10",
        f"data_dir={setup.data}",
        "dataset.download=false",
        f"runs_dir={setup.folder}/runs",
        "experiment_name=gpu",
        "callbacks.progress=null",
        f"callbacks.samples.every_n_steps={NUM_STEPS}",
        f"callbacks.samples.num_steps={NUM_SAMPLING_STEPS}",
        f"trainer.accelerator={'gpu' if setup.is_cuda else 'cpu'}",
        f"batch_size={BATCH_SIZE}",
        *SINGLE_DEVICE,
        *common,
    ]


def sampling_arguments(setup: Setup, out: Path, *, scored: bool) -> list[str]:
    """Return the arguments of `sample.py`, with FID and IS against the training images."""
    arguments = [
        f"ckpt={run_folder(setup, RUN_ID)}",
        f"out={out}",
        f"num_samples={24 if setup.quick else NUM_SAMPLES}",
        f"sampler.num_steps={2 if setup.quick else NUM_SAMPLING_STEPS}",
        f"device={setup.device.type}",
        "trusted=[benchmarks]",
    ]
    if not setup.quick:
        arguments.append(f"data_dir={setup.data}")
    if scored:
        scores = TOY_SCORES if setup.quick else ("metrics=inception", "metrics.scores=[fid,is]")
        arguments += ["evaluate=true", "likelihood.images=0", *scores]
    return arguments


def inception_file() -> Path | None:
    """Return the file with Inception's weights, or None if it was not downloaded."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION_FILE
    return path if path.is_file() else None


def read_rows(path: Path, column: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file that have a value in a column."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row.get(column)]


def _run(program: str, arguments: list[str]) -> float:
    start = time.perf_counter()
    run_program(program, arguments)
    return time.perf_counter() - start


def _training_images(setup: Setup) -> int:
    steps, batch_size = (4, 8) if setup.quick else (NUM_STEPS, BATCH_SIZE)
    return steps * batch_size
