"""Validation logs the same bound that `sample.py evaluate=true` reports."""

import statistics

import pytest
import torch

from blackout import BlackoutDiffusion
from blackout.diffusion.heads import ScaledHead
from blackout.diffusion.likelihood_estimates import continuous_bits
from blackout.diffusion.processes import PureDeath
from blackout.networks import CountNetwork, ResidualMLP, StandardisedInputs

X0 = torch.randint(0, 5, (40, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def make_model(draws):
    """Return an untrained model."""
    torch.manual_seed(0)
    network = CountNetwork(ResidualMLP(shape=(6,), width=8, depth=1), StandardisedInputs(2.0, 1.4))
    head = ScaledHead(2.0)
    mean = X0.float().mean(0)
    return BlackoutDiffusion(network, head, PureDeath(4), mean, validation_draws=draws).eval()


def validation_nats(draws, seed=0):
    """Return the mean bound that validation records."""
    model = make_model(draws)
    nats = []
    model.seed = seed
    model.record = lambda name, values: nats.append(values)
    # many draws are validated in one batch
    for part in torch.arange(len(X0)).split(40 if draws > 10 else 16):
        model.validation_step({"x0": X0[part], "index": part})
    return float(torch.cat(nats).mean())


@pytest.mark.deep
def test_validation_estimates_the_bound():
    assert validation_nats(400) == pytest.approx(
        continuous_bits(make_model(1), X0, repeats=400).value, rel=0.01
    )


def test_more_draws_reduce_the_noise_of_validation():
    noise_of_one, noise_of_many = (
        statistics.stdev(validation_nats(draws, seed) for seed in range(20)) for draws in (1, 16)
    )
    assert noise_of_many < noise_of_one / 2.5
    with pytest.raises(ValueError, match="validation_draws"):
        make_model(0)
