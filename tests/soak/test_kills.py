"""A few of the soak's kill points, and two processes against one."""

import csv
import json

import numpy as np
import pytest

from tests import warm
from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.soak.kills import TINY


def test_killed_runs_come_out_the_same():
    outcome = warm.run("tests/soak/kills", "--points", "2", "--variants", "accumulated", "--seed", "1")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("identical") >= 1


@pytest.mark.deep
def test_two_processes_train_sample_and_score_like_one(run, tmp_path):  # noqa: F811
    dropout_is_per_process = [option for option in TINY if "dropout" not in option and "devices" not in option]
    options = [*dropout_is_per_process, "trainer.precision=32-true", f"runs_dir={tmp_path}", "batch_size=30"]
    assert run("train", *options, "trainer.devices=1", "run_id=one").code == 0
    options += ["trainer.devices=2", "trainer.strategy=ddp", "run_id=two"]
    outcome = warm.together("train", *options)
    assert outcome.returncode == 0, outcome.stderr
    one, two = (tmp_path / "digits" / name for name in ("one", "two"))
    assert sorted(p.name for p in two.rglob("*")) == sorted(p.name for p in one.rglob("*"))
    rows = [list(csv.DictReader((run / "metrics.csv").open())) for run in (one, two)]
    for column in ("train/loss", "val/bits_per_dim"):
        first, second = ([float(row[column]) for row in table if row[column]] for table in rows)
        assert len(first) >= 4 and first == pytest.approx(second, rel=1e-5), column
    scores = [json.loads((run / "metrics.json").read_text())["values"] for run in (one, two)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    samples = [np.load(run / "samples/final.npz")["samples"] for run in (one, two)]
    assert (samples[0] != samples[1]).mean() < 0.01  # the weights differ in their last bits
