"""What validation logs is the bound that `sample.py evaluate=true` reports."""

import statistics

import pytest
import torch

from blackout import BlackoutDiffusion
from blackout.diffusion.heads import ScaledHead
from blackout.diffusion.likelihood_estimates import continuous_bits
from blackout.diffusion.processes import PureDeath
from blackout.networks import CountNetwork, ResidualMLP, StandardisedInputs

X0 = torch.randint(0, 5, (40, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def untrained(draws):
    torch.manual_seed(0)
    network = CountNetwork(ResidualMLP(shape=(6,), width=8, depth=1), StandardisedInputs(2.0, 1.4))
    head, mean = ScaledHead(2.0), X0.float().mean(0)
    return BlackoutDiffusion(network, head, PureDeath(4), mean, validation_draws=draws).eval()


def validated(draws, seed=0):
    model, nats = untrained(draws), []
    model.seed, model.record = seed, lambda name, values: nats.append(values)
    for part in torch.arange(len(X0)).split(40 if draws > 10 else 16):  # in one, where there are many
        model.validation_step({"x0": X0[part], "index": part})
    return float(torch.cat(nats).mean())


@pytest.mark.deep
def test_validation_estimates_the_bound():
    assert validated(400) == pytest.approx(continuous_bits(untrained(1), X0, repeats=400).value, rel=0.01)


def test_more_draws_are_less_noisy():
    one, many = (statistics.stdev(validated(draws, seed) for seed in range(20)) for draws in (1, 16))
    assert many < one / 2.5
    with pytest.raises(ValueError, match="validation_draws"):
        untrained(0)
