"""Likelihood steps of split Gibbs sampling: forests, heat bath, Metropolis and their start."""

import math

import pytest
import torch

from blackout.diffusion.processes import Absorbing, PureDeath, Uniform
from blackout.posterior import (
    And,
    Flips,
    Identity,
    InverseProblem,
    Matrix,
    Poisson,
    Pool,
    Xor,
)
from blackout.posterior.coupling import Coupling
from blackout.posterior.likelihood_steps import colour_forests, make_step
from blackout.posterior.split_gibbs import find_possible_state
from blackout.random import SampleStreams
from blackout.verification.draws import p_value


def test_forests_of_regular_operators_need_few_colours():
    assert (
        len(colour_forests(Pool(2).incidence((1, 8, 8)), 64)) == 4
        and len(colour_forests(Identity().incidence((1, 8, 8)), 64)) == 1
    )
    assert len(colour_forests(Xor(0.5).incidence((1, 32, 32)), 1024)) <= 5


@pytest.mark.parametrize("passes", [1, 3])
def test_a_heat_bath_makes_the_requested_passes(passes):
    problem = InverseProblem(Pool(3), Flips(), torch.zeros(4))
    step = make_step(problem, Coupling(Uniform(1)), (12,), "heat_bath", passes=passes)
    x = torch.zeros(2, 12, dtype=torch.uint8)
    streams = SampleStreams(0, torch.arange(2))
    assert (
        len(step.forests) == 3
        and step(x, x, 0.5, streams)[1].likelihood_evaluations == passes * 3 * 2
    )


@pytest.mark.parametrize(
    "process", [Uniform(1), PureDeath(1), Absorbing(1)], ids=lambda part: type(part).__name__
)
@pytest.mark.parametrize("operator, count", [(Xor(0.6), 1), (And(1.5), 2)], ids=["xor", "and"])
def test_trees_of_pairs_are_drawn_from_their_exact_conditional(process, operator, count):
    """Six bits with a penalty of one nat against enumeration."""
    shape = (1, 2, 3)
    t = 0.7
    n = 20_000
    problem = InverseProblem(
        operator,
        Flips(1.0),
        (torch.arange(math.prod(operator.measurement_shape(shape))) % 2).double(),
    )
    coupling = Coupling(process)
    x = torch.tensor([0, 1, 1, 1, 1, 0], dtype=torch.uint8).view(1, *shape)
    step = make_step(problem, coupling, shape, passes=5)
    assert len(step.forests) == count and any(forest.branches for forest in step.forests)
    z = step(x.expand(n, *shape), x.expand(n, *shape), t, SampleStreams(0, torch.arange(n)))[0]
    states = torch.cartesian_prod(*[torch.arange(process.num_states)] * 6)
    log_k = coupling.log_table(t)[x.flatten().long().expand(len(states), -1), states].sum(1)
    weight = torch.softmax(
        log_k + coupling.relax(problem, shape, t).log_likelihood(states.view(-1, *shape)), 0
    )
    frequencies = torch.bincount(
        (z.flatten(1).long() * process.num_states ** torch.arange(5, -1, -1)).sum(1),
        minlength=len(weight),
    )
    assert p_value(frequencies.numpy(), weight.numpy()) > 1e-3


def test_metropolis_starts_at_a_possible_state():
    """At a high noise level all pixels are dark and send no photons; the chain starts lower."""
    y = torch.tensor([3.0, 0.0, 1.0, 2.0])
    problem = InverseProblem(Pool(2), Poisson(), y)
    streams = SampleStreams(0, torch.arange(6))
    x = torch.zeros(6, 8, dtype=torch.uint8)
    z = find_possible_state(problem, Coupling(PureDeath(4)), x, 6.0, streams)
    assert bool(torch.isfinite(problem.log_likelihood(z.double())).all())
    dark = InverseProblem(Matrix(torch.zeros(1, 8)), Poisson(), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="positive likelihood"):
        find_possible_state(dark, Coupling(PureDeath(4)), x, 6.0, streams)
