"""Likelihood bounds with the exact conditional mean.

They are tight, above the entropy, and fall as the number of steps grows.
"""

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from blackout.diffusion import likelihood
from blackout.diffusion.finite_time_bound import births_constant, start_bound, step_bound
from blackout.diffusion.losses import CountLoss
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.survival import half_width, logit_survival, step_fraction
from blackout.diffusion.time_grids import fisher_times
from blackout.random import SampleStreams
from tests.verification import single_pixel
from tests.verification.large_counts import finite_time_bound

P0 = single_pixel.two_bumps()
ENTROPY = single_pixel.entropy(P0)


def oracle(xt, t):
    """Predict the exact conditional mean for the two-bump pixel, for scalar and batched t."""
    t = torch.as_tensor(t).expand(len(xt)) if torch.as_tensor(t).ndim == 0 else t
    y = torch.stack(
        [
            torch.from_numpy(single_pixel.missing_mean(P0, float(q)))
            for q in torch.exp(-t).unique(sorted=True)
        ]
    )
    row = torch.unique(torch.exp(-t), sorted=True, return_inverse=True)[1]
    mean = y[row].gather(1, xt.long())
    return CountPrediction(mean, mean.clamp(min=1e-300).log())


def expected_divergence(q):
    """Return E sum [y - N + N log(N / y)] at one survival q, by enumeration over (X_0, X_t)."""
    joint = P0[:, None] * single_pixel.thinning(255, q)
    y = torch.from_numpy(single_pixel.missing_mean(P0, q)).clamp(min=1e-300)
    levels = torch.arange(256)
    missing = (levels[:, None] - levels[None, :]).clamp(min=0)
    term = likelihood.rate_divergence(y[None, :], missing.double()).numpy()
    return float((joint * np.where(joint > 1e-18, term, 0)).sum())


def test_the_entropy_of_the_two_bump_pixel():
    assert pytest.approx(5.1971, abs=1e-4) == ENTROPY


@pytest.mark.deep
def test_the_continuous_bound_with_the_exact_mean_is_the_entropy():
    """The likelihood weights give the entropy; the weights of the paper do not."""
    limit = half_width(15.0)
    u, weight = np.polynomial.legendre.leggauss(160)
    u = u * limit
    weight = weight * limit
    q = 1 / (1 + np.exp(-u))
    divergence = np.array([expected_divergence(x) for x in q])
    assert float((weight * q * divergence).sum()) == pytest.approx(ENTROPY, abs=1e-3)
    t = fisher_times()
    on_grid = CubicSpline(u, divergence)(logit_survival(t[1:]).numpy())
    paper = float((CountLoss().weights(t[:-1], t[1:]).numpy() * on_grid).sum())
    assert paper == pytest.approx(1.585, abs=1e-3)
    likelihood_weighted = float(
        (CountLoss(weighting="likelihood").weights(t[:-1], t[1:]).numpy() * on_grid).sum()
    )
    assert likelihood_weighted == pytest.approx(ENTROPY, rel=0.02)


@pytest.mark.deep
def test_the_estimator_of_the_continuous_bound_covers_the_entropy():
    n = 6000
    x0 = torch.from_numpy(np.random.default_rng(0).choice(256, size=(n, 1), p=P0)).to(torch.uint8)
    v = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    grid = v.mul(300).floor().add(0.5).div(300)  # few distinct times keep the oracle fast
    nats = likelihood.likelihood_bound(
        oracle, PureDeath(255), x0, grid, SampleStreams(1, torch.arange(n)).step(0)
    )
    error = float(nats.std()) / n**0.5
    assert abs(float(nats.mean()) - ENTROPY) < 4 * error and error < 0.2


def exact_finite_bound(num_steps):
    """Return the finite-time bound of the Poisson sampler, by enumeration."""
    times = fisher_times(num_steps)
    start = start_bound(
        PureDeath(255),
        torch.arange(256, dtype=torch.uint8)[:, None],
        times[-1],
        torch.tensor([P0 @ np.arange(256)]),
    )
    total = float((torch.from_numpy(P0) * start).sum())
    levels = torch.arange(256)
    missing = (levels[:, None] - levels[None, :]).clamp(min=0)
    for k in range(1, num_steps + 1):
        s = times[k - 1]
        t = times[k]
        q = float(torch.exp(-t))
        r = float(step_fraction(s, t))
        joint = P0[:, None] * single_pixel.thinning(255, q)
        y = torch.from_numpy(single_pixel.missing_mean(P0, q)).clamp(min=1e-300)
        constant = births_constant(255, float(s), float(t))[missing]
        term = constant + y * r - missing * r * torch.log(y * r)
        total += float((joint * np.where(joint > 1e-18, term.numpy(), 0)).sum())
    return total


@pytest.mark.parametrize("num_steps, expected", [(10, 7.223), (30, 5.681), (100, 5.318)])
def test_the_finite_time_bound_falls_towards_the_entropy(num_steps, expected):
    bound = exact_finite_bound(num_steps)
    assert bound == pytest.approx(expected, abs=2e-3) and bound > ENTROPY


def test_the_estimator_of_the_finite_time_bound_agrees_with_enumeration():
    n = 3000
    x0 = torch.from_numpy(np.random.default_rng(1).choice(256, size=(n, 1), p=P0)).to(torch.uint8)
    mean = torch.tensor([P0 @ np.arange(256)])
    nats = finite_time_bound(
        oracle, PureDeath(255), fisher_times(10), x0, mean, torch.Generator().manual_seed(0)
    )
    assert abs(float(nats.mean()) - exact_finite_bound(10)) < 4 * float(nats.std()) / n**0.5


def test_the_constant_of_a_step_matches_the_entropy_of_the_binomial():
    from scipy import stats
    from scipy.special import gammaln

    s = torch.tensor(0.3).double()
    t = torch.tensor(1.1).double()
    r = float(step_fraction(s, t))
    d = np.arange(51)
    for n in (0, 1, 7, 50):
        pmf = stats.binom.pmf(d, n, r)
        direct = -stats.binom(n, r).entropy() + float(pmf @ gammaln(d + 1))
        assert float(births_constant(50, float(s), float(t))[n]) == pytest.approx(
            float(direct), abs=1e-10
        )


def test_bits_per_dimension_divide_nats_by_elements_and_log_2():
    assert float(
        likelihood.bits_per_dim(torch.tensor(12 * np.log(2.0)), (3, 2, 2))
    ) == pytest.approx(1.0)


def test_large_counts_have_only_the_continuous_bound():
    times = torch.tensor([0.5, 1.0]).double()
    x0 = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="4095"):
        step_bound(oracle, PureDeath(65535), x0, *times)


def test_the_bound_of_two_correlated_pixels_is_their_joint_entropy():
    """Elements are predicted separately, yet the exact means give a tight bound."""
    from blackout.verification.toys import pixel_pair

    pair = pixel_pair()
    limit = half_width(15.0)
    u, weight = np.polynomial.legendre.leggauss(120)
    total = 0.0
    missing = torch.from_numpy((pair.states[:, None, :] - pair.states[None, :, :]).clip(min=0))
    for logit, node_weight in zip(u * limit, weight * limit, strict=True):
        q = 1 / (1 + np.exp(-logit))
        joint = pair.p0[:, None] * pair.thinning(q)
        y = torch.from_numpy(pair.missing_counts(q).mean.reshape(-1, 2)).clamp(min=1e-300)
        term = likelihood.rate_divergence(y[None], missing.double()).sum(-1).numpy()
        total += node_weight * q * float((joint * np.where(joint > 1e-18, term, 0)).sum())
    assert total == pytest.approx(pair.entropy, abs=1e-3)
    sum_of_entropies = single_pixel.entropy(pair.p0.reshape(16, 16).sum(0)) + single_pixel.entropy(
        pair.p0.reshape(16, 16).sum(1)
    )
    assert sum_of_entropies > pair.entropy + 0.1
