"""Verdicts of comparisons: false positives, ties, bounds, and the choice of baseline."""

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


def test_the_error_of_a_difference_is_that_of_pairs():
    """Samples that are hard for both models do not increase the error."""
    common_values = 5 * torch.randn(400, generator=GENERATOR(0)).double()
    noise = 0.1 * torch.randn(400, generator=GENERATOR(1)).double()
    comparison = compare(
        sample_values(common_values + noise - 0.1), {"uniform": Baseline(common_values, 0.0)}
    )
    row = comparison["baselines"]["uniform"]
    assert row["difference"] == pytest.approx(float((noise - 0.1).mean()))
    assert (
        row["error"] == pytest.approx(float(noise.std()) / 20, rel=1e-6)
        and comparison["verdict"] == "better"
    )
    with_shared_error = compare(
        sample_values(common_values + noise - 0.1, shared_error=0.3),
        {"uniform": Baseline(common_values, 0.0)},
    )
    assert with_shared_error["baselines"]["uniform"]["error"] == pytest.approx(
        math.hypot(row["error"], 0.3)
    )
    assert with_shared_error["verdict"] == "undecided"


@pytest.mark.parametrize("number", [4, 20, 200])
def test_equal_models_are_distinguished_at_the_nominal_rate(number):
    """Differences of mean zero are decided as often as two standard deviations are exceeded."""
    differences = torch.randn(4000, number, generator=GENERATOR(number)).double()
    errors = differences.std(1) / math.sqrt(number)
    decided = [
        decide(float(mean), float(error), number) != "undecided"
        for mean, error in zip(differences.mean(1), errors, strict=True)
    ]
    nominal_rate = math.erfc(math.sqrt(2))
    assert sum(decided) / 4000 == pytest.approx(
        nominal_rate, abs=4 * math.sqrt(nominal_rate / 4000)
    )


def test_equal_values_are_undecided():
    """Bits that differ only by rounding, even if the rounding repeats exactly."""
    bits = torch.full((500,), 6.9069, dtype=torch.float64)
    rounding = 1e-6 * torch.rand(500, generator=GENERATOR(0)).double()
    for values in (bits, bits - rounding, bits + rounding):
        comparison = compare(sample_values(values), {"uniform": Baseline(bits, 6.9069)})
        assert comparison["verdict"] == "undecided"
        line = describe_comparison("test/nll_bits", comparison)
        assert line.startswith("verdict: undecided") and "at chance" in line
    better = compare(sample_values(bits - 1.0), {"uniform": Baseline(bits, 6.9069)})
    assert "at chance" not in describe_comparison("test/nll_bits", better)


@pytest.mark.parametrize("rounding", [0.0, 1e-7])
def test_equal_differences_have_an_error(rounding):
    """Few equal differences do not show that all are equal."""
    noise = rounding * torch.rand(300, generator=GENERATOR(0)).double()
    baseline = {"uniform": Baseline(torch.full((300,), 6.9, dtype=torch.float64), 6.9)}
    verdicts = {}
    for number in (2, 3, 30, 300):
        comparison = compare(sample_values(5.9 + noise[:number]), baseline)
        row = comparison["baselines"]["uniform"]
        share = 1 - 0.025 ** (1 / number)  # of Clopper and Pearson's interval
        assert row["error"] == pytest.approx(share / 2, rel=1e-5)
        verdicts[number] = row["verdict"]
    assert verdicts == {2: "undecided", 3: "undecided", 30: "better", 300: "better"}


@pytest.mark.parametrize(
    "kind, verdict_below, verdict_above",
    [
        ("exact", "better", "worse"),
        ("upper bound", "better", "undecided"),
        ("lower bound", "undecided", "worse"),
    ],
)
def test_bounds_decide_in_one_direction_only(kind, verdict_below, verdict_above):
    values = torch.rand(100, generator=GENERATOR(0)).double()
    for shift, verdict in ((-1.0, verdict_below), (1.0, verdict_above)):
        comparison = compare(
            sample_values(values + shift, kind=kind), {"uniform": Baseline(values.flip(0), 0.5)}
        )
        assert comparison["verdict"] == verdict
        line = describe_comparison("test/nll_bits", comparison)
        assert ("at most" in line) == (kind == "upper bound") and ("at least" in line) == (
            kind == "lower bound"
        )
        assert "±" in line and ("cannot show" in line) == (verdict == "undecided")


def test_the_strongest_baseline_is_chosen_on_validation_samples():
    bits = {
        name: torch.rand(200, generator=GENERATOR(k)).double() + k
        for k, name in enumerate(("a", "b", "uniform"))
    }
    validation = {"a": 2.0, "b": 1.0, "uniform": 3.0}
    baselines = {name: Baseline(values, validation[name]) for name, values in bits.items()}
    comparison = compare(sample_values(bits["a"] + 0.5), baselines)
    assert comparison["strongest"] == "b" and comparison["verdict"] == "better"
    assert comparison["baselines"]["a"]["verdict"] == "worse" and "of b" in describe_comparison(
        "bits", comparison
    )
    without_validation = compare(
        sample_values(bits["a"] + 0.5), {name: Baseline(values) for name, values in bits.items()}
    )
    assert without_validation["strongest"] == "a"
    losing = compare(sample_values(bits["uniform"] + 0.5), baselines)
    assert losing["verdict"] == "worse" and "of uniform, difference +0.5" in describe_comparison(
        "bits", losing
    )


def test_values_are_paired_by_sample_index():
    """The model was evaluated on some of the test samples, in any order."""
    bits = torch.arange(10.0).double()
    index = torch.tensor([7, 2, 4])
    comparison = compare(
        SampleValues(index, bits[index] - torch.tensor([1.0, 1.1, 0.9])),
        {"uniform": Baseline(bits, 4.5)},
    )
    assert comparison["samples"] == 3 and comparison["baselines"]["uniform"][
        "difference"
    ] == pytest.approx(-1)
    with pytest.raises(ValueError, match="one value of each sample"):
        SampleValues(index, bits)


def test_no_verdict_without_an_error():
    single = sample_values(torch.zeros(1))
    assert compare(single, {"uniform": Baseline(torch.ones(1).double(), 1.0)}) is None
    infinite = Baseline(torch.tensor([math.inf, 1.0]).double(), 1.0)
    assert compare(sample_values(torch.zeros(2)), {"uniform": infinite}) is None
    assert compare(sample_values(torch.zeros(2)), {}) is None


def test_damaged_comparisons_are_recognised():
    valid = compare(
        sample_values(torch.rand(9)), {"uniform": Baseline(torch.ones(9).double(), 1.0)}
    )
    assert is_comparison(valid)
    rows = valid["baselines"]
    for damaged in (
        None,
        [],
        {},
        {**valid, "kind": "guess"},
        {**valid, "kind": []},
        {**valid, "value": "low"},
        {**valid, "strongest": "other"},
        {**valid, "baselines": []},
        {**valid, "baselines": {"uniform": {**rows["uniform"], "error": None}}},
        {**valid, "baselines": {"uniform": {**rows["uniform"], "verdict": {}}}},
    ):
        assert not is_comparison(damaged)
