"""With the exact conditional distribution as denoiser, bounds are tight and losses minimal."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import expm

from blackout.diffusion.likelihood import likelihood_bound, rate_divergence
from blackout.diffusion.losses import BirthDeathLoss, CrossEntropy, RateLoss, StepLoss, rate_loss
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
)
from blackout.diffusion.processes import (
    Absorbing,
    AbsorbingChain,
    BirthDeath,
    DiscreteTimeChain,
    Ordinal,
    PureDeath,
    Uniform,
    UniformChain,
    from_generator,
)
from blackout.diffusion.survival import half_width, time_of_logit
from blackout.random import SampleStreams, low_discrepancy
from blackout.verification import toys as chains
from tests.verification import brute_force, single_pixel

P0 = np.array([0.35, 0.05, 0.1, 0.3, 0.2])
ENTROPY = single_pixel.entropy(P0)
CYCLE = np.roll(np.eye(6), 1, axis=1) - np.eye(6)
FINITE = {
    "uniform": Uniform(4),
    "absorbing": Absorbing(4),
    "ordinal": Ordinal(4),
    "generator": from_generator(4, chains.random_generator(np.random.default_rng(3), 7)),
    "cycle": from_generator(4, 3 * CYCLE),
}
LAZY_CYCLE = np.full((5, 5), 0.02) + 0.9 * (0.7 * np.eye(5) + 0.3 * np.roll(np.eye(5), 1, axis=1))
CHAINS = {
    "uniform": UniformChain(4, 12),
    "absorbing": AbsorbingChain(4, 12),
    "custom": DiscreteTimeChain(4, 40, LAZY_CYCLE),
}


def levels_oracle(process, p0=P0):
    """Return a denoiser that predicts P(X_0 | X_t) of one pixel, by Bayes' rule."""
    prior = torch.from_numpy(p0).log()[None, :, None]

    def denoiser(xt, t):
        log_probs = torch.log_softmax(process.log_likelihood(xt, t) + prior, dim=1)
        return CategoricalPrediction(log_probs)

    return denoiser


def birth_death_oracle(process, p0):
    """Return a denoiser that predicts E[(X_0 - S, I) | X_t] of one pixel."""

    def means(xt, t):
        q = torch.exp(-t)
        forgotten = -torch.expm1(-t)
        posterior = levels_oracle(process, p0)(xt, t).mean
        rates = sum(
            posterior[:, o, None] * process.reverse_rates(torch.full_like(xt, o), xt, t)
            for o in range(len(p0))
        )
        if t.ndim:
            q = q[:, None]
            forgotten = forgotten[:, None]
        return torch.stack(
            [(rates[:, 0] - process.mean * forgotten) * forgotten / q, rates[:, 1] * forgotten],
            dim=1,
        )

    def denoiser(xt, t):
        if t.ndim:
            mean = means(xt, t)
        else:  # a single time: a table over states
            mean = means(torch.arange(process.num_states)[None], t)[0].T[xt.long()].movedim(-1, 1)
        mean = mean.clamp(min=1e-30)
        return BirthDeathPrediction(mean, mean.log())

    return denoiser


def draw_data(p0, n, seed=0):
    """Sample n pixels from a distribution, uint8 [n, 1]."""
    return torch.from_numpy(np.random.default_rng(seed).choice(len(p0), size=(n, 1), p=p0)).to(
        torch.uint8
    )


def chi_square(observed, expected, n):
    """Return the p-value of observed frequencies, without cells below five expected counts."""
    keep = expected * n > 5
    assert observed[~keep].sum() * n < 20
    return stats.chisquare(
        observed[keep] * n, expected[keep] / expected[keep].sum() * observed[keep].sum() * n
    ).pvalue


@pytest.mark.parametrize("name", CHAINS)
def test_the_bridge_of_a_chain_follows_bayes_rule(name):
    """P(n | m, o) = P_0,k-1[o, n] P_k[n, m] / P_0k[o, m], from products of the step matrices."""
    process = CHAINS[name]
    product = np.eye(process.num_states)
    x0, xt = torch.meshgrid(torch.arange(5), torch.arange(process.num_states), indexing="ij")
    for k in range(1, process.num_steps + 1):
        step = process.step(torch.tensor([k]))[0].numpy()
        expected = brute_force.bridge(product[:5], step)
        bridge = process.bridge_pmf(x0, xt, k - 1.0, float(k)).numpy()
        possible = (product @ step)[:5] > 1e-9
        assert np.abs(bridge - expected)[possible].max() < 1e-10
        product = product @ step


def test_the_birth_death_bridge_is_exact_when_the_origin_is_known():
    process = BirthDeath(9, 2.5)
    n = 40_000
    s = torch.tensor(0.4, dtype=torch.float64)
    t = torch.tensor(1.1, dtype=torch.float64)
    x0 = torch.full((n, 1), 6, dtype=torch.uint8)
    xt = process.sample(x0, t, SampleStreams(0, torch.arange(n)).step(0))
    xs = process.bridge(x0, xt, s, t, SampleStreams(0, torch.arange(n)).step(1))
    q = chains.birth_death_generator(2.5, 60)
    first = expm(q * 0.4)[6]
    second = expm(q * 0.7)
    for m in (0, 2, 5):
        expected = (first * second[:, m])[: process.num_states]
        selected = xs[xt == m].long().numpy()
        frequencies = np.bincount(selected, minlength=process.num_states) / len(selected)
        assert chi_square(frequencies, expected / expected.sum(), len(selected)) > 1e-3


def pure_death_oracle(process):
    """Return a denoiser that predicts E[X_0 - X_t | X_t] of one pixel."""

    def denoiser(xt, t):
        posterior = levels_oracle(process)(xt, t).mean
        mean = (torch.einsum("bo...,o->b...", posterior, torch.arange(5.0).double()) - xt).clamp(
            min=1e-30
        )
        return CountPrediction(mean, mean.log())

    return denoiser


WITH_ORACLES = {name: (process, levels_oracle(process)) for name, process in FINITE.items()} | {
    "birth-death": (BirthDeath(4, 1.9), birth_death_oracle(BirthDeath(4, 1.9), P0)),
    "pure death": (PureDeath(4), pure_death_oracle(PureDeath(4))),
}


@pytest.mark.parametrize("name", WITH_ORACLES)
def test_the_bound_with_the_exact_denoiser_is_the_entropy(name):
    """Enumeration over (X_0, X_t) and quadrature over u, plus the ends of the time range."""
    process, denoiser = WITH_ORACLES[name]
    limit = half_width(15.0)
    u, weight = np.polynomial.legendre.leggauss(300)
    u = torch.from_numpy(u * limit)
    weight = torch.from_numpy(weight * limit)
    t = time_of_logit(u)
    x0, xt = torch.meshgrid(torch.arange(5), torch.arange(process.num_states), indexing="ij")
    x0 = x0.flatten().expand(len(t), -1)
    xt = xt.flatten().expand(len(t), -1)
    probability = torch.from_numpy(P0)[x0] * process.pmf(x0, t).gather(-1, xt[..., None]).squeeze(
        -1
    )
    kappa = process.rates(denoiser(xt, t).expected, xt, t)
    divergence = rate_divergence(kappa, process.reverse_rates(x0, xt, t)).sum(1)
    integrand = torch.where(probability > 1e-20, probability * divergence, 0.0).sum(1)
    path = float((weight * torch.sigmoid(-u) * integrand).sum())
    ends = float(
        process.prior_divergence(torch.arange(5), torch.tensor(15.0).double())
        @ torch.from_numpy(P0)
    )
    assert 0 <= ends < 1e-5
    assert path == pytest.approx(ENTROPY, abs=2e-4)


@pytest.mark.parametrize("name", ["uniform", "absorbing", "ordinal", "generator", "birth-death"])
def test_the_estimator_of_the_bound_agrees_with_the_entropy(name):
    process, denoiser = WITH_ORACLES[name]
    n = 20_000
    v = low_discrepancy(torch.arange(n))
    streams = SampleStreams(0, torch.arange(n)).step(0)
    nats = likelihood_bound(denoiser, process, draw_data(P0, n), v, streams)
    error = float(nats.std()) / n**0.5
    assert error < 0.08 and abs(float(nats.mean()) - ENTROPY) < 4 * error


@pytest.mark.parametrize("name", CHAINS)
def test_the_bound_of_a_chain_with_the_exact_denoiser_is_the_entropy(name):
    """For one pixel the averaged bridge is the exact reverse step.

    The bound is therefore tight at any number of steps.
    """
    process = CHAINS[name]
    n = 20_000
    v = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    streams = SampleStreams(0, torch.arange(n)).step(0)
    nats = likelihood_bound(levels_oracle(process), process, draw_data(P0, n), v, streams)
    error = float(nats.std()) / n**0.5
    assert error < 0.08 and abs(float(nats.mean()) - ENTROPY) < 4 * error


@pytest.mark.parametrize("name", ["uniform", "ordinal"])
@pytest.mark.parametrize("loss", [RateLoss(), CrossEntropy(), StepLoss()])
def test_losses_are_minimal_at_the_exact_distribution(name, loss):
    process = FINITE[name]
    n = 40_000
    t = torch.full((n,), 0.7, dtype=torch.float64)
    xt, target = process.observe(draw_data(P0, n), t, SampleStreams(0, torch.arange(n)).step(0))
    exact = levels_oracle(process)(xt, t)
    tilt = torch.tensor([0.5, -0.5, 0.3, 0.0, -0.3])[None, :, None]

    def mean_loss(amount):
        log_probs = torch.log_softmax(exact.log_probs + amount * tilt, 1)
        return float(loss(CategoricalPrediction(log_probs), target, t - 0.05, t).double().mean())

    assert mean_loss(0.0) < min(mean_loss(0.6), mean_loss(-0.6))


def test_the_birth_death_loss_is_the_rate_loss_of_births_and_deaths():
    """Missing units return at q / (1 - q) each, and immigrants leave at 1 / (1 - q) each."""
    process = BirthDeath(4, 1.9)
    s = torch.full((50,), 0.6).double()
    t = torch.full((50,), 0.7).double()
    _, target = process.observe(draw_data(P0, 50), t, SampleStreams(0, torch.arange(50)).step(0))
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.rand(50, 2, 1, generator=generator) + 0.1 for _ in range(2))
    factors = (
        torch.stack([torch.exp(-t), torch.ones_like(t)], 1)[..., None]
        / -torch.expm1(-t)[:, None, None]
    )

    def both_losses(y):
        loss = BirthDeathLoss(weighting="likelihood")(
            BirthDeathPrediction(y, y.log()), target, s, t
        )
        return loss, (
            (t - s)[:, None, None] * rate_loss(factors * y, factors * target.statistic)
        ).sum(1).float()

    first_loss, first_rate_loss = both_losses(first)
    second_loss, second_rate_loss = both_losses(second)
    torch.testing.assert_close(
        first_loss - second_loss, first_rate_loss - second_rate_loss, atol=1e-5, rtol=1e-5
    )


def test_the_replaced_fraction_of_a_chain_grows_linearly_to_one():
    """Step k replaces 1 / (T - k + 1) of what is left, so that k / T is replaced after k steps.

    References: Austin et al. 2021, appendix A.2.
    """
    k = torch.arange(13.0)
    for name, redraw_probability in (("uniform", 1 / 5), ("absorbing", 0.0)):
        stay_probability = CHAINS[name].rows(
            torch.zeros(13, 1, dtype=torch.int64), torch.zeros(13), k
        )[:, 0, 0]
        torch.testing.assert_close(stay_probability, 1 - k.double() / 12 * (1 - redraw_probability))


def test_the_birth_death_loss_is_minimal_at_the_posterior_means():
    process = BirthDeath(4, 1.9)
    n = 40_000
    t = torch.full((n,), 0.7, dtype=torch.float64)
    xt, target = process.observe(draw_data(P0, n), t, SampleStreams(0, torch.arange(n)).step(0))
    exact = birth_death_oracle(process, P0)(xt, t)

    def mean_loss(first, second):
        factor = torch.tensor([first, second]).view(1, 2, 1)
        prediction = BirthDeathPrediction(exact.mean * factor, exact.log_mean + factor.log())
        return float(BirthDeathLoss()(prediction, target, t - 0.05, t).double().mean())

    minimum = mean_loss(1.0, 1.0)
    assert all(
        minimum < mean_loss(*factors)
        for factors in ((1.3, 1.0), (0.7, 1.0), (1.0, 1.3), (1.0, 0.7))
    )
