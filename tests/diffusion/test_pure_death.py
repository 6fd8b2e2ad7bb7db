"""Pure death: transition probabilities, bridges, reverse rates, priors and types."""

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.processes import PureDeath
from blackout.random import SampleStreams
from tests.verification import single_pixel


def streams(n, seed=0):
    """Return random streams of n samples."""
    return SampleStreams(seed, torch.arange(n)).step(0)


@pytest.mark.parametrize("max_count", [0, -1, 2**31])
def test_invalid_max_counts_are_refused(max_count):
    with pytest.raises(ValueError, match="max_count"):
        PureDeath(max_count)


@pytest.mark.parametrize(
    "max_count, dtype",
    [(1, torch.uint8), (255, torch.uint8), (256, torch.int32), (65535, torch.int32)],
)
def test_counts_stay_integers_of_one_type_within_range(max_count, dtype):
    process = PureDeath(max_count)
    x0 = torch.randint(
        0, max_count + 1, (16, 3, 4, 4), generator=torch.Generator().manual_seed(0)
    ).to(dtype)
    t = torch.linspace(1e-6, 15, 16, dtype=torch.float64)
    xt = process.sample(x0, t, streams(16))
    xs = process.bridge(x0, xt, t / 2, t, streams(16))
    assert xt.dtype == xs.dtype == dtype and xt.shape == xs.shape == x0.shape
    assert (xt <= xs).all() and (xs <= x0).all()
    prior = process.prior(
        (5, 3, 4, 4),
        torch.tensor(0.01),
        streams(5),
        data_mean=torch.full((3, 4, 4), float(max_count)),
    )
    assert prior.dtype == dtype and int(prior.max()) <= max_count


@pytest.mark.parametrize(
    "t", [torch.tensor(0.7), torch.full((8,), 0.7), torch.full((8, 1, 1, 1), 0.7), 0.7]
)
def test_times_may_be_a_scalar_one_per_sample_or_broadcastable(t):
    x0 = torch.full((8, 1, 4, 4), 200, dtype=torch.uint8)
    reference = PureDeath().sample(x0, torch.tensor(0.7, dtype=torch.float32), streams(8))
    assert torch.equal(PureDeath().sample(x0, t, streams(8)), reference)


def test_times_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="broadcast"):
        PureDeath().sample(torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.ones(3))


@pytest.mark.parametrize("t", [1e-9, 1e-3, 0.3, 0.7, 4.0, 15.0, 60.0])
@pytest.mark.parametrize("o", [0, 1, 20, 255])
def test_forward_samples_are_binomial(o, t):
    xt = PureDeath().sample(torch.full((2000, 50), o, dtype=torch.uint8), t, streams(2000, 1))
    observed = torch.bincount(xt.flatten().long(), minlength=o + 1).numpy()
    expected = single_pixel.thinning(255, float(np.exp(-t)))[o, : o + 1] * observed.sum()
    large_cells = expected > 10
    if large_cells.sum() > 1:
        small_cells = [observed[~large_cells].sum()], [expected[~large_cells].sum() + 1e-9]
        observed = np.append(observed[large_cells], small_cells[0])
        expected = np.append(expected[large_cells], small_cells[1])
        if expected[-1] < 10:
            observed = observed[:-1]
            expected = expected[:-1] * observed.sum() / expected[:-1].sum()
        assert stats.chisquare(observed, expected).pvalue > 1e-4
    else:
        assert observed[large_cells].sum() > 0.999 * observed.sum()


@pytest.mark.parametrize("s, t", [(0.0, 0.4), (0.2, 0.9), (1.0, 1.01), (3.0, 14.0)])
def test_the_bridge_follows_bayes_rule(s, t):
    """P(n | o, m) = P(n | o) P(m | n) / P(m | o) for every o, n, m up to 60.

    The samples use the same step fraction r.
    """
    size = 61
    first = single_pixel.thinning(60, np.exp(-s))
    second = single_pixel.thinning(60, np.exp(-(t - s)))
    composed = single_pixel.thinning(60, np.exp(-t))
    r = float((np.exp(-s) - np.exp(-t)) / -np.expm1(-t))
    worst = 0.0
    for o in range(size):
        for m in range(o + 1):
            if composed[o, m] > 1e-250:
                bayes = first[o] * second[:, m] / composed[o, m]
                worst = max(worst, np.abs(single_pixel.bridge(60, o, m, r) - bayes).max())
    assert worst < 2e-11
    x0 = torch.full((4000, 50), 60, dtype=torch.uint8)
    xt = torch.full((4000, 50), 13, dtype=torch.uint8)
    births = PureDeath(60).bridge(x0, xt, s, t, streams(4000, 2)).long() - 13
    probabilities = stats.binom.pmf(np.arange(48), 47, r)
    observed = np.bincount(births.flatten().numpy(), minlength=48)
    large_cells = probabilities * observed.sum() > 10
    expected = (
        probabilities[large_cells] / probabilities[large_cells].sum() * observed[large_cells].sum()
    )
    assert observed[~large_cells].sum() <= 1e-3 * observed.sum() + 5
    assert large_cells.sum() == 1 or stats.chisquare(observed[large_cells], expected).pvalue > 1e-4


def test_thinning_composes_and_the_bridge_inverts_it_in_distribution():
    s = 0.4
    t = 1.7
    first = single_pixel.thinning(40, np.exp(-s))
    second = single_pixel.thinning(40, np.exp(-(t - s)))
    assert np.abs(first @ second - single_pixel.thinning(40, np.exp(-t))).max() < 1e-14
    r = float((np.exp(-s) - np.exp(-t)) / -np.expm1(-t))
    composed = single_pixel.thinning(40, np.exp(-t))
    for o in (0, 1, 17, 40):
        averaged_bridge = sum(
            composed[o, m] * single_pixel.bridge(40, o, m, r) for m in range(o + 1)
        )
        assert np.abs(averaged_bridge - first[o]).max() < 1e-13


def test_thinning_is_the_matrix_exponential_of_the_death_generator():
    from scipy.linalg import expm

    levels = np.arange(31)
    generator = np.diag(levels[1:].astype(float), -1) - np.diag(levels.astype(float))
    for t in (0.05, 0.7, 5.0):
        assert np.abs(expm(generator * t) - single_pixel.thinning(30, np.exp(-t))).max() < 1e-13


def test_the_reverse_rate_is_the_time_reversal_of_the_forward_rate():
    """Given X_0, the birth rate from m is (m + 1) p_t(m + 1) / p_t(m).

    Averaged over X_0, this is Tweedie's formula for y.

    References: Santos et al. 2023, eq. 9.
    """
    p0 = single_pixel.two_bumps()
    t = 0.8
    q = float(np.exp(-t))
    forward = single_pixel.thinning(255, q)
    for o in (1, 30, 255):
        m = np.arange(o)
        m = m[forward[o, :o] > 1e-250]
        rate = (
            PureDeath()
            .reverse_rates(torch.full((len(m),), o), torch.from_numpy(m), t)[:, 0]
            .numpy()
        )
        assert np.allclose(rate, (m + 1) * forward[o, m + 1] / forward[o, m], rtol=1e-10)
    marginal = p0 @ forward
    m = np.arange(255)[marginal[:-1] > 1e-200]
    tweedie = (1 - q) / q * (m + 1) * marginal[m + 1] / marginal[m]
    assert np.allclose(single_pixel.missing_mean(p0, q)[m], tweedie, rtol=1e-9, atol=1e-12)


def test_the_prior_is_black_or_poisson_around_the_mean():
    process = PureDeath(255)
    assert not process.prior((4, 2), 15.0).any()
    start = process.prior(
        (100_000, 2), 3.0, streams(100_000), data_mean=torch.tensor([100.0, 10.0])
    ).double()
    expected = torch.tensor([100.0, 10.0]).double() * np.exp(-3.0)
    assert torch.allclose(start.mean(0), expected, rtol=0.02) and torch.allclose(
        start.var(0), expected, rtol=0.04
    )
