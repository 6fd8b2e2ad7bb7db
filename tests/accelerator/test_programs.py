"""On an accelerator, real programs train, sample and score on it from the first step to the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", "tests.accelerator.program")
TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(shutil.which("c++") is None or shutil.which("ninja") is None, reason="needs c++ and ninja"),
]


def run(*words: object) -> str:
    """The output of a fresh interpreter that runs a program on the simulated device."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def devices(output: str) -> list[str]:
    """Where networks were evaluated, in order, by each process."""
    return [line.split(": ")[1] for line in output.splitlines() if line.startswith("evaluated on: ")]


@pytest.fixture(scope="module")
def binary_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 rows of 12 independent bits."""
    path = tmp_path_factory.mktemp("data") / "binary.npy"
    np.save(path, np.random.default_rng(0).integers(0, 2, (300, 12)).astype(np.uint8))
    return path


SMALL = ("network=mlp", "network.body.width=16", "network.body.depth=1")
SCORED = (*SMALL, "trainer.max_steps=12", "batch_size=32", "callbacks.scores.num_samples=60")
"""Enough training for scores of 60 samples of the digits, which may cost no more than training."""
FAMILIES = {
    "blackout": SCORED,
    "codes": ("family=codes", "dataset=cycles"),
    "shuffle": ("family=shuffle", "dataset=jigsaw_digits"),
    "flow": ("family=flow",),
    "energy": ("family=energy", "dataset=counts"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_runs_on_the_cpu_after_the_first_step(family: str, tmp_path: Path, binary_file: Path) -> None:
    settings = [*FAMILIES[family], "debug=fast", f"runs_dir={tmp_path}", "run_id=run"]
    if family == "energy":
        settings.append(f"dataset.path={binary_file}")
    output = run(*PROGRAM, "train", *settings)
    assert devices(output) == ["cpu, simulated"], output  # on the CPU components are tried before training
    (directory,) = tmp_path.glob("*/run")
    assert (directory / "samples" / "final.npz").exists()
    if family == "energy":  # whose likelihood takes minutes
        return
    options = ["num_samples=20", "evaluate=true", "likelihood.images=20"]
    assert devices(run(*PROGRAM, "sample", f"ckpt={directory}", *options)) == ["simulated"]


def test_two_processes_score_in_a_group_that_refuses_cpu_tensors(tmp_path: Path) -> None:
    settings = [*SCORED, "debug=fast", "run_id=run"]
    alone = run(*PROGRAM, "train", *settings, f"runs_dir={tmp_path / 'one'}")
    shared = run(*TWO_PROCESSES, *PROGRAM, "train", *settings, f"runs_dir={tmp_path / 'two'}")
    assert devices(shared) == devices(alone) * 2
    values = [
        json.loads((tmp_path / name / "digits" / "run" / "metrics.json").read_text())["values"]
        for name in ("one", "two")
    ]
    assert values[1] == pytest.approx(values[0], rel=1e-3)

    options = ["num_samples=20", "sampler.batch_size=10", "evaluate=true", "likelihood.images=20"]
    options.append(f"out={tmp_path / 'samples'}")
    drawn = run(*TWO_PROCESSES, *PROGRAM, "sample", f"ckpt={tmp_path / 'one' / 'digits' / 'run'}", *options)
    assert devices(drawn) == ["simulated"] * 2
