"""Reference values of scores, on the terminal and in metrics.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blackout.cli.metrics_file import (
    collect_references,
    describe_metrics,
    merge_reports,
    write_scores,
)
from blackout.flows.draw import ChainDraw
from blackout.flows.graphs.draw import GraphDraw
from blackout.permutations.shuffle.draw import ShuffleDraw
from blackout.posterior.draw import PosteriorDraw

REPORT = {
    "values": {"fd": 3.0, "class_share_digits_0": 0.5, "bits_per_dim_test": 3.62, "alone": 1.0},
    "held_out_data": {"num_samples": 9, "values": {"fd": 1.0, "class_share_digits_0": 0.4}},
    "baseline": {"name": "gaussian_copula", "num_samples": 9, "values": {"fd": 8.0}},
    "baselines": {
        "bits_per_dim_test": {"poisson": 5.0, "negative_binomial": 4.13},
        "another": {"poisson": 1.0},
    },
}


def test_the_references_of_a_score_are_held_out_data_and_the_strongest_baseline() -> None:
    assert collect_references(REPORT) == {
        "fd": {"held_out_data": 1.0, "gaussian_copula": 8.0},
        "class_share_digits_0": {"held_out_data": 0.4},
        "bits_per_dim_test": {"negative_binomial": 4.13},
    }
    flow = {"log_z": 1.0, "log_z_exact": 1.1, "log_z_annealed": 0.9, "val/log_z": 1.2, "ess": 0.5}
    near = {"exact": 1.1, "annealed": 0.9}
    graphs = {"values": flow, "references": {"ess": {"annealed": 0.4}}}
    references = {"log_z": near, "val/log_z": near, "ess": {"annealed": 0.4}}
    assert collect_references(graphs, GraphDraw.references) == references
    tours = {
        "tour_length": 4.1,
        "tour_length_exact": 4.0,
        "gap": 0.02,
        "gap_of_polar_tour_with_two_opt": 0.01,
    }
    near = {"tour_length": {"exact": 4.0}, "gap": {"of_polar_tour_with_two_opt": 0.01}}
    assert collect_references({"values": tours}, ShuffleDraw.references) == near
    bounds = {"log_z_exact": 1.1, "elbo": 1.0, "eubo": 1.3, "val/ess": 0.5, "rmse": 0.1}
    references = {"elbo": {"exact": 1.1}, "eubo": {"exact": 1.1}, "val/ess": {"ideal": 1.0}}
    assert collect_references({"values": bounds}, ChainDraw.references) == references
    errors = {"rmse": 0.1, "test/greedy_accuracy": 0.5, "c2st_accuracy": 0.6}
    references = {"rmse": {"ideal": 0.0}, "test/greedy_accuracy": {"ideal": 1.0}}
    assert collect_references({"values": errors}, ShuffleDraw.references) == references
    assert collect_references({"values": errors}) == {}
    posterior = {"log_likelihood": -35.0, "log_likelihood_of_truth": -31.0, "coverage_90": 0.88}
    references = {"log_likelihood": {"of_truth": -31.0}, "coverage_90": {"ideal": 0.9}}
    assert collect_references({"values": posterior}, PosteriorDraw.references) == references
    assert (
        collect_references({"values": {"fd": 1.0}, "held_out_data": None, "baseline": None}) == {}
    )


def test_scores_and_references_are_written_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scores(REPORT, tmp_path / "metrics.json")
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        **REPORT,
        "references": collect_references(REPORT),
        "metric_descriptions": {},
    }
    assert capsys.readouterr().out.splitlines() == [
        "fd: 3.0000 (held-out data 1.0000, Gaussian copula 8.0000)",
        "bits_per_dim_test: 3.6200 (negative binomial 4.1300)",
        "alone: 1.0000",
    ]


def test_errors_stand_behind_their_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scores(
        {"values": {"val/bits_per_dim": 3.5, "val/bits_per_dim_error": 0.25, "ess": 1}},
        tmp_path / "x.json",
    )
    assert capsys.readouterr().out.splitlines()[0] == "val/bits_per_dim: 3.5000 ± 0.2500"
    assert json.loads((tmp_path / "x.json").read_text())["values"]["val/bits_per_dim_error"] == 0.25


def test_standard_deviations_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only standard errors stand after ±."""
    write_scores({"values": {"is": 3.75, "is_std": 0.5}}, tmp_path / "x.json")
    assert capsys.readouterr().out.splitlines() == ["is: 3.7500, std 0.5000"]


def test_every_value_of_a_report_is_described_by_its_family_or_by_itself() -> None:
    report = {
        "values": {"test/ess": 0.5, "ess": 0.4, "own": 1.0, "unknown": 2.0},
        "metric_descriptions": {"own": {"unit": "photons", "better": "lower"}, "absent": {}},
    }
    share = {"unit": "share of samples", "better": "higher"}
    values = {"test/ess": share, "ess": share, "own": {"unit": "photons", "better": "lower"}}
    assert describe_metrics(report, ChainDraw.references) == values


def test_reports_are_merged_with_all_their_values_and_descriptions() -> None:
    first = {"values": {"a": 1.0, "b": 2.0}, "metric_descriptions": {"a": {}}, "note": "first"}
    merged = merge_reports(
        first, {"values": {"b": 3.0}}, {"metric_descriptions": {"b": {}}, "note": "last"}
    )
    assert merged == {
        "values": {"a": 1.0, "b": 3.0},
        "metric_descriptions": {"a": {}, "b": {}},
        "note": "last",
    }
    assert first["values"] == {"a": 1.0, "b": 2.0}
