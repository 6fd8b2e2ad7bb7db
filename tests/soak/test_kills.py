"""A few kill points of the soak test, asynchronous saves, and different numbers of processes."""

import csv
import json
import threading

import numpy as np
import pytest
import torch

from blackout.training import checkpoint_callback
from blackout.training.checkpoint_files import read_checkpoint
from blackout.training.lightning_module import TrainingModule
from tests import processes
from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.soak.kills import TINY
from tests.soak.result import result


@pytest.mark.deep
def test_killed_runs_have_the_same_results():
    outcome = processes.run(
        "tests/soak/kills", "--points", "2", "--variants", "accumulated", "--seed", "1"
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("identical") >= 1


@pytest.mark.deep
def test_a_process_that_starts_forks_ends_without_a_report_of_leaks():
    outcome = processes.run("-c", "from tests.soak import forks; forks.preload()")
    assert outcome.returncode == 0 and "leaked" not in outcome.stderr, outcome.stderr


@pytest.mark.deep
def test_two_processes_train_sample_and_score_like_one(run, tmp_path):  # noqa: F811
    options = [
        *(o for o in TINY if "devices" not in o),
        "trainer.precision=32-true",
        f"runs_dir={tmp_path}",
    ]
    options += ["batch_size=30", "optimizer.decay_steps=null"]
    two_at_once = ["trainer.devices=2", "trainer.strategy=ddp"]
    assert run("train", *options, "trainer.devices=1", "run_id=one").code == 0
    for run_id, number, steps in (
        ("two", 2, 12),
        ("elastic", 1, 3),
        ("elastic", 2, 8),
        ("elastic", 1, 12),
    ):
        run_options = [*options, f"run_id={run_id}", f"trainer.max_steps={steps}"]
        if number == 1:
            outcome = run("train", *run_options, "trainer.devices=1")
            assert outcome.code == 0, outcome.err
        else:
            distributed = processes.run_distributed("train", *run_options, *two_at_once)
            assert distributed.returncode == 0, distributed.stderr
    one_process, two_processes, elastic = (
        tmp_path / "digits" / name for name in ("one", "two", "elastic")
    )
    assert sorted(p.name for p in two_processes.rglob("*")) == sorted(
        p.name for p in one_process.rglob("*")
    )
    for other_run in (two_processes, elastic):
        rows = [
            list(csv.DictReader((run / "metrics.csv").open())) for run in (one_process, other_run)
        ]
        for column in ("train/loss", "val/bits_per_dim"):
            first, second = (
                {row["step"]: float(row[column]) for row in table if row[column]} for table in rows
            )
            # a run that ended earlier has more rows
            assert len(first) >= 3 and first.keys() <= second.keys(), column
            assert list(first.values()) == pytest.approx(
                [second[step] for step in first], rel=1e-5
            ), column
        scores = [
            json.loads((run / "metrics.json").read_text())["values"]
            for run in (one_process, other_run)
        ]
        assert scores[0] == pytest.approx(scores[1], rel=1e-5)
        samples = [
            np.load(run / "samples/final.npz")["samples"] for run in (one_process, other_run)
        ]
        assert (samples[0] != samples[1]).mean() < 0.01  # the weights differ in their last bits
        weights = [
            read_checkpoint(run / "checkpoints/last.ckpt")["state_dict"]
            for run in (one_process, other_run)
        ]
        for name, value in weights[0].items():
            assert torch.allclose(weights[1][name], value, rtol=1e-4, atol=1e-6), name


@pytest.mark.deep
def test_torchrun_restarts_a_group_with_killed_workers(tmp_path):
    options = [
        *(o for o in TINY if "devices" not in o),
        f"runs_dir={tmp_path}",
        "experiment_name=digits",
    ]
    killed = ["+callbacks.killed={_target_: tests.soak.callbacks.KilledOnce, steps: [5, 8]}"]
    for run_id, callbacks in (("killed", killed), ("whole", [])):
        arguments = (*options, *callbacks, f"run_id={run_id}")
        restarts = ("--max-restarts=3",)
        process = processes.run_distributed("train", *arguments, launcher_options=restarts)
        assert process.returncode == 0, process.stderr[-5000:]
        assert process.stdout.count("(continued)") == (2 if callbacks else 0)
    assert result(tmp_path / "digits/killed") == result(tmp_path / "digits/whole")


def test_saves_are_asynchronous_and_complete(run, tmp_path, monkeypatch):  # noqa: F811
    steps = threading.Semaphore(0)
    training_step = TrainingModule.training_step
    write = checkpoint_callback.write_checkpoint

    def slow_write(checkpoint, path):
        assert all(steps.acquire(timeout=20) for _ in range(2)), "a step waits for the disk"
        write(checkpoint, path)

    def counted_step(*arguments):
        steps.release()
        return training_step(*arguments)

    monkeypatch.setattr(checkpoint_callback, "write_checkpoint", slow_write)
    monkeypatch.setattr(TrainingModule, "training_step", counted_step)
    # the first save is written after two more steps have begun, the second before the program ends
    options = [
        "callbacks.checkpoints.every_n_steps=3",
        "callbacks.checkpoints.monitor=null",
        "trainer.max_steps=6",
    ]
    other_options = [
        o for o in TINY if not o.startswith(tuple(word.split("=")[0] for word in options))
    ]
    outcome = run("train", *other_options, *options, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "digits/a/checkpoints"
    saved = [read_checkpoint(folder / name) for name in ("previous.ckpt", "last.ckpt")]
    assert [checkpoint["global_step"] for checkpoint in saved] == [3, 6]
    # the save has a copy of the state, which later steps do not change
    assert saved[0]["optimizer_states"][0]["state"][0]["step"] == 3
