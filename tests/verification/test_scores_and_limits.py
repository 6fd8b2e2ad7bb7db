"""What reverse rates are made of: the discrete score, and its limit for many units, the score of a Gaussian diffusion.

Blackout Diffusion, appendix C: with V units for one of density, x = X / V, it tends to dx = -x dt + sqrt(x / V) dW.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.processes import BirthDeath, PureDeath
from blackout.verification.toys import Toy, birth_death_generator, total_variation, two_bumps
from tests.verification.brute_force import precise_expm

T = torch.tensor(0.7, dtype=torch.float64)
Q = math.exp(-0.7)


def births(toy, process):
    """The package's rates of birth in every state, per unit of t, from the exact E[N | X_t], [S]."""
    states = torch.arange(toy.max_count + 1)[:, None]
    return process.rates(torch.from_numpy(toy.missing_counts(Q).mean)[:, None], states, T)[:, 0, 0].numpy()


def test_reverse_rates_are_one_discrete_score_per_jump_above_the_forward_rate():
    """nu(m') [p(m') - p(m)] / p(m) for the jump into m, whose forward rate from m' = m + 1 is m + 1 (eq. 46)."""
    toy = two_bumps()
    p, m = toy.marginal(Q), np.arange(255)
    score, rates = (m + 1) * (p[1:] - p[:-1]) / p[:-1], births(toy, PureDeath(255))[:-1]
    assert np.abs((rates - (m + 1) - score) / rates)[p[:-1] > 1e-12].max() < 1e-9


def test_forward_jumps_have_the_moments_of_the_limit():
    """Kramers and Moyal: drift -x, diffusion x / V, and nothing of third order as V grows."""
    for volume in (100, 10_000):
        x = torch.tensor([[volume // 4]])
        process = PureDeath(volume)
        rates, jumps = process.forward_rates(x, T).double(), process.forward_jumps(x).double() / volume
        first, second, third = (float((rates * jumps**n).sum()) for n in (1, 2, 3))
        assert (first, second) == pytest.approx((-0.25, 0.25 / volume), rel=1e-12)
        assert abs(third) == pytest.approx(0.25 / volume**2, rel=1e-12)


def test_the_discrete_score_tends_to_that_of_the_gaussian_limit():
    """Data of mean V / 2 and variance V / 20 stay Gaussian in the limit; law and score are off by V^-1/2."""
    errors = []
    for volume in (128, 512, 2048):
        levels = np.arange(volume + 1)
        toy = Toy("dense", stats.norm.pdf(levels, volume / 2, math.sqrt(volume / 20)))
        mean, variance = volume / 2 * Q, volume / 20 * Q**2 + volume / 2 * Q * (1 - Q)
        m = np.round(mean + math.sqrt(variance) * np.linspace(-1.5, 1.5, 7)).astype(int)
        discrete = births(toy, PureDeath(volume))[m] / (m + 1) - 1
        score_error = math.sqrt((((discrete + (m - mean) / variance) ** 2) * variance).mean())
        limit = stats.norm.pdf(levels, mean, math.sqrt(variance))
        errors.append((score_error, total_variation(toy.marginal(Q), limit)))
    ratios = np.array(errors)[:-1] / np.array(errors)[1:]
    assert ratios == pytest.approx(np.full((2, 2), 2.0), rel=0.15)


def test_immigration_and_death_is_bounded_from_above_from_where_it_starts():
    """Sampling starts from Poisson(m), m = q E[X_0] + a (1 - q); the bound is to Poisson(a), and KL(m || a) larger."""
    process = BirthDeath(12, 3.0)
    p0 = np.random.default_rng(0).dirichlet(np.ones(13))
    t = torch.tensor(1.2, dtype=torch.float64)
    law = precise_expm(1.2 * birth_death_generator(3.0, process.num_states))[:13].astype(float)
    start = math.exp(-1.2) * (p0 @ np.arange(13)) + 3.0 * (1 - math.exp(-1.2))
    poisson = stats.poisson.pmf(np.arange(process.num_states), start)
    own = (law * np.log(law / poisson)).sum(1)
    bounded = process.prior_divergence(torch.arange(13), t).numpy()
    assert p0 @ (bounded - own) == pytest.approx(start * math.log(start / 3.0) - start + 3.0, rel=1e-6)
    drawn = process.prior((20_000, 1), t, torch.Generator().manual_seed(0), mean=torch.tensor(p0 @ np.arange(13)))
    assert float(drawn.double().mean()) == pytest.approx(start, abs=0.06)
