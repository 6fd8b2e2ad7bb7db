"""A few of the soak's kill points, saves beside training, and other numbers of processes."""

import csv
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from blackout.training import checkpoint_callback
from blackout.training.checkpoint_files import read_checkpoint
from blackout.training.lightning_module import TrainingModule
from tests import processes
from tests.cli.conftest import ROOT, run  # noqa: F401  (a fixture)
from tests.soak.kills import TINY
from tests.soak.result import result


@pytest.mark.deep
def test_killed_runs_come_out_the_same():
    outcome = processes.run("tests/soak/kills", "--points", "2", "--variants", "accumulated", "--seed", "1")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("identical") >= 1


@pytest.mark.deep
def test_two_processes_train_sample_and_score_like_one(run, tmp_path):  # noqa: F811
    options = [*(o for o in TINY if "devices" not in o), "trainer.precision=32-true", f"runs_dir={tmp_path}"]
    options += ["batch_size=30", "optimizer.decay_steps=null"]
    two_at_once = ["trainer.devices=2", "trainer.strategy=ddp"]
    assert run("train", *options, "trainer.devices=1", "run_id=one").code == 0
    for run_id, number, steps in (("two", 2, 12), ("elastic", 1, 3), ("elastic", 2, 8), ("elastic", 1, 12)):
        given = [*options, f"run_id={run_id}", f"trainer.max_steps={steps}"]
        if number == 1:
            outcome = run("train", *given, "trainer.devices=1")
            assert outcome.code == 0, outcome.err
        else:
            together = processes.run_distributed("train", *given, *two_at_once)
            assert together.returncode == 0, together.stderr
    one, two, elastic = (tmp_path / "digits" / name for name in ("one", "two", "elastic"))
    assert sorted(p.name for p in two.rglob("*")) == sorted(p.name for p in one.rglob("*"))
    for other in (two, elastic):
        rows = [list(csv.DictReader((run / "metrics.csv").open())) for run in (one, other)]
        for column in ("train/loss", "val/bits_per_dim"):
            first, second = ({row["step"]: float(row[column]) for row in table if row[column]} for table in rows)
            assert len(first) >= 3 and first.keys() <= second.keys(), column  # one that ended before has more
            assert list(first.values()) == pytest.approx([second[step] for step in first], rel=1e-5), column
        scores = [json.loads((run / "metrics.json").read_text())["values"] for run in (one, other)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-5)
        samples = [np.load(run / "samples/final.npz")["samples"] for run in (one, other)]
        assert (samples[0] != samples[1]).mean() < 0.01  # the weights differ in their last bits
        weights = [read_checkpoint(run / "checkpoints/last.ckpt")["state_dict"] for run in (one, other)]
        for name, value in weights[0].items():
            assert torch.allclose(weights[1][name], value, rtol=1e-4, atol=1e-6), name


@pytest.mark.deep
def test_a_group_whose_workers_are_killed_begins_again_by_itself(tmp_path):
    options = [*(o for o in TINY if "devices" not in o), f"runs_dir={tmp_path}", "experiment_name=digits"]
    killed = ["+callbacks.killed={_target_: tests.soak.callbacks.KilledOnce, steps: [5, 8]}"]
    for run_id, more in (("killed", killed), ("whole", [])):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command += ["--max-restarts=3", "train.py", *options, *more, f"run_id={run_id}"]
        environment = {**os.environ, **processes.ENVIRONMENT}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-5000:]
        assert done.stdout.count("(continued)") == (2 if more else 0)
    assert result(tmp_path / "digits/killed") == result(tmp_path / "digits/whole")


def test_no_step_waits_for_the_disk_and_all_is_written_in_the_end(run, tmp_path, monkeypatch):  # noqa: F811
    steps, training_step = threading.Semaphore(0), TrainingModule.training_step
    write = checkpoint_callback.write_checkpoint

    def slow(checkpoint, path):
        assert all(steps.acquire(timeout=20) for _ in range(2)), "a step waits for the disk"
        write(checkpoint, path)

    def counted(*arguments):
        steps.release()
        return training_step(*arguments)

    monkeypatch.setattr(checkpoint_callback, "write_checkpoint", slow)
    monkeypatch.setattr(TrainingModule, "training_step", counted)
    # the first of two saves is written when two steps more have begun, the last before the program ends
    shown = ["callbacks.checkpoints.every_n_steps=3", "callbacks.checkpoints.monitor=null", "trainer.max_steps=6"]
    kept = [o for o in TINY if not o.startswith(tuple(word.split("=")[0] for word in shown))]
    outcome = run("train", *kept, *shown, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "digits/a/checkpoints"
    saved = [read_checkpoint(folder / name) for name in ("previous.ckpt", "last.ckpt")]
    assert [one["global_step"] for one in saved] == [3, 6]
    assert saved[0]["optimizer_states"][0]["state"][0]["step"] == 3  # a copy, which later steps do not change
