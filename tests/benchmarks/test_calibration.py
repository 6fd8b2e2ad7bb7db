"""Simulation-based calibration accepts correct samplers and rejects biased ones."""

import json

import numpy as np
import pytest

from benchmarks.calibration import (
    calibrate,
    calibration_rows,
    exact_draws,
    main,
    rank_p_values,
    ranks_of_truths,
)
from benchmarks.exact_posteriors import ExactProblem, exact_problems, rough_prior
from blackout.posterior import Binomial, Direct, Identity

NUM_TRUTHS = 1000
NUM_SAMPLES = 19


@pytest.fixture(scope="module")
def thinning():
    exact = ExactProblem("thinning", rough_prior(3, 4), Identity(), Binomial(0.4))
    truths = exact.truths(NUM_TRUTHS, 1)
    return exact, exact.measure(truths, 2), truths


def draw_rows(exact, tables, seed):
    """Draw NUM_SAMPLES states of each distribution [M, S], int64 [NUM_SAMPLES M, D]."""
    rng = np.random.default_rng(seed)
    columns = [rng.choice(len(p), NUM_SAMPLES, p=p / p.sum()) for p in tables]
    return exact.states[np.stack(columns, 1).ravel()]


def test_draws_of_the_exact_posterior_pass(thinning):
    exact, problem, truths = thinning
    p_values, covered = calibrate(
        exact, problem, truths, exact_draws(exact, problem, NUM_SAMPLES, 3)
    )
    assert min(p_values.values()) > 1e-3
    assert covered == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("bias", ["prior", "posterior squared", "likelihood to the power 0.3"])
def test_draws_of_another_distribution_fail(thinning, bias):
    """The prior passes all ranks of counts [Talts 2018], but not that of the likelihood."""
    exact, problem, truths = thinning
    posteriors = exact.posteriors(problem)
    prior = np.broadcast_to(exact.toy.p0, posteriors.shape)
    tables = {
        "prior": prior,
        "posterior squared": posteriors**2,
        "likelihood to the power 0.3": prior**0.7 * posteriors**0.3,
    }[bias]
    p_values, _ = calibrate(exact, problem, truths, draw_rows(exact, tables, 3))
    assert min(p_values.values()) < 1e-6
    if bias == "prior":
        assert min(p for name, p in p_values.items() if name != "log-likelihood") > 1e-3


def test_ranks_of_equal_counts_are_uniform():
    """Without random ties, ranks of bits would be 0 or 19 only."""
    rng = np.random.default_rng(0)
    truths = rng.integers(0, 2, (2000, 2))
    samples = rng.integers(0, 2, (NUM_SAMPLES, 2000, 2))
    zeros = np.zeros((NUM_SAMPLES, 2000))
    ranks = ranks_of_truths(truths, zeros[0], samples, zeros)
    assert list(ranks) == ["count 0", "count 1", "total", "log-likelihood"]
    assert min(rank_p_values(ranks).values()) > 1e-3


@pytest.mark.deep
def test_one_reverse_run_passes_and_one_of_two_steps_fails(thinning):
    exact, problem, truths = thinning
    p_values = []
    for steps in (100, 2):
        prior = exact.prior()
        result = Direct(steps).sample(prior, problem, NUM_TRUTHS * NUM_SAMPLES, 4)
        p_values.append(min(calibrate(exact, problem, truths, result.samples)[0].values()))
    assert p_values[0] > 1e-3 > 1e-4 > p_values[1]


@pytest.mark.deep
def test_all_methods_have_a_row_and_results_are_written(tmp_path, capsys):
    main(["--quick", "--json", str(tmp_path / "quick.json")])
    result = json.loads((tmp_path / "quick.json").read_text())
    assert len(result["rows"]) == 4 * len(exact_problems()) + 2
    assert result["machine"]["command"].startswith("python -m benchmarks.calibration --quick")
    capsys.readouterr()


@pytest.mark.deep
def test_rows_are_a_function_of_the_seeds():
    problem = ExactProblem("thinning", rough_prior(2, 3), Identity(), Binomial(0.4))
    first, second = (calibration_rows([problem], 50, 4) for _ in range(2))
    assert [row["p_values"] for row in first] == [row["p_values"] for row in second]
