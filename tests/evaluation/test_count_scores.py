"""Scores of counts: correct samples score like held-out data, and errors are detected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.data import CountData
from blackout.data.sample_files import read_samples
from blackout.errors import UserError
from blackout.evaluation import CountScorer, classifier_tests
from blackout.evaluation.classifier_tests import classifier_test, null_auc_error
from blackout.evaluation.count_comparison import compare_counts, shares_at_ends
from tests.structure.test_protocols import as_scorer


def sample_counts(number: int, seed: int = 2) -> torch.Tensor:
    """Sample counts of six elements with a common factor."""
    generator = np.random.default_rng(seed)
    rate = generator.gamma(2.0, 1.0, (number, 1)) * np.array([0.3, 1.0, 2.0, 4.0, 8.0, 16.0])
    return torch.from_numpy(generator.poisson(rate))


DATA = CountData("made", sample_counts(1000, seed=0), sample_counts(800, seed=1), 400)
SCORER = CountScorer(max_samples=150, seed=1)
SCORES = (
    "c2st_auc",
    "c2st_auc_error",
    "c2st_accuracy",
    "c2st_linear_auc",
    "c2st_linear_auc_error",
    "ks_mean",
    "ks_total",
    "mean_ratio",
    "variance_ratio",
    "zeros_difference",
    "share_zero",
    "share_low",
    "share_high",
    "share_max",
    "max_ratio",
    "correlation_difference",
    "novelty",
    "equality_difference",
    "co_occurrence_difference",
)


def test_shares_at_both_ends_of_the_range() -> None:
    counts = np.array([[0, 0, 1, 10], [11, 14, 15, 16]])
    eighths = {"share_zero": 2, "share_low": 2, "share_high": 3, "share_max": 1}
    assert shares_at_ends(counts, 16) == {name: share / 8 for name, share in eighths.items()}
    assert shares_at_ends(counts, 30)["share_high"] == 0
    binary = shares_at_ends(np.array([[0, 1], [1, 1]]), 1)
    assert binary == {"share_zero": 0.25, "share_max": 0.75}
    narrow = shares_at_ends(np.arange(9)[None], 8)
    assert "share_high" not in narrow and sum(narrow.values()) == pytest.approx(1)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few trees, which is faster."""
    monkeypatch.setattr(classifier_tests, "TREES", 25)


def score(samples: torch.Tensor) -> dict[str, float]:
    """Return the scores of samples, in batches."""
    scores = as_scorer(SCORER).begin(DATA, len(samples))
    for part in torch.arange(len(samples)).split(70):
        scores.update({"samples": samples[part]}, part)
    return scores.compute()


def test_correct_samples_score_like_held_out_data() -> None:
    values = score(sample_counts(800))
    held_out = SCORER.held_out(DATA, 800)
    assert (
        held_out is not None
        and values.keys() == set(SCORES) == held_out["values"].keys()
        and held_out["num_samples"] == 800
    )
    for scores in (values, held_out["values"]):
        for name in ("c2st_auc", "c2st_linear_auc"):
            assert abs(scores[name] - 0.5) < 4 * scores[f"{name}_error"], name
        assert abs(scores["zeros_difference"]) < 0.06 and 0.7 < scores["variance_ratio"] < 1.4
        assert scores["ks_mean"] < 0.12
    assert 0.8 < values["novelty"] < 1.25


def test_wrong_samples_are_detected() -> None:
    shuffled = torch.stack([column[torch.randperm(200)] for column in sample_counts(200).T], 1)
    independent = score(shuffled)
    assert independent["c2st_auc"] > 0.7 and independent["correlation_difference"] > 0.2
    assert independent["ks_mean"] < 0.12
    darker = score(sample_counts(200) // 2)
    assert darker["mean_ratio"] < 0.6 and darker["zeros_difference"] > 0.05
    assert score(DATA.train[:200].long())["novelty"] == 0


def test_few_held_out_counts_are_compared_with_several_parts_of_the_samples() -> None:
    samples = sample_counts(95).numpy()
    few_held_out = replace(DATA, test=DATA.test[:30])
    selected = samples[np.linspace(0, 94, 90).astype(int)]
    parts = [
        classifier_test(selected[k::3], few_held_out.test.numpy(), False, 1, 8)[0] for k in range(3)
    ]
    scores = compare_counts(samples, few_held_out, 150, 1)
    assert scores["c2st_auc"] == pytest.approx(np.mean(parts))
    assert scores["c2st_auc_error"] == scores["c2st_linear_auc_error"] == null_auc_error(30, 3)


def test_provenance_names_the_reference() -> None:
    provenance = SCORER.begin(DATA, 50).provenance()
    assert provenance["metrics"]["reference"]["sha256"] == DATA.fingerprint("test")


def test_during_training_samples_are_compared_with_validation_counts() -> None:
    brighter = replace(DATA, val=DATA.test * 2 + 1)
    during = SCORER.begin(brighter, 300, split="val")
    during.update({"samples": DATA.test[:300]}, torch.arange(300))
    final = SCORER.begin(brighter, 300)
    final.update({"samples": DATA.test[:300]}, torch.arange(300))
    assert during.compute()["mean_ratio"] < 0.6 and final.compute()["mean_ratio"] == pytest.approx(
        1, abs=0.2
    )
    reference = during.provenance()["metrics"]["reference"]
    assert reference == {"split": "val", "size": 800, "sha256": brighter.fingerprint("val")}
    with pytest.raises(
        UserError,
        match=r"made has no validation data to compare samples with.*dataset.validation=0.1",
    ):
        SCORER.begin(DATA, 300, split="val")


def test_scores_of_a_copula_are_the_baseline() -> None:
    baseline = SCORER.baseline(DATA, 300)
    assert (
        baseline is not None
        and baseline["name"] == "gaussian_copula"
        and baseline["values"].keys() == set(SCORES)
    )
    assert (
        baseline["values"]["correlation_difference"] < 0.1 and baseline["values"]["ks_mean"] < 0.12
    )
    assert CountScorer(baselines=False).baseline(DATA, 50) is None


def test_scores_that_need_more_samples_are_left_out(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="c2st scores are left out: .* 10 samples .* are 5"):
        values = score(sample_counts(5))
    assert set(SCORES) - values.keys() == {
        "c2st_auc",
        "c2st_auc_error",
        "c2st_accuracy",
        "c2st_linear_auc",
        "c2st_linear_auc_error",
    }
    with pytest.warns(UserWarning, match="c2st scores and correlation_difference are left out"):
        assert (
            "correlation_difference" not in (values_of_one := score(sample_counts(1)))
            and "ks_mean" in values_of_one
        )
    with pytest.raises(UserError, match=r"max_samples=3"):
        CountScorer(max_samples=3)
    np.savez(tmp_path / "s.npz", samples=sample_counts(30).numpy().astype(np.int32))
    assert SCORER.read(tmp_path / "s.npz", DATA)["samples"].shape == (30, 6)


def test_the_handling_of_missing_entries_is_warned_of() -> None:
    observed = torch.ones(DATA.test.shape, dtype=torch.bool)
    observed[:300, 2] = False
    with pytest.warns(UserWarning, match="compared with 500 test samples without missing entries"):
        SCORER.begin(replace(DATA, test_observed=observed), 50)
    with pytest.warns(
        UserWarning, match="compared with 800 test samples with filled missing entries"
    ):
        SCORER.begin(replace(DATA, test_observed=torch.zeros_like(observed)), 50)


def test_samples_in_the_layout_of_the_file_are_read(tmp_path: Path) -> None:
    images = torch.arange(60).reshape(10, 1, 2, 3)
    data = CountData("images", images, images, 60, sample_shape=(2, 3))
    np.savez(tmp_path / "s.npz", samples=images[:, 0].numpy())
    assert torch.equal(SCORER.read(tmp_path / "s.npz", data)["samples"].long(), images)


@pytest.mark.deep
def test_the_figure_has_all_panels(tmp_path: Path) -> None:
    scores = SCORER.begin(DATA, 40)
    scores.update({"samples": DATA.test[:40].int()}, torch.arange(40))
    scores.compute()
    scores.figure().savefig(tmp_path / "scores.png")
    panels = scores.figure().axes[:6]
    assert (
        len({panel.get_title() for panel in panels}) == 6
        and (tmp_path / "scores.png").stat().st_size > 5000
    )


@pytest.mark.parametrize("suffix", [".csv", ".h5ad"])
def test_samples_in_tables_are_read_in_the_order_of_the_data(tmp_path, suffix):
    pandas = pytest.importorskip("pandas")
    rows = torch.arange(12, dtype=torch.uint8).view(4, 3)
    data = CountData("cells", rows, rows[:2], 11, features=("a", "b", "c"))
    table = pandas.DataFrame(rows.numpy().astype(np.float32)[:, ::-1], columns=["c", "b", "a"])
    path = tmp_path / f"samples{suffix}"
    if suffix == ".csv":
        table.assign(cell_type="T cell").to_csv(path, index=False)
    else:
        anndata = pytest.importorskip("anndata")
        cells = anndata.AnnData(table.to_numpy())
        cells.var_names = ["c", "b", "a"]
        cells.write_h5ad(path)
    assert torch.equal(read_samples(path, data), rows.long())
    if suffix == ".csv":
        table.drop(columns="b").to_csv(path, index=False)
        with pytest.raises(UserError, match=r"column 'b' of the data is missing"):
            read_samples(path, data)
