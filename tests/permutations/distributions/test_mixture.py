"""Mixtures, fitted by expectation-maximisation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Size

from blackout.permutations import all_permutations
from blackout.permutations.distributions import Mallows, Mixture, PlackettLuce
from blackout.random import SampleStreams
from tests.permutations.sampling_checks import assert_samples_follow


@pytest.mark.deep
def test_mixtures_are_recovered_by_expectation_maximisation():
    """Two unlabelled kinds of voters, recovered within 0.01 bits of the true distribution."""
    generator = torch.Generator().manual_seed(0)
    half = torch.tensor([0.5, 0.5]).double()
    centre = torch.tensor([4, 2, 0, 1, 5, 3])
    strengths = torch.arange(6).double()
    for components in (
        [Mallows(6, 0.4), Mallows(6, 0.5, centre)],
        [PlackettLuce(strengths), PlackettLuce(-strengths / 2)],
    ):
        first, second = (component.sample(Size([3000]), generator) for component in components)
        orders = torch.where(torch.rand(3000, 1, generator=generator) < 0.5, first, second)
        truth = Mixture(half, components)
        mixture = Mixture.choose(orders[:2000], orders[2000:], type(components[0]))
        perms = all_permutations(6)
        assert len(mixture.components) >= 2 and float(
            mixture.log_prob(perms).exp().sum()
        ) == pytest.approx(1)
        log_p = truth.log_prob(perms)
        assert (
            0 <= float((log_p.exp() * (log_p - mixture.log_prob(perms))).sum()) / math.log(2) < 0.01
        )
    single_kind = PlackettLuce(strengths / 2).sample(Size([150]), torch.Generator().manual_seed(2))
    with pytest.raises(ValueError, match="orders"):
        Mixture.fit(orders[:, :3], Mallows, 1, 6)
    with pytest.raises(ValueError, match="at least one component"):
        Mixture.fit(orders, Mallows, 0)
    assert len(Mixture.fit(single_kind.numpy(), PlackettLuce, 2).components) == 2
    for votes in ([[0, 0, 1]], [[0, 1, 3]], [[0.0, 1.0, 2.0]], [[0, 1, -1]]):
        with pytest.raises(ValueError, match="each order must name different items"):
            Mixture.fit(torch.tensor(votes), PlackettLuce, 1)


@pytest.mark.deep
def test_the_number_of_components_is_chosen_on_validation_orders():
    """Six kinds of voters need more than four components; one kind needs no more than one."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(6, 7, generator=generator).argsort(1)
    truth = Mixture(
        torch.full((6,), 1 / 6).double(), [Mallows(7, 0.2, centre) for centre in centres]
    )
    orders = truth.sample(1200, SampleStreams(0, torch.arange(1200)).step(0))
    mixture = Mixture.choose(orders[:900], orders[900:], Mallows)
    assert len(mixture.components) >= 6
    perms = all_permutations(7)
    log_p = truth.log_prob(perms)
    assert float((log_p.exp() * (log_p - mixture.log_prob(perms))).sum()) / math.log(2) < 0.1
    for number in (5, 7):
        mean_log_prob = Mixture.fit(orders[:900], Mallows, number).log_prob(orders[900:]).mean()
        assert mixture.log_prob(orders[900:]).mean() >= mean_log_prob
    single = Mixture.choose(orders[:1], orders[900:], PlackettLuce)
    assert len(single.components) == 1


@pytest.mark.parametrize("number", [2, 3])
def test_components_of_many_items_are_fitted_around_their_centres(number):
    generator = torch.Generator().manual_seed(number)
    centres = torch.rand(number, 12, generator=generator).argsort(1)
    truth = Mixture(
        torch.full((number,), 1 / number).double(), [Mallows(12, 0.4, centre) for centre in centres]
    )
    orders = truth.sample(600, SampleStreams(0, torch.arange(600)).step(0))
    mixture = Mixture.fit(orders, Mallows, number)
    centres_found = {tuple(component.reference.tolist()) for component in mixture.components}
    assert centres_found == {tuple(centre.tolist()) for centre in centres}


def test_samples_of_a_mixture_follow_its_distribution():
    components = [Mallows(4, 0.3), PlackettLuce(torch.tensor([0.0, 2.0, 1.0, -1.0]).double())]
    mixture = Mixture(torch.tensor([0.3, 0.7]).double(), components)
    samples = mixture.sample(20_000, SampleStreams(3, torch.arange(20_000)).step(0))
    assert torch.equal(samples, mixture.sample(20_000, seed=3))
    assert_samples_follow(samples, mixture.log_prob(all_permutations(4)).exp())
