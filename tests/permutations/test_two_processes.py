"""Two processes train a shuffle diffusion and a model of codes as one process does.

Offline dashboards contain the run.
"""

import csv
import json

import numpy as np
import pytest

from benchmarks.wandb_file import read_run
from tests import processes
from tests.cli.conftest import run  # noqa: F401  (a fixture)

pytestmark = pytest.mark.deep

SMALL = (
    "network.width=16",
    "network.depth=1",
    "network.heads=2",
    "batch_size=8",
    "trainer.max_steps=6",
    "trainer.val_check_interval=3",
    "trainer.log_every_n_steps=1",
    "trainer.accelerator=cpu",
    "optimizer.warmup_steps=2",
    "callbacks.progress=null",
    "callbacks.checkpoints.every_n_steps=3",
    "callbacks.samples=null",
)
FAMILIES = {
    "jigsaw_digits": ("family=shuffle", "loss=label_free", "dataset.num_test=20"),
    "cycles": (
        "family=codes",
        "dataset.length=5",
        "dataset.train_share=0.5",
        "trainer.limit_val_batches=2",
        "callbacks.scores=null",
    ),
}


@pytest.mark.parametrize("name", ["jigsaw_digits", pytest.param("cycles", marks=pytest.mark.deep)])
def test_two_processes_train_like_one(run, tmp_path, name):  # noqa: F811
    options = (f"dataset={name}", *SMALL, *FAMILIES[name], f"runs_dir={tmp_path}")
    outcome = run("train", *options, "trainer.devices=1", "run_id=one")
    assert outcome.code == 0, outcome.err
    two = (
        "trainer.devices=2",
        "trainer.strategy=ddp",
        "run_id=two",
        "logger=wandb",
        "logger.wandb.mode=offline",
    )
    outcome_of_two = processes.run_distributed("train", *options, *two)
    assert outcome_of_two.returncode == 0, outcome_of_two.stderr
    tables = [
        list(csv.DictReader((tmp_path / name / run_id / "metrics.csv").open()))
        for run_id in ("one", "two")
    ]
    loss = "train/loss" if "train/loss" in tables[0][0] else "train/nll_bits"
    for column in (loss, "val/nll_bits"):
        one_process, two_processes = (
            [float(row[column]) for row in table if row[column]] for table in tables
        )
        # in the final validation every process has one batch
        num_common = 2 if column.startswith("val") else 6
        assert len(one_process) >= num_common and one_process[:num_common] == pytest.approx(
            two_processes[:num_common], rel=1e-4
        ), column
    finals = [
        np.load(tmp_path / name / run_id / "samples/final.npz")["permutation"]
        for run_id in ("one", "two")
    ]
    assert (finals[0] != finals[1]).mean() < 0.05  # the weights differ in their last bits
    (folder,) = (tmp_path / name / "two").glob("wandb/offline-run-*")
    wandb_run = read_run(folder)
    values = json.loads((tmp_path / name / "two/metrics.json").read_text())["values"]
    assert wandb_run.exit_code == 0 and wandb_run.summary["val/nll_bits"] == pytest.approx(
        values["val/nll_bits"]
    )
    assert len([row for row in wandb_run.history if loss in row]) == 6
