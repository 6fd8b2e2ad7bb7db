"""Mallows, repeated insertion, Plackett-Luce: exact laws, draws, moments, fits."""

import itertools
import math

import pytest
import torch
from torch import Size

from benchmarks.permutation_codes import product_law
from blackout.permutations import all_permutations, inverse, kendall_distance
from blackout.permutations.classical import Mallows, Mixture, consensus
from blackout.permutations.coded.model import autoregressive_loss, balanced_blocks, code_log_prob
from blackout.permutations.coded.report import repeated_insertion
from blackout.permutations.codes import FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.distributions import PlackettLuce
from blackout.permutations.group import is_permutation
from blackout.random import SampleStreams
from tests.permutations.chains import PlackettLuceCodes
from tests.permutations.enumeration import assert_draws, draw_codes


def moments(law, statistic):
    mean = float((law * statistic).sum())
    return mean, float((law * statistic**2).sum()) - mean**2


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("phi", [0.0, 0.3, 1.0, 1.7])
def test_mallows(n, phi):
    perms = all_permutations(n)
    centre = torch.rand(n, generator=torch.Generator().manual_seed(n)).argsort()
    distance = kendall_distance(inverse(perms), inverse(centre).expand(perms.shape)).double()
    expected = phi**distance / (phi**distance).sum()
    family = Mallows(n, phi, centre)
    law = family.log_prob(perms).exp()
    assert torch.allclose(law, expected, atol=1e-9)
    assert tuple(map(float, family.moments())) == pytest.approx(moments(law, distance))
    assert torch.equal(family.reference, centre)


@pytest.mark.parametrize(
    ("n", "phi", "z", "mean", "variance"),
    [
        (4, 0.3, 2.560519, 0.972, 1.013606),
        (4, 0.7, 9.430359, 2.248371, 1.993406),
        (5, 0.7, 26.151329, 3.571583, 3.700234),
    ],
)
def test_printed_moments_of_mallows(n, phi, z, mean, variance):
    family = Mallows(n, phi)
    assert float(-family.log_prob(torch.arange(n))) == pytest.approx(math.log(z), abs=1e-6)
    assert tuple(map(float, family.moments())) == pytest.approx((mean, variance), abs=1e-5)
    closed = n * phi / (1 - phi) - sum(j * phi**j / (1 - phi**j) for j in range(1, n + 1))
    assert float(family.moments()[0]) == pytest.approx(closed)


def test_a_batch_of_spreads():
    family = Mallows(8, torch.tensor([0.2, 0.5, 0.8, 1.0]))
    assert family.moments()[0].tolist() == pytest.approx([1.6340, 5.2951, 10.4829, 14], abs=5e-5)
    drawn = family.sample(Size([4000]), torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 4, 8)
    assert kendall_distance(drawn).double().mean(0).tolist() == pytest.approx(family.moments()[0].tolist(), abs=0.3)
    assert torch.allclose(family.log_prob(drawn)[:, 1], Mallows(8, 0.5).log_prob(drawn[:, 1]))
    source = SampleStreams(0, torch.tensor([1])).step(0)
    alone = Mallows(8, torch.tensor([0.5])).sample(Size([5]), source)
    whole = family.sample(Size([5]), SampleStreams(0, torch.arange(4)).step(0))
    assert torch.equal(alone[:, 0], whole[:, 1])


FAMILIES = {
    "mallows": Mallows(4, 0.4, torch.tensor([2, 0, 3, 1])),
    "plackett_luce": PlackettLuceCodes(torch.tensor([0.3, -1.0, 1.0, 0.0]), Lehmer),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_draws(name):
    family, perms = FAMILIES[name], all_permutations(4)
    law = family.log_prob(perms)
    streams = SampleStreams(1, torch.arange(50_000)).step(0)
    for source in (torch.Generator().manual_seed(1), streams):
        assert_draws(family.sample(Size([50_000]), source), law.exp())


def test_best_orders():
    family, perms = FAMILIES["plackett_luce"], all_permutations(4)
    law = family.log_prob(perms)
    orders, log_probs = family.top(100)
    possible = int((law > -torch.inf).sum())
    assert len(orders) == possible == len(orders.unique(dim=0)) and bool(is_permutation(orders).all())
    assert torch.allclose(log_probs, law.sort(descending=True).values[:possible], atol=1e-9)
    assert float(family.log_prob(family.mode)) == pytest.approx(float(law.max()))


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("code", [Lehmer, FisherYates, Insertion])
def test_plackett_luce_through_any_code(code, n):
    log_weights = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    perms, family = all_permutations(n), PlackettLuceCodes(log_weights, code)
    assert torch.allclose(family.log_prob(perms), PlackettLuce(log_weights).log_prob(perms), atol=1e-9)
    digits = code.encode(perms)
    sums = family.conditionals(digits).exp().sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-12)
    passes = code_log_prob(family.conditionals, digits, balanced_blocks(n, n), code.support(n))
    assert torch.allclose(passes, family.log_prob(perms), atol=1e-9)
    assert torch.allclose(autoregressive_loss(family.conditionals, digits, code.support(n)), -passes, atol=1e-9)


def test_plackett_luce_drawn_digit_by_digit():
    family = PlackettLuceCodes(torch.tensor([0.0, 1.0, 2.0, 0.5]), Insertion)
    generator = torch.Generator().manual_seed(0)
    drawn = draw_codes(family.conditionals, 4, 30_000, balanced_blocks(4, 4), Insertion.support(4), generator=generator)
    assert_draws(Insertion.decode(drawn), family.log_prob(all_permutations(4)).exp())


@pytest.mark.parametrize(("code", "bits"), [(Lehmer, 0.0787), (Insertion, 0.0288), (FisherYates, 0.8659)])
def test_what_one_pass_loses_of_plackett_luce(code, bits):
    perms = all_permutations(5)
    law = PlackettLuce(torch.tensor([1, 2, 4, 8, 16]).double().log()).log_prob(perms).exp()
    fitted = product_law(code.encode(perms), balanced_blocks(5, 1), weights=law)
    assert float((law * (law / fitted).log2()).sum()) == pytest.approx(bits, abs=5e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_consensus_has_the_least_total_distance(n):
    perms = all_permutations(n)
    for seed in range(5):
        orders = torch.rand(7, n, generator=torch.Generator().manual_seed(seed)).argsort()
        totals = kendall_distance(inverse(perms)[:, None], inverse(orders)[None]).sum(-1)
        found = kendall_distance(inverse(consensus(orders)).expand(7, n), inverse(orders)).sum()
        assert int(found) == int(totals.min())


def test_the_consensus_of_many_items():
    centre = torch.rand(20, generator=torch.Generator().manual_seed(0)).argsort()
    orders = Mallows(20, 0.6, centre).sample(Size([400]), torch.Generator().manual_seed(1))
    assert torch.equal(consensus(orders), centre)
    nine = torch.rand(9, 12, generator=torch.Generator().manual_seed(2)).argsort()
    padded = torch.cat([nine, torch.arange(12, 20).expand(9, 8)], -1)  # 20 items, of which 8 are unanimous
    assert consensus(padded)[12:].tolist() == list(range(12, 20))

    def cost(order, orders):
        return int(kendall_distance(inverse(order).expand(orders.shape), inverse(orders)).sum())

    assert cost(consensus(padded), padded) <= 1.02 * cost(consensus(nine), nine)


def test_fitting_mallows():
    centre = torch.tensor([3, 0, 5, 1, 4, 2])
    orders = Mallows(6, 0.55, centre).sample(Size([3000]), torch.Generator().manual_seed(0))
    fitted = Mallows.fit(orders)
    assert torch.equal(fitted.reference, centre) and float(fitted.phi) == pytest.approx(0.55, abs=0.02)
    best = float(fitted.log_prob(orders).sum())
    for phi in (float(fitted.phi) - 0.01, float(fitted.phi) + 0.01):
        assert float(Mallows(6, phi, centre).log_prob(orders).sum()) < best
    for a, b in itertools.combinations(range(6), 2):
        swapped = centre.clone()
        swapped[[a, b]] = centre[[b, a]]
        assert float(Mallows(6, fitted.phi, swapped).log_prob(orders).sum()) < best
    assert float(Mallows.fit(centre[None]).phi) == 0


@pytest.mark.parametrize("n", range(1, 7))
def test_repeated_insertion(n):
    """Mallows is one, about the identity; one order tells half of what every item's places have."""
    drawn, perms = Mallows(n, 0.4).sample(Size([40_000]), torch.Generator().manual_seed(0)), all_permutations(n)
    assert float(repeated_insertion(drawn, perms).exp().sum()) == pytest.approx(1, abs=1e-9)
    assert torch.allclose(repeated_insertion(drawn, perms).exp(), Mallows(n, 0.4).log_prob(perms).exp(), atol=0.01)
    alone = repeated_insertion(torch.arange(n)[None], torch.arange(n)[None])
    assert float(alone.exp()) == pytest.approx(math.prod(2 / (k + 2) for k in range(n)))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Mallows(0, 0.5), "n at least 1"),
        (lambda: Mallows(4, -0.1), "phi must be a number"),
        (lambda: Mallows(4, 0.5, torch.tensor([0, 1, 1, 3])), "an order of the items 0..3"),
        (lambda: Mallows.fit(torch.zeros(0, 4, dtype=torch.int64)), "at least one order"),
        (lambda: Mallows(3, 0.5).log_prob(torch.tensor([0, 0, 1])), "only permutations"),
        (lambda: PlackettLuceCodes(torch.zeros(2, 2), Lehmer), "a vector"),
        (lambda: PlackettLuceCodes(torch.zeros(3), Inline), "no closed form"),
        (lambda: PlackettLuce(torch.zeros(3)).top(0), "k must be at least 1"),
    ],
)
def test_refusals(wrong, says):
    with pytest.raises(ValueError, match=says):
        wrong()


@pytest.mark.deep
def test_mixtures_are_found_by_expectation_maximisation():
    """Two kinds of voters, none of whom says which: within .01 bits of the true law."""
    generator, half = torch.Generator().manual_seed(0), torch.tensor([0.5, 0.5]).double()
    centre = torch.tensor([4, 2, 0, 1, 5, 3])
    strengths = torch.arange(6).double()
    for laws in ([Mallows(6, 0.4), Mallows(6, 0.5, centre)], [PlackettLuce(strengths), PlackettLuce(-strengths / 2)]):
        first, second = (law.sample(Size([3000]), generator) for law in laws)
        orders = torch.where(torch.rand(3000, 1, generator=generator) < 0.5, first, second)
        truth, found = Mixture(half, laws), Mixture.choose(orders[:2000], orders[2000:], type(laws[0]))
        perms = all_permutations(6)
        assert len(found.components) >= 2 and float(found.log_prob(perms).exp().sum()) == pytest.approx(1)
        log_p = truth.log_prob(perms)
        assert 0 <= float((log_p.exp() * (log_p - found.log_prob(perms))).sum()) / math.log(2) < 0.01
    of_one = PlackettLuce(strengths / 2).sample(Size([150]), torch.Generator().manual_seed(2))
    with pytest.raises(ValueError, match="orders"):
        Mixture.fit(orders[:, :3], Mallows, 1, 6)
    with pytest.raises(ValueError, match="at least one component"):
        Mixture.fit(orders, Mallows, 0)
    assert len(Mixture.fit(of_one.numpy(), PlackettLuce, 2).components) == 2
    for wrong in ([[0, 0, 1]], [[0, 1, 3]], [[0.0, 1.0, 2.0]], [[0, 1, -1]]):
        with pytest.raises(ValueError, match="each order must name different items"):
            Mixture.fit(torch.tensor(wrong), PlackettLuce, 1)


@pytest.mark.deep
def test_the_number_of_laws_is_that_of_the_validation_orders():
    """Six kinds of voters are more than four laws; of one kind more laws are no better than chance."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(6, 7, generator=generator).argsort(1)
    truth = Mixture(torch.full((6,), 1 / 6).double(), [Mallows(7, 0.2, centre) for centre in centres])
    orders = truth.sample(1200, SampleStreams(0, torch.arange(1200)).step(0))
    mixture = Mixture.choose(orders[:900], orders[900:], Mallows)
    assert len(mixture.components) >= 6
    perms = all_permutations(7)
    log_p = truth.log_prob(perms)
    assert float((log_p.exp() * (log_p - mixture.log_prob(perms))).sum()) / math.log(2) < 0.1
    for number in (5, 7):
        other = Mixture.fit(orders[:900], Mallows, number).log_prob(orders[900:]).mean()
        assert mixture.log_prob(orders[900:]).mean() >= other
    single = Mixture.choose(orders[:1], orders[900:], PlackettLuce)
    assert len(single.components) == 1


@pytest.mark.parametrize("number", [2, 3])
def test_laws_of_many_items_are_fitted_about_centres_that_are_only_improved(number):
    generator = torch.Generator().manual_seed(number)
    centres = torch.rand(number, 12, generator=generator).argsort(1)
    truth = Mixture(torch.full((number,), 1 / number).double(), [Mallows(12, 0.4, centre) for centre in centres])
    orders = truth.sample(600, SampleStreams(0, torch.arange(600)).step(0))
    mixture = Mixture.fit(orders, Mallows, number)
    found = {tuple(law.reference.tolist()) for law in mixture.components}
    assert found == {tuple(centre.tolist()) for centre in centres}


def test_orders_of_a_mixture_are_drawn_from_it():
    laws = [Mallows(4, 0.3), PlackettLuce(torch.tensor([0.0, 2.0, 1.0, -1.0]).double())]
    mixture = Mixture(torch.tensor([0.3, 0.7]).double(), laws)
    drawn = mixture.sample(20_000, SampleStreams(3, torch.arange(20_000)).step(0))
    assert_draws(drawn, mixture.log_prob(all_permutations(4)).exp())
