"""The whole way, by the commands that a user types, each in a fresh interpreter.

Losses and samplers of counts together, in sweeps; FID and Inception Score of two processes; a
dashboard without a network; a run that is killed; a wheel outside the clone.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scores import write_inception_weights
from tests.cli.conftest import TINY
from tests.killed import assert_same
from tests.safety_net.choices import choices, settings_of
from tests.training.wandb_file import read_run

pytestmark = pytest.mark.deep
ROOT = Path(__file__).parents[1]
SECONDS = 600  # after which a command is stopped
SHORT = (*TINY, "trainer.max_steps=2", "callbacks.samples=null", "metrics=none")
SWEEPS = {
    "pure death": {
        "words": ("head=logistic_mixture",),
        "loss": ("finite_time", "growth", "instantaneous", "likelihood"),
        "sampler": (
            "binomial_bridge",
            "binomial_bridge_nearest",
            "counts",
            "multistep",
            "poisson",
            "posterior_bridge",
            "posterior_trapezoidal",
            "trapezoidal",
        ),
    },
    "levels": {
        "words": ("process=uniform",),
        "loss": ("cross_entropy", "rates"),
        "sampler": ("level_bridge", "tau_leap"),
    },
    "steps": {
        "words": ("process=discrete_uniform", "process.num_steps=20"),
        "loss": ("cross_entropy", "steps"),
        "sampler": ("level_bridge",),
    },
    "immigration and death": {
        "words": ("process=birth_death",),
        "loss": ("birth_death",),
        "sampler": ("birth_death_bridge",),
    },
}
"""Losses and samplers that go together."""
ELSEWHERE = {"joint_bridge"}  # a student's, with a loss of its own: test_distillation.py


def type_command(
    folder: Path, *words: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, to its end; it must succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done


def train(folder: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python train.py <words>` in a folder, which gets the runs."""
    return type_command(folder, sys.executable, ROOT / "train.py", *words, **variables)


def sample(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """`python sample.py <words>` in a folder."""
    return type_command(folder, sys.executable, ROOT / "sample.py", *words)


def values(file: Path) -> dict[str, float]:
    """The scores in a metrics.json."""
    return json.loads(file.read_text())["values"]


def choices_of_counts(group: str) -> set[str]:
    """The choices of a group whose components are of diffusion on counts."""
    targets = {}
    for choice in choices(group):
        targets[choice] = str((settings_of(group, choice) or {}).get("_target_"))
    return {
        choice for choice, target in targets.items() if target.startswith("blackout.diffusion.")
    }


def test_every_loss_and_sampler_of_counts_is_in_a_sweep():
    for group in ("loss", "sampler"):
        swept = {choice for sweep in SWEEPS.values() for choice in sweep[group]}
        assert swept == choices_of_counts(group) - ELSEWHERE


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_over_losses_and_samplers(name, tmp_path):
    sweep = SWEEPS[name]
    axes = [f"{group}={','.join(sweep[group])}" for group in ("loss", "sampler")]
    done = train(tmp_path, "-m", *SHORT, *sweep["words"], *axes)
    (table,) = tmp_path.glob("runs/sweeps/*/results.csv")
    rows = [*csv.DictReader(table.open())]
    assert len(rows) == len(sweep["loss"]) * len(sweep["sampler"])
    assert [row for row in rows if row["state"] != "done"] == []
    for row in rows:
        run = tmp_path / row["run"]
        assert np.isfinite(values(run / "metrics.json")["val/bits_per_dim"])
        samples = np.load(run / "samples/final.npz")["samples"]
        assert samples.shape[1:] == (8, 8, 1) and samples.max() <= 16
    assert "report.html" in done.stdout


def test_fid_and_inception_score_of_two_processes_are_those_of_one(tmp_path):
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8)))
    write_inception_weights(tmp_path / "weights.pth")
    data = ["dataset=counts", "dataset.path=images.npy"]
    train(tmp_path, *data, *SHORT, "run_id=a", "experiment_name=fid")
    words = [
        "ckpt=runs/fid/a",
        *data,
        "num_samples=24",
        "sampler.num_steps=4",
        "sampler.batch_size=6",
        "device=cpu",
        "evaluate=true",
        "metrics=fid",
        "metrics.extractor.weights=weights.pth",
        "likelihood.images=0",
    ]
    sample(tmp_path, *words, "out=one")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    type_command(tmp_path, sys.executable, *torchrun, ROOT / "sample.py", *words, "out=two")
    one, two = (values(tmp_path / name / "metrics.json") for name in ("one", "two"))
    assert {"fid", "is"} <= one.keys() and one["fid"] > 0 and one["is"] >= 1
    assert two == pytest.approx(one, rel=1e-6)
    samples = [np.load(tmp_path / name / "samples.npz")["samples"] for name in ("one", "two")]
    assert np.array_equal(*samples)


def test_a_dashboard_without_a_network(tmp_path):
    words = [*SHORT, "logger=wandb", "logger.wandb.mode=offline", "run_id=a"]
    train(tmp_path, *words, WANDB_SILENT="true")
    (folder,) = tmp_path.rglob("offline-run-*")
    run = read_run(folder)
    assert run.exit_code == 0 and run.config["batch_size"] == 64
    assert any("train/loss" in row for row in run.history)
    scores = values(tmp_path / "runs/digits/a/metrics.json")
    assert run.summary["val/bits_per_dim"] == pytest.approx(scores["val/bits_per_dim"])


def test_a_killed_run_goes_on_bit_for_bit_and_is_sampled_and_scored(tmp_path):
    words = [*TINY, "trainer.max_steps=40", "metrics=none"]
    train(tmp_path, *words, "run_id=whole")
    command = [sys.executable, str(ROOT / "train.py"), *words, "run_id=cut"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    last = tmp_path / "runs/digits/cut/checkpoints/last.ckpt"
    deadline = time.monotonic() + SECONDS
    while not last.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    train(tmp_path, *words, "run_id=cut")
    assert_same(tmp_path / "runs/digits/cut", tmp_path / "runs/digits/whole")
    done = sample(
        tmp_path,
        "ckpt=runs/digits/cut",
        "num_samples=200",
        "evaluate=true",
        "metrics=digits",
        "likelihood.images=16",
        "trajectory=true",
        "out=evaluated",
    )
    assert "200 samples of 8 network evaluations" in done.stdout
    scores = values(tmp_path / "evaluated/metrics.json")
    assert {"fd_digits", "bits_per_dim_test"} <= scores.keys()
    assert all(np.isfinite([*scores.values()]))
    files = ("samples.npz", "grid.png", "trajectory.webp")
    assert all((tmp_path / "evaluated" / name).exists() for name in files)


def test_a_wheel_trains_and_samples_in_another_folder(tmp_path):
    """As `pip install .` would: built, installed and used outside the repository, offline."""
    source, home, work = tmp_path / "source", tmp_path / "home", tmp_path / "work"
    work.mkdir()
    for name in ("blackout", "conf"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    type_command(work, *pip, "wheel", *offline, "--no-build-isolation", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")
    anew = ["--ignore-installed", "--no-warn-script-location", "--prefix", home]
    type_command(work, *pip, "install", *offline, *anew, wheel)
    library = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    assert (Path(library) / "blackout" / "py.typed").exists()
    commands = home / "bin"
    type_command(work, commands / "blackout", "train", *SHORT, "run_id=a", PYTHONPATH=library)
    assert (work / "runs/digits/a/report.html").exists()
    words = ["ckpt=runs/digits/a", "num_samples=4", "evaluate=true", "metrics=none"]
    words += ["likelihood.images=4", "out=drawn"]
    type_command(work, commands / "blackout", "sample", *words, PYTHONPATH=library)
    assert np.isfinite(values(work / "drawn/metrics.json")["bits_per_dim_test"])
    refused = subprocess.run(
        [commands / "blackout", "sample", "num_sample=3"],
        cwd=work,
        env={**os.environ, "PYTHONPATH": library},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "num_samples" in refused.stderr
    laws = type_command(work, commands / "blackout", "verify", "--help", PYTHONPATH=library)
    assert "--process" in laws.stdout
