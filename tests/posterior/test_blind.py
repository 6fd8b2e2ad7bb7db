"""Unknown parameters: the likelihood integrates over them, and fits use their draws."""

import math

import pytest
import torch

from blackout.posterior import (
    BlindProblem,
    Blur,
    Camera,
    Gaussian,
    Identity,
    Poisson,
    UnknownParameter,
)
from blackout.random import SampleStreams


def test_the_likelihood_integrates_over_an_unknown_parameter():
    """Compared with a grid of 20,000 values, 280 times as fine as the first one."""
    x = torch.tensor([[3.0, 9.0], [8.0, 2.0], [40.0, 40.0]], dtype=torch.float64)
    y = torch.tensor([[18.0, 60.0]], dtype=torch.float64)
    problem = BlindProblem(
        Identity(), Gaussian(1.0), y, UnknownParameter("noise", "std", 0.01, 100.0)
    )
    shares = (torch.arange(20_000).double() + 0.5) / 20_000
    std = (0.01 * 1e4**shares)[:, None, None]
    log_likelihood = (-(((y - x) / std) ** 2) / 2 - (std * math.sqrt(2 * math.pi)).log()).sum(2)
    assert torch.allclose(
        problem.log_likelihood(x), torch.logsumexp(log_likelihood, 0) - math.log(20_000), atol=2e-3
    )
    log_values = (
        problem.draw_value(x.repeat(4000, 1), SampleStreams(0, torch.arange(12_000)).step(0))
        .view(4000, 3)
        .log()
        .mean(0)
    )
    assert torch.allclose(
        log_values, (torch.softmax(log_likelihood, 0) * std[:, :, 0].log()).sum(0), atol=0.05
    )


def test_narrow_peaks_of_an_unknown_gain_are_not_missed():
    """Photons are integers, so a camera of little readout noise has a likelihood of many peaks."""
    x = torch.tensor([[1.0, 3.0, 2.0]]).double()
    y = torch.tensor([[15.1, 27.0, 20.2]]).double()
    problem = BlindProblem(
        Identity(), Camera(3.0, 0.5, 2.0, 10.0, 0.3), y, UnknownParameter("noise", "gain", 0.5, 4.0)
    )
    gains = problem.unknown.quantile((torch.arange(20_000).double() + 0.5) / 20_000)[:, None]
    exact = torch.logsumexp(
        problem.with_value(gains).log_likelihood(x.expand(20_000, 3)), 0
    ) - math.log(20_000)
    assert float(problem.log_likelihood(x)) == pytest.approx(float(exact), abs=0.06)


def test_a_fit_uses_the_unknown_value_of_each_sample():
    """A brighter image goes with a shorter exposure."""
    x = torch.tensor([[2.0, 4.0], [8.0, 16.0]]).double()
    numbers = torch.tensor([4.0, 1.0]).double()
    exposure = BlindProblem(
        Identity(),
        Poisson(2.0),
        torch.tensor([[8.0, 16.0]]),
        UnknownParameter("noise", "exposure", 1.0, 4.0),
    )
    noise, m = exposure.with_row_values(x, numbers)
    assert noise.mean(m).tolist() == [[8, 16], [8, 16]]
    image = x.view(2, 1, 1, 2)
    width = BlindProblem(
        Blur(3, 1.0),
        Poisson(),
        torch.ones(1, 1, 1, 2),
        UnknownParameter("operator", "width", 0.5, 4.0),
    )
    noise, m = width.with_row_values(image, numbers)
    assert (
        torch.equal(m, torch.cat([Blur(3, 4.0)(image[:1]), Blur(3, 1.0)(image[1:])]))
        and noise == Poisson()
    )
