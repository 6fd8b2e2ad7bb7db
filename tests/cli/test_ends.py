"""Ends of time that the data decide, on the command line; runs and models from before they did."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from blackout import load_model
from blackout.training.checkpoint_files import read_checkpoint
from tests.cli.conftest import TINY

FACTS = ("total_dispersion", "covariance_excess")
RECIPE = (*TINY, "metrics=none", "validation_draws=1", "sampler.num_steps=4")


@pytest.fixture
def bright(tmp_path):
    """Counts of 16 bits, bright and dark images: D is nearly two millions."""
    source = np.random.default_rng(0)
    counts = source.poisson(np.where(source.random((300, 1, 1)) < 0.5, 1000, 60_000) * np.ones((1, 8, 8)))
    np.save(tmp_path / "bright.npy", counts)
    return ("dataset=plain_counts", f"dataset.path={tmp_path / 'bright.npy'}", "dataset.max_count=65535")


def test_ends_that_do_not_suit_the_data_are_refused_before_training(run, bright, tmp_path):
    own = ("trainer.max_steps=2", f"runs_dir={tmp_path / 'runs'}")
    run("train", *RECIPE, *bright, *own).assert_refused("schedule", "logit -15", "schedule.grid.final_time=17.")
    longer = "schedule.grid.final_time=null"
    run("train", *RECIPE, *bright, *own, longer, "sampler/grid=logit").assert_refused("sampler.grid.last=-17.")
    assert not (tmp_path / "runs").exists()


def test_ends_can_be_left_to_the_data(run, bright, tmp_path):
    own, grids = f"runs_dir={tmp_path}", ("schedule.grid.final_time=null", "sampler/grid=logit_data")
    outcome = run("train", *RECIPE, *bright, *grids, own, "run_id=a", "trainer.max_steps=2")
    assert outcome.code == 0, outcome.err
    directory = tmp_path / "bright/a"
    model = json.loads((directory / "model/config.json").read_text())["model"]
    assert 16 < model["schedule"]["grid"]["final_time"] < 18
    assert model["sampler"]["grid"]["first"] == pytest.approx(10.549, abs=1e-3)
    assert -18 < model["sampler"]["grid"]["last"] < -16
    run("sample", f"ckpt={directory}", "num_samples=2", "sampler/grid=logit").assert_refused("sampler.grid.last=-17.")
    assert run("sample", f"ckpt={directory}", "num_samples=2", "sampler/grid=logit_data").code == 0
    with (directory / "metrics.csv").open() as file:
        assert "val/bits_per_dim" in file.readline()


def without_news(path):
    """Make an exported model or a checkpoint what it was before these facts and the means of classes were kept."""
    if path.is_dir():
        description, tensors = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
        save_file({name: value for name, value in tensors.items() if name != "class_mean"}, path / "model.safetensors")
        del description["weights_sha256"]
        for fact in FACTS:
            del description["data"][fact]
        (path / "config.json").write_text(json.dumps(description))
        return
    checkpoint = read_checkpoint(path)
    del checkpoint["state_dict"]["class_mean"]
    for fact in FACTS:
        del checkpoint["blackout"]["data"][fact]
    for other in path.parent.glob("*"):
        other.unlink()
    torch.save(checkpoint, path)


def test_runs_and_models_from_before_go_on_as_they_were(run, tmp_path):
    conditional = (*RECIPE, "conditional=true", f"runs_dir={tmp_path}", "run_id=a")
    assert run("train", *conditional, "trainer.max_steps=2").code == 0
    directory = tmp_path / "digits/a"
    assert load_model(directory).class_mean.shape == (10, 1, 8, 8)
    assert load_model(directory / "checkpoints/last.ckpt").class_mean.shape == (10, 1, 8, 8)
    without_news(directory / "model")
    old = load_model(directory / "model")
    assert old.class_mean is None
    assert run("sample", f"ckpt={directory / 'model'}", "num_samples=3", "classes=[3]").code == 0
    without_news(directory / "checkpoints/last.ckpt")
    outcome = run("train", *conditional, "trainer.max_steps=4", "sampler.num_steps=3")
    assert outcome.code == 0, outcome.err
    assert "(continued)" in outcome.out
    description = json.loads((directory / "model/config.json").read_text())
    assert not set(FACTS) & description["data"].keys() and load_model(directory).class_mean is None
