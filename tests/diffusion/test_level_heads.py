"""Heads over levels apply Bayes' rule to the log prior of an element given the others."""

import pytest
import torch

from blackout.diffusion.heads import LevelHead
from blackout.diffusion.processes import Absorbing, Uniform

LEVELS = 6


@pytest.mark.parametrize("process", [Uniform(LEVELS - 1), Absorbing(LEVELS - 1)])
def test_the_outputs_are_a_log_prior(process):
    """Compared with the joint distribution P(x_0) P(x_t | x_0), one x_0 at a time."""
    t = torch.tensor(0.4, dtype=torch.float64)
    prior = torch.softmax(
        torch.randn(LEVELS, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0
    )
    forward = process.pmf(torch.arange(LEVELS), t)
    states = torch.arange(forward.shape[1])
    raw = prior.log().float().view(1, -1, 1).expand(len(states), -1, 1)
    log_probs = LevelHead(process, LEVELS - 1)(
        raw, states[:, None], t.expand(len(states))
    ).log_probs[..., 0]
    for state in states:
        joint = [float(prior[level] * forward[level, state]) for level in range(LEVELS)]
        exact = torch.tensor(joint) / sum(joint)
        torch.testing.assert_close(log_probs[state].exp(), exact, rtol=1e-5, atol=1e-7)
    without_likelihood = LevelHead(process, LEVELS - 1, likelihood=False)(
        raw, states[:, None], t.expand(len(states))
    )
    torch.testing.assert_close(without_likelihood.log_probs[0, :, 0].exp(), prior.float())
