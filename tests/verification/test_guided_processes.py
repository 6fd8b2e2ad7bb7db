"""Guidance and known elements of every process but pure death, against enumeration on two elements of three levels."""

import numpy as np
import pytest
import torch

from blackout.diffusion.guidance import Guidance, GuidedDenoiser
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import BirthDeathBridge, LevelBridge, ReverseStep, TauLeap
from blackout.diffusion.particles import Particles, run_particles
from blackout.diffusion.predictions import BirthDeathPrediction, CategoricalPrediction
from blackout.diffusion.processes import Absorbing, BirthDeath, Ordinal, Uniform, UniformChain
from blackout.diffusion.sampling import SamplingPlan
from blackout.diffusion.schedules import logit_times, step_times
from blackout.random import SampleStreams
from blackout.verification import toys as markov_toys
from blackout.verification.draws import ExactJumpDenoiser
from blackout.verification.exact_steps import missing_and_immigrants
from blackout.verification.toys import JumpToy
from tests.verification.test_particle_laws import distance, tilted


def three_levels(process, matrices):
    """Two elements of three levels: all data, and those of one class."""
    rng = np.random.default_rng(3)
    given, other = (rng.dirichlet(np.ones(9)).reshape(3, 3) for _ in range(2))
    toys = [JumpToy(name, cube, matrices) for name, cube in (("given", given), ("all", 0.4 * given + 0.6 * other))]
    return process, toys


def finite(process):
    return three_levels(process, markov_toys.generator_transitions(process.generator().numpy(), process.ordered))


def chain():
    process = UniformChain(2, 60)
    each = torch.arange(1, 61)
    return three_levels(process, markov_toys.chain_transitions(process.step(each).numpy()))


UNIFORM, ABSORBING, ORDINAL, CHAIN = finite(Uniform(2)), finite(Absorbing(2)), finite(Ordinal(2)), chain()
IMMIGRATION = three_levels(BirthDeath(2, 1.0), markov_toys.birth_death_transitions(1.0, BirthDeath(2, 1.0).num_states))


def denoisers(process, toys):
    if isinstance(process, BirthDeath):
        expected = lambda toy, t: missing_and_immigrants(toy, t, 1.0)  # noqa: E731
        return [ExactJumpDenoiser(toy, expected, BirthDeathPrediction) for toy in toys]
    return [ExactJumpDenoiser(toy, JumpToy.origin_pmf, CategoricalPrediction) for toy in toys]


@pytest.mark.parametrize("case", [UNIFORM, ABSORBING, ORDINAL, IMMIGRATION], ids=lambda case: type(case[0]).__name__)
def test_guided_rates_are_those_of_the_tilted_law(case):
    """kappa_g(m -> j) = Q[j, m] p_g(j) / p_g(m), and forward and reverse rates together leave p_g as it is."""
    process, (given, plain) = case
    g, t, x = 2.0, 0.7, torch.from_numpy(plain.states).to(torch.uint8)
    time = torch.tensor(t, dtype=torch.float64)
    pair = GuidedDenoiser(*denoisers(process, (given, plain)), Guidance(g), 2)(x, time)
    rates = pair.tilt(*(process.rates(one.expected, x, time) for one in pair.both))
    law, _ = tilted(plain.marginal(t), given.marginal(t), g)
    generator, likely = plain.rates, np.flatnonzero(plain.marginal(t) > 1e-12)
    for state in likely:
        for element in range(2):
            for kind in range(rates.shape[1]):
                reached = plain.states[state].copy()
                by = process.reverse_jumps(x)
                reached[element] += int(by.expand(*rates.shape)[state, kind, element])
                if not 0 <= reached[element] < plain.size or reached[element] == plain.states[state, element]:
                    continue
                there = np.ravel_multi_index(tuple(reached), (plain.size,) * 2)
                exact = generator[reached[element], plain.states[state, element]] * law[there] / law[state]
                assert float(rates[state, kind, element]) == pytest.approx(exact, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("case", [UNIFORM, ABSORBING, ORDINAL, CHAIN], ids=lambda case: type(case[0]).__name__)
def test_guided_steps_have_guided_rates_and_guided_predictions_do_not(case):
    """p(X_s | X_t)^(1 - g) p_c^g, normalised: as s -> t the change per time is that of guided rates."""
    process, (given, plain) = case
    x, g = torch.from_numpy(plain.states).to(torch.uint8), 2.5
    s, t = (torch.tensor(time, dtype=torch.float64) for time in ((3.0, 4.0) if process is CHAIN[0] else (0.7, 0.701)))
    pair = GuidedDenoiser(*denoisers(process, (given, plain)), Guidance(g), 2)(x, t)
    steps_of = [process.step_pmf(one.expected, x, s, t) for one in pair.both]
    law = pair.tilt(*steps_of)
    exact = [toy.bridge_pmf(float(s), float(t)) for toy in (given, plain)]
    likely = plain.marginal(float(t)) > 1e-12
    for found, wanted in zip(steps_of, exact, strict=True):
        assert np.allclose(found.numpy()[likely], wanted[likely], atol=1e-9)
    if process is CHAIN[0]:
        return
    law = (law / law.sum(-1, keepdim=True)).numpy()[likely]
    rates = pair.tilt(*(process.rates(one.expected, x, t) for one in pair.both)).movedim(1, -1).numpy()[likely]
    moved = np.arange(plain.size) != plain.states[likely][..., None]
    assert np.allclose(law[moved] / 0.001, rates[moved], rtol=0.03, atol=0.02)
    geometric = pair.tilt(*(one.expected for one in pair.both))
    predicted = process.step_pmf(geometric / geometric.sum(1, keepdim=True), x, s, t).numpy()[likely]
    assert np.abs(predicted[moved] - law[moved]).max() > 20 * np.abs(law[moved] - rates[moved] * 0.001).max()


def grid_of(process, num_steps):
    return step_times(num_steps, 60) if process is CHAIN[0] else logit_times(num_steps, 4.5, -6.0)


def test_one_element_is_guided_exactly_in_one_step():
    process = Uniform(4)
    rng, matrices = np.random.default_rng(0), markov_toys.generator_transitions(process.generator().numpy())
    given, plain = (JumpToy("one", rng.dirichlet(np.ones(5)), matrices) for _ in range(2))
    x, t = torch.arange(5, dtype=torch.uint8)[:, None], torch.tensor(1.3, dtype=torch.float64)
    pair = GuidedDenoiser(*denoisers(process, (given, plain)), Guidance(3.0), 4)(x, t)
    law = pair.tilt(*(process.step_pmf(one.expected, x, 0.0, t) for one in pair.both))[:, 0].numpy()
    for state in range(5):
        forward = plain.forward(1.3)[:, state]
        assert np.allclose(law[state] / law[state].sum(), tilted(plain.p0 * forward, given.p0 * forward, 3.0)[0])


@pytest.mark.parametrize("case", [
    CHAIN, *(pytest.param(case, marks=pytest.mark.deep) for case in (UNIFORM, ABSORBING)),
], ids=lambda case: type(case[0]).__name__)  # fmt: skip
def test_known_elements_of_other_processes(case):
    process, (given, _) = case
    law = given.cube[1] / given.cube[1].sum()
    times = grid_of(process, 40 if process is not CHAIN[0] else 60)
    known = KnownElements(torch.ones(1, 2, dtype=torch.uint8), torch.tensor([[True, False]]))
    n, (denoiser,) = 1500, denoisers(process, [given])
    drawn = run_particles(
        SamplingPlan(denoiser, process, times, kernel=LevelBridge(), known=known),
        (n, 2),
        SampleStreams(0, torch.arange(n)),
        Particles(16),
    )
    assert bool((drawn.samples[:, 0] == 1).all()) and distance(drawn.samples[:, 1:], law, 3)[0] < 0.04
    assert float(drawn.log_normaliser.exp().mean()) == pytest.approx(given.cube[1].sum(), rel=0.1)


def test_what_has_no_guided_step_or_no_likelihood_is_refused():
    x, t = torch.ones(1, 2, dtype=torch.uint8), torch.tensor(0.7, dtype=torch.float64)
    s, times = t / 2, logit_times(5, 4.5, -6.0)
    pair = GuidedDenoiser(*denoisers(*IMMIGRATION), Guidance(2.0), 2)
    with pytest.raises(ValueError, match="use sampler=tau_leap"):
        BirthDeathBridge()(ReverseStep(pair, IMMIGRATION[0], x, s, t))
    with pytest.raises(ValueError, match="LevelBridge does not fit"):
        LevelBridge()(ReverseStep(pair, IMMIGRATION[0], x, s, t))
    known = KnownElements(x, torch.tensor([[True, False]]))
    with pytest.raises(ValueError, match="inpainting_particles: the steps of BirthDeath have no likelihood"):
        run_particles(
            SamplingPlan(pair, IMMIGRATION[0], times, known=known, kernel=TauLeap()),
            (1, 2),
            None,
            Particles(2),
        )
