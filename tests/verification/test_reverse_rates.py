"""Reverse rates as discrete scores, and their limit for many units, the score of a Gaussian
diffusion.

With V units per unit of density, x = X / V tends to dx = -x dt + sqrt(x / V) dW.

References: Santos et al. 2023 (Blackout Diffusion), appendix C.
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


def birth_rates(toy, process):
    """Return the package's birth rates in every state per unit of t, from the exact E[N | X_t],
    [S]."""
    states = torch.arange(toy.max_count + 1)[:, None]
    return process.rates(torch.from_numpy(toy.missing_counts(Q).mean)[:, None], states, T)[
        :, 0, 0
    ].numpy()


def test_reverse_rates_are_one_discrete_score_per_jump_above_the_forward_rate():
    """The score of the jump into m is nu(m') [p(m') - p(m)] / p(m).

    Its forward rate from m' = m + 1 is m + 1.

    References: Santos et al. 2023, eq. 46.
    """
    toy = two_bumps()
    p = toy.marginal(Q)
    m = np.arange(255)
    score = (m + 1) * (p[1:] - p[:-1]) / p[:-1]
    rates = birth_rates(toy, PureDeath(255))[:-1]
    assert np.abs((rates - (m + 1) - score) / rates)[p[:-1] > 1e-12].max() < 1e-9


def test_forward_jumps_have_the_moments_of_the_diffusion_limit():
    """Kramers-Moyal expansion: drift -x, diffusion x / V, and no third order as V grows."""
    for volume in (100, 10_000):
        x = torch.tensor([[volume // 4]])
        process = PureDeath(volume)
        rates = process.forward_rates(x, T).double()
        jumps = process.forward_jumps(x).double() / volume
        first, second, third = (float((rates * jumps**n).sum()) for n in (1, 2, 3))
        assert (first, second) == pytest.approx((-0.25, 0.25 / volume), rel=1e-12)
        assert abs(third) == pytest.approx(0.25 / volume**2, rel=1e-12)


def test_the_discrete_score_tends_to_that_of_the_gaussian_limit():
    """Data of mean V / 2 and variance V / 20 stay Gaussian in the limit.

    The errors of the distribution and of the score are of order V^-1/2.
    """
    errors = []
    for volume in (128, 512, 2048):
        levels = np.arange(volume + 1)
        toy = Toy("dense", stats.norm.pdf(levels, volume / 2, math.sqrt(volume / 20)))
        mean = volume / 2 * Q
        variance = volume / 20 * Q**2 + volume / 2 * Q * (1 - Q)
        m = np.round(mean + math.sqrt(variance) * np.linspace(-1.5, 1.5, 7)).astype(int)
        discrete = birth_rates(toy, PureDeath(volume))[m] / (m + 1) - 1
        score_error = math.sqrt((((discrete + (m - mean) / variance) ** 2) * variance).mean())
        limit = stats.norm.pdf(levels, mean, math.sqrt(variance))
        errors.append((score_error, total_variation(toy.marginal(Q), limit)))
    ratios = np.array(errors)[:-1] / np.array(errors)[1:]
    assert ratios == pytest.approx(np.full((2, 2), 2.0), rel=0.15)


def test_the_start_of_immigration_and_death_is_bounded_from_above():
    """Sampling starts from Poisson(m), m = q E[X_0] + a (1 - q).

    The bound refers to Poisson(a), which adds KL(m || a).
    """
    process = BirthDeath(12, 3.0)
    p0 = np.random.default_rng(0).dirichlet(np.ones(13))
    t = torch.tensor(1.2, dtype=torch.float64)
    transition = precise_expm(1.2 * birth_death_generator(3.0, process.num_states))[:13].astype(
        float
    )
    start = math.exp(-1.2) * (p0 @ np.arange(13)) + 3.0 * (1 - math.exp(-1.2))
    poisson = stats.poisson.pmf(np.arange(process.num_states), start)
    divergence = (transition * np.log(transition / poisson)).sum(1)
    bound = process.prior_divergence(torch.arange(13), t).numpy()
    assert p0 @ (bound - divergence) == pytest.approx(
        start * math.log(start / 3.0) - start + 3.0, rel=1e-6
    )
    samples = process.prior(
        (20_000, 1), t, torch.Generator().manual_seed(0), data_mean=torch.tensor(p0 @ np.arange(13))
    )
    assert float(samples.double().mean()) == pytest.approx(start, abs=0.06)
