import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.processes import PureDeath
from blackout.random import SampleStreams
from tests.verification import toys


def streams(n, seed=0):
    return SampleStreams(seed, torch.arange(n)).step(0)


@pytest.mark.parametrize("max_count", [0, -1, 2**31])
def test_impossible_max_counts_are_refused(max_count):
    with pytest.raises(ValueError, match="max_count"):
        PureDeath(max_count)


@pytest.mark.parametrize(
    "max_count, dtype", [(1, torch.uint8), (255, torch.uint8), (256, torch.int32), (65535, torch.int32)]
)
def test_counts_stay_integers_of_one_type_within_range(max_count, dtype):
    process = PureDeath(max_count)
    x0 = torch.randint(0, max_count + 1, (16, 3, 4, 4), generator=torch.Generator().manual_seed(0)).to(dtype)
    t = torch.linspace(1e-6, 15, 16, dtype=torch.float64)
    xt = process.sample(x0, t, streams(16))
    xs = process.bridge(x0, xt, t / 2, t, streams(16))
    assert xt.dtype == xs.dtype == dtype and xt.shape == xs.shape == x0.shape
    assert (xt <= xs).all() and (xs <= x0).all()
    prior = process.prior((5, 3, 4, 4), torch.tensor(0.01), streams(5), mean=torch.full((3, 4, 4), float(max_count)))
    assert prior.dtype == dtype and int(prior.max()) <= max_count


@pytest.mark.parametrize("t", [torch.tensor(0.7), torch.full((8,), 0.7), torch.full((8, 1, 1, 1), 0.7), 0.7])
def test_times_may_be_a_scalar_one_per_sample_or_broadcastable(t):
    x0 = torch.full((8, 1, 4, 4), 200, dtype=torch.uint8)
    reference = PureDeath().sample(x0, torch.tensor(0.7, dtype=torch.float32), streams(8))
    assert torch.equal(PureDeath().sample(x0, t, streams(8)), reference)


def test_times_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="broadcast"):
        PureDeath().sample(torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.ones(3))


@pytest.mark.parametrize("t", [1e-9, 1e-3, 0.3, 0.7, 4.0, 15.0, 60.0])
@pytest.mark.parametrize("o", [0, 1, 20, 255])
def test_forward_law(o, t):
    xt = PureDeath().sample(torch.full((2000, 50), o, dtype=torch.uint8), t, streams(2000, 1))
    observed = torch.bincount(xt.flatten().long(), minlength=o + 1).numpy()
    expected = toys.thinning(255, float(np.exp(-t)))[o, : o + 1] * observed.sum()
    keep = expected > 10
    if keep.sum() > 1:
        rest = [observed[~keep].sum()], [expected[~keep].sum() + 1e-9]
        observed, expected = np.append(observed[keep], rest[0]), np.append(expected[keep], rest[1])
        if expected[-1] < 10:
            observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
        assert stats.chisquare(observed, expected).pvalue > 1e-4
    else:
        assert observed[keep].sum() > 0.999 * observed.sum()


@pytest.mark.parametrize("s, t", [(0.0, 0.4), (0.2, 0.9), (1.0, 1.01), (3.0, 14.0)])
def test_bridge_equals_bayes(s, t):
    """P(n | o, m) = P(n | o) P(m | n) / P(m | o) for every o, n, m up to 60, and the sampler's r is this bridge's."""
    size = 61
    first, second = toys.thinning(60, np.exp(-s)), toys.thinning(60, np.exp(-(t - s)))
    whole = toys.thinning(60, np.exp(-t))
    r = float((np.exp(-s) - np.exp(-t)) / -np.expm1(-t))
    worst = 0.0
    for o in range(size):
        for m in range(o + 1):
            if whole[o, m] > 1e-250:
                bayes = first[o] * second[:, m] / whole[o, m]
                worst = max(worst, np.abs(toys.bridge(60, o, m, r) - bayes).max())
    assert worst < 2e-11
    x0, xt = torch.full((4000, 50), 60, dtype=torch.uint8), torch.full((4000, 50), 13, dtype=torch.uint8)
    births = PureDeath(60).bridge(x0, xt, s, t, streams(4000, 2)).long() - 13
    law = stats.binom.pmf(np.arange(48), 47, r)
    observed = np.bincount(births.flatten().numpy(), minlength=48)
    keep = law * observed.sum() > 10
    expected = law[keep] / law[keep].sum() * observed[keep].sum()
    assert observed[~keep].sum() <= 1e-3 * observed.sum() + 5
    assert keep.sum() == 1 or stats.chisquare(observed[keep], expected).pvalue > 1e-4


def test_thinning_composes_and_bridge_undoes_it_in_law():
    s, t = 0.4, 1.7
    first, second = toys.thinning(40, np.exp(-s)), toys.thinning(40, np.exp(-(t - s)))
    assert np.abs(first @ second - toys.thinning(40, np.exp(-t))).max() < 1e-14
    r = float((np.exp(-s) - np.exp(-t)) / -np.expm1(-t))
    whole = toys.thinning(40, np.exp(-t))
    for o in (0, 1, 17, 40):
        back = sum(whole[o, m] * toys.bridge(40, o, m, r) for m in range(o + 1))
        assert np.abs(back - first[o]).max() < 1e-13


def test_forward_law_is_the_matrix_exponential_of_the_death_generator():
    from scipy.linalg import expm

    levels = np.arange(31)
    generator = np.diag(levels[1:].astype(float), -1) - np.diag(levels.astype(float))
    for t in (0.05, 0.7, 5.0):
        assert np.abs(expm(generator * t) - toys.thinning(30, np.exp(-t))).max() < 1e-13


def test_reverse_rate_is_the_time_reversal_of_the_forward_rate():
    """Given X_0, the birth rate from m is (m + 1).

    p_t(m + 1) / p_t(m): eq. 9; averaged over X_0, Tweedie's formula for y.
    """
    p0, t = toys.two_bumps(), 0.8
    q = float(np.exp(-t))
    forward = toys.thinning(255, q)
    for o in (1, 30, 255):
        m = np.arange(o)
        m = m[forward[o, :o] > 1e-250]
        rate = PureDeath().reverse_rates(torch.full((len(m),), o), torch.from_numpy(m), t)[:, 0].numpy()
        assert np.allclose(rate, (m + 1) * forward[o, m + 1] / forward[o, m], rtol=1e-10)
    marginal = p0 @ forward
    m = np.arange(255)[marginal[:-1] > 1e-200]
    tweedie = (1 - q) / q * (m + 1) * marginal[m + 1] / marginal[m]
    assert np.allclose(toys.missing_mean(p0, q)[m], tweedie, rtol=1e-9, atol=1e-12)


def test_prior_is_black_or_poisson_around_the_mean():
    process = PureDeath(255)
    assert not process.prior((4, 2), 15.0).any()
    start = process.prior((100_000, 2), 3.0, streams(100_000), mean=torch.tensor([100.0, 10.0])).double()
    expected = torch.tensor([100.0, 10.0]).double() * np.exp(-3.0)
    assert torch.allclose(start.mean(0), expected, rtol=0.02) and torch.allclose(start.var(0), expected, rtol=0.04)
