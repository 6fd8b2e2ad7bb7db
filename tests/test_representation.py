"""`repr` of what a notebook shows: one line with shapes and settings, never a dump of numbers."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from blackout import from_data
from blackout.data import CountData, digits
from blackout.diffusion import PoissonLeap, PureDeath, Sampler, Schedule
from blackout.evaluation import FeatureStatistics, Reference
from blackout.flows import Couplings, Events, Ising, Potts
from blackout.permutations import Riffle
from blackout.permutations.codes import Lehmer
from blackout.permutations.distributions import Mallows, Mixture, PlackettLuce
from blackout.posterior import Binomial, Direct, Identity, Inpaint, InverseProblem, PosteriorSamples
from blackout.posterior.draw import make_prior
from blackout.random import SampleStreams
from blackout.representation import MAX_LENGTH, format_arguments, format_value

MAX_LINE = 260  # characters of the longest, a model


@pytest.fixture(scope="module")
def model():
    counts = torch.arange(600).reshape(50, 12) % 7
    return from_data(counts, batch_size=32)


@pytest.fixture(scope="module")
def flow():
    return from_data(partial(Ising, size=3, coupling=0.3), family="flow")


def assert_one_line(instance: object) -> None:
    text = repr(instance)
    assert "\n" not in text and len(text) <= MAX_LINE, text
    assert " object at 0x" not in text and "tensor(" not in text and "array(" not in text, text
    assert text.startswith(type(instance).__name__), text


def test_datasets_say_their_sizes():
    data = digits()
    assert repr(data) == f"CountData({data})"
    assert "1,258 training" in repr(data) and "shape (1, 8, 8)" in repr(data)
    rows = torch.ones(4, 3, dtype=torch.uint8)
    assert_one_line(CountData("mine", rows, rows[:2], 5))


def test_a_sampler_shows_its_kernel_and_what_was_set():
    assert (
        repr(Sampler(PoissonLeap(), num_steps=20)) == "Sampler(kernel=PoissonLeap(), num_steps=20)"
    )
    assert repr(Sampler()) == "Sampler(kernel=Trapezoidal(), num_steps=100)"


def test_processes_heads_and_schedules(model):
    assert repr(PureDeath(16)) == "PureDeath(max_count=16)"
    for part in (model.process, model.head, model.sampler, model.schedule):
        assert_one_line(part)
    assert "float32 [12]" in repr(model.head)
    assert_one_line(Schedule())


def test_models(model, flow):
    assert_one_line(model)
    assert_one_line(flow)
    assert "Ising(shape=(3, 3), coupling=0.3, field=0.0)" in repr(flow)


def test_posteriors(model):
    prior = make_prior(model, model.sampler)
    problem = InverseProblem(Identity(), Binomial(0.2), torch.ones(12))
    assert repr(problem) == (
        "InverseProblem(operator=Identity(), noise=Binomial(survival=0.2), "
        "measurement=float32 [12])"
    )
    result = Direct(steps=4).sample(prior, problem, 8, seed=0)
    assert isinstance(result, PosteriorSamples) and "samples=uint8 [8, 12]" in repr(result)
    for part in (
        prior,
        result,
        Direct(),
        Inpaint(torch.ones(12, dtype=torch.bool)),
        SampleStreams(0, torch.arange(3)),
    ):
        assert_one_line(part)


def test_distributions():
    assert repr(PlackettLuce(torch.zeros(50, 4))) == "PlackettLuce(scores=float32 [50, 4])"
    assert_one_line(Mallows(3, phi=0.5))
    votes = torch.stack(
        [torch.randperm(4, generator=torch.Generator().manual_seed(k)) for k in range(60)]
    )
    assert_one_line(Mixture.choose(votes[:40], votes[40:], Mallows))
    assert_one_line(Riffle())
    assert_one_line(Lehmer())


def test_energies_and_chains(flow):
    assert (
        repr(Ising(size=4, coupling=[0.3, 0.4]))
        == "Ising(shape=(4, 4), coupling=[0.3, 0.4], field=[0.0, 0.0])"
    )
    chains = flow.simulate(torch.arange(8), seed=0)
    for part in (
        Potts(3),
        Couplings(torch.zeros(4, 4), torch.zeros(4)),
        Events(16),
        chains,
        chains.states,
    ):
        assert_one_line(part)


def test_scores():
    assert_one_line(FeatureStatistics(3))
    reference = Reference(
        torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64), 10
    )
    assert_one_line(reference)


def test_values_are_short():
    assert format_value(torch.tensor(0.25)) == "0.25"
    assert format_value(torch.zeros(2, 3)) == "float32 [2, 3]"
    assert format_value(list(range(100))) == "list of 100"
    assert format_value((1,)) == "(1,)"
    assert format_value(partial(torch.add, alpha=2)) == "add(alpha=2)"
    assert format_value({"a": torch.zeros(5), "b": 1}) == "{a: float32 [5], b: 1}"
    assert format_value(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())) == "Sequential"
    assert len(format_value("x" * 10_000)) <= MAX_LENGTH


def test_a_property_is_not_computed_to_be_shown():
    class Loads:
        __repr__ = format_arguments

        def __init__(self, weights: str) -> None:
            pass

        @property
        def weights(self) -> str:
            raise OSError("no connection")

    assert repr(Loads("file")) == "Loads()"
