"""Steered particles against enumeration: p(x) L(x) / Z of two elements, and Z."""

import math

import numpy as np
import pytest
import torch

from blackout.diffusion.kernels import LevelBridge
from blackout.diffusion.particles import Steering, neighbour_log_ratios
from blackout.diffusion.processes import Absorbing, BirthDeath, PureDeath, Uniform
from blackout.diffusion.sampling import CountingDenoiser, SamplingPlan
from blackout.diffusion.time_grids import logit_times
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser, ExactJumpDenoiser, state_numbers
from blackout.verification.toys import JumpToy, Toy, generator_transitions
from tests.verification.test_particles import distance

LEVELS = 4
DRAWS = 1000  # samples per comparison
TIMES = logit_times(32, 5.0, -7.0)
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(LEVELS**2))
L = np.exp(-4 * RNG.random(LEVELS**2))
Z = float(P @ L)
POSTERIOR = P * L / (P @ L)


class Steered:
    """Two elements of four levels with their exact denoiser, and p(y | x_t) by enumeration."""

    def __init__(self, name):
        cubes = [weight.reshape(LEVELS, LEVELS) for weight in (P, POSTERIOR)]
        if name == "pure death":
            self.process = PureDeath(LEVELS - 1)
            self.size = LEVELS
            toys = [Toy(name, cube) for cube in cubes]
            self.denoiser = ExactDenoiser(toys[0])
            self.data_mean = torch.from_numpy(toys[0].mean)
        else:
            self.process = {"uniform": Uniform, "absorbing": Absorbing}[name](LEVELS - 1)
            matrices = generator_transitions(self.process.generator().numpy())
            toys = [JumpToy(name, cube, matrices) for cube in cubes]
            self.denoiser = ExactJumpDenoiser(toys[0], JumpToy.origin_pmf)
            self.data_mean = None
            self.size = toys[0].size
        self.toys = toys

    def classifier(self, x, t, rows):
        level = math.exp(-float(t)) if isinstance(self.process, PureDeath) else float(t)
        prior, posterior = (np.maximum(toy.marginal(level), 1e-300) for toy in self.toys)
        return torch.from_numpy(np.log(Z * posterior / prior))[
            torch.from_numpy(state_numbers(x, self.size))
        ]

    @staticmethod
    def likelihood(x, rows):
        return torch.from_numpy(np.log(L))[(x @ torch.tensor([LEVELS, 1.0], dtype=x.dtype)).long()]

    def draw(self, number, indices=None, denoiser=None, threshold=0.5, **options):
        indices = torch.arange(DRAWS) if indices is None else indices
        steering = Steering(self.process, self.likelihood, number, **options)
        plan = SamplingPlan(
            denoiser or self.denoiser, self.process, TIMES, data_mean=self.data_mean
        )
        return steering.run(plan, (len(indices), 2), SampleStreams(0, indices), threshold)


def excess_error(result):
    """Return the total variation to the posterior above that of as many exact samples."""
    error, noise_floor = distance(result.samples, POSTERIOR, LEVELS)
    return error - noise_floor


@pytest.mark.parametrize(
    "name", ["absorbing", "pure death", pytest.param("uniform", marks=pytest.mark.deep)]
)
def test_steered_samples_follow_the_posterior_and_estimate_its_normaliser(name):
    toy = Steered(name)
    assert excess_error(toy.draw(1)) > 0.25  # one particle samples the prior
    # the remaining error is that of the steps
    assert excess_error(toy.draw(1, classifier=toy.classifier, guided=True)) < 0.06
    for number, options in (
        (4, {"classifier": toy.classifier, "guided": True}),
        (32, {"draws": 2, "every": 4}),
    ):
        result = toy.draw(number, **options)
        assert excess_error(result) < 0.03
        z = result.log_normaliser.exp()
        assert float(z.mean()) == pytest.approx(
            Z, abs=4 * float(z.std()) / math.sqrt(len(z)), rel=0.02
        )


def test_resampled_particles_keep_their_potentials():
    """Unless `select` moves them too, differences of potentials are between unrelated particles."""
    toy = Steered("uniform")
    result = toy.draw(16, classifier=toy.classifier, threshold=1.0)  # after every step
    assert excess_error(result) < 0.03 and float(
        result.log_normaliser.exp().mean()
    ) == pytest.approx(Z, rel=0.02)


def test_a_likelihood_with_zeros_is_respected():
    """Intermediate samples may contradict y; final samples may not."""
    toy = Steered("uniform")
    allowed = np.arange(LEVELS**2) % LEVELS == 2
    toy.likelihood = lambda x, rows: torch.where(x[:, 1] == 2, 0.0, -math.inf).double()
    result = toy.draw(24, every=4)
    expected = P * allowed / (P @ allowed)
    error, noise_floor = distance(result.samples, expected, LEVELS)
    assert error < noise_floor + 0.02 and float(
        result.log_normaliser.exp().mean()
    ) == pytest.approx(P @ allowed, rel=0.05)


def test_state_values_cost_no_evaluation_and_samples_do_not_depend_on_their_batch():
    toy = Steered("uniform")
    counting = CountingDenoiser(toy.denoiser)
    together = toy.draw(4, torch.arange(10), counting, draws=3)
    assert counting.evaluations == len(TIMES) - 1
    alone = toy.draw(4, torch.tensor([7, 2]), draws=3)
    assert torch.equal(alone.samples, together.samples[[7, 2]])
    # matrix products of other shapes may sum in another order
    torch.testing.assert_close(alone.log_normaliser, together.log_normaliser[[7, 2]])


def test_log_ratios_cover_the_neighbours_of_one_jump():
    x = torch.tensor([[0, 3], [2, 1]], dtype=torch.uint8)

    def value(states, rows):
        return states.double() @ torch.tensor([10.0, 1.0], dtype=torch.float64) + 0.01 * rows

    log_ratios = neighbour_log_ratios(value, Uniform(3), x, value(x, torch.arange(2)))
    assert log_ratios.shape == (2, 4, 2)
    assert torch.allclose(log_ratios[0, :, 1], torch.arange(4).double() - 3) and float(
        log_ratios[1, 0, 0]
    ) == pytest.approx(-20)


def test_invalid_steering_is_refused():
    toy = Steered("uniform")
    with pytest.raises(ValueError, match="guided steps need a classifier"):
        toy.draw(2, guided=True)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        toy.draw(0)
    with pytest.raises(ValueError, match="pure death or finitely many"):
        Steering(
            BirthDeath(3, 1.0), toy.likelihood, 1, toy.classifier, guided=True, kernel=LevelBridge()
        )
