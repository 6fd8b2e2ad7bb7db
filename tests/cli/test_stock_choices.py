"""Common features of Lightning and Hydra: presets, schedules, early stopping, logs and SLURM."""

import json
import math
import os
import resource
import subprocess

import pytest
from hydra import compose, initialize_config_dir

from blackout.cli.build_trainer import build_trainer, check_launch, choose_accelerator
from blackout.config.choices import list_choices
from blackout.config.instantiate import instantiate
from blackout.errors import UserError
from blackout.safe_reading import available_memory, limit_memory
from blackout.training.loggers import Wandb
from tests.cli.conftest import ROOT, TINY


def composed(*words):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", list(words))


@pytest.mark.parametrize("name", list_choices("lr_schedule"))
def test_a_schedule_is_a_choice_that_comes_after_the_recipe(name):
    settings = composed(
        f"lr_schedule={name}", "family=flow", "target=ising", "~dataset", "trainer.max_steps=1000"
    )
    optimization = instantiate(settings.optimizer, "optimizer")
    rates = [optimization.lr_factor(step) for step in (0, 499, 999)]
    expected = {
        "constant": [1.0, 1.0, 1.0],
        "cosine": [1.0, 0.5, 0.0],
        "warmup": [1 / 500, 1.0, 1.0],
        "warmup_cosine": [1 / 500, 0.5, 0.0],
        "inverse_sqrt": [1 / 500, 1.0, math.sqrt(0.5)],
    }
    assert rates == pytest.approx(expected[name], abs=0.002)
    assert "lr_schedule" not in settings


def test_presets_of_the_trainer():
    assert (
        composed("trainer=cpu").trainer.accelerator == "cpu"
        and composed("trainer=cpu").trainer.devices == 1
    )
    assert composed("trainer=ddp", "trainer.devices=4").trainer.strategy == "ddp"
    assert composed("trainer=gpu").trainer.max_steps == composed().trainer.max_steps


def test_wandb_takes_name_tags_notes_and_group(tmp_path):
    words = [
        "logger=wandb",
        "logger.wandb.name=mine",
        "logger.wandb.tags=[a,b]",
        "logger.wandb.notes=why",
    ]
    settings = composed(*words, "logger.wandb.group=sweep").logger.wandb
    logger = instantiate(settings, "logger.wandb", save_dir=str(tmp_path))
    expected = {"name": "mine", "tags": ["a", "b"], "notes": "why", "group": "sweep"}
    assert isinstance(logger, Wandb) and expected.items() <= logger._settings.items()
    with pytest.raises(UserError, match="tags must be a list"):
        instantiate({**settings, "tags": "paper"}, "logger.wandb", save_dir=str(tmp_path))


def test_early_stopping_ends_a_run_and_the_same_command_knows_that_it_has_ended(run, tmp_path):
    words = [
        *TINY,
        "callbacks=early_stopping",
        "callbacks.early_stopping.patience=1",
        "trainer.max_steps=40",
    ]
    words += [
        "callbacks.early_stopping.min_delta=1000",
        f"runs_dir={tmp_path}",
        "run_id=a",
        "metrics=none",
    ]
    outcome = run("train", *words)
    assert outcome.code == 0, outcome.err
    results = json.loads((tmp_path / "digits/a/metrics.json").read_text())
    assert (
        results["finished"] and results["training_steps"] == 4
    )  # the second validation, no better than the first
    restarted = run("train", *words)
    assert restarted.code == 0 and "has ended after 4 steps" in restarted.out
    log = (tmp_path / "digits/a/train.log").read_text()
    assert (
        log.startswith("# ")
        and "data:    digits" in log
        and "report:" in log
        and log.count("data:") == 1
    )


def test_early_stopping_needs_validation_data(run, tmp_path):
    words = [*TINY, "callbacks=early_stopping", "dataset.validation=0", f"runs_dir={tmp_path}"]
    run("train", *words, "callbacks.checkpoints.restore_best=false").assert_refused(
        "validation", "early_stopping=null"
    )


@pytest.mark.parametrize("steps, is_said", [(1, False), (2, True)])
def test_a_warm_up_longer_than_a_tenth_of_the_run_is_printed(run, tmp_path, steps, is_said):
    words = [
        *TINY,
        f"optimizer.warmup_steps={steps}",
        "trainer.max_steps=10",
        f"runs_dir={tmp_path}",
        "run_id=a",
    ]
    outcome = run("train", *words, "metrics=none")
    assert (
        outcome.code == 0
        and ("warm-up: the learning rate rises for 2 of 10 steps" in outcome.out) == is_said
    )


def test_a_log_has_the_error_that_ended_the_run(run, tmp_path):
    poison = "+callbacks.poison={_target_: tests.cli.test_sweeps_and_plan.Bug}"
    words = [
        *TINY,
        poison,
        "trainer.max_steps=4",
        f"runs_dir={tmp_path}",
        "run_id=a",
        "metrics=none",
    ]
    with pytest.raises(ZeroDivisionError):
        run("train", *words)
    assert "ZeroDivisionError: a bug" in (tmp_path / "digits/a/train.log").read_text()


def test_the_slurm_file_starts_as_many_processes_as_lightning_expects(tmp_path):
    """With a stand-in for srun, which prints its command."""
    stand_in = tmp_path / "srun"
    stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\nexit 75\n')
    stand_in.chmod(0o755)
    requeue = tmp_path / "scontrol"
    requeue.write_text('#!/bin/bash\nprintf "requeued %s\\n" "$2"\n')
    requeue.chmod(0o755)
    script = ROOT / "examples" / "slurm.sbatch"
    job = {"SLURM_NTASKS_PER_NODE": "4", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "17"}
    environment = os.environ | job | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["bash", str(script), "dataset=cifar10", "run_id=mine"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 75 and done.stderr == ""
    python, program, *settings, requeued = done.stdout.splitlines()
    assert (python, program, requeued) == ("python", "train.py", "requeued 17")
    trainer = composed(*settings).trainer
    assert (trainer.devices, trainer.num_nodes, trainer.strategy) == (4, 2, "ddp")
    assert f"--ntasks-per-node={trainer.devices}" in script.read_text()


def test_more_tasks_than_processes_of_the_trainer_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    config = {
        "trainer": {
            "_target_": "pytorch_lightning.Trainer",
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": 1,
        },
        "callbacks": {},
        "logger": {},
    }
    with pytest.raises(UserError, match="a launcher started 2 processes, and the Trainer has 1"):
        check_launch(build_trainer(config, tmp_path, []))


def test_the_accelerator_of_a_mac_is_the_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert choose_accelerator("auto") == "cpu" and choose_accelerator("mps") == "mps"
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert choose_accelerator("auto") == "auto"


def test_memory_is_known_without_the_files_of_linux(monkeypatch):
    def missing(path, *words, **options):
        raise FileNotFoundError(path)

    monkeypatch.setattr("pathlib.Path.read_text", missing)
    assert available_memory() > 0
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limit_memory(1):
        assert len(bytearray(10**6)) == 10**6  # no limit
    assert resource.getrlimit(resource.RLIMIT_AS) == before
