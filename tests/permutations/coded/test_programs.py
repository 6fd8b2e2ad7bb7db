"""`train.py` and `sample.py` with family=codes, as users run them."""

import csv
import json
import shlex

import numpy as np
import pytest
import torch

from blackout import load_model
from blackout.errors import UserError
from blackout.permutations.group import is_permutation
from tests import processes
from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.killed import assert_same

TINY = (
    "network.width=16",
    "network.depth=1",
    "network.heads=2",
    "batch_size=32",
    "trainer.val_check_interval=4",
    "trainer.limit_val_batches=1",
    "trainer.log_every_n_steps=1",
    "optimizer.decay_steps=100",
    "callbacks.progress=null",
    "callbacks.checkpoints.every_n_steps=2",
    "callbacks.samples.every_n_steps=4",
    "callbacks.samples.num_samples=4",
    "callbacks.scores.num_samples=40",
)
CYCLES = ("family=codes", "dataset=cycles", "dataset.length=6", "dataset.train_share=0.5", *TINY)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def trained(run, runs):  # noqa: F811
    """A run of eight steps, shared by all tests."""
    if not (runs / "cycles" / "a").exists():
        outcome = run("train", *CYCLES, "trainer.max_steps=8", f"runs_dir={runs}", "run_id=a")
        assert outcome.code == 0, outcome.err
    return runs / "cycles" / "a"


@pytest.mark.deep
def test_a_run_writes_samples_scores_and_a_model(trained):
    values = json.loads((trained / "metrics.json").read_text())["values"]
    assert values["valid"] == 1 and 0 <= values["cyclic"] <= 1 and values["val/nll_bits"] > 4
    assert (trained / "samples/final.png").exists() and "fisher_yates" in (
        trained / "model/README.md"
    ).read_text()
    model = load_model(trained)
    assert torch.equal(load_model(trained / "model").sample(9, seed=5), model.sample(9, seed=5))


@pytest.mark.parametrize(
    "name, data",
    [
        ("cycles", ("dataset.length=6", "dataset.train_share=0.5")),  # in memory
        # generated from (user, epoch)
        pytest.param(
            "synthetic_rankings",
            ("dataset.users=60", "dataset.num_movies=20"),
            marks=pytest.mark.deep,
        ),
        pytest.param(
            "jigsaw_digits",
            ("dataset.pieces=2", "dataset.num_test=20", "objective=autoregressive"),
            marks=pytest.mark.deep,
        ),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(run, tmp_path, name, data):  # noqa: F811
    common = ("family=codes", f"dataset={name}", *TINY, *data, f"runs_dir={tmp_path}")
    assert run("train", *common, "trainer.max_steps=6", "run_id=whole").code == 0
    for steps in (2, 6):
        outcome = run("train", *common, f"trainer.max_steps={steps}", "run_id=parts")
        assert outcome.code == 0, outcome.err
    assert_same(tmp_path / name / "parts", tmp_path / name / "whole", ended_at=2)


@pytest.mark.deep
def test_samples_are_scored_and_reproducible_by_index(run, trained, tmp_path):  # noqa: F811
    common = (
        f"ckpt={trained}",
        "device=cpu",
        "num_samples=30",
        "passes=2",
        "order=random",
        "seed=3",
    )
    outcome = run("sample", *common, "evaluate=true", "trajectory=true", f"out={tmp_path}")
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "metrics.json").read_text())
    samples = np.load(tmp_path / "permutations.npz")
    assert report["network_evaluations"] == 2 and report["values"]["valid"] == 1
    assert report["sampler"]["code"] == "FisherYates" and report["sampler"]["passes"] == 2
    assert report["values"]["kl_bits"] > 0
    assert report["baselines"]["nll_bits_test"]["uniform"] == pytest.approx(9.4919, abs=1e-3)
    assert bool(is_permutation(torch.from_numpy(samples["permutation"])).all()) and samples[
        "log_prob"
    ].shape == (30,)
    assert (tmp_path / "permutations.png").exists() and (tmp_path / "trajectory.webp").exists()
    repeated = run("sample", *common, "indices=[7,21]", f"out={tmp_path / 'again'}")
    assert repeated.code == 0, repeated.err
    rows = np.load(tmp_path / "again/permutations.npz")
    assert all(
        np.array_equal(rows[name], samples[name][[7, 21]]) for name in ("permutation", "code")
    )
    from_file = run(
        "sample",
        f"samples={tmp_path / 'permutations.npz'}",
        "dataset=cycles",
        "dataset.length=6",
        "dataset.train_share=0.5",
        "metrics=permutations",
        f"out={tmp_path / 'file'}",
    )
    assert from_file.code == 0, from_file.err
    values = json.loads((tmp_path / "file/metrics.json").read_text())["values"]
    assert values["cyclic"] == pytest.approx(report["values"]["cyclic"])


@pytest.mark.deep
def test_rankings_are_completed_and_contexts_are_read_from_a_file(run, tmp_path):  # noqa: F811
    data = ("dataset.users=60", "dataset.num_movies=20", f"runs_dir={tmp_path}", "run_id=a")
    assert (
        run(
            "train",
            "family=codes",
            "dataset=synthetic_rankings",
            *TINY,
            *data,
            "trainer.max_steps=2",
        ).code
        == 0
    )
    model = tmp_path / "synthetic_rankings/a"
    outcome = run(
        "sample",
        f"ckpt={model}",
        "num_samples=24",
        "condition=3",
        "evaluate=true",
        "sampler.greedy=true",
        "likelihood.baselines=true",
        f"out={tmp_path / 'r'}",
    )
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "r/metrics.json").read_text())
    samples = np.load(tmp_path / "r/permutations.npz")
    assert 0 < report["values"]["ndcg_at_5"] <= 1 and report["sampler"]["num_observed"] == 3
    assert set(report["likelihood"]["rankings"]) == {
        "uniform_insertion",
        "popularity",
        "plackett_luce",
    }
    assert samples["items"].shape == samples["ratings"].shape == (24, 8)
    lists = np.array([[3, 1, 4, 15, 9, 2, 6, 5]])
    np.save(tmp_path / "lists.npy", lists)
    outcome = run(
        "sample",
        f"ckpt={model}",
        "num_samples=5",
        f"input={tmp_path / 'lists.npy'}",
        f"out={tmp_path / 'i'}",
    )
    assert outcome.code == 0, outcome.err
    assert np.array_equal(np.load(tmp_path / "i/permutations.npz")["items"], np.repeat(lists, 5, 0))
    np.save(tmp_path / "lists.npy", lists + 7)
    run("sample", f"ckpt={model}", f"input={tmp_path / 'lists.npy'}").assert_refused(
        "the model knows no item 22"
    )
    np.save(tmp_path / "lists.npy", lists[:, :5])
    run("sample", f"ckpt={model}", f"input={tmp_path / 'lists.npy'}").assert_refused("[m, 8]")


def test_conditions_in_words_and_most_probable_orders(run, trained, tmp_path):  # noqa: F811
    options = (
        f"ckpt={trained}",
        "condition=A before C and D first",
        "top=2",
        "num_samples=9",
        f"out={tmp_path / 'o'}",
    )
    outcome = run("sample", *options)
    assert outcome.code == 0, outcome.err
    samples = np.load(tmp_path / "o/permutations.npz")
    assert (
        (samples["permutation"][:, 0] == 3).all()
        and samples["top"].shape == (2, 6)
        and "order:" in outcome.out
    )
    assert samples["places"][0].argmax() == 3 and samples["pairs"][0, 2] == pytest.approx(1)
    unquoted = run("sample", f"ckpt={trained}", "condition=A before C, D first")
    unquoted.assert_refused(
        "is a sweep, which needs -m", "text is 'condition=\"A before C, D first\"'"
    )
    assert samples["top_log_prob"][0] < 0 and samples["condition_log_prob"] == pytest.approx(
        np.log(1 / 12), abs=1
    )


INVALID_SETTINGS = (
    ("code=morse", "code must be one of lehmer, fisher_yates, insertion, inline"),
    ("objective=both", "objective must be one of masked, autoregressive"),
    ("order=backwards", "order must be one of"),
    ("passes=0", "passes must be 1..6, not 0"),
    ("passes=7", "passes must be 1..6, not 7"),
    ("passes=two", "passes"),
    ("objective=autoregressive passes=2", "passes=6 order=left_to_right"),
    ("dataset.length=1", "length"),
    ("dataset.train_share=0", "share must be in (0, 1]"),
    ("dataset.train_share=1.1", "share must be in (0, 1]"),
    ("dataset=digits", "is not for family=codes, but for family=blackout"),
    ("network.heads=3", "multiple of heads"),
    ("dataset=permutations dataset.path=nowhere.npy", "no such file"),
    ("dataset=rankings dataset.path=nowhere.csv", "no such file"),
    ("sampler.steps=3", "steps"),
    ("sampler.greedy=7", "true or false"),
    ("sharpness=2", "sharpness must be a number from 0 to 1"),
)


@pytest.mark.parametrize("line, word", INVALID_SETTINGS)
def test_invalid_settings_are_refused_in_one_line(run, tmp_path, line, word):  # noqa: F811
    defaults = [] if "dataset=" in line else ["dataset.length=6"]
    outcome = run(
        "train", "family=codes", "dataset=cycles", *defaults, *line.split(), f"runs_dir={tmp_path}"
    )
    outcome.assert_refused(word)
    assert not list(tmp_path.iterdir())


@pytest.mark.deep
def test_invalid_requests_are_refused_in_one_line(run, trained, tmp_path):  # noqa: F811
    for line, word in (
        ("passes=9", "passes must be 1..6"),
        ("order=sideways", "order must be one of"),
        ("condition=7", "condition must be 0..6"),
        ("condition=[1]", "condition must be 0..6"),
        ("\"condition='A beside B'\"", "is not understood"),
        ("\"condition='A first and B first'\"", "no order fulfils"),
        ("top=0", "top must be"),
        ("input=x.npy", "no context"),
        ("classes=[1]", "classes: no such setting"),
        ("dataset=cycles dataset.length=5 evaluate=true", "but the model is of"),
    ):
        run(
            "sample", f"ckpt={trained}", f"out={tmp_path / 'out'}", *shlex.split(line)
        ).assert_refused(word)
    assert not (tmp_path / "out").exists()


@pytest.mark.deep
def test_two_processes_sample_like_one(run, trained, tmp_path):  # noqa: F811
    options = [f"ckpt={trained}", "device=cpu", "num_samples=1200", "passes=3"]
    assert run("sample", *options, f"out={tmp_path / 'one'}").code == 0
    distributed = processes.run_distributed("sample", *options, f"out={tmp_path / 'two'}")
    assert distributed.returncode == 0, distributed.stderr
    assert (tmp_path / "one/permutations.npz").read_bytes() == (
        tmp_path / "two/permutations.npz"
    ).read_bytes()


@pytest.mark.deep
def test_a_sweep_over_codes_and_objectives(run, tmp_path):  # noqa: F811
    line = (
        "family=codes",
        "dataset=cycles",
        "dataset.length=4",
        "dataset.train_share=1",
        *TINY,
        "trainer.max_steps=1",
    )
    outcome = run(
        "train",
        "-m",
        *line,
        "code=lehmer,inline",
        "objective=masked,autoregressive",
        f"runs_dir={tmp_path}",
    )
    assert outcome.code == 0, outcome.err
    (table,) = tmp_path.glob("sweeps/*/results.csv")
    rows = list(csv.DictReader(table.open()))
    assert [row["state"] for row in rows] == ["done"] * 4 and all(
        float(row["val/nll_bits"]) > 0 for row in rows
    )


def test_non_finite_weights_are_refused(trained):
    model = load_model(trained)
    with torch.no_grad():
        next(model.averaged.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="not finite"):
        model.sample(3)


@pytest.mark.deep
def test_overfitted_runs_restore_the_best_model_and_compare_it_with_baselines(run, tmp_path):  # noqa: F811
    """The final model has the lowest validation bits; its test bits are compared with classical
    fits."""
    generator = torch.Generator().manual_seed(1)
    np.save(tmp_path / "few.npy", torch.rand(60, 6, generator=generator).argsort(1).numpy())
    common = (
        "family=codes",
        "dataset=permutations",
        f"dataset.path={tmp_path / 'few.npy'}",
        "dataset.holdout=0.3",
        "dataset.validation=0.4",
        *TINY,
    )
    outcome = run(
        "train",
        *common,
        "optimizer.lr=0.05",
        "trainer.max_steps=24",
        f"runs_dir={tmp_path}",
        "run_id=a",
        "trainer.val_check_interval=6",
        "ema_decay=0",
        "callbacks.samples=null",
    )
    assert outcome.code == 0, outcome.err
    with (tmp_path / "few/a/metrics.csv").open() as file:
        validation = [
            float(row["val/nll_bits"]) for row in csv.DictReader(file) if row.get("val/nll_bits")
        ]
    report = json.loads((tmp_path / "few/a/metrics.json").read_text())
    uniform = report["baselines"]["test/nll_bits"]["uniform"]
    assert max(validation) > uniform + 0.2
    assert report["values"]["val/nll_bits"] == pytest.approx(min(validation), abs=1e-4)
    assert "training after step" in outcome.out
    comparison = report["comparisons"]["test/nll_bits"]
    assert comparison["kind"] == "exact" and comparison["samples"] == 18
    assert comparison["value"] == pytest.approx(report["values"]["test/nll_bits"])
    assert {"uniform", "mallows", "plackett_luce_mixture"} <= comparison["baselines"].keys()
    assert all(row["error"] >= 0 for row in comparison["baselines"].values())
    strongest = comparison["strongest"].replace("_", " ")
    assert "verdict: " in outcome.out and f"of {strongest}, difference" in outcome.out
    page = (tmp_path / "few/a/report.html").read_text()
    assert "verdict" in page and comparison["verdict"] in page
