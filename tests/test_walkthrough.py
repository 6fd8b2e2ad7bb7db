"""What a user does with the framework, by commands in fresh processes.

Sweeps over losses and samplers of counts; FID and Inception Score of two processes; Weights and
Biases offline; a run that is killed and resumed; a wheel outside the repository.
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
from benchmarks.wandb_file import read_run
from tests import processes
from tests.cli.conftest import TINY
from tests.killed import assert_same
from tests.safety_net.choices import choices, settings_of

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[1]
TIMEOUT = 600  # seconds of a command
TWO_STEPS = (*TINY, "trainer.max_steps=2", "callbacks.samples=null", "metrics=none")

# Losses and samplers that fit together
SWEEPS = {
    "pure death": {
        "overrides": ("head=logistic_mixture",),
        "loss": ("finite_time", "growth", "instantaneous", "likelihood"),
        "sampler": (
            "binomial_bridge",
            "binomial_bridge_nearest",
            "multistep",
            "poisson",
            "posterior_bridge",
            "posterior_trapezoidal",
            "trapezoidal",
        ),
    },
    # with the steps of `TINY` it has the settings of `trapezoidal`, and a sweep refuses equal runs
    "default sampler": {
        "overrides": (),
        "loss": ("likelihood",),
        "sampler": ("counts",),
    },
    "continuous time": {
        "overrides": ("process=uniform",),
        "loss": ("cross_entropy", "rates"),
        "sampler": ("euler", "level_bridge", "tau_leap"),
    },
    "discrete time": {
        "overrides": ("process=discrete_uniform", "process.num_steps=20"),
        "loss": ("cross_entropy", "steps", "steps_d3pm"),
        "sampler": ("level_bridge",),
    },
    "birth and death": {
        "overrides": ("process=birth_death",),
        "loss": ("birth_death",),
        "sampler": ("birth_death_bridge",),
    },
}
DISTILLATION_SAMPLER = "joint_bridge"  # for students only, see diffusion/test_distillation.py


def run_command(
    folder: Path, *command: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; it must succeed."""
    arguments = [str(argument) for argument in command]
    # W&B's variables name a server of this process, if a test before has logged to it.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    result = subprocess.run(
        arguments,
        cwd=folder,
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert result.returncode == 0, (arguments, result.stdout[-2000:], result.stderr[-2000:])
    return result


def train(folder: Path, *overrides: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python train.py` in a folder, where it writes its runs."""
    return run_command(folder, sys.executable, ROOT / "train.py", *overrides, **environment)


def sample(folder: Path, *overrides: object) -> subprocess.CompletedProcess[str]:
    """Run `python sample.py` in a folder."""
    return run_command(folder, sys.executable, ROOT / "sample.py", *overrides)


def read_values(run: Path) -> dict[str, float]:
    """Return the values in the metrics.json of a folder."""
    return json.loads((run / "metrics.json").read_text())["values"]


def diffusion_choices(group: str) -> set[str]:
    """Return the choices of a group whose component is in `blackout.diffusion`."""
    names = set()
    for choice in choices(group):
        settings = settings_of(group, choice) or {}
        if str(settings.get("_target_")).startswith("blackout.diffusion."):
            names.add(choice)
    return names


@pytest.mark.parametrize("group", ["loss", "sampler"])
def test_the_sweeps_have_every_choice(group):
    swept = {choice for sweep in SWEEPS.values() for choice in sweep[group]}
    assert swept == diffusion_choices(group) - {DISTILLATION_SAMPLER}


@pytest.mark.parametrize("name", SWEEPS)
def test_sweep_over_losses_and_samplers(name, tmp_path):
    sweep = SWEEPS[name]
    axes = [f"{group}={','.join(sweep[group])}" for group in ("loss", "sampler")]
    result = train(tmp_path, "-m", *TWO_STEPS, *sweep["overrides"], *axes)
    (table,) = tmp_path.glob("runs/sweeps/*/results.csv")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(sweep["loss"]) * len(sweep["sampler"])
    assert [row for row in rows if row["state"] != "done"] == []
    for row in rows:
        run = tmp_path / row["run"]
        assert np.isfinite(read_values(run)["val/bits_per_dim"])
        samples = np.load(run / "samples/final.npz")["samples"]
        assert samples.shape[1:] == (8, 8, 1) and samples.max() <= 16
    assert "report.html" in result.stdout


def test_fid_and_inception_score_do_not_depend_on_the_number_of_processes(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8))
    np.save(tmp_path / "images.npy", images)
    write_inception_weights(tmp_path / "weights.pth")
    data = ["dataset=counts", "dataset.path=images.npy"]
    train(tmp_path, *data, *TWO_STEPS, "run_id=run", "experiment_name=fid")
    overrides = [
        "ckpt=runs/fid/run",
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
    sample(tmp_path, *overrides, "out=one")
    shared = processes.run_distributed("sample", *overrides, "out=two", cwd=tmp_path)
    assert shared.returncode == 0, shared.stderr

    one_process = read_values(tmp_path / "one")
    two_processes = read_values(tmp_path / "two")
    assert one_process["fid"] > 0 and one_process["is"] >= 1
    # float32 features of batches of other sizes differ in their last bits
    assert two_processes == pytest.approx(one_process, rel=1e-4)
    samples = [np.load(tmp_path / name / "samples.npz")["samples"] for name in ("one", "two")]
    assert np.array_equal(*samples)


def test_weights_and_biases_offline(tmp_path):
    logger = ["logger=wandb", "logger.wandb.mode=offline"]
    train(tmp_path, *TWO_STEPS, *logger, "run_id=run", WANDB_SILENT="true")
    (folder,) = tmp_path.rglob("offline-run-*")
    run = read_run(folder)
    assert run.exit_code == 0 and run.config["batch_size"] == 64
    assert any("train/loss" in row for row in run.history)
    values = read_values(tmp_path / "runs/digits/run")
    assert run.summary["val/bits_per_dim"] == pytest.approx(values["val/bits_per_dim"])


def test_a_killed_run_resumes_with_the_same_bits_and_is_evaluated(tmp_path):
    # 1. Train a run without interruption.
    overrides = [*TINY, "trainer.max_steps=40", "metrics=none"]
    train(tmp_path, *overrides, "run_id=uninterrupted")

    # 2. Kill the same run after its first checkpoint, and resume it.
    run = tmp_path / "runs/digits/killed"
    checkpoint = run / "checkpoints/last.ckpt"
    command = [sys.executable, str(ROOT / "train.py"), *overrides, "run_id=killed"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + TIMEOUT
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    train(tmp_path, *overrides, "run_id=killed")
    assert_same(run, tmp_path / "runs/digits/uninterrupted")

    # 3. Sample and evaluate it.
    result = sample(
        tmp_path,
        "ckpt=runs/digits/killed",
        "num_samples=200",
        "evaluate=true",
        "metrics=digits",
        "likelihood.images=16",
        "trajectory=true",
        "out=evaluated",
    )
    assert "200 samples of 8 network evaluations" in result.stdout
    values = read_values(tmp_path / "evaluated")
    assert {"frechet_distance_digits", "bits_per_dim_test"} <= values.keys()
    assert all(np.isfinite([*values.values()]))
    for name in ("samples.npz", "grid.png", "trajectory.webp"):
        assert (tmp_path / "evaluated" / name).exists()


def test_a_wheel_trains_and_samples_outside_the_repository(tmp_path):
    # 1. Build a wheel offline, from a copy without what is not packaged.
    source = tmp_path / "source"
    for name in ("blackout", "conf"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    build = ["wheel", *offline, "--no-build-isolation", "--wheel-dir", tmp_path, source]
    run_command(tmp_path, *pip, *build)

    # 2. Install it in a folder of its own, where it comes before the repository.
    (wheel,) = tmp_path.glob("*.whl")
    prefix = tmp_path / "prefix"
    install = ["install", *offline, "--ignore-installed", "--no-warn-script-location"]
    run_command(tmp_path, *pip, *install, "--prefix", prefix, wheel)
    library = sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)})
    assert (Path(library) / "blackout" / "py.typed").exists()

    # 3. Train, sample and evaluate by its commands.
    work = tmp_path / "work"
    work.mkdir()
    commands = prefix / "bin"
    environment = {"PYTHONPATH": library}
    run_command(work, commands / "blackout", "train", *TWO_STEPS, "run_id=run", **environment)
    assert (work / "runs/digits/run/report.html").exists()
    overrides = ["ckpt=runs/digits/run", "num_samples=4", "evaluate=true", "metrics=none"]
    overrides += ["likelihood.images=4", "out=evaluated"]
    run_command(work, commands / "blackout", "sample", *overrides, **environment)
    assert np.isfinite(read_values(work / "evaluated")["bits_per_dim_test"])

    # 4. A wrong setting is refused in one line.
    result = subprocess.run(
        [commands / "blackout", "sample", "num_sample=3"],
        cwd=work,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "did you mean num_samples?" in result.stderr

    # 5. The other commands are installed, too.
    help_text = run_command(work, commands / "blackout", "verify", "--help", **environment).stdout
    assert "--process" in help_text
