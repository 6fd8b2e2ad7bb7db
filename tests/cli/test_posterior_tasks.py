"""Posterior tasks: exact priors, a classifier that is trained first, and two processes."""

import json

import numpy as np
import pytest

from tests import processes
from tests.cli.conftest import TINY

pytestmark = pytest.mark.deep


def run_task(run, out, *options):
    outcome = run("sample", f"out={out}", "device=cpu", *options)
    assert outcome.code == 0, outcome.err
    return json.loads((out / "metrics.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture
def model(run, runs):
    if not (runs / "digits" / "a").exists():
        outcome = run(
            "train", *TINY, "trainer.max_steps=4", "run_id=a", f"runs_dir={runs}", "metrics=none"
        )
        assert outcome.code == 0, outcome.err
    return runs / "digits" / "a"


def test_synthetic_samples_are_close_to_exact_draws_and_far_from_the_prior(run, tmp_path):
    options = ("task=synthetic", "num_samples=1000", "posterior.sweeps=25", "prior.elements=2")
    values = run_task(run, tmp_path, *options)["values"]
    assert (
        values["total_variation"]
        < values["floor_total_variation"] + 0.05
        < values["prior_total_variation"]
    )
    assert (tmp_path / "heat_maps.png").stat().st_size > 0


def test_dna_at_every_scale(run, tmp_path):
    values = run_task(
        run,
        tmp_path,
        "task=dna_toy",
        "num_samples=200",
        "posterior.sweeps=40",
        "operator.scale=[0,1.5]",
    )
    assert [row["scale"] for row in values["tilt"]] == [0.0, 1.5]
    assert values["tilt"][1]["exact_reward"] == pytest.approx(1.0677, abs=1e-4)
    assert values["values"]["largest_error_in_standard_errors"] < 4
    assert np.load(tmp_path / "posterior.npz")["measurement"].shape == (2, 39)
    assert (tmp_path / "tilt.png").stat().st_size > 0


@pytest.mark.deep
@pytest.mark.figures
def test_melodies_are_as_good_as_exact_draws(run, tmp_path):
    options = (
        "task=music_toy",
        "prior.elements=48",
        "measurement=model:0-11",
        "posterior.sweeps=30",
    )
    values = run_task(run, tmp_path, *options)["values"]
    assert values["violations"] == 0
    assert (
        abs(values["hellinger"] - values["exact_hellinger"])
        < 0.08
        < values["prior_hellinger"] - values["hellinger"]
    )
    truth, x = (
        np.load(tmp_path / "posterior.npz")["truth"],
        np.load(tmp_path / "samples.npz")["samples"],
    )
    assert truth.shape == (12, 48) and x.shape == (48, 48)
    assert (tmp_path / "piano_rolls.png").stat().st_size > 0


@pytest.mark.parametrize("method", ["posterior=smc", "posterior=svdd", "posterior=dps"])
def test_every_method_takes_an_exact_prior(run, tmp_path, method):
    options = (
        "task=dna_toy",
        method,
        "num_samples=2",
        "operator.scale=2",
        "prior.num_steps=4",
        "prior.elements=6",
    )
    run_task(run, tmp_path, *options)


def test_a_class_by_a_classifier_that_learns_first(run, model, tmp_path):
    options = (
        "task=mnist_class",
        "num_samples=6",
        "posterior.moves=3",
        "operator.classifier.examples=400",
    )
    values = run_task(run, tmp_path, f"ckpt={model}", *options, "sampler.num_steps=4")["values"]
    # 400 examples teach about half of the classes; four standard errors of 359 images are 0.1
    assert 0 <= values["accuracy"] <= 1 and values["held_out_accuracy"] > 0.4


def test_two_processes_draw_the_same_samples_as_one(run, tmp_path):
    options = (
        "task=dna_toy",
        "num_samples=7",
        "posterior.sweeps=2",
        "prior.batch_size=8",
        "device=cpu",
    )
    run_task(run, tmp_path / "one", *options)
    shared = processes.run_distributed("sample", *options, f"out={tmp_path / 'two'}")
    assert shared.returncode == 0, shared.stderr
    single_process, two_processes = (
        (tmp_path / name / "samples.npz").read_bytes() for name in ("one", "two")
    )
    assert single_process == two_processes
    run_task(run, tmp_path / "some", *options, "indices=[30,4]")
    every, some = (np.load(tmp_path / name / "samples.npz")["samples"] for name in ("one", "some"))
    assert np.array_equal(some, every[[30, 4]])


HOSTILE = {
    "nothing given": ((), "ckpt"),
    "prior and model": (("task=dna_toy", "ckpt=CKPT"), "ckpt"),
    "prior alone": (("prior={_target_: benchmarks.exact_distributions.Dna}",), "posterior"),
    "no prior": (
        ("posterior=sgdd", "prior={_target_: benchmarks.exact_distributions.Ring}"),
        "is not an exact prior",
    ),
    "one element": (("task=synthetic", "prior.elements=1"), "elements"),
    "unknown field": (("task=dna_toy", "prior.letters=3"), "letters"),
    "no scale": (("task=dna_toy", "operator.scale=[]"), "scale"),
    "a word too long": (("task=dna_toy", "prior.elements=2", "operator.word=[1,2,3]"), "word"),
    "a measured reward": (("task=dna_toy", "measurement=model:0"), "reward"),
    "data of a prior": (("task=music_toy", "measurement=test:0"), "data"),
    "a sampler of a prior": (("task=music_toy", "sampler=level_bridge"), "sampler"),
    "scores of a prior": (("task=music_toy", "evaluate=true"), "evaluate"),
    "a heat bath of a black box": (
        ("task=synthetic", "posterior.likelihood_step=heat_bath"),
        "heat_bath",
    ),
    "no examples": (
        ("task=mnist_class", "ckpt=CKPT", "operator.classifier.examples=0"),
        "examples",
    ),
    "no class": (
        ("task=mnist_class", "ckpt=CKPT", "operator.label=77", "operator.classifier.examples=9"),
        "label",
    ),
    "pairs of counts": (("task=mnist_xor", "ckpt=CKPT", "measurement=test:0"), "0 and 1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_input_is_refused_in_one_line(run, model, tmp_path, name):
    options, word = HOSTILE[name]
    words = [option.replace("CKPT", str(model)) for option in options]
    run("sample", f"out={tmp_path / 'out'}", "device=cpu", *words).assert_refused(word)
    assert not (tmp_path / "out" / "samples.npz").exists()
