"""Diagnostics: R-hat and effective sizes, evidence, predictive p-values and calibration."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.posterior import (
    Exact,
    Gaussian,
    Poisson,
)
from blackout.posterior.diagnostics import (
    coverage,
    ess_bulk,
    ess_tail,
    log_mean_exp,
    normalised_ranks,
    posterior_predictive_p_value,
    predictive_quantiles,
    prior_predictive_p_value,
    r_hat,
    r_hat_limit,
    rank_discrepancies,
    rank_p_value,
)

# rhat, ess(method="bulk") and ess(method="tail") of ArviZ 0.23.4 for `known_chains`
ARVIZ_VALUES = {
    "independent": (1.01009717465, 318.883169879, 251.366221706),
    "two modes, stuck": (1.71163525502, 15.4197825115, 89.5291313995),
    "walks": (2.12027771454, 5.9425196334, 12.5622698722),
    "waves": (1.08546602059, 571.250698011, 156.39167087),
    "counts": (1.04758560324, 143.862401699, 99.1056998168),
    "widths": (1.19881799597, 331.78844958, 135.886985873),
    "short": (1.05698720748, 12.9501749526, 12.9501749526),
}


def known_chains():
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(8, 30))
    walk = np.cumsum(rng.normal(size=(4, 60)), 1)
    waves = noise.copy()
    for k in range(1, 30):
        waves[:, k] -= 0.8 * waves[:, k - 1]
    return {
        "independent": noise,
        "two modes, stuck": noise + 20 * (np.arange(8) % 2)[:, None],
        "walks": walk,
        "waves": waves,
        "counts": rng.poisson(1.0, (4, 31)).astype(float),
        "widths": noise * (1 + np.arange(8))[:, None],
        "short": noise[:3, :5],
    }


@pytest.mark.parametrize("name", ARVIZ_VALUES)
def test_r_hat_and_effective_sizes_equal_arviz(name):
    chains = known_chains()[name]
    assert (r_hat(chains), ess_bulk(chains), ess_tail(chains)) == pytest.approx(
        ARVIZ_VALUES[name], rel=1e-6
    )


def test_equal_evidence_has_an_error():
    """Eight equal estimates leave room for a share of 1 - 0.025^(1/8) of different ones."""
    assert log_mean_exp(np.full(8, 2.0)) == (2.0, pytest.approx((1 - 0.025 ** (1 / 8)) / 1.959964))
    logs = np.log([1.0, 2.0, 3.0])
    assert log_mean_exp(logs) == (pytest.approx(np.log(2)), pytest.approx(1 / 2 / 3**0.5))


def test_an_impossible_state_is_the_lowest_not_left_out():
    """One chain at -inf has the ranks, and so the figures, of one far below the others."""
    chains = known_chains()["independent"]
    chains[0] = -np.inf
    low = known_chains()["independent"]
    low[0] = -50.0
    assert r_hat(chains) == pytest.approx(r_hat(low)) and r_hat(chains) > 1.05
    assert ess_bulk(chains) == pytest.approx(ess_bulk(low)) and ess_bulk(chains) < 100
    assert r_hat(np.ones((4, 9))) == 1.0 and r_hat(np.arange(4.0)[:, None].repeat(9, 1)) == math.inf
    assert np.isnan([r_hat(chains[:1]), r_hat(chains[:, :3]), ess_bulk(chains[:, :3])]).all()


@pytest.mark.parametrize(
    "chains, sweeps", [(4, 30), (12, 12), pytest.param(3, 8, marks=pytest.mark.deep)]
)
def test_perfect_chains_exceed_the_limit_of_r_hat_in_one_run_of_twenty(chains, sweeps):
    """The largest of 18 statistics of independent normal draws exceeds 1.05 in most runs."""
    rng = np.random.default_rng(0)
    runs = 200
    limit = r_hat_limit(chains, sweeps, 18, 0.05)
    largest = np.array(
        [max(r_hat(rng.normal(size=(chains, sweeps))) for _ in range(18)) for _ in range(runs)]
    )
    assert (largest > limit).mean() <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert (largest > 1.05).mean() > 0.3 and (largest > 1 + 0.5 * (limit - 1)).mean() > 0.5


PLANTED = {
    "right": (1.0, 0.0, 0.0, False),
    "outlier": (1.0, 0.0, 1000.0, True),
    "more noise": (2.0, 0.0, 0.0, True),
    "less noise": (0.3, 0.0, 0.0, True),
    "background": (1.0, 1.5, 0.0, True),
    "another operator": (1.0, 0.0, 0.0, True),
}


@pytest.mark.parametrize("noise", [Gaussian(2.0), Poisson(3.0)], ids=["gaussian", "poisson"])
@pytest.mark.parametrize("planted", PLANTED)
def test_measurements_that_no_sample_explains_have_small_p_values(noise, planted):
    """Eight measurements each, samples spread about the truth as a posterior's are."""
    factor, background, outlier, wrong = PLANTED[planted]
    rng = np.random.default_rng(0)
    p = []
    for number in range(8):
        truth = torch.from_numpy(rng.poisson(8.0, (1, 64)).astype(float))
        m = torch.from_numpy(rng.poisson(8.0, (6, 64)) * 0.1) + truth * 0.9
        errors = torch.from_numpy(factor * rng.normal(size=(1, 64)) + background)
        truth = truth.roll(1, 1) if planted == "another operator" else truth
        y = noise.mean(truth) + errors * noise.variance(truth).sqrt()
        y[0, 5] += outlier
        p.append(posterior_predictive_p_value(noise, y, m, None, number))
    assert (max(p) < 1e-3) if wrong else (min(p) > 1e-2 and np.mean(p) > 0.1)


def test_samples_that_do_not_explain_y_have_small_p_values():
    """200 normal truths, 8 samples; p is hardly ever small for draws from the exact posterior."""
    rng = np.random.default_rng(0)
    noise = Gaussian(1.0)
    truth, error, spread = (
        torch.from_numpy(rng.normal(size=size)) for size in ((200, 6), (200, 6), (200, 8, 6))
    )
    y = truth + error
    exact_samples = y[:, None] / 2 + spread * 0.5**0.5
    p = np.array(
        [
            posterior_predictive_p_value(noise, y[k : k + 1], exact_samples[k], None, k)
            for k in range(200)
        ]
    )
    assert (p < 0.01).mean() < 0.03 and (p < 1e-3).sum() == 0
    exact_samples[0, 5:7] += 3.0
    assert posterior_predictive_p_value(noise, y[:1], exact_samples[0], None, 0) < 1e-3


def test_predictive_intervals_cover_the_next_draw():
    """Intervals of 19 samples; those of linear interpolation cover 81 % only."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 20_000)))
    ends = predictive_quantiles(x[1:])
    assert float(((ends[0] < x[0]) & (x[0] < ends[-1])).double().mean()) == pytest.approx(
        0.9, abs=0.01
    )


def test_measurements_unlike_the_model_have_small_p_values():
    """For right measurements p is small no more often than it says; for four faults p < 0.001."""
    rng = np.random.default_rng(0)

    def simulate_discrepancies(n, fault=lambda y, mean: y):
        mean = rng.gamma(4.0, 2.0, (n, 48))  # the model's estimate, which is slightly off
        y, simulated = (
            rng.poisson(mean * rng.gamma(50.0, 0.02, (*size, n, 48))) for size in ((), (64,))
        )
        return rank_discrepancies(
            *(
                torch.from_numpy(np.asarray(values, dtype=float))
                for values in (fault(y, mean), simulated)
            )
        )

    simulated_discrepancies = simulate_discrepancies(64)
    p = np.array(
        [
            prior_predictive_p_value(values, simulated_discrepancies, 48)
            for values in simulate_discrepancies(600)
        ]
    )
    assert (p < 0.05).mean() < 0.06 and (p < 1e-3).mean() < 0.004
    faults = {
        "dead": lambda y, mean: np.where(np.arange(48) < 12, 0, y),
        "saturated": lambda y, mean: np.minimum(y, 6),
        "gain": lambda y, mean: np.round(1.5 * y),
        "another order": lambda y, mean: y[:, ::-1],
    }
    for name, fault in faults.items():
        assert (
            np.mean(
                [
                    prior_predictive_p_value(values, simulated_discrepancies, 48) < 1e-3
                    for values in simulate_discrepancies(40, fault)
                ]
            )
            > 0.8
        ), name
    assert np.isnan(
        [
            prior_predictive_p_value(simulated_discrepancies[0], too_few, 48)
            for too_few in (simulated_discrepancies[:15], simulated_discrepancies[:1].repeat(20, 1))
        ]
    ).all()


@pytest.mark.parametrize("numbers", [48, 1])
def test_p_values_do_not_depend_on_brightness(numbers):
    """For totals that differ a thousandfold, p is small no more often than it says."""
    rng = np.random.default_rng(0)

    def simulate_discrepancies(n):
        mean = np.exp(2 * rng.normal(size=(n, 1))) * rng.gamma(4.0, 2.0, (n, numbers))
        y, simulated = (
            rng.poisson(mean * rng.gamma(50.0, 0.02, (*size, n, numbers))) for size in ((), (64,))
        )
        return rank_discrepancies(
            *(torch.from_numpy(values.astype(float)) for values in (y, simulated))
        )

    simulated_discrepancies = simulate_discrepancies(64)
    p = np.array(
        [
            prior_predictive_p_value(values, simulated_discrepancies, numbers)
            for values in simulate_discrepancies(600)
        ]
    )
    assert np.isfinite(p).all() and (p < 0.05).mean() < 0.08 and (p < 1e-3).mean() < 0.004


def test_a_noise_without_variance_has_no_predictive_p_value():
    assert math.isnan(
        posterior_predictive_p_value(Exact(), torch.ones(1, 3), torch.ones(2, 3), None, 0)
    )


def test_calibration_detects_samples_that_are_too_narrow():
    """Samples of the truth's distribution are calibrated despite ties; narrower ones are not."""
    rng = np.random.default_rng(0)
    mean = rng.gamma(1.0, 1.0, size=200)
    truth = rng.poisson(mean)
    exact_samples = rng.poisson(mean, (20, 200))
    wrong = np.round(mean)[None].repeat(20, 0)
    good, bad = (normalised_ranks(samples, truth, rng) for samples in (exact_samples, wrong))
    assert rank_p_value({"x": good}) > 1e-3 > rank_p_value({"x": bad})
    assert coverage(good, 0.9) == pytest.approx(0.9, abs=0.05) and coverage(bad, 0.9) < 0.7


def test_ranks_among_draws_of_the_same_distribution_are_uniform():
    rng = np.random.default_rng(0)
    samples, truth = (rng.choice(3, size, p=[0.5, 0.3, 0.2]) for size in ((4, 20_000), 20_000))
    assert stats.kstest(normalised_ranks(samples, truth, rng), "uniform").pvalue > 1e-3
