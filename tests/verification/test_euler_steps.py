"""Euler steps have the enumerated probabilities, and converge to the exact posterior."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.kernels import EulerStep, ReverseStep
from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import PureDeath, Uniform
from blackout.diffusion.time_grids import logit_times
from blackout.posterior import Prior, SplitGibbs
from blackout.random import SampleStreams

LEVELS, ELEMENTS = 3, 2
STATES = torch.tensor(list(itertools.product(range(LEVELS), repeat=ELEMENTS)))
DISTRIBUTION = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(len(STATES))))
PROCESS = Uniform(LEVELS - 1)


def noise(t):
    """P(X_t = z | X_0 = x) of all states, float64 [x, z]."""
    keep = torch.exp(-torch.as_tensor(t, dtype=torch.float64))
    transition = keep * torch.eye(LEVELS, dtype=torch.float64) + (1 - keep) / LEVELS
    return torch.kron(transition, transition)


def origins(t):
    """P(X_0 = x | X_t = z), float64 [z, x]."""
    joint = DISTRIBUTION[:, None] * noise(t)
    return (joint / joint.sum(0)).T


def p_value(occurrences, distribution):
    """Of a chi-square test of counts [states] against a distribution [states]."""
    possible = distribution > 0
    assert not occurrences[~possible].any()
    expected = distribution[possible] / distribution.sum() * occurrences.sum()
    return stats.chisquare(occurrences[possible].numpy(), expected.numpy()).pvalue


def index(x):
    return x[:, 0].long() * LEVELS + x[:, 1].long()


def denoiser(xt, t):
    """The exact distribution of every element of X_0."""
    weights = origins(t)[index(xt)]
    marginals = [
        torch.stack([weights[:, STATES[:, i] == v].sum(1) for v in range(LEVELS)], 1)
        for i in range(ELEMENTS)
    ]
    return CategoricalPrediction(torch.stack(marginals, 2).log())


def euler_matrix(s, t):
    """P(X_s = . | X_t = z) of an Euler step, by ratios of marginals of X_t, float64 [z, state]."""
    marginal = DISTRIBUTION @ noise(t)
    single = torch.zeros(len(STATES), ELEMENTS, LEVELS, dtype=torch.float64)
    for z, state in enumerate(STATES):
        for i, level in itertools.product(range(ELEMENTS), range(LEVELS)):
            neighbour = state.clone()
            neighbour[i] = level
            if level != state[i]:
                ratio = marginal[index(neighbour[None])[0]] / marginal[z]
                single[z, i, level] = ratio / LEVELS * (t - s)
    stays = (1 - single.sum(2)).clamp(min=0)
    single.scatter_(2, STATES[:, :, None], stays[:, :, None])
    single = single / single.sum(2, keepdim=True)
    return torch.einsum("zu,zv->zuv", single[:, 0], single[:, 1]).flatten(1)


@pytest.mark.parametrize("s, t", [(0.5, 0.7), (0.05, 0.06), (0.3, 2.5)])
def test_steps_have_the_probabilities_of_their_rates(s, t):
    number, z = 20_000, 5
    x = STATES[z].expand(number, -1).to(torch.uint8)
    times = (torch.tensor(value, dtype=torch.float64) for value in (s, t))
    draws = EulerStep()(
        ReverseStep(denoiser, PROCESS, x, *times, SampleStreams(0, torch.arange(number)).step(0))
    )
    occurrences = torch.bincount(index(draws), minlength=len(STATES))
    assert p_value(occurrences, euler_matrix(s, t)[z]) > 1e-4


def reverse_distribution(z, t, steps):
    """Distribution of X_0 from state z at time t, by Euler matrices and the exact last step."""
    grid = Prior(denoiser, PROCESS, (ELEMENTS,), times=logit_times(25, 6.0, -6.0)).reverse_times(
        t, steps
    )
    distribution = torch.zeros(len(STATES), dtype=torch.float64)
    distribution[z] = 1
    for k in range(len(grid) - 1, 1, -1):
        distribution = distribution @ euler_matrix(float(grid[k - 1]), float(grid[k]))
    marginals = denoiser(STATES, grid[1]).log_probs.exp()
    return distribution @ torch.einsum(
        "zu,zv->zuv", marginals[:, :, 0], marginals[:, :, 1]
    ).flatten(1)


def test_more_steps_come_to_the_posterior_in_first_order():
    errors = [
        float((reverse_distribution(5, 2.0, n) - origins(2.0)[5]).abs().sum() / 2)
        for n in (20, 40, 80, 160)
    ]
    ratios = [first / second for first, second in itertools.pairwise(errors)]
    assert errors[-1] < 0.01 and all(1.6 < ratio < 2.4 for ratio in ratios)


def test_published_split_gibbs_runs_back_by_euler_steps():
    prior = Prior(denoiser, PROCESS, (ELEMENTS,), times=logit_times(25, 6.0, -6.0))
    number = 20_000
    z = STATES[5].expand(number, -1).to(torch.uint8)
    draws = prior.with_kernel(EulerStep()).reverse(
        z, 2.0, SampleStreams(1, torch.arange(number)), 5
    )
    occurrences = torch.bincount(index(draws), minlength=len(STATES))
    assert p_value(occurrences, reverse_distribution(5, 2.0, 5)) > 1e-4
    assert prior.evaluations == 6
    assert SplitGibbs().kernel is None


def test_predictions_of_another_kind_are_refused():
    step = ReverseStep(
        denoiser, PureDeath(2), STATES.to(torch.uint8), torch.tensor(0.5), torch.tensor(0.6)
    )
    with pytest.raises(ValueError, match="does not fit the process PureDeath"):
        EulerStep()(step)
