"""A family outside the package can use all programs, without changes to the package."""

import csv
import json

import numpy as np
import pytest

from blackout import load_model
from tests import processes
from tests.cli.conftest import ROOT, run  # noqa: F401  (a fixture)
from tests.killed import assert_same, kill

pytestmark = pytest.mark.deep

TOY = [
    f"hydra.searchpath=[file://{ROOT}/tests/toy/conf]",
    "experiment=toy",
    "callbacks.progress=null",
]
SAMPLE = ["trusted=[tests.toy]", "device=cpu"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """An uninterrupted run in a separate process."""
    runs = tmp_path_factory.mktemp("toy")
    process = processes.run("train", *TOY, f"runs_dir={runs}", "run_id=whole")
    assert process.returncode == 0, process.stderr
    return runs


def test_a_run_writes_the_usual_files(uninterrupted):
    run_directory = uninterrupted / "toy/whole"
    for file in ("config.yaml", "metrics.json", "samples/final.png", "model/README.md"):
        assert (run_directory / file).exists()
    rows = [row for row in csv.DictReader((run_directory / "metrics.csv").open()) if row["val/kl"]]
    assert float(rows[-1]["val/kl"]) < 0.5 * float(rows[0]["val/kl"])
    final = np.load(run_directory / "samples/final.npz")
    assert final["samples"].shape == (64, 16) and final["log_weight"].shape == (64,)


def test_a_killed_run_resumes_bit_for_bit(run, uninterrupted):  # noqa: F811
    settings = [*TOY, f"runs_dir={uninterrupted}", "run_id=cut"]
    cut = uninterrupted / "toy/cut"
    for _ in range(2):
        kill(settings, cut)
    assert run("train", *settings).code == 0
    assert_same(cut, uninterrupted / "toy/whole")
    picture = "samples/step_0000030.png"
    assert (cut / picture).read_bytes() == (uninterrupted / "toy/whole" / picture).read_bytes()


def test_plans_and_sweeps_work(run, tmp_path):  # noqa: F811
    planned = run("train", *TOY, "plan=true", f"runs_dir={tmp_path}")
    assert planned.code == 0 and "16" in planned.out, planned.err
    levels = run("train", TOY[0], "family=toy", "process=absorbing", f"runs_dir={tmp_path}")
    levels.assert_refused("process=absorbing is not for family=toy, but for family=blackout")
    swept = run("train", "-m", *TOY, "seed=1,2", "trainer.max_steps=4", f"runs_dir={tmp_path}")
    assert swept.code == 0, swept.err
    (table,) = tmp_path.glob("sweeps/*/results.csv")
    rows = list(csv.DictReader(table.open()))
    assert [row["state"] for row in rows] == ["done", "done"] and float(rows[0]["val/kl"]) > 0


def test_runs_are_logged_to_wandb_offline(run, tmp_path):  # noqa: F811
    options = ("logger=wandb", "logger.wandb.mode=offline", "trainer.max_steps=6")
    logged = run("train", *TOY, *options, f"runs_dir={tmp_path}", "run_id=a")
    assert logged.code == 0, logged.err
    assert list((tmp_path / "toy/a/wandb").glob("offline-run-*/*.wandb"))


def test_models_are_loaded_only_if_trusted(run, uninterrupted, tmp_path):  # noqa: F811
    model = load_model(uninterrupted / "toy/whole", trusted=("tests.toy",))
    assert model.network.logits.shape == (16,)
    refused = run("sample", f"ckpt={uninterrupted / 'toy/whole'}", f"out={tmp_path}")
    refused.assert_refused("tests.toy")


def test_one_and_two_processes_draw_equal_samples(run, uninterrupted, tmp_path):  # noqa: F811
    options = [
        f"ckpt={uninterrupted / 'toy/whole'}",
        *SAMPLE,
        "num_samples=80",
        "+temperature=2",
        "evaluate=true",
    ]
    outcome = run("sample", *options, f"out={tmp_path / 'one'}")
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "one/metrics.json").read_text())
    assert report["sampler"] == {"temperature": 2.0} and report["network_evaluations"] == 1
    distributed = processes.run_distributed("sample", *options, f"out={tmp_path / 'two'}")
    assert distributed.returncode == 0, distributed.stderr
    assert (tmp_path / "one/samples.npz").read_bytes() == (
        tmp_path / "two/samples.npz"
    ).read_bytes()
    run("sample", *options, "+colour=red", f"out={tmp_path / 'no'}").assert_refused(
        "colour: no such setting"
    )
