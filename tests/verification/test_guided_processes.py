"""Guidance and known elements of every process except pure death.

They are compared with enumeration on two elements of three levels.
"""

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
from blackout.diffusion.time_grids import logit_times, step_times
from blackout.random import SampleStreams
from blackout.verification import toys as markov_toys
from blackout.verification.draws import ExactJumpDenoiser
from blackout.verification.exact_steps import missing_and_immigrants
from blackout.verification.toys import JumpToy
from tests.verification.test_particles import distance, tilted


def three_levels(process, matrices):
    """Return the process and two toys of two elements of three levels: one class, and all data."""
    rng = np.random.default_rng(3)
    of_class, of_other_class = (rng.dirichlet(np.ones(9)).reshape(3, 3) for _ in range(2))
    toys = [
        JumpToy(name, cube, matrices)
        for name, cube in (("class", of_class), ("all", 0.4 * of_class + 0.6 * of_other_class))
    ]
    return process, toys


def finite(process):
    """Return a process in continuous time with its two toys."""
    return three_levels(
        process, markov_toys.generator_transitions(process.generator().numpy(), process.ordered)
    )


def chain():
    """Return a uniform chain in discrete time with its two toys."""
    process = UniformChain(2, 60)
    steps = torch.arange(1, 61)
    return three_levels(process, markov_toys.chain_transitions(process.step(steps).numpy()))


UNIFORM = finite(Uniform(2))
ABSORBING = finite(Absorbing(2))
ORDINAL = finite(Ordinal(2))
CHAIN = chain()
IMMIGRATION = three_levels(
    BirthDeath(2, 1.0), markov_toys.birth_death_transitions(1.0, BirthDeath(2, 1.0).num_states)
)


def denoisers(process, toys):
    """Return the exact denoiser of every toy."""
    if isinstance(process, BirthDeath):

        def expected(toy, t):
            return missing_and_immigrants(toy, t, 1.0)

        return [ExactJumpDenoiser(toy, expected, BirthDeathPrediction) for toy in toys]
    return [ExactJumpDenoiser(toy, JumpToy.origin_pmf, CategoricalPrediction) for toy in toys]


@pytest.mark.parametrize(
    "case", [UNIFORM, ABSORBING, ORDINAL, IMMIGRATION], ids=lambda case: type(case[0]).__name__
)
def test_guided_rates_are_those_of_the_tilted_distribution(case):
    """kappa_g(m -> j) = Q[j, m] p_g(j) / p_g(m).

    Forward and reverse rates together leave p_g invariant.
    """
    process, (of_class, of_all) = case
    g = 2.0
    t = 0.7
    x = torch.from_numpy(of_all.states).to(torch.uint8)
    time = torch.tensor(t, dtype=torch.float64)
    pair = GuidedDenoiser(*denoisers(process, (of_class, of_all)), Guidance(g), 2)(x, time)
    rates = pair.tilt(*(process.rates(prediction.expected, x, time) for prediction in pair.both))
    tilted_p, _ = tilted(of_all.marginal(t), of_class.marginal(t), g)
    generator = of_all.rates
    likely = np.flatnonzero(of_all.marginal(t) > 1e-12)
    for state in likely:
        for element in range(2):
            for kind in range(rates.shape[1]):
                destination = of_all.states[state].copy()
                jumps = process.reverse_jumps(x)
                destination[element] += int(jumps.expand(*rates.shape)[state, kind, element])
                if (
                    not 0 <= destination[element] < of_all.size
                    or destination[element] == of_all.states[state, element]
                ):
                    continue
                destination_index = np.ravel_multi_index(tuple(destination), (of_all.size,) * 2)
                exact = (
                    generator[destination[element], of_all.states[state, element]]
                    * tilted_p[destination_index]
                    / tilted_p[state]
                )
                assert float(rates[state, kind, element]) == pytest.approx(
                    exact, rel=1e-6, abs=1e-9
                )


@pytest.mark.parametrize(
    "case", [UNIFORM, ABSORBING, ORDINAL, CHAIN], ids=lambda case: type(case[0]).__name__
)
def test_guided_steps_have_guided_rates_and_guided_predictions_do_not(case):
    """Steps use p(X_s | X_t)^(1 - g) p_c^g, normalised.

    As s -> t, the change per unit of time is that of the guided rates.
    """
    process, (of_class, of_all) = case
    x = torch.from_numpy(of_all.states).to(torch.uint8)
    g = 2.5
    s, t = (
        torch.tensor(time, dtype=torch.float64)
        for time in ((3.0, 4.0) if process is CHAIN[0] else (0.7, 0.701))
    )
    pair = GuidedDenoiser(*denoisers(process, (of_class, of_all)), Guidance(g), 2)(x, t)
    step_pmfs = [process.step_pmf(prediction.expected, x, s, t) for prediction in pair.both]
    guided = pair.tilt(*step_pmfs)
    exact = [toy.bridge_pmf(float(s), float(t)) for toy in (of_class, of_all)]
    likely = of_all.marginal(float(t)) > 1e-12
    for pmf, expected in zip(step_pmfs, exact, strict=True):
        assert np.allclose(pmf.numpy()[likely], expected[likely], atol=1e-9)
    if process is CHAIN[0]:
        return
    guided = (guided / guided.sum(-1, keepdim=True)).numpy()[likely]
    rates = (
        pair.tilt(*(process.rates(prediction.expected, x, t) for prediction in pair.both))
        .movedim(1, -1)
        .numpy()[likely]
    )
    changed = np.arange(of_all.size) != of_all.states[likely][..., None]
    assert np.allclose(guided[changed] / 0.001, rates[changed], rtol=0.03, atol=0.02)
    geometric = pair.tilt(*(prediction.expected for prediction in pair.both))
    predicted = process.step_pmf(geometric / geometric.sum(1, keepdim=True), x, s, t).numpy()[
        likely
    ]
    assert (
        np.abs(predicted[changed] - guided[changed]).max()
        > 20 * np.abs(guided[changed] - rates[changed] * 0.001).max()
    )


def time_grid(process, num_steps):
    """Return the time grid for a process."""
    return step_times(num_steps, 60) if process is CHAIN[0] else logit_times(num_steps, 4.5, -6.0)


def test_a_single_element_is_guided_exactly_in_one_step():
    process = Uniform(4)
    rng = np.random.default_rng(0)
    matrices = markov_toys.generator_transitions(process.generator().numpy())
    of_class, of_all = (JumpToy("one", rng.dirichlet(np.ones(5)), matrices) for _ in range(2))
    x = torch.arange(5, dtype=torch.uint8)[:, None]
    t = torch.tensor(1.3, dtype=torch.float64)
    pair = GuidedDenoiser(*denoisers(process, (of_class, of_all)), Guidance(3.0), 4)(x, t)
    guided = pair.tilt(
        *(process.step_pmf(prediction.expected, x, 0.0, t) for prediction in pair.both)
    )[:, 0].numpy()
    for state in range(5):
        forward = of_all.forward(1.3)[:, state]
        assert np.allclose(
            guided[state] / guided[state].sum(),
            tilted(of_all.p0 * forward, of_class.p0 * forward, 3.0)[0],
        )


@pytest.mark.parametrize(
    "case",
    [
        CHAIN,
        *(pytest.param(case, marks=pytest.mark.deep) for case in (UNIFORM, ABSORBING)),
    ],
    ids=lambda case: type(case[0]).__name__,
)
def test_particles_sample_the_unknown_elements_of_other_processes(case):
    process, (of_class, _) = case
    conditional = of_class.cube[1] / of_class.cube[1].sum()
    times = time_grid(process, 40 if process is not CHAIN[0] else 60)
    known_elements = KnownElements(
        torch.ones(1, 2, dtype=torch.uint8), torch.tensor([[True, False]])
    )
    n = 1500
    (denoiser,) = denoisers(process, [of_class])
    result = run_particles(
        SamplingPlan(denoiser, process, times, kernel=LevelBridge(), known_elements=known_elements),
        (n, 2),
        SampleStreams(0, torch.arange(n)),
        Particles(16),
    )
    assert (
        bool((result.samples[:, 0] == 1).all())
        and distance(result.samples[:, 1:], conditional, 3)[0] < 0.04
    )
    assert float(result.log_normaliser.exp().mean()) == pytest.approx(
        of_class.cube[1].sum(), rel=0.1
    )


def test_kernels_without_guided_steps_or_likelihoods_are_refused():
    x = torch.ones(1, 2, dtype=torch.uint8)
    t = torch.tensor(0.7, dtype=torch.float64)
    s = t / 2
    times = logit_times(5, 4.5, -6.0)
    pair = GuidedDenoiser(*denoisers(*IMMIGRATION), Guidance(2.0), 2)
    with pytest.raises(ValueError, match="use sampler=tau_leap"):
        BirthDeathBridge()(ReverseStep(pair, IMMIGRATION[0], x, s, t))
    with pytest.raises(ValueError, match="LevelBridge does not fit"):
        LevelBridge()(ReverseStep(pair, IMMIGRATION[0], x, s, t))
    known_elements = KnownElements(x, torch.tensor([[True, False]]))
    with pytest.raises(
        ValueError, match="inpainting_particles: the steps of BirthDeath have no likelihood"
    ):
        run_particles(
            SamplingPlan(
                pair, IMMIGRATION[0], times, known_elements=known_elements, kernel=TauLeap()
            ),
            (1, 2),
            None,
            Particles(2),
        )
