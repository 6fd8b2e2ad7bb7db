"""Operators, noises, couplings and streams: small laws of each."""

import math

import numpy as np
import pytest
import torch

from blackout.diffusion.processes import Absorbing, PureDeath, Uniform, UniformChain
from blackout.posterior import (
    And,
    Binomial,
    Blur,
    Exact,
    Flips,
    Gaussian,
    Identity,
    Inpaint,
    InpaintBox,
    InpaintRandom,
    Matrix,
    Measured,
    Poisson,
    Pool,
    Prior,
    SplitGibbs,
    Xor,
    anneal,
    conjugate,
)
from blackout.posterior.chains import Coupling
from blackout.posterior.diagnostics import coverage, effective_size, positions, r_hat, rank_p_value
from blackout.posterior.split_gibbs import blocks, make_step, possible_state
from blackout.random import SampleStreams

SHAPE = (2, 6, 6)
OPERATORS = [
    (Identity(), SHAPE), (InpaintBox((1, 2), (0, 3)), SHAPE), (InpaintRandom(0.3), SHAPE), (Pool(2), SHAPE),
    (Pool(3), (12,)), (Blur(3, 0.8), SHAPE), (Matrix(torch.eye(12)[:5] + 1.0 * (torch.arange(12) == 3)), (12,)),
    (Xor(0.5), SHAPE), (And(2.0), (12,)), (Inpaint(torch.arange(12) % 3 > 0), (12,)),
]  # fmt: skip


@pytest.mark.parametrize("operator, shape", OPERATORS, ids=lambda one: type(one).__name__)
def test_an_operator_depends_on_what_it_says(operator, shape):
    x = torch.randint(0, 2, (1, *shape), generator=torch.Generator().manual_seed(0)).double()
    elements, m = math.prod(shape), operator(x).flatten()
    seen = operator.seen(shape)
    pairs = {tuple(pair) for pair in operator.incidence(shape).T.tolist()}
    for element in range(elements):
        changed = x.flatten(1).clone()
        changed[:, element] += 1
        other = operator(changed.view_as(x)).flatten() != m
        other = other if seen is None else other & seen.flatten()
        assert {(int(k), element) for k in other.nonzero()[:, 0]} <= pairs
    made = blocks(operator.incidence(shape), elements)
    assert sorted(torch.cat([block.elements for block in made]).tolist()) == list(range(elements))
    for block in made:
        assert len(block.terms.unique()) == len(block.terms)


def test_colours_are_few():
    assert len(blocks(Pool(2).incidence((1, 8, 8)), 64)) == 4 and len(blocks(Identity().incidence((1, 8, 8)), 64)) == 1
    assert len(blocks(Xor(0.5).incidence((1, 32, 32)), 1024)) <= 5


def test_sums_are_what_they_are_called():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert Pool(2)(x).flatten().tolist() == [10, 18, 42, 50]
    assert torch.allclose(Pool(2)(Pool(2).back_project(Pool(2)(x), (1, 4, 4))), Pool(2)(x))
    assert torch.allclose(Blur(3, 1.0)(torch.ones(1, 1, 5, 5))[0, 0, 2, 2], torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("noise, m, mean, variance", [
    (Binomial(0.3), 20.0, 6.0, 4.2), (Poisson(0.5, 2.0), 8.0, 6.0, 6.0), (Gaussian(1.5), 4.0, 4.0, 2.25),
    (Flips(2.0), 1.0, 1.0, 0.0),
])  # fmt: skip
def test_noises_draw_what_they_say(noise, m, mean, variance):
    values = torch.full((1, 40_000), m, dtype=torch.float64)
    y = noise.draw(values, SampleStreams(0, torch.zeros(1, dtype=torch.int64)).at(0))
    assert float(noise.mean(values)[0, 0]) == pytest.approx(mean) and float(y.mean()) == pytest.approx(mean, abs=0.05)
    assert float(noise.variance(values)[0, 0]) == pytest.approx(variance)
    assert float(y.var()) == pytest.approx(variance, rel=0.05, abs=1e-9)
    assert torch.allclose(noise.mean(noise.estimate(y[:, :5])), y[:, :5].clamp(min=noise.mean(0 * values[:, :5])))


@pytest.mark.parametrize("noise, m", [(Binomial(0.3), 7.0), (Poisson(0.5, 2.0), 3.0)])
def test_noises_of_counts_are_normalised(noise, m):
    y = torch.arange(60.0, dtype=torch.float64)[:, None]
    assert float(noise.log_prob(y, torch.full_like(y, m)).exp().sum()) == pytest.approx(1.0)


def test_maps_from_files(tmp_path):
    np.save(tmp_path / "map.npy", np.array([0.1, 0.9]))
    y = torch.tensor([[1.0, 1.0]])
    found = Binomial(str(tmp_path / "map.npy")).log_prob(y, 2 * y)
    assert torch.allclose(found.exp(), torch.tensor([[0.18, 0.18]], dtype=torch.float64))


def test_folded_streams_are_new_ones_and_repeatable():
    streams = SampleStreams(3, torch.arange(4))
    numbers = [
        one.at(0).next_draw().uniform((4, 9))
        for one in (streams, streams.fold(0), streams.fold(1), streams.fold(0).fold(0))
    ]
    for i, first in enumerate(numbers):
        assert all((first != other).all() for other in numbers[i + 1 :])
    alone = SampleStreams(3, torch.tensor([2])).fold(1).at(0).next_draw().uniform((1, 9))
    assert torch.equal(alone[0], numbers[2][2])


def test_what_cannot_work_is_refused():
    prior = Prior(None, PureDeath(4), (2,))
    problem = Measured(Identity(), Poisson(), torch.tensor([1.0, 2.0]))
    for bad in (lambda: anneal(5, 0.1, 1.0), lambda: anneal(0), lambda: anneal(5, 1.0, 0.0)):
        with pytest.raises(ValueError):
            bad()
    with pytest.raises(ValueError, match="last time"):
        SplitGibbs(anneal(3, 50.0, 1.0)).check(prior, problem)
    with pytest.raises(ValueError, match="discrete time"):
        Prior(None, UniformChain(4, 10), (2,))
    with pytest.raises(ValueError, match="heat_bath"):
        make_step(type("Black", (), {"log_likelihood": lambda self, x: x.sum(1)})(), None, (2,), "heat_bath")
    assert conjugate(PureDeath(4), problem, (2,)) is None
    hidden = Measured(Inpaint(torch.tensor([True, False])), Exact(), torch.tensor([1.0, 0.0]))
    assert conjugate(PureDeath(4), hidden, (2,)) is None and conjugate(Uniform(4), hidden, (2,)) is None
    z, level = conjugate(Absorbing(4), hidden, (2,))
    assert z.tolist() == [[1, 5]] and level == pytest.approx(math.log(2))


def test_impossible_elements_are_repaired():
    problem = Measured(Identity(), Binomial(0.5), torch.tensor([3.0, 0.0]))
    assert problem.repaired(torch.tensor([[1, 2], [4, 0]], dtype=torch.uint8)).tolist() == [[3, 2], [4, 0]]


def test_diagnostics_of_known_chains():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 500))
    assert r_hat(noise) == pytest.approx(1.0, abs=0.02) and r_hat(noise + np.arange(4)[:, None]) > 1.5
    assert effective_size(noise) == pytest.approx(2000, rel=0.2)
    lagged = np.zeros((4, 2000))
    for k in range(1, 2000):
        lagged[:, k] = 0.9 * lagged[:, k - 1] + rng.normal(size=4)
    assert effective_size(lagged) == pytest.approx(8000 * 0.1 / 1.9, rel=0.4)


def test_calibration_sees_what_is_wrong():
    """Samples of the truth's own law are calibrated, narrower ones are not: of counts, most of which are equal."""
    rng = np.random.default_rng(0)
    mean = rng.gamma(1.0, 1.0, size=200)
    truth, right = rng.poisson(mean), rng.poisson(mean, (20, 200))
    wrong = np.round(mean)[None].repeat(20, 0)
    good, bad = (positions(samples, truth, rng) for samples in (right, wrong))
    assert rank_p_value({"x": good}) > 1e-3 > rank_p_value({"x": bad})
    assert coverage(good, 0.9) == pytest.approx(0.9, abs=0.05) and coverage(bad, 0.9) < 0.7


def test_metropolis_begins_at_a_possible_state():
    """At a high level all is dark, and dark pixels send no photons: the chain begins nearer to the data."""
    y = torch.tensor([3.0, 0.0, 1.0, 2.0])
    problem, streams = Measured(Pool(2), Poisson(), y), SampleStreams(0, torch.arange(6))
    x = torch.zeros(6, 8, dtype=torch.uint8)
    z = possible_state(problem, Coupling(PureDeath(4)), x, 6.0, streams)
    assert bool(torch.isfinite(problem.log_likelihood(z.double())).all())
    dark = Measured(Matrix(torch.zeros(1, 8)), Poisson(), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="positive likelihood"):
        possible_state(dark, Coupling(PureDeath(4)), x, 6.0, streams)
