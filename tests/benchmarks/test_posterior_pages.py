"""Pages with results of posterior samplers have the tables of the files."""

import json

import pytest

from benchmarks import calibration, known_probability, posterior_accuracy

ROOT = calibration.ROOT
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize(
    "benchmark, name",
    [
        (posterior_accuracy, "posterior_methods"),
        (calibration, "calibration"),
        (known_probability, "known_probability"),
    ],
)
def test_the_results_page_has_the_summaries(benchmark, name):
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results" / "posteriors.md").read_text(encoding="utf-8")
    assert benchmark.summary(results) in page


def test_a_summary_pairs_methods_by_problem():
    names = ("problem", "auto takes", *posterior_accuracy.ALWAYS_POSSIBLE)
    rows = [
        dict(zip(names, ("a", "smc", 0.0, 0.5, 0.3, 0.2, 0.2, 0.1), strict=True)),
        dict(zip(names, ("b", "sgdd", 0.0, 0.1, 0.3, 0.2, 0.2, 0.4), strict=True)),
    ]
    text = posterior_accuracy.summary({"rows": rows})
    assert "| `auto` | 0.150 | | |" in text
    assert "| sgdd | 0.300 | +0.150 ± 0.150 |  |" in text
    assert "| noise_denoise | 0.250 | +0.100 ± 0.200 | a |" in text
