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
    pytest.mark.skipif(
        shutil.which("c++") is None or shutil.which("ninja") is None, reason="needs c++ and ninja"
    ),
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
    return [
        line.split(": ")[1] for line in output.splitlines() if line.startswith("evaluated on: ")
    ]


@pytest.fixture(scope="module")
def binary_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 rows of 12 independent bits."""
    path = tmp_path_factory.mktemp("data") / "binary.npy"
    np.save(path, np.random.default_rng(0).integers(0, 2, (300, 12)).astype(np.uint8))
    return path


@pytest.fixture(scope="module")
def counts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 rows of 6 Poisson counts."""
    path = tmp_path_factory.mktemp("counts") / "counts.npy"
    np.save(path, np.random.default_rng(0).poisson(5, (300, 6)).astype(np.uint8))
    return path


SMALL = ("network=mlp", "network.body.width=16", "network.body.depth=1")
# enough training for scores of 60 digits, which may cost no more than the training
SCORED = (*SMALL, "trainer.max_steps=12", "batch_size=32", "callbacks.scores.num_samples=60")
BETWEEN = (
    "callbacks.scores.every_n_steps=6",
    "callbacks.scores.num_samples_between=40",
    "callbacks.scores.num_steps_between=2",
    "trainer.val_check_interval=6",
)
NARROW = ("network.width=16", "network.depth=1", "network.heads=2")
FAMILIES = {
    "digits": (*SCORED, *BETWEEN),
    "unet": ("network.body.channels=8", "network.body.dropout=0.1"),
    "levels": ("process=uniform", *SMALL),
    "counts": ("dataset=counts", "dataset.path={counts}", "network.body.width=16"),
    "classes": ("conditional=true", *SMALL),
    "codes": ("family=codes", "dataset=cycles", *NARROW),
    "factorized": (
        "family=codes",
        "recipe=factorized/jigsaws",
        "dataset=jigsaw_digits",
        "code=lehmer",
        "passes=1",
    ),
    "shuffle": ("family=shuffle", "dataset=jigsaw_digits", *NARROW),
    "flow": ("family=flow",),
    "graphs": ("experiment=dnfs/table1", "recipe=flow/sets"),
    "energy": ("family=energy", "dataset=counts", "dataset.path={binary}"),
}
SAMPLED: dict[str, tuple[tuple[str, ...], ...]] = {
    "digits": (
        ("evaluate=true", "likelihood.images=20"),
        ("task=photons", "posterior=sgdd", "posterior.sweeps=2", "measurement=test:0"),
    ),
    "counts": (("evaluate=true", "likelihood.images=20"),),
    "classes": (("classes=[3]", "sampler.guidance.scale=2", "sampler.num_steps=3"),),
    "energy": (),  # its likelihood takes minutes
}
"""Family -> options of further runs of `sample.py`."""


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_runs_on_the_cpu_after_the_first_step(
    family: str, tmp_path: Path, binary_file: Path, counts_file: Path
) -> None:
    """Training, validation, scores and samples, of a new run and of a continued one."""
    files = {"binary": binary_file, "counts": counts_file}
    settings = [
        word.format(**files) if word.startswith("dataset.path") else word
        for word in FAMILIES[family]
    ]
    settings = ["debug=fast", *settings, f"runs_dir={tmp_path}", "run_id=run"]
    for further_settings in ((), ("trainer.max_steps=14",)):
        output = run(*PROGRAM, "train", *settings, *further_settings)
        # before training, components are tried on the CPU
        assert devices(output) == ["cpu, simulated"], output
        assert ("(continued)" in output) == bool(further_settings)
    (directory,) = tmp_path.glob("*/run")
    assert (directory / "samples" / "final.npz").exists()
    for options in SAMPLED.get(family, (("evaluate=true", "likelihood.images=20"),)):
        assert devices(
            run(*PROGRAM, "sample", f"ckpt={directory}", "num_samples=20", *options)
        ) == ["simulated"]


def test_a_checkpoint_is_a_snapshot_that_nothing_waits_for() -> None:
    code = """
import torch
from tests import accelerator
accelerator.install()
from blackout.training.host_copies import copy_to_host
weights = torch.arange(100.0).to(accelerator.NAME)
copy = copy_to_host({"weights": weights, "steps": [torch.ones(2), 3]})
weights.mul_(2)  # the next step
is_early = torch.equal(copy.content["weights"], torch.arange(100.0))
copy.wait()
print(is_early, torch.equal(copy.content["weights"], torch.arange(100.0)), copy.content["steps"][1])
"""
    assert run("-c", code).split() == ["False", "True", "3"]


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
    sampled = run(
        *TWO_PROCESSES, *PROGRAM, "sample", f"ckpt={tmp_path / 'one' / 'digits' / 'run'}", *options
    )
    assert devices(sampled) == ["simulated"] * 2
