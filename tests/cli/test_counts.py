"""A user's counts by the default recipe: from a table to samples of a class, with scores."""

import json

import numpy as np
import pytest

from blackout import load_model
from tests.cli.conftest import TINY

SHORT = (*(option for option in TINY if not option.startswith("network")), "validation_draws=1", "trainer.max_steps=4",
         "callbacks.scores.num_samples=12")  # fmt: skip
SMALL = ("network.body.width=16", "network.body.depth=1")


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr("blackout.evaluation.two_samples.TREES", 5)


def table(path):
    source = np.random.default_rng(0)
    kinds = np.array(["B cell", "T cell"])[np.arange(200) % 2]
    counts = source.poisson(
        source.gamma(0.5, 1.0, (200, 1)) * np.where(kinds == "B cell", 1, 9)[:, None] * [0.2, 4, 40]
    )
    rows = [",".join(map(str, row)) + f",{kind}" for row, kind in zip(counts.tolist(), kinds, strict=True)]
    path.write_text("\n".join(["a,b,c,kind", *rows]) + "\n")
    return counts


def test_a_table_with_classes_to_samples_of_one(run, tmp_path):
    counts = table(tmp_path / "cells.csv")
    options = ("dataset=counts", f"dataset.path={tmp_path / 'cells.csv'}", "dataset.labels=kind", "conditional=true")
    outcome = run("train", *SHORT, *SMALL, *options, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0 and "ElementwiseMLP" in outcome.out, outcome.err
    directory = tmp_path / "cells/a"
    scored = json.loads((directory / "metrics.json").read_text())["values"]
    assert {"c2st_auc", "variance_ratio"} <= scored.keys()
    description = json.loads((directory / "model/config.json").read_text())
    assert description["data"]["class_names"] == ["B cell", "T cell"]
    grid = description["model"]["schedule"]["grid"]
    assert (
        grid["first"] > 6 and grid["location"] < -1 and description["model"]["head"]["_target_"].endswith("GammaHead")
    )
    run("sample", f"ckpt={directory}", "num_samples=3", "classes=[C cell]").assert_refused("no class 'C cell'")
    given = ("num_samples=20", "evaluate=true", "likelihood.images=20", "likelihood.baselines=true")
    data = ("dataset=counts", f"dataset.path={tmp_path / 'cells.csv'}", "dataset.labels=kind")
    outcome = run("sample", f"ckpt={directory}", "classes=[T cell]", *given, *data)
    assert outcome.code == 0, outcome.err
    report = json.loads((directory / "samples/metrics.json").read_text())
    assert "c2st_auc" in report["values"] and "c2st_auc" in report["held_out_data"]["values"]
    assert report["held_out_bits_of_baselines"]["poisson"] > 2
    assert "negative_binomial" in report["likelihood"]["baselines"]
    samples = np.load(directory / "samples/samples.npz")["samples"]
    assert samples.shape == (20, 3) and samples.max() <= counts.max()


def test_models_and_checkpoints_sample_alike_and_runs_go_on(run, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).poisson(4.0, (60, 5)))
    options = (
        *SHORT,
        *SMALL,
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npy'}",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert run("train", *options, "metrics=none").code == 0
    first = load_model(tmp_path / "x/a/model").sample(6, seed=3)
    assert (first == load_model(tmp_path / "x/a/checkpoints/last.ckpt").sample(6, seed=3)).all()
    outcome = run("train", *options, "metrics=none", "trainer.max_steps=6")
    assert outcome.code == 0 and "(continued)" in outcome.out, outcome.err


@pytest.mark.parametrize("process", ["absorbing", "birth_death"])
def test_other_processes_take_their_own_parts(run, tmp_path, process):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 6, (60, 8)))
    options = ("dataset=counts", f"dataset.path={tmp_path / 'x.npy'}", f"process={process}", "metrics=none")
    outcome = run("train", *SHORT, *SMALL, *options, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err
    network = json.loads((tmp_path / "x/a/model/config.json").read_text())["model"]["network"]
    kind = "SequenceConvolution" if process == "absorbing" else "ElementwiseMLP"
    assert network["body"]["_target_"].endswith(kind)


def test_columns_that_are_not_there_are_named(run, tmp_path):
    table(tmp_path / "x.csv")
    given = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.csv'}",
        "dataset.labels=type",
        f"runs_dir={tmp_path / 'runs'}",
    )
    run("train", *given).assert_refused("no column 'type'", "'kind'")
    assert not (tmp_path / "runs").exists()
