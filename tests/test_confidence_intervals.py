"""95 % intervals hold the truth, and miss it as often on either side, over repeated draws from skewed laws."""

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.confidence_intervals import interval
from blackout.diffusion.likelihood_estimates import Estimate
from blackout.flows.targets import Ising
from blackout.flows.weights import estimate_target


def check(low, high, truth):
    """95 +- 1.5 % and 2.5 +- 1 %."""
    low, high = np.array(low), np.array(high)
    assert abs(np.mean((low <= truth) & (high >= truth)) - 0.95) < 0.015
    assert abs(np.mean(high < truth) - 0.025) < 0.01 and abs(np.mean(low > truth) - 0.025) < 0.01


@pytest.mark.parametrize("n, repeats", [(200, 2500), (2000, 1500)])
@pytest.mark.parametrize("name, skewness", [("normal", 0), ("gamma", 2), ("gamma", 4), ("rare", 5)])
def test_confidence_intervals_miss_as_often_on_either_side(name, skewness, n, repeats):
    """With 1.96 standard errors 6 % of those of skewness 4 are too low at n = 200. Rare: 10 more, once in 50."""
    source, shape = np.random.default_rng(5), 4 / max(skewness, 1) ** 2
    size = repeats, n
    draws = source.gamma(shape, 1 / shape, size) if name == "gamma" else source.normal(1, 1, size)
    draws += 10 * ((source.random(size) < 0.02) - 0.02) * (name == "rare")
    check(*np.array([interval(x) for x in torch.from_numpy(draws)]).T, 1)


def test_of_two_values_the_lattice_is_known():
    """Ten ones of 200 are a lattice of steps as wide as a third of the error; a smooth law's ends hold 98 %."""
    coins = torch.from_numpy((np.random.default_rng(9).random((1500, 200)) < 0.05).astype(float))
    check(*np.array([interval(3 - 2 * x) for x in coins]).T, 2.9)


def test_what_an_even_grid_covers_is_no_error():
    """Draws at the same places every time, as the times of bits per dimension: their trend has no part in the error."""
    place = torch.frac(torch.arange(200, dtype=torch.float64) * 0.6180339887498949)
    trend, noise = 3 * (6.28 * place).sin(), torch.from_numpy(np.random.default_rng(6).exponential(1, (2500, 200)))
    check(*np.array([interval(trend + x, place) for x in noise]).T, 1 + float(trend.mean()))
    assert interval(trend + noise[0], place)[1] - interval(trend + noise[0], place)[0] < 0.4


@pytest.mark.parametrize("n, repeats", [(200, 1000), pytest.param(2000, 800, marks=pytest.mark.deep)])
def test_of_log_z_and_of_weighted_means(n, repeats):
    """Weights e^(s z - s^2 / 2) of standard normal z have log Z = 0, and the mean of z under them is s."""
    target, source, s = Ising(2), np.random.default_rng(7), 0.7
    x = torch.zeros(n, target.sites, dtype=torch.uint8)
    found = []
    for z in torch.from_numpy(source.normal(size=(repeats, n))):
        found.append(estimate_target(target, x, s * z - s * s / 2, z))
    check([v["log_z_ci_low"] for v in found], [v["log_z_ci_high"] for v in found], 0.0)
    check([v["mean_energy_ci_low"] for v in found], [v["mean_energy_ci_high"] for v in found], -s)


def test_equal_draws_leave_a_share_of_other_values_open():
    """No success among n has the upper end 1 - 0.025^(1 / n) [Clopper 1934]; without bounds the ends are unknown."""
    zeros = torch.zeros(30, dtype=torch.float64)
    assert interval(zeros, bounds=(0, 1)) == (0, pytest.approx(stats.beta.ppf(0.975, 1, 30)))
    assert interval(zeros + 1, bounds=(0, 1)) == (pytest.approx(stats.beta.ppf(0.025, 30, 1)), 1)
    assert interval(zeros) == (-np.inf, np.inf)
    rounded = 27.7 + 1e-14 * torch.arange(30, dtype=torch.float64)
    assert interval(rounded, bounds=(0, 2 * 27.7))[0] == pytest.approx(27.7 * 0.025 ** (1 / 30))


def test_one_image_says_nothing():
    alone = Estimate.from_nats(torch.ones(1), (1,))
    assert alone.low == -np.inf and alone.high == np.inf


def test_the_transformed_mean_is_as_far_from_zero_at_either_end():
    """T = sqrt(n) (W + g W^2 / 3 + g^2 W^3 / 27 + g / 6n), W = (mean - end) / std, is t and -t [Hall 1992, eq. 2.1]."""
    n, x = 40, torch.from_numpy(np.random.default_rng(0).gamma(0.5, size=40))
    z = (x - x.mean()) / x.std()
    g = float((z**3).mean()) * n**2 / ((n - 1) * (n - 2))
    low, high = (n**0.5 * (w + g * w**2 / 3 + g**2 * w**3 / 27 + g / (6 * n))
                 for w in ((float(x.mean()) - end) / float(x.std()) for end in interval(x)))  # fmt: skip
    assert low == pytest.approx(-high) and low > 2
