"""Verdicts: rates of false ones, ties, bounds, and baselines that are chosen on validation data."""

import math

import pytest
import torch

from blackout.comparisons import (
    Baseline,
    SampleValues,
    compare,
    decide,
    describe_comparison,
    is_comparison,
)

GENERATOR = torch.Generator().manual_seed


def sample_values(values, **options):
    return SampleValues(torch.arange(len(values)), values.double(), **options)


def test_a_difference_has_the_error_of_pairs():
    """Samples that are hard for both do not blur the difference."""
    hard = 5 * torch.randn(400, generator=GENERATOR(0)).double()
    noise = 0.1 * torch.randn(400, generator=GENERATOR(1)).double()
    found = compare(sample_values(hard + noise - 0.1), {"uniform": Baseline(hard, 0.0)})
    row = found["baselines"]["uniform"]
    assert row["difference"] == pytest.approx(float((noise - 0.1).mean()))
    assert row["error"] == pytest.approx(float(noise.std()) / 20, rel=1e-6) and found["verdict"] == "better"
    shared = compare(sample_values(hard + noise - 0.1, shared_error=0.3), {"uniform": Baseline(hard, 0.0)})
    assert shared["baselines"]["uniform"]["error"] == pytest.approx(math.hypot(row["error"], 0.3))
    assert shared["verdict"] == "undecided"


@pytest.mark.parametrize("number", [4, 20, 200])
def test_equal_models_are_seldom_told_apart(number):
    """Of normal differences without a mean as many are decided as of a normal variable beyond two deviations."""
    differences = torch.randn(4000, number, generator=GENERATOR(number)).double()
    errors = differences.std(1) / math.sqrt(number)
    decided = [
        decide(float(mean), float(error), number) != "undecided"
        for mean, error in zip(differences.mean(1), errors, strict=True)
    ]
    share = math.erfc(math.sqrt(2))
    assert sum(decided) / 4000 == pytest.approx(share, abs=4 * math.sqrt(share / 4000))


def test_equality_is_no_win():
    """Bits that rounding alone tells apart, however exactly it repeats."""
    bits = torch.full((500,), 6.9069, dtype=torch.float64)
    rounding = 1e-6 * torch.rand(500, generator=GENERATOR(0)).double()
    for values in (bits, bits - rounding, bits + rounding):
        found = compare(sample_values(values), {"uniform": Baseline(bits, 6.9069)})
        assert found["verdict"] == "undecided"
        line = describe_comparison("test/nll_bits", found)
        assert line.startswith("verdict: undecided") and "at chance" in line
    better = compare(sample_values(bits - 1.0), {"uniform": Baseline(bits, 6.9069)})
    assert "at chance" not in describe_comparison("test/nll_bits", better)


@pytest.mark.parametrize("kind, below, above", [
    ("exact", "better", "worse"), ("upper bound", "better", "undecided"), ("lower bound", "undecided", "worse"),
])  # fmt: skip
def test_a_bound_shows_what_a_bound_can(kind, below, above):
    values = torch.rand(100, generator=GENERATOR(0)).double()
    for shift, verdict in ((-1.0, below), (1.0, above)):
        found = compare(sample_values(values + shift, kind=kind), {"uniform": Baseline(values.flip(0), 0.5)})
        assert found["verdict"] == verdict
        line = describe_comparison("test/nll_bits", found)
        assert ("at most" in line) == (kind == "upper bound") and ("at least" in line) == (kind == "lower bound")
        assert "±" in line and ("cannot show" in line) == (verdict == "undecided")


def test_the_strongest_baseline_is_that_of_the_validation_samples():
    bits = {name: torch.rand(200, generator=GENERATOR(k)).double() + k for k, name in enumerate(("a", "b", "uniform"))}
    validation = {"a": 2.0, "b": 1.0, "uniform": 3.0}
    baselines = {name: Baseline(values, validation[name]) for name, values in bits.items()}
    found = compare(sample_values(bits["a"] + 0.5), baselines)
    assert found["strongest"] == "b" and found["verdict"] == "better"
    assert found["baselines"]["a"]["verdict"] == "worse" and "of b" in describe_comparison("bits", found)
    unknown = compare(sample_values(bits["a"] + 0.5), {name: Baseline(values) for name, values in bits.items()})
    assert unknown["strongest"] == "a"
    worse = compare(sample_values(bits["uniform"] + 0.5), baselines)
    assert worse["verdict"] == "worse" and "of uniform, difference +0.5" in describe_comparison("bits", worse)


def test_samples_are_those_of_the_model():
    """A model that has seen a part of the test samples, in any order."""
    bits = torch.arange(10.0).double()
    index = torch.tensor([7, 2, 4])
    found = compare(SampleValues(index, bits[index] - torch.tensor([1.0, 1.1, 0.9])), {"uniform": Baseline(bits, 4.5)})
    assert found["samples"] == 3 and found["baselines"]["uniform"]["difference"] == pytest.approx(-1)
    with pytest.raises(ValueError, match="one value of each sample"):
        SampleValues(index, bits)


def test_no_verdict_without_an_error():
    one = sample_values(torch.zeros(1))
    assert compare(one, {"uniform": Baseline(torch.ones(1).double(), 1.0)}) is None
    impossible = Baseline(torch.tensor([math.inf, 1.0]).double(), 1.0)
    assert compare(sample_values(torch.zeros(2)), {"uniform": impossible}) is None
    assert compare(sample_values(torch.zeros(2)), {}) is None


def test_what_a_damaged_file_holds_is_no_comparison():
    whole = compare(sample_values(torch.rand(9)), {"uniform": Baseline(torch.ones(9).double(), 1.0)})
    assert is_comparison(whole)
    rows = whole["baselines"]
    for wrong in (
        None, [], {}, {**whole, "kind": "guess"}, {**whole, "kind": []}, {**whole, "value": "low"},
        {**whole, "strongest": "other"}, {**whole, "baselines": []},
        {**whole, "baselines": {"uniform": {**rows["uniform"], "error": None}}},
        {**whole, "baselines": {"uniform": {**rows["uniform"], "verdict": {}}}},
    ):  # fmt: skip
        assert not is_comparison(wrong)
