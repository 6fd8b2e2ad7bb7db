"""Speed and memory of whole commands on a CPU: `python -m benchmarks.speed`.

    python -m benchmarks.speed --data_dir data  # networks
    python -m benchmarks.speed --what start     # start-up, and a short run

The first writes benchmarks/results/speed.json, the second benchmarks/results/start.json.

Training and sampling are those of `train.py` and `sample.py`, in a process of their own with one
thread. A rate is the difference of work over the difference of CPU seconds of a long and a short
command, so that start-up does not count; of several repetitions the fastest counts. The baseline is
a plain PyTorch loop that trains the same network to predict Gaussian noise (DDPM, Ho et al. 2020)
with the same batch, precision, Adam and average of weights. Validation, scores and previews are
off.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.measure import arguments, report
from benchmarks.peers.generators import compose_model

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NOISE_LEVELS = 1000  # of DDPM
# a short training with samples, scores and report: the first useful result
RESULT_STEPS = "trainer.max_steps=300"
RESULT = f"python train.py {RESULT_STEPS}"
QUIET = (
    "metrics=none",
    "callbacks.progress=null",
    "callbacks.samples=null",
    "trainer.limit_val_batches=0",
    "trainer.limit_test_batches=0",
)

# Runs a command and writes its CPU seconds and peak memory. It is a small process of its own, since
# the peak of a new process is at least the memory of the one that has started it.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    file.write(f"{usage.ru_utime + usage.ru_stime} {usage.ru_maxrss}")
sys.exit(code)
"""

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A training recipe, and the lengths of the commands that measure it.

    Args:
        name: for the table.
        settings: of `train.py`.
        batch_size: images per optimiser step.
        precision: of Lightning's trainer.
        steps: optimiser steps of the short and the long training.
        num_samples: of the short and the long sampling.
        num_steps: of the sampler, whose time is proportional to them.
        default_evaluations: network evaluations per sample of the recipe.
    """

    name: str
    settings: tuple[str, ...]
    batch_size: int
    precision: str
    steps: tuple[int, int]
    num_samples: tuple[int, int]
    num_steps: int
    default_evaluations: int


CASES = (
    Case(
        name="8x8 digits, U-Net",
        settings=("dataset=digits",),
        batch_size=128,
        precision="bf16-mixed",
        steps=(5, 65),
        num_samples=(64, 832),
        num_steps=25,
        default_evaluations=25,
    ),
    Case(
        name="MNIST, U-Net",
        settings=("dataset=mnist",),
        batch_size=128,
        precision="bf16-mixed",
        steps=(1, 6),
        num_samples=(4, 68),
        num_steps=10,
        default_evaluations=199,
    ),
    Case(
        name="CIFAR-10, NCSN++ of the paper",
        settings=("dataset=cifar10",),
        batch_size=2,
        precision="32-true",
        steps=(1, 4),
        num_samples=(1, 3),
        num_steps=4,
        default_evaluations=1000,
    ),
)


@dataclass(frozen=True)
class Usage:
    """CPU seconds and peak memory (GiB) of a process."""

    seconds: float
    memory: float


def run(words: Sequence[str], folder: Path) -> Usage:
    """Run a Python command in a folder with one thread and return what it used.

    Raises:
        subprocess.CalledProcessError: the command failed; its output is in `output`.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "log.txt"
    usage = folder / "usage.txt"
    command = [sys.executable, "-c", MEASURE, str(usage), sys.executable, *words]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.run(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    if process.returncode != 0:
        text = log.read_text(encoding="utf-8")
        raise subprocess.CalledProcessError(process.returncode, command, text)
    seconds, memory = usage.read_text(encoding="utf-8").split()
    return Usage(float(seconds), float(memory) / 2**20)


def train_command(case: Case, steps: int, run_id: str, data_dir: Path) -> list[str]:
    """Return the words of a training without validation, scores and previews."""
    return [
        str(ROOT / "train.py"),
        *case.settings,
        *QUIET,
        f"batch_size={case.batch_size}",
        f"trainer.max_steps={steps}",
        f"trainer.precision={case.precision}",
        f"data_dir={data_dir}",
        "experiment_name=speed",
        f"run_id={run_id}",
    ]


def sample_command(case: Case, num_samples: int, run_id: str) -> list[str]:
    """Return the words of a sampling, in one batch."""
    return [
        str(ROOT / "sample.py"),
        f"ckpt=runs/speed/{run_id}",
        f"num_samples={num_samples}",
        f"sampler.num_steps={case.num_steps}",
        f"out={run_id}_{num_samples}",
    ]


def baseline_step_seconds(case: Case, data_dir: Path) -> float:
    """Return the CPU seconds of a step of a plain loop that trains the same network as DDPM."""
    model = compose_model([*case.settings, f"data_dir={data_dir}"])
    body = model.network.body.train()
    ema = AveragedModel(body, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.Adam(body.parameters(), lr=2e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    betas = torch.linspace(1e-4, 0.02, NOISE_LEVELS)
    survival = torch.cumprod(1 - betas, 0)
    shape = (case.batch_size, *model.data_mean.shape)
    images = torch.rand(shape, generator=generator) * 2 - 1
    seconds = []
    for _ in range(case.steps[1] - case.steps[0] + 1):
        start = time.process_time()
        # 1. Add noise.
        level = torch.randint(NOISE_LEVELS, (len(images),), generator=generator)
        scale = survival[level].view(-1, *[1] * (images.dim() - 1))
        noise = torch.randn(shape, generator=generator)
        xt = scale.sqrt() * images + (1 - scale).sqrt() * noise
        # 2. Predict it.
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bf16-mixed"):
            predicted = body(xt, level.float())[:, : shape[1]]
            loss = (predicted - noise).square().mean()
        # 3. Update the weights and their average.
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(body)
        seconds.append(time.process_time() - start)
    return sum(seconds[1:]) / (len(seconds) - 1)  # the first also makes the optimiser's state


def network_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Return training and sampling rates of every case."""
    data_dir = options.data_dir.resolve()
    for case in CASES[:1] if options.quick else CASES:
        few_steps, many_steps = (1, 2) if options.quick else case.steps
        few_samples, many_samples = (1, 3) if options.quick else case.num_samples
        training, sampling, memory, baseline = [], [], [], []
        with TemporaryDirectory() as name:
            folder = Path(name)
            for repetition in range(options.repetitions):
                # 1. Train a short and a long time.
                short = run(train_command(case, few_steps, f"a{repetition}", data_dir), folder)
                long = run(train_command(case, many_steps, f"b{repetition}", data_dir), folder)
                training.append((long.seconds - short.seconds) / (many_steps - few_steps))
                memory.append(long.memory)
                # 2. Draw few and many samples.
                short = run(sample_command(case, few_samples, f"b{repetition}"), folder)
                long = run(sample_command(case, many_samples, f"b{repetition}"), folder)
                evaluations = (many_samples - few_samples) * evaluations_of(folder)
                sampling.append((long.seconds - short.seconds) / evaluations)
                # 3. Train the same network in a plain loop.
                baseline.append(baseline_step_seconds(case, data_dir))
                shutil.rmtree(folder / "runs")
        step = min(training)
        evaluation = min(sampling)
        yield {
            "case": case.name,
            "batch": case.batch_size,
            "precision": case.precision,
            "s per step": step,
            "s per step, all": training,
            "s per step of plain DDPM": min(baseline),
            "s per step of plain DDPM, all": baseline,
            "s per evaluation": evaluation,
            "s per evaluation, all": sampling,
            "evaluations per sample": case.default_evaluations,
            "peak GiB": max(memory),
        }


def evaluations_of(folder: Path) -> int:
    """Return the network evaluations per sample that the last sampling printed.

    Raises:
        ValueError: it printed none.
    """
    log = (folder / "log.txt").read_text(encoding="utf-8")
    match = re.search(r"([\d,]+) network evaluations", log)
    if match is None:
        raise ValueError("the sampling has printed no network evaluations")
    return int(match[1].replace(",", ""))


def start_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Return CPU seconds and memory of start-ups and of a short run."""
    train = str(ROOT / "train.py")
    one_step = (*QUIET, "trainer.max_steps=1", "trainer.precision=32-true")
    commands = {
        'python -c "import torch"': ["-c", "import torch"],
        'python -c "from blackout import load_model"': [
            "-c",
            "from blackout import load_model",
        ],
        "python train.py --help": [train, "--help"],
        "python train.py, one step without scores": [train, *one_step],
        RESULT: [train, RESULT_STEPS],
    }
    if options.quick:
        del commands[RESULT]
    for name, words in commands.items():
        usages = []
        scores: Row = {}
        for _ in range(1 if name == RESULT else options.repetitions):
            with TemporaryDirectory() as folder:
                runs = (options.runs or Path(folder) / "runs").resolve()
                kept = [f"runs_dir={runs}"] if name == RESULT else []
                usages.append(run([*words, *kept], Path(folder)))
                if name == RESULT:
                    scores = run_scores(runs)
        yield {
            "command": name,
            "CPU s": min(usage.seconds for usage in usages),
            "CPU s, all": [usage.seconds for usage in usages],
            "peak GiB": max(usage.memory for usage in usages),
            "scores": scores,
        }


def run_scores(runs: Path) -> Row:
    """Return a run's Frechet distance, with those of real digits and of a Gaussian copula."""
    (file,) = runs.glob("digits/*/metrics.json")
    metrics = json.loads(file.read_text(encoding="utf-8"))
    name = "frechet_distance_digits"
    return {"samples": metrics["values"][name], **metrics["references"][name]}


def table(results: Mapping[str, Any]) -> str:
    """Return the rates of all networks."""
    lines = [
        "| network | batch, precision | training images/s | plain DDPM loop, images/s "
        "| evaluations/s | samples/s (evaluations each) | peak memory of training |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        evaluations = 1 / row["s per evaluation"]
        samples = evaluations / row["evaluations per sample"]
        cells = [
            row["case"],
            f"{row['batch']}, {row['precision']}",
            format_rate(row["batch"] / row["s per step"]),
            format_rate(row["batch"] / row["s per step of plain DDPM"]),
            format_rate(evaluations),
            f"{format_rate(samples)} ({row['evaluations per sample']})",
            f"{row['peak GiB']:.1f} GiB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_rate(value: float) -> str:
    """Return a rate with at least two digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def start_table(results: Mapping[str, Any]) -> str:
    """Return the CPU seconds and memory of commands."""
    lines = [
        "| command | CPU seconds | peak memory | Fréchet distance (real digits; copula) |",
        "|---|---|---|---|",
    ]
    for row in results["rows"]:
        seconds = row["CPU s"]
        text = f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}"
        scores = ""
        if row["scores"]:
            values = [row["scores"][key] for key in ("samples", "held_out_data", "gaussian_copula")]
            scores = "{:.2f} ({:.2f}; {:.2f})".format(*values)
        lines.append(f"| `{row['command']}` | {text} | {row['peak GiB']:.1f} GiB | {scores} |")
    return "\n".join(lines)


WHAT = {"networks": network_rows, "start": start_rows}
FILES = {"networks": "speed.json", "start": "start.json"}


def main(argv: list[str] | None = None) -> None:
    """Print a table, and write it as JSON after every row."""
    parser = arguments(__doc__ or "")
    parser.set_defaults(threads=1, device="cpu", repetitions=2)
    parser.add_argument("--what", choices=WHAT, default="networks")
    parser.add_argument("--data_dir", type=Path, default=Path("data"), help="with MNIST, CIFAR-10")
    parser.add_argument("--runs", type=Path, default=None, help="where the short run is kept")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.json is None and not options.quick:
        options.json = RESULTS / FILES[options.what]
    rows: list[Row] = []
    what = "" if options.what == "networks" else f" --what {options.what}"
    for row in WHAT[options.what](options):
        rows.append(row)
        command = f"python -m benchmarks.speed{what} --repetitions {options.repetitions}"
        report("speed", rows, options, command=command)


if __name__ == "__main__":
    main()
