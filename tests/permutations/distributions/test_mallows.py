"""Mallows and Plackett-Luce: exact probabilities, samples, moments, fits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Size

from benchmarks.permutation_codes import product_distribution
from blackout.permutations import all_permutations, inverse, kendall_distance
from blackout.permutations.coded.baselines import repeated_insertion
from blackout.permutations.coded.decoding import balanced_blocks
from blackout.permutations.coded.likelihood import code_log_prob
from blackout.permutations.coded.losses import autoregressive_loss
from blackout.permutations.codes import FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.distributions import Mallows, PlackettLuce
from blackout.permutations.group import is_permutation
from blackout.random import SampleStreams
from tests.permutations.plackett_luce_codes import PlackettLuceCodes
from tests.permutations.sampling_checks import assert_samples_follow, draw_codes

FAMILIES = {
    "mallows": Mallows(4, 0.4, torch.tensor([2, 0, 3, 1])),
    "plackett_luce": PlackettLuceCodes(torch.tensor([0.3, -1.0, 1.0, 0.0]), Lehmer),
}


def moments(probabilities, statistic):
    """Return the mean and variance of a statistic."""
    mean = float((probabilities * statistic).sum())
    return mean, float((probabilities * statistic**2).sum()) - mean**2


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("phi", [0.0, 0.3, 1.0, 1.7])
def test_mallows_matches_its_definition(n, phi):
    perms = all_permutations(n)
    centre = torch.rand(n, generator=torch.Generator().manual_seed(n)).argsort()
    distance = kendall_distance(inverse(perms), inverse(centre).expand(perms.shape)).double()
    expected = phi**distance / (phi**distance).sum()
    family = Mallows(n, phi, centre)
    probabilities = family.log_prob(perms).exp()
    assert torch.allclose(probabilities, expected, atol=1e-9)
    assert tuple(map(float, family.moments())) == pytest.approx(moments(probabilities, distance))
    assert torch.equal(family.reference, centre)


@pytest.mark.parametrize(
    ("n", "phi", "z", "mean", "variance"),
    [
        (4, 0.3, 2.560519, 0.972, 1.013606),
        (4, 0.7, 9.430359, 2.248371, 1.993406),
        (5, 0.7, 26.151329, 3.571583, 3.700234),
    ],
)
def test_mallows_has_the_published_moments(n, phi, z, mean, variance):
    family = Mallows(n, phi)
    assert float(-family.log_prob(torch.arange(n))) == pytest.approx(math.log(z), abs=1e-6)
    assert tuple(map(float, family.moments())) == pytest.approx((mean, variance), abs=1e-5)
    closed = n * phi / (1 - phi) - sum(j * phi**j / (1 - phi**j) for j in range(1, n + 1))
    assert float(family.moments()[0]) == pytest.approx(closed)


def test_a_batch_of_dispersions():
    family = Mallows(8, torch.tensor([0.2, 0.5, 0.8, 1.0]))
    assert family.moments()[0].tolist() == pytest.approx([1.6340, 5.2951, 10.4829, 14], abs=5e-5)
    samples = family.sample(Size([4000]), torch.Generator().manual_seed(0))
    assert samples.shape == (4000, 4, 8)
    assert kendall_distance(samples).double().mean(0).tolist() == pytest.approx(
        family.moments()[0].tolist(), abs=0.3
    )
    assert torch.allclose(family.log_prob(samples)[:, 1], Mallows(8, 0.5).log_prob(samples[:, 1]))
    source = SampleStreams(0, torch.tensor([1])).step(0)
    same_samples = Mallows(8, torch.tensor([0.5])).sample(Size([5]), source)
    batch = family.sample(Size([5]), SampleStreams(0, torch.arange(4)).step(0))
    assert torch.equal(same_samples[:, 0], batch[:, 1])


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_follow_the_distribution(name):
    family = FAMILIES[name]
    perms = all_permutations(4)
    log_probs = family.log_prob(perms)
    streams = SampleStreams(1, torch.arange(50_000)).step(0)
    for source in (torch.Generator().manual_seed(1), streams):
        assert_samples_follow(family.sample(Size([50_000]), source), log_probs.exp())


def test_the_top_orders_are_the_most_probable_ones():
    family = FAMILIES["plackett_luce"]
    perms = all_permutations(4)
    log_probs_of_all = family.log_prob(perms)
    orders, log_probs = family.top(100)
    num_possible = int((log_probs_of_all > -torch.inf).sum())
    assert len(orders) == num_possible == len(orders.unique(dim=0)) and bool(
        is_permutation(orders).all()
    )
    assert torch.allclose(
        log_probs, log_probs_of_all.sort(descending=True).values[:num_possible], atol=1e-9
    )
    assert float(family.log_prob(family.mode)) == pytest.approx(float(log_probs_of_all.max()))


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("code", [Lehmer, FisherYates, Insertion])
def test_plackett_luce_has_the_same_probabilities_in_any_code(code, n):
    log_weights = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    perms = all_permutations(n)
    family = PlackettLuceCodes(log_weights, code)
    assert torch.allclose(
        family.log_prob(perms), PlackettLuce(log_weights).log_prob(perms), atol=1e-9
    )
    digits = code.encode(perms)
    sums = family.conditionals(digits).exp().sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-12)
    log_probs = code_log_prob(family.conditionals, digits, balanced_blocks(n, n), code.support(n))
    assert torch.allclose(log_probs, family.log_prob(perms), atol=1e-9)
    assert torch.allclose(
        autoregressive_loss(family.conditionals, digits, code.support(n)), -log_probs, atol=1e-9
    )


def test_plackett_luce_sampled_digit_by_digit():
    family = PlackettLuceCodes(torch.tensor([0.0, 1.0, 2.0, 0.5]), Insertion)
    generator = torch.Generator().manual_seed(0)
    codes = draw_codes(
        family.conditionals,
        4,
        30_000,
        balanced_blocks(4, 4),
        Insertion.support(4),
        generator=generator,
    )
    assert_samples_follow(Insertion.decode(codes), family.log_prob(all_permutations(4)).exp())


@pytest.mark.parametrize(
    ("code", "bits"), [(Lehmer, 0.0787), (Insertion, 0.0288), (FisherYates, 0.8659)]
)
def test_one_pass_loses_the_known_bits_of_plackett_luce(code, bits):
    perms = all_permutations(5)
    probabilities = (
        PlackettLuce(torch.tensor([1, 2, 4, 8, 16]).double().log()).log_prob(perms).exp()
    )
    fitted = product_distribution(code.encode(perms), balanced_blocks(5, 1), weights=probabilities)
    assert float((probabilities * (probabilities / fitted).log2()).sum()) == pytest.approx(
        bits, abs=5e-5
    )


def test_mallows_is_fitted_by_maximum_likelihood():
    centre = torch.tensor([3, 0, 5, 1, 4, 2])
    orders = Mallows(6, 0.55, centre).sample(Size([3000]), torch.Generator().manual_seed(0))
    fitted = Mallows.fit(orders)
    assert torch.equal(fitted.reference, centre) and float(fitted.phi) == pytest.approx(
        0.55, abs=0.02
    )
    best = float(fitted.log_prob(orders).sum())
    for phi in (float(fitted.phi) - 0.01, float(fitted.phi) + 0.01):
        assert float(Mallows(6, phi, centre).log_prob(orders).sum()) < best
    for a, b in itertools.combinations(range(6), 2):
        swapped = centre.clone()
        swapped[[a, b]] = centre[[b, a]]
        assert float(Mallows(6, fitted.phi, swapped).log_prob(orders).sum()) < best
    assert float(Mallows.fit(centre[None]).phi) == 0


@pytest.mark.parametrize("n", range(1, 7))
def test_repeated_insertion_fits_mallows(n):
    """Mallows is a repeated insertion around the identity.

    One observed order counts half of the pseudo-counts of every item's places.
    """
    samples = Mallows(n, 0.4).sample(Size([40_000]), torch.Generator().manual_seed(0))
    perms = all_permutations(n)
    assert float(repeated_insertion(samples, perms).exp().sum()) == pytest.approx(1, abs=1e-9)
    assert torch.allclose(
        repeated_insertion(samples, perms).exp(), Mallows(n, 0.4).log_prob(perms).exp(), atol=0.01
    )
    single = repeated_insertion(torch.arange(n)[None], torch.arange(n)[None])
    assert float(single.exp()) == pytest.approx(math.prod(2 / (k + 2) for k in range(n)))


@pytest.mark.parametrize(
    ("make_invalid", "message"),
    [
        (lambda: Mallows(0, 0.5), "n at least 1"),
        (lambda: Mallows(4, -0.1), "phi must be a number"),
        (lambda: Mallows(4, 0.5, torch.tensor([0, 1, 1, 3])), "each of the items 0..3 once"),
        (lambda: Mallows.fit(torch.zeros(0, 4, dtype=torch.int64)), "at least one order"),
        (lambda: Mallows(3, 0.5).log_prob(torch.tensor([0, 0, 1])), "only permutations"),
        (lambda: PlackettLuceCodes(torch.zeros(2, 2), Lehmer), "a vector"),
        (lambda: PlackettLuceCodes(torch.zeros(3), Inline), "no closed form"),
        (lambda: PlackettLuce(torch.zeros(3)).top(0), "k must be at least 1"),
    ],
)
def test_invalid_models_are_refused(make_invalid, message):
    with pytest.raises(ValueError, match=message):
        make_invalid()
