"""The main path: train, find everything in the run directory, sample, resume."""

import csv
import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from blackout import load_model
from blackout.diffusion import PoissonLeap, logit_times
from tests.cli.conftest import TINY


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def trained(run, runs, tmp_path):
    """A copy of one run, which the first test trains."""
    if not (runs / "digits" / "a").exists():
        outcome = run("train", *TINY, "trainer.max_steps=4", f"runs_dir={runs}", "run_id=a")
        assert outcome.code == 0, outcome.err
    return shutil.copytree(runs / "digits" / "a", tmp_path / "digits" / "a")


def test_a_run_directory_has_all_documented_files(trained):
    config = yaml.safe_load((trained / "config.yaml").read_text())
    assert config["trainer"]["max_steps"] == 4 and config["loss"]["scale"] == 1000
    rows = list(csv.DictReader((trained / "metrics.csv").open()))
    assert [int(row["step"]) for row in rows] == sorted({int(row["step"]) for row in rows})
    assert any(row["train/loss"] for row in rows) and any(row["val/bits_per_dim"] for row in rows)
    assert (trained / "checkpoints" / "last.ckpt").exists() and (
        trained / "checkpoints" / "best.ckpt"
    ).exists()
    assert Image.open(trained / "samples" / "step_0000004.png").size[0] > 64
    final = np.load(trained / "samples" / "final.npz")["samples"]
    assert final.shape == (64, 8, 8, 1) and final.dtype == np.uint8 and final.max() <= 16
    assert json.loads((trained / "metrics.json").read_text())["training_steps"] == 4
    description = json.loads((trained / "model" / "config.json").read_text())
    assert description["data"]["shape"] == [1, 8, 8] and description["data"]["max_count"] == 16
    assert "load_model" in (trained / "model" / "README.md").read_text()


def test_run_directory_checkpoint_and_exported_model_give_the_same_samples(run, trained, tmp_path):
    samples = []
    for number, path in enumerate(
        [trained, trained / "checkpoints" / "last.ckpt", trained / "model"]
    ):
        out = tmp_path / str(number)
        outcome = run(
            "sample", f"ckpt={path}", "num_samples=6", "seed=3", f"out={out}", "trajectory=true"
        )
        assert outcome.code == 0, outcome.err
        samples.append(np.load(out / "samples.npz")["samples"])
        assert (out / "grid.png").exists() and Image.open(out / "trajectory.webp").n_frames > 4
    assert np.array_equal(samples[0], samples[1]) and np.array_equal(samples[0], samples[2])
    state = torch.load(trained / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    for path in (
        trained / "checkpoints/last.ckpt",
        trained / "model",
    ):  # so few steps leave the average near the rest
        for name, value in load_model(path).network.named_parameters():
            assert torch.equal(value, state[f"ema.module.{name}"])
            assert not torch.equal(value, state[f"network.{name}"])


def test_samples_go_to_the_run_directory_and_the_sampler_can_be_changed(run, trained):
    assert (
        run(
            "sample", f"ckpt={trained}", "num_samples=3", "sampler=poisson", "sampler.num_steps=5"
        ).code
        == 0
    )
    assert np.load(trained / "samples" / "samples.npz")["samples"].shape == (3, 8, 8, 1)
    before = np.load(trained / "samples" / "samples.npz")["samples"]
    assert run("sample", f"ckpt={trained}", "num_samples=3", "sampler.num_steps=6").code == 0
    assert not np.array_equal(before, np.load(trained / "samples-2" / "samples.npz")["samples"])


@pytest.mark.deep
def test_a_sampler_chosen_by_name_keeps_the_grid_of_the_model(run, trained, tmp_path):
    def draw(name, *options):
        outcome = run(
            "sample", f"ckpt={trained}", "num_samples=6", f"out={tmp_path / name}", *options
        )
        assert outcome.code == 0, outcome.err
        return np.load(tmp_path / name / "samples.npz")["samples"]

    model = load_model(trained)
    assert np.array_equal(
        draw("own"), draw("by_name", "sampler=multistep")
    )  # eight steps, as it was trained with
    expected = {
        "steps": replace(model.sampler, num_steps=25),
        "poisson": replace(model.sampler, kernel=PoissonLeap(), num_steps=9),
    }
    expected["ends"] = replace(expected["poisson"], grid=partial(logit_times, first=4.0, last=-5.0))
    options = {
        "steps": ["sampler=multistep", "sampler.num_steps=25"],
        "poisson": ["sampler=poisson", "sampler.num_steps=9"],
    }
    options["ends"] = [
        *options["poisson"],
        "sampler/grid=logit",
        "sampler.grid.first=4",
        "sampler.grid.last=-5",
    ]
    for name, sampler in expected.items():
        assert np.array_equal(
            draw(name, *options[name])[..., 0], model.sample(6, sampler=sampler)[:, 0].numpy()
        ), name


@pytest.mark.deep
def test_a_stopped_run_continues_to_the_same_weights(run, tmp_path):
    def weights(run_id, *stops):
        for steps in stops:
            outcome = run(
                "train",
                *TINY,
                f"trainer.max_steps={steps}",
                f"runs_dir={tmp_path}",
                f"run_id={run_id}",
            )
            assert outcome.code == 0, outcome.err
        checkpoint = torch.load(
            tmp_path / "digits" / run_id / "checkpoints" / "last.ckpt", weights_only=True
        )
        assert checkpoint["global_step"] == stops[-1]
        return checkpoint["state_dict"]

    uninterrupted, continued = weights("whole", 6), weights("halves", 4, 6)
    assert uninterrupted.keys() == continued.keys()
    assert all(torch.equal(uninterrupted[name], continued[name]) for name in uninterrupted)


@pytest.mark.deep
def test_the_same_command_continues_the_same_run_and_other_settings_make_another(run, tmp_path):
    for seed in (0, 0, 1):
        assert (
            run("train", *TINY, "trainer.max_steps=2", f"runs_dir={tmp_path}", f"seed={seed}").code
            == 0
        )
    assert len(list((tmp_path / "digits").iterdir())) == 2


@pytest.mark.deep
def test_a_run_id_is_not_reused_for_other_settings(run, trained, tmp_path):
    outcome = run(
        "train", *TINY, "trainer.max_steps=4", "seed=5", f"runs_dir={tmp_path}", "run_id=a"
    )
    outcome.assert_refused("seed=0", "run_id")


@pytest.mark.deep
def test_vectors_of_large_counts_train_and_sample(run, tmp_path):
    rng = np.random.default_rng(0)
    rates = rng.gamma(2.0, 100.0, size=(300, 1)) * np.linspace(0.2, 1.5, 12)
    np.save(tmp_path / "counts.npy", rng.poisson(rates).clip(0, 1000))
    outcome = run(
        "train",
        *TINY,
        "dataset=counts",
        f"dataset.path={tmp_path / 'counts.npy'}",
        "dataset.max_count=1000",
        "trainer.max_steps=4",
        f"runs_dir={tmp_path}",
        "run_id=c",
    )
    assert outcome.code == 0, outcome.err
    directory = next(tmp_path.glob("*/c"))
    assert run("sample", f"ckpt={directory}", "num_samples=5").code == 0
    samples = np.load(directory / "samples" / "samples.npz")["samples"]
    assert (
        samples.shape == (5, 12)
        and samples.dtype == np.int32
        and 0 <= samples.min() <= samples.max() <= 1000
    )


def test_a_model_is_used_from_python(trained):
    model = load_model(trained)
    assert not model.training and not any(module.training for module in model.modules())
    counts = model.sample(3, seed=1)
    assert counts.shape == (3, 1, 8, 8) and counts.dtype == torch.uint8
    assert torch.equal(model.sample(2, seed=1), counts[:2])


@pytest.mark.deep
def test_a_debug_preset_leaves_a_family_without_such_sampling_alone(run, tmp_path):
    flow = (
        "experiment=flow_ising",
        "debug=fast",
        "target.size=3",
        "validation_samples=64",
        f"runs_dir={tmp_path}",
    )
    assert run("train", *flow, "callbacks.progress=null").code == 0
    run("train", *flow, "sampler.num_steps=3").assert_refused("sampler")
    run("train", *flow, "loss=instantaneous").assert_refused(
        "loss.scale", "schedule.num_steps", "another loss"
    )


@pytest.mark.parametrize(
    "debug", ["overfit", *(pytest.param(d, marks=pytest.mark.deep) for d in ("fast", "profile"))]
)
def test_debug_presets_run(run, tmp_path, debug):
    small = [
        option
        for option in TINY
        if not option.startswith(("trainer.val", "callbacks.samples", "sampler"))
    ]
    outcome = run(
        "train",
        f"debug={debug}",
        *small,
        "trainer.max_steps=3",
        "sampler.num_steps=4",
        f"runs_dir={tmp_path}",
    )
    assert outcome.code == 0, outcome.err
