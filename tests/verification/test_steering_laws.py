"""Steered particles against enumeration: laws p(x) L(x) / Z of two elements, and Z."""

import math

import numpy as np
import pytest
import torch

from blackout.diffusion.kernels import LevelBridge
from blackout.diffusion.particles import Steering, neighbour_log_ratios
from blackout.diffusion.processes import Absorbing, BirthDeath, PureDeath, Uniform
from blackout.diffusion.sampling import CountingDenoiser, SamplingPlan
from blackout.diffusion.schedules import logit_times
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser, ExactJumpDenoiser, state_numbers
from blackout.verification.toys import JumpToy, Toy, generator_transitions
from tests.verification.test_particle_laws import distance

LEVELS, DRAWS, TIMES = 4, 1000, logit_times(32, 5.0, -7.0)
RNG = np.random.default_rng(0)
P, L = RNG.dirichlet(np.ones(LEVELS**2)), np.exp(-4 * RNG.random(LEVELS**2))
Z, POSTERIOR = float(P @ L), P * L / (P @ L)


class Steered:
    """Two elements of four levels, their exact denoiser, and p(y | x_t) by enumeration."""

    def __init__(self, name):
        cubes = [weight.reshape(LEVELS, LEVELS) for weight in (P, POSTERIOR)]
        if name == "pure death":
            self.process, self.size, toys = PureDeath(LEVELS - 1), LEVELS, [Toy(name, cube) for cube in cubes]
            self.denoiser, self.mean = ExactDenoiser(toys[0]), torch.from_numpy(toys[0].mean)
        else:
            self.process = {"uniform": Uniform, "absorbing": Absorbing}[name](LEVELS - 1)
            matrices = generator_transitions(self.process.generator().numpy())
            toys = [JumpToy(name, cube, matrices) for cube in cubes]
            self.denoiser, self.mean, self.size = ExactJumpDenoiser(toys[0], JumpToy.origin_pmf), None, toys[0].size
        self.toys = toys

    def classifier(self, x, t, rows):
        at = math.exp(-float(t)) if isinstance(self.process, PureDeath) else float(t)
        plain, given = (np.maximum(toy.marginal(at), 1e-300) for toy in self.toys)
        return torch.from_numpy(np.log(Z * given / plain))[torch.from_numpy(state_numbers(x, self.size))]

    @staticmethod
    def likelihood(x, rows):
        return torch.from_numpy(np.log(L))[(x @ torch.tensor([LEVELS, 1.0], dtype=x.dtype)).long()]

    def draw(self, number, indices=None, denoiser=None, threshold=0.5, **how):
        indices = torch.arange(DRAWS) if indices is None else indices
        steering = Steering(self.process, self.likelihood, number, **how)
        plan = SamplingPlan(denoiser or self.denoiser, self.process, TIMES, mean=self.mean)
        return steering.run(plan, (len(indices), 2), SampleStreams(0, indices), threshold)


def off(drawn):
    """Total variation to the posterior above that of as many draws of it."""
    found, floor = distance(drawn.samples, POSTERIOR, LEVELS)
    return found - floor


@pytest.mark.parametrize("name", ["absorbing", "pure death", pytest.param("uniform", marks=pytest.mark.deep)])
def test_steered_walks_have_the_posterior_as_their_law_and_its_normaliser(name):
    toy = Steered(name)
    assert off(toy.draw(1)) > 0.25  # the prior's own walk
    assert off(toy.draw(1, classifier=toy.classifier, guided=True)) < 0.06  # what is left is the steps' own
    for number, how in ((4, {"classifier": toy.classifier, "guided": True}), (32, {"draws": 2, "every": 4})):
        drawn = toy.draw(number, **how)
        assert off(drawn) < 0.03
        z = drawn.log_normaliser.exp()
        assert float(z.mean()) == pytest.approx(Z, abs=4 * float(z.std()) / math.sqrt(len(z)), rel=0.02)


def test_resampled_particles_are_told_from_those_they_replace():
    """Without what `select` keeps, differences of worth would be between strangers."""
    toy = Steered("uniform")
    drawn = toy.draw(16, classifier=toy.classifier, threshold=1.0)  # after every step
    assert off(drawn) < 0.03 and float(drawn.log_normaliser.exp().mean()) == pytest.approx(Z, rel=0.02)


def test_a_likelihood_with_zeros_is_obeyed():
    """Draws that contradict y are not the last word; the end is."""
    toy = Steered("uniform")
    known = np.arange(LEVELS**2) % LEVELS == 2
    toy.likelihood = lambda x, rows: torch.where(x[:, 1] == 2, 0.0, -math.inf).double()
    drawn = toy.draw(24, every=4)
    law = P * known / (P @ known)
    found, floor = distance(drawn.samples, law, LEVELS)
    assert found < floor + 0.02 and float(drawn.log_normaliser.exp().mean()) == pytest.approx(P @ known, rel=0.05)


def test_valuing_states_costs_no_evaluation_and_a_sample_is_its_own():
    toy = Steered("uniform")
    counting = CountingDenoiser(toy.denoiser)
    together = toy.draw(4, torch.arange(10), counting, draws=3)
    assert counting.evaluations == len(TIMES) - 1
    alone = toy.draw(4, torch.tensor([7, 2]), draws=3)
    assert torch.equal(alone.samples, together.samples[[7, 2]])
    # products of matrices of other shapes may add in another order
    torch.testing.assert_close(alone.log_normaliser, together.log_normaliser[[7, 2]])


def test_neighbours_are_those_of_one_jump():
    x = torch.tensor([[0, 3], [2, 1]], dtype=torch.uint8)
    value = lambda states, rows: states.double() @ torch.tensor([10.0, 1.0], dtype=torch.float64) + 0.01 * rows  # noqa: E731
    found = neighbour_log_ratios(value, Uniform(3), x, value(x, torch.arange(2)))
    assert found.shape == (2, 4, 2)
    assert torch.allclose(found[0, :, 1], torch.arange(4).double() - 3) and float(found[1, 0, 0]) == pytest.approx(-20)


def test_what_cannot_be_steered_is_refused():
    toy = Steered("uniform")
    with pytest.raises(ValueError, match="guided steps need a classifier"):
        toy.draw(2, guided=True)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        toy.draw(0)
    with pytest.raises(ValueError, match="pure death or finitely many"):
        Steering(BirthDeath(3, 1.0), toy.likelihood, 1, toy.classifier, guided=True, kernel=LevelBridge())
