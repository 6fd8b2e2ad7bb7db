"""Scores of counts: what is right scores as held-out data do, what is wrong is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.data import CountData
from blackout.errors import UserError
from blackout.evaluation import CountScorer
from blackout.evaluation import count_scores as two_samples
from blackout.evaluation.count_scores import (
    classifier_test,
    compare_counts,
    compare_pairs,
    null_auc_error,
)
from tests.structure.test_protocols import as_scorer

GENERATOR = np.random.default_rng(0)


def draw(number: int) -> torch.Tensor:
    """Six elements with a common factor."""
    rate = GENERATOR.gamma(2.0, 1.0, (number, 1)) * np.array([0.3, 1.0, 2.0, 4.0, 8.0, 16.0])
    return torch.from_numpy(GENERATOR.poisson(rate))


DATA = CountData("made", draw(1000), draw(800), 400)
SCORER = CountScorer(max_samples=150, seed=1)
SCORES = (
    "c2st_auc", "c2st_auc_error", "c2st_accuracy", "c2st_linear_auc", "c2st_linear_auc_error", "ks_mean", "ks_total",
    "mean_ratio", "variance_ratio", "zeros_difference", "max_ratio", "correlation_difference", "novelty",
    "equality_difference", "co_occurrence_difference",
)  # fmt: skip


def test_elements_that_are_independent_have_no_excess_whatever_their_means() -> None:
    grid = np.stack(np.meshgrid(np.arange(2), np.arange(2), indexing="ij"), -1).reshape(-1, 2)
    rare = np.stack(np.meshgrid([0, 0, 3], [0, 0, 0, 5], indexing="ij"), -1).reshape(-1, 2)
    assert compare_pairs(grid, rare)["co_occurrence_difference"] < 1e-12
    together = np.array([[0, 0], [7, 7]])  # P(both) - P(one) P(other) = 1/4
    assert compare_pairs(together, rare)["co_occurrence_difference"] == pytest.approx(0.25)
    assert compare_pairs(together, rare)["equality_difference"] == 0.5
    empty = np.array([[0, 0], [0, 0], [0, 5]])  # equal only where both are 0
    assert compare_pairs(empty, rare)["equality_difference"] == 0


def test_relations_that_means_and_correlations_do_not_show_are_scored() -> None:
    generator = np.random.default_rng(1)

    def brackets(number: int) -> np.ndarray:
        """Elements 0 and 2 are equal in 88 % of the samples, else two apart; 3 is a copy of 1."""
        first, other = generator.poisson(generator.gamma(2, 20, (2, number)))
        apart = 2 * (generator.random(number) > 0.88)
        return np.stack([first, other, first + apart, other], 1)

    data, samples = brackets(1000), brackets(1000)
    assert compare_pairs(samples, data)["equality_difference"] < 0.05
    samples[:, 2] += generator.integers(1, 3, 1000)
    assert compare_pairs(samples, data)["equality_difference"] > 0.8
    sparse = (generator.random((1000, 1)) < 0.2) * np.ones((1, 5), int)
    shuffled = generator.permuted(sparse, axis=0)
    assert compare_pairs(sparse, sparse)["co_occurrence_difference"] == 0
    assert compare_pairs(shuffled, sparse)["co_occurrence_difference"] == pytest.approx(
        0.16, abs=0.03
    )


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_samples, "TREES", 25)


def score(samples: torch.Tensor) -> dict[str, float]:
    scores = as_scorer(SCORER).begin(DATA, len(samples))
    for part in torch.arange(len(samples)).split(70):
        scores.update({"samples": samples[part]}, part)
    return scores.compute()


def test_samples_that_are_right_score_as_held_out_data_do() -> None:
    values, own = score(draw(800)), SCORER.held_out(DATA, 800)
    assert (
        own is not None
        and values.keys() == set(SCORES) == own["values"].keys()
        and own["num_samples"] == 800
    )
    for found in (values, own["values"]):
        assert 0.4 < found["c2st_auc"] < 0.6 and 0.4 < found["c2st_linear_auc"] < 0.6
        assert abs(found["zeros_difference"]) < 0.06 and 0.7 < found["variance_ratio"] < 1.4
        assert found["ks_mean"] < 0.12
    assert 0.8 < values["novelty"] < 1.25


def test_what_is_wrong_is_found() -> None:
    shuffled = torch.stack([column[torch.randperm(200)] for column in draw(200).T], 1)
    independent = score(shuffled)
    assert independent["c2st_auc"] > 0.7 and independent["correlation_difference"] > 0.2
    assert independent["ks_mean"] < 0.12
    dim = score(draw(200) // 2)
    assert dim["mean_ratio"] < 0.6 and dim["zeros_difference"] > 0.05
    assert score(DATA.train[:200].long())["novelty"] == 0


def test_from_few_held_out_counts_several_parts_of_the_samples_are_told() -> None:
    samples, few = draw(95).numpy(), replace(DATA, test=DATA.test[:30])
    spaced = samples[np.linspace(0, 94, 90).astype(int)]
    parts = [classifier_test(spaced[k::3], few.test.numpy(), False, 1, 8)[0] for k in range(3)]
    scores = compare_counts(samples, few, 150, 1)
    assert scores["c2st_auc"] == pytest.approx(np.mean(parts))
    assert scores["c2st_auc_error"] == scores["c2st_linear_auc_error"] == null_auc_error(30, 3)


@pytest.mark.parametrize("number, parts, repeats", [(60, 1, 400), (60, 3, 200), (300, 1, 200)])
def test_the_error_of_an_auc_is_its_deviation_for_perfect_samples(number: int, parts: int, repeats: int) -> None:
    """A difference of means as the classifier, in five folds; that of Mann and Whitney is smaller by a root of two."""
    rng, fold = np.random.default_rng(0), np.arange(number) % 5
    found = []
    for _ in range(repeats):
        real = rng.normal(size=(number, 8))
        aucs = []
        for _ in range(parts):
            samples, scores = rng.normal(size=(number, 8)), np.zeros((2, number))
            for k in range(5):
                direction = samples[fold != k].mean(0) - real[fold != k].mean(0)
                scores[:, fold == k] = samples[fold == k] @ direction, real[fold == k] @ direction
            aucs.append((scores[0][:, None] > scores[1]).mean())
        found.append(np.mean(aucs))
    assert np.std(found) == pytest.approx(null_auc_error(number, parts), rel=0.2)


@pytest.mark.deep
def test_the_error_is_that_of_the_regression_itself() -> None:
    rng = np.random.default_rng(0)
    found = [classifier_test(*rng.poisson(3.0, (2, 60, 10)), linear=True)[0] for _ in range(120)]
    assert np.std(found) == pytest.approx(null_auc_error(60), rel=0.2)


def test_provenance_holds_the_reference() -> None:
    made = SCORER.begin(DATA, 50).provenance()
    assert made["metrics"]["reference"]["sha256"] == DATA.fingerprint("test")


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


def test_a_copula_stands_beside_and_shuffled_elements_are_worse() -> None:
    fitted = SCORER.baseline(DATA, 300)
    assert (
        fitted is not None
        and fitted["name"] == "gaussian_copula"
        and fitted["values"].keys() == set(SCORES)
    )
    assert fitted["values"]["correlation_difference"] < 0.1 and fitted["values"]["ks_mean"] < 0.12
    assert CountScorer(baselines=False).baseline(DATA, 50) is None


def test_few_samples_leave_out_what_needs_more(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match="c2st scores are left out: they need 10 samples and test samples, not 5"
    ):
        few = score(draw(5))
    assert set(SCORES) - few.keys() == {
        "c2st_auc",
        "c2st_auc_error",
        "c2st_accuracy",
        "c2st_linear_auc",
        "c2st_linear_auc_error",
    }
    with pytest.warns(UserWarning, match="c2st scores and correlation_difference are left out"):
        assert "correlation_difference" not in (one := score(draw(1))) and "ks_mean" in one
    with pytest.raises(UserError, match=r"max_samples=3"):
        CountScorer(max_samples=3)
    np.savez(tmp_path / "s.npz", samples=draw(30).numpy().astype(np.int32))
    assert SCORER.read(tmp_path / "s.npz", DATA)["samples"].shape == (30, 6)


def test_what_missing_entries_leave_to_compare_with_is_said() -> None:
    seen = torch.ones(DATA.test.shape, dtype=torch.bool)
    seen[:300, 2] = False
    with pytest.warns(UserWarning, match="compared with 500 test samples without missing entries"):
        SCORER.begin(replace(DATA, test_observed=seen), 50)
    with pytest.warns(
        UserWarning, match="compared with 800 test samples with filled missing entries"
    ):
        SCORER.begin(replace(DATA, test_observed=torch.zeros_like(seen)), 50)


def test_samples_laid_out_as_the_file_was_are_read(tmp_path: Path) -> None:
    images = torch.arange(60).reshape(10, 1, 2, 3)
    data = CountData("images", images, images, 60, sample_shape=(2, 3))
    np.savez(tmp_path / "s.npz", samples=images[:, 0].numpy())
    assert torch.equal(SCORER.read(tmp_path / "s.npz", data)["samples"].long(), images)


@pytest.mark.deep
def test_the_figure_shows_both_sets(tmp_path: Path) -> None:
    scores = SCORER.begin(DATA, 40)
    scores.update({"samples": DATA.test[:40].int()}, torch.arange(40))
    scores.compute()
    scores.figure().savefig(tmp_path / "scores.png")
    panels = scores.figure().axes[:6]
    assert (
        len({panel.get_title() for panel in panels}) == 6
        and (tmp_path / "scores.png").stat().st_size > 5000
    )
