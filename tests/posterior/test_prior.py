"""Priors: times of reverse runs, a Lightning module as a prior, levels and streams."""

import math

import pytest
import torch

from blackout import from_data
from blackout.diffusion.processes import Absorbing, PureDeath, Uniform, UniformChain
from blackout.diffusion.survival import logit_survival
from blackout.posterior import (
    Auto,
    Exact,
    Identity,
    Inpaint,
    InverseProblem,
    Poisson,
    Prior,
    SplitGibbs,
    anneal,
    conjugate_state,
)
from blackout.posterior.draw import make_prior
from blackout.posterior.likelihood_steps import make_step
from blackout.random import SampleStreams


class BlackBox:
    """A problem of which nothing is known but its likelihood."""

    def log_likelihood(self, x):
        return x.sum(1)


def test_folded_streams_differ_and_are_repeatable():
    streams = SampleStreams(3, torch.arange(4))
    numbers = [
        source.step(0).next_draw().uniform((4, 9))
        for source in (
            streams,
            streams.fold_in(0),
            streams.fold_in(1),
            streams.fold_in(0).fold_in(0),
        )
    ]
    for i, first in enumerate(numbers):
        assert all((first != second).all() for second in numbers[i + 1 :])
    alone = SampleStreams(3, torch.tensor([2])).fold_in(1).step(0).next_draw().uniform((1, 9))
    assert torch.equal(alone[0], numbers[2][2])


def test_invalid_levels_and_processes_are_refused():
    prior = Prior(None, PureDeath(4), (2,))
    problem = InverseProblem(Identity(), Poisson(), torch.tensor([1.0, 2.0]))
    for make_invalid in (
        lambda: anneal(5, 0.1, 1.0),
        lambda: anneal(0),
        lambda: anneal(5, 1.0, 0.0),
    ):
        with pytest.raises(ValueError):
            make_invalid()
    with pytest.raises(ValueError, match="last time"):
        SplitGibbs(anneal(3, 50.0, 1.0)).check(prior, problem)
    with pytest.raises(ValueError, match="discrete time"):
        Prior(None, UniformChain(4, 10), (2,))
    with pytest.raises(ValueError, match="heat_bath"):
        make_step(BlackBox(), None, (2,), "heat_bath")
    assert conjugate_state(PureDeath(4), problem, (2,)) is None
    hidden = InverseProblem(Inpaint(torch.tensor([True, False])), Exact(), torch.tensor([1.0, 0.0]))
    assert conjugate_state(PureDeath(4), hidden, (2,)) is None
    assert conjugate_state(Uniform(4), hidden, (2,)) is None
    z, level = conjugate_state(Absorbing(4), hidden, (2,))
    assert z.tolist() == [[1, 5]] and level == pytest.approx(math.log(2))


def test_reverse_times_have_equal_steps_of_the_logit_of_survival() -> None:
    prior = Prior(lambda x, _: x, PureDeath(4), (2,), steps_per_logit=2.0)
    first = float(prior.times[1])
    for num_steps, length in ((None, None), (5, 7)):
        times = prior.reverse_times(1.5, num_steps)
        gaps = logit_survival(times[1:]).diff()
        assert times[0] == 0 and float(times[-1]) == 1.5 and float(times[1]) == pytest.approx(first)
        torch.testing.assert_close(gaps, gaps.mean().expand_as(gaps))
        if length is None:
            assert float(gaps.abs().max()) <= 0.5
        else:
            assert len(times) == length
    assert prior.reverse_times(first / 2).tolist() == [0, first / 2]


def test_the_prior_of_a_lightning_module_is_that_of_its_model():
    module = from_data(torch.arange(200).view(50, 4) % 5, batch_size=16)
    of_module = make_prior(module, module.sampler)
    of_model = make_prior(module.model, module.model.sampler)
    assert torch.equal(of_module.data_mean, of_model.data_mean)
    is_known = torch.tensor([True, False, True, False])
    problem = InverseProblem(Inpaint(is_known), Exact(), torch.tensor([1, 0, 3, 0]))
    result = Auto().sample(of_module, problem, 4)
    assert result.samples[:, 0].eq(1).all() and result.samples[:, 2].eq(3).all()
