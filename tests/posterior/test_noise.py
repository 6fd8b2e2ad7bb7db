"""Noises: moments, normalisation, and the density of a camera."""

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.posterior import (
    Binomial,
    Camera,
    Flips,
    Gaussian,
    Poisson,
)
from blackout.random import SampleStreams


@pytest.mark.parametrize(
    "noise, m, mean, variance",
    [
        (Binomial(0.3), 20.0, 6.0, 4.2),
        (Poisson(0.5, 2.0), 8.0, 6.0, 6.0),
        (Gaussian(1.5), 4.0, 4.0, 2.25),
        (Flips(2.0), 1.0, 1.0, 0.0),
        (Camera(0.5, 1.0, 3.0, 100.0, 1.5), 10.0, 118.0, 56.25),
    ],
)
def test_draws_of_noises_have_their_mean_and_variance(noise, m, mean, variance):
    number = 40_000
    values = torch.full((1, number), m, dtype=torch.float64)
    y = noise.draw(values, SampleStreams(0, torch.zeros(1, dtype=torch.int64)).step(0))
    assert float(noise.mean(values)[0, 0]) == pytest.approx(mean) and float(
        y.mean()
    ) == pytest.approx(mean, abs=4 * (variance / number) ** 0.5)
    assert float(noise.variance(values)[0, 0]) == pytest.approx(variance)
    assert float(y.var()) == pytest.approx(variance, rel=0.05, abs=1e-9)
    dark_mean = float(noise.mean(0 * values[:, :1]))
    assert torch.allclose(noise.mean(noise.estimate(y[:, :5])), y[:, :5].clamp(min=dark_mean))


@pytest.mark.parametrize("noise, m", [(Binomial(0.3), 7.0), (Poisson(0.5, 2.0), 3.0)])
def test_noises_of_counts_are_normalised(noise, m):
    y = torch.arange(60.0, dtype=torch.float64)[:, None]
    assert float(noise.log_prob(y, torch.full_like(y, m)).exp().sum()) == pytest.approx(1.0)


def test_the_density_of_a_camera_is_its_sum_over_photons():
    """The density is normalised and equals a sum over photons; without readout it is theirs."""
    noise = Camera(0.5, 1.0, 2.0, 100.0, 1.5)
    y = torch.arange(80.0, 170.0, 0.05, dtype=torch.float64)[:, None]
    density = noise.log_prob(y, torch.full_like(y, 7.0)).exp()[:, 0]
    photons = stats.poisson.pmf(np.arange(60), 4.5)
    by_hand = (photons * stats.norm.pdf(y.numpy(), 100 + 2 * np.arange(60), 1.5)).sum(1)
    assert np.allclose(density, by_hand, atol=1e-9) and float(
        density.sum() * 0.05
    ) == pytest.approx(1.0, abs=1e-6)
