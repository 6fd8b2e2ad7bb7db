"""95 % intervals cover the truth and miss it equally often on either side, for skewed
distributions."""

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.confidence_intervals import interval
from blackout.diffusion.likelihood_estimates import Estimate
from blackout.flows.targets import Ising
from blackout.flows.weights import estimate_target


def assert_coverage(low, high, truth):
    """Assert 95 ± 1.5 % coverage, and 2.5 ± 1 % on either side."""
    low = np.array(low)
    high = np.array(high)
    assert abs(np.mean((low <= truth) & (high >= truth)) - 0.95) < 0.015
    assert abs(np.mean(high < truth) - 0.025) < 0.01 and abs(np.mean(low > truth) - 0.025) < 0.01


@pytest.mark.parametrize("n, repeats", [(200, 2500), (2000, 1500)])
@pytest.mark.parametrize("name, skewness", [("normal", 0), ("gamma", 2), ("gamma", 4), ("rare", 5)])
def test_confidence_intervals_miss_equally_often_on_either_side(name, skewness, n, repeats):
    """With 1.96 standard errors, 6 % would be too low for skewness 4 at n = 200.

    `rare` adds 10 once in 50 samples.
    """
    source = np.random.default_rng(5)
    shape = 4 / max(skewness, 1) ** 2
    size = repeats, n
    draws = source.gamma(shape, 1 / shape, size) if name == "gamma" else source.normal(1, 1, size)
    draws += 10 * ((source.random(size) < 0.02) - 0.02) * (name == "rare")
    assert_coverage(*np.array([interval(x) for x in torch.from_numpy(draws)]).T, 1)


def test_few_skewed_values_miss_more_often_below():
    """Ten exponential values: the module states 5 % too low and 0.6 % too high."""
    draws = torch.from_numpy(np.random.default_rng(12).exponential(size=(1500, 10)))
    low, high = np.array([interval(x) for x in draws]).T
    assert abs(np.mean(high < 1) - 0.05) < 0.015 and np.mean(low > 1) < 0.015


def test_intervals_of_binary_samples_account_for_their_lattice():
    """With ten ones among 200, steps of the mean are as wide as a third of the error.

    Intervals for smooth distributions would cover 98 %.
    """
    coins = torch.from_numpy((np.random.default_rng(9).random((1500, 200)) < 0.05).astype(float))
    assert_coverage(*np.array([interval(3 - 2 * x) for x in coins]).T, 2.9)


def test_a_trend_over_an_even_grid_adds_no_error():
    """Samples are at the same positions every time, like the times of bits per dimension."""
    position = torch.frac(torch.arange(200, dtype=torch.float64) * 0.6180339887498949)
    trend = 3 * (6.28 * position).sin()
    noise = torch.from_numpy(np.random.default_rng(6).exponential(1, (2500, 200)))
    assert_coverage(
        *np.array([interval(trend + x, position) for x in noise]).T, 1 + float(trend.mean())
    )
    assert interval(trend + noise[0], position)[1] - interval(trend + noise[0], position)[0] < 0.4


@pytest.mark.parametrize(
    "n, repeats", [(200, 1000), pytest.param(2000, 800, marks=pytest.mark.deep)]
)
def test_intervals_of_log_z_and_weighted_means(n, repeats):
    """Weights e^(s z - s^2 / 2) of normal z have log Z = 0, and their weighted mean of z is s."""
    target = Ising(2)
    source = np.random.default_rng(7)
    s = 0.7
    x = torch.zeros(n, target.sites, dtype=torch.uint8)
    estimates = []
    for z in torch.from_numpy(source.normal(size=(repeats, n))):
        estimates.append(estimate_target(target, x, s * z - s * s / 2, z))
    assert_coverage(
        [values["log_z_ci_low"] for values in estimates],
        [values["log_z_ci_high"] for values in estimates],
        0.0,
    )
    assert_coverage(
        [values["mean_energy_ci_low"] for values in estimates],
        [values["mean_energy_ci_high"] for values in estimates],
        -s,
    )


def test_intervals_of_constants_leave_other_values_possible():
    """Zero successes in n trials have the upper limit 1 - 0.025^(1 / n) (Clopper and Pearson 1934).

    Without bounds on the values, the interval is unbounded.
    """
    zeros = torch.zeros(30, dtype=torch.float64)
    assert interval(zeros, bounds=(0, 1)) == (0, pytest.approx(stats.beta.ppf(0.975, 1, 30)))
    assert interval(zeros + 1, bounds=(0, 1)) == (pytest.approx(stats.beta.ppf(0.025, 30, 1)), 1)
    assert interval(zeros) == (-np.inf, np.inf)
    rounded = 27.7 + 1e-14 * torch.arange(30, dtype=torch.float64)
    assert interval(rounded, bounds=(0, 2 * 27.7))[0] == pytest.approx(27.7 * 0.025 ** (1 / 30))


def test_the_interval_of_one_image_is_unbounded():
    estimate = Estimate.from_nats(torch.ones(1), (1,))
    assert estimate.low == -np.inf and estimate.high == np.inf


def test_the_transformed_mean_is_symmetric_at_the_ends():
    """T = sqrt(n) (W + g W^2 / 3 + g^2 W^3 / 27 + g / 6n) is t and -t, W = (mean - end) / std.

    References: Hall 1992, eq. 2.1.
    """
    n = 40
    x = torch.from_numpy(np.random.default_rng(0).gamma(0.5, size=40))
    z = (x - x.mean()) / x.std()
    g = float((z**3).mean()) * n**2 / ((n - 1) * (n - 2))
    low, high = (
        n**0.5 * (w + g * w**2 / 3 + g**2 * w**3 / 27 + g / (6 * n))
        for w in ((float(x.mean()) - end) / float(x.std()) for end in interval(x))
    )
    assert low == pytest.approx(-high) and low > 2
