"""Ends of time that the data decide, on the command line."""

import json

import numpy as np
import pytest

from tests.cli.conftest import TINY

RECIPE = (*TINY, "metrics=none", "validation_draws=1", "sampler.num_steps=4")


@pytest.fixture
def bright(tmp_path):
    """Counts of 16 bits, bright and dark images: D is nearly two millions."""
    source = np.random.default_rng(0)
    counts = source.poisson(
        np.where(source.random((300, 1, 1)) < 0.5, 1000, 60_000) * np.ones((1, 8, 8))
    )
    np.save(tmp_path / "bright.npy", counts)
    return (
        "dataset=counts",
        "network=mlp",
        "head=scaled",
        "schedule=fisher",
        "loss=instantaneous",
        f"dataset.path={tmp_path / 'bright.npy'}",
        "dataset.max_count=65535",
    )


def test_ends_that_do_not_suit_the_data_are_refused_before_training(run, bright, tmp_path):
    run_settings = ("trainer.max_steps=2", f"runs_dir={tmp_path / 'runs'}")
    run("train", *RECIPE, *bright, *run_settings).assert_refused(
        "schedule", "logit -15", "final_time=17."
    )
    longer = "schedule.grid.final_time=null"
    run("train", *RECIPE, *bright, *run_settings, longer, "sampler/grid=logit").assert_refused(
        "sampler", "last=-17."
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.deep
def test_ends_can_be_left_to_the_data(run, bright, tmp_path):
    run_settings, grids = (
        f"runs_dir={tmp_path}",
        ("schedule.grid.final_time=null", "sampler/grid=logit_data"),
    )
    outcome = run(
        "train", *RECIPE, *bright, *grids, run_settings, "run_id=a", "trainer.max_steps=2"
    )
    assert outcome.code == 0, outcome.err
    directory = tmp_path / "bright/a"
    model = json.loads((directory / "model/config.json").read_text())["model"]
    assert 16 < model["schedule"]["grid"]["final_time"] < 18
    assert model["sampler"]["grid"]["first"] == pytest.approx(10.549, abs=1e-3)
    assert -18 < model["sampler"]["grid"]["last"] < -16
    run("sample", f"ckpt={directory}", "num_samples=2", "sampler/grid=logit").assert_refused(
        "sampler", "last=-17."
    )
    assert run("sample", f"ckpt={directory}", "num_samples=2", "sampler/grid=logit_data").code == 0
    with (directory / "metrics.csv").open() as file:
        assert "val/bits_per_dim" in file.readline()
