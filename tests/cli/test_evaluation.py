"""`sample.py evaluate=true`: scores and bits of a model, scores of files, and provenance."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from blackout.cli.score import recipe_scores
from blackout.config.choices import list_choices
from tests.cli.conftest import TINY, train


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small perceptron trained for a moment on the digits, exported once for the module."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs")
    steps = ("trainer.max_steps=60", "trainer.val_check_interval=60", "callbacks.samples=null")
    train(*TINY, *steps, "network.body.width=64", f"runs_dir={folder}", "run_id=a")
    return folder / "digits" / "a"


@pytest.mark.deep
def test_the_report_holds_the_provenance(run, model, tmp_path):
    outcome = run(
        "sample",
        f"ckpt={model}",
        "num_samples=120",
        "evaluate=true",
        "seeds=2",
        "likelihood.images=80",
        "likelihood.finite_steps=5",
        "likelihood.paths=3",
        f"out={tmp_path}",
        "seed=4",
    )
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "metrics.json").read_text())
    assert {
        "frechet_distance_digits",
        "is_digits",
        "classified_share_digits",
        "bits_per_dim_train",
        "bits_per_dim_test",
    } <= set(report["values"])
    assert "fid" not in report["values"]
    assert (
        report["num_samples"] == 120
        and report["seeds"] == [4, 5]
        and report["network_evaluations"] == 8
    )
    assert report["sampler"]["kernel"]["_target_"].endswith("MultistepLeap")
    assert (
        report["held_out_data"]["values"]["frechet_distance_digits"]
        < report["values"]["frechet_distance_digits"]
    )
    assert report["over_seeds"]["frechet_distance_digits"]["std"] > 0
    assert (
        report["extractor"]["identity"]
        and report["reference"]["hash"]
        and report["made_with"]["versions"]["torch-fidelity"]
    )
    bits = report["likelihood"]
    for split in ("train", "test"):
        assert (
            bits[split]["continuous"]["standard_error"] > 0 and bits[split]["continuous"]["n"] == 80
        )
        finite, weighted = bits[split]["finite_time"], bits[split]["importance_weighted"]
        assert finite["value"] == pytest.approx(
            sum(part["value"] for part in finite["parts"].values())
        )
        limit = bits[split]["continuous"]["value"] + bits[split]["ends"]["value"]
        assert finite["cost_of_steps"] == pytest.approx(finite["value"] - limit)
        assert weighted["paths"] == 3 and weighted["value"] < finite["value"]
    baselines = report["baselines"]["bits_per_dim_test"]
    assert (
        baselines["histograms"] < np.log2(17) == baselines["uniform"]
        and baselines["negative_binomial"] > 0
    )
    comparison = report["comparisons"]["bits_per_dim_test"]
    whole_bound = bits["test"]["continuous"]["value"] + bits["test"]["ends"]["value"]
    assert comparison["value"] == pytest.approx(whole_bound) and comparison["kind"] == "upper bound"
    assert comparison["samples"] == 80 and comparison["strongest"] != "uniform"
    assert comparison["baselines"]["histograms"]["value"] == pytest.approx(baselines["histograms"])
    assert "bits_per_dim_test is at most" in outcome.out


@pytest.mark.deep
def test_samples_in_a_file_score_as_they_did_when_drawn(run, model, tmp_path):
    assert (
        run(
            "sample",
            f"ckpt={model}",
            "num_samples=250",
            "evaluate=true",
            "likelihood.images=0",
            f"out={tmp_path}",
        ).code
        == 0
    )
    original_scores = json.loads((tmp_path / "metrics.json").read_text())["values"]
    repeated_folder = tmp_path / "again"
    outcome = run(
        "sample",
        f"samples={tmp_path / 'samples.npz'}",
        "dataset=digits",
        "evaluate=true",
        f"out={repeated_folder}",
    )
    assert outcome.code == 0, outcome.err
    values = json.loads((repeated_folder / "metrics.json").read_text())["values"]
    # networks round differently for batches of other sizes
    assert values == pytest.approx({name: original_scores[name] for name in values}, rel=1e-4)


def test_scores_can_choose_another_reference(run, model, tmp_path):
    outcome = run(
        "sample",
        f"ckpt={model}",
        "num_samples=250",
        "evaluate=true",
        "metrics=digits",
        "metrics.reference=test",
        "metrics.scores=[fd]",
        "likelihood.images=0",
        f"out={tmp_path}",
    )
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "metrics.json").read_text())
    assert (
        set(report["values"]) == {"frechet_distance_digits_test"}
        and report["reference"]["split"] == "test"
    )


def write(path, array):
    np.savez(path / "x.npz", samples=array)
    return [f"samples={path / 'x.npz'}", "dataset=digits"]


def pictures(path, size):
    Image.new("L", (size, size)).save(path / "x.png")
    return [f"samples={path}", "dataset=digits"]


WRONG = {
    "floats": (lambda p: write(p, np.zeros((300, 8, 8, 1))), "float64"),
    "not a number": (
        lambda p: write(p, np.full((300, 8, 8, 1), np.nan, dtype=np.float32)),
        "float32",
    ),
    "out of range": (lambda p: write(p, np.full((300, 8, 8, 1), 17, dtype=np.uint8)), "17"),
    "negative": (lambda p: write(p, np.full((300, 8, 8, 1), -1, dtype=np.int8)), "-1"),
    "another size": (lambda p: write(p, np.zeros((300, 9, 9, 1), dtype=np.uint8)), "[1, 8, 8]"),
    "too few": (lambda p: write(p, np.zeros((5, 8, 8, 1), dtype=np.uint8)), "5"),
    "no samples": (lambda p: write(p, np.zeros((0, 8, 8, 1), dtype=np.uint8)), ""),
    "no dataset": (lambda p: write(p, np.zeros((300, 8, 8, 1), dtype=np.uint8))[:1], "dataset"),
    "a missing file": (lambda p: [f"samples={p / 'none.npz'}", "dataset=digits"], "none.npz"),
    "an empty folder": (lambda p: [f"samples={p}", "dataset=digits"], "no images"),
    "images of another size": (lambda p: pictures(p, 16), "16x16"),
    "no scores": (
        lambda p: [*write(p, np.zeros((300, 8, 8, 1), dtype=np.uint8)), "metrics=none"],
        "none",
    ),
    "FID without FID's network": (
        lambda p: [
            *write(p, np.zeros((300, 8, 8, 1), dtype=np.uint8)),
            "metrics=digits",
            "metrics.scores=[fid]",
        ],
        "fid",
    ),
    "a reference that is not there": (
        lambda p: [
            *write(p, np.zeros((300, 8, 8, 1), dtype=np.uint8)),
            "metrics=digits",
            "metrics.reference=none.npz",
        ],
        "none.npz",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_samples_that_cannot_be_scored(run, tmp_path, name):
    arguments, word = WRONG[name]
    run("sample", *arguments(tmp_path), "evaluate=true", f"out={tmp_path / 'out'}").assert_refused(
        word
    )


def test_a_model_is_not_compared_with_another_shape(run, model, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((50, 4), dtype=int))
    outcome = run(
        "sample",
        f"ckpt={model}",
        "evaluate=true",
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npy'}",
        f"out={tmp_path / 'out'}",
    )
    outcome.assert_refused("shape")


def test_a_dataset_may_be_named_although_its_recipe_is_for_training(run, model, tmp_path):
    options = (
        "num_samples=4",
        "metrics=none",
        "evaluate=true",
        "likelihood.images=4",
        f"out={tmp_path / 'out'}",
    )
    outcome = run("sample", f"ckpt={model}", "dataset=digits", *options)
    assert outcome.code == 0, outcome.err


DATASETS = [
    name for name in list_choices("dataset") if f"blackout/{name}" in list_choices("recipe")
]


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_scores_of_a_recipe_are_a_component_or_none(dataset):
    metrics = recipe_scores(dataset)
    assert metrics is None or "_target_" in metrics
    assert dataset != "digits" or metrics is not None
