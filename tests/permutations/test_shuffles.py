"""The walks against their definitions: whole laws by enumeration, draws by chi-square."""

import math

import pytest
import torch

from blackout.permutations import all_permutations, compose, inverse
from blackout.permutations.group import lexicographic_rank
from blackout.permutations.shuffles import (
    ForwardProcess,
    RandomInsertion,
    RandomTransposition,
    Riffle,
)
from blackout.random import SampleStreams
from tests.permutations.enumeration import assert_draws
from tests.verification.permutation_claims import (
    one_insertion,
    one_riffle,
    one_transposition,
    point,
    transitions,
)

SHUFFLES = {"riffle": Riffle(), "transposition": RandomTransposition(), "insertion": RandomInsertion()}


DEFINITIONS = {"riffle": one_riffle, "transposition": one_transposition, "insertion": one_insertion}


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("name", SHUFFLES)
def test_laws_of_several_shuffles_are_products_of_the_definition(name, n):
    step, law = transitions(DEFINITIONS[name](n), n), point(n)
    for times in range(5):
        found = SHUFFLES[name].log_prob(all_permutations(n), times).exp()
        assert torch.allclose(found, law, atol=1e-13)
        assert float(found.sum()) == pytest.approx(1, abs=1e-12)
        law = law @ step


@pytest.mark.parametrize("name", SHUFFLES)
def test_laws_on_six_cards_sum_to_one(name):
    for times in (1, 2, 3, 9):
        assert float(SHUFFLES[name].log_prob(all_permutations(6), times).exp().sum()) == pytest.approx(1, abs=1e-12)


def test_one_riffle_of_four_cards():
    law = Riffle().log_prob(all_permutations(4)).exp()
    assert float(law[0]) == pytest.approx(5 / 16) and int((law > 0).sum()) == 2**4 - 4
    assert law[1:][law[1:] > 0].tolist() == pytest.approx([1 / 16] * 11)


@pytest.mark.parametrize("labels", [2, 3, 4, 8])
def test_sorting_labels_is_the_inverse_of_a_shuffle(labels):
    """Every word of labels, n = 4: its stable argsort, inverted, has C(n + a - r, n) / a^n."""
    n = 4
    words = torch.cartesian_prod(*[torch.arange(labels)] * n)
    drawn = lexicographic_rank(inverse(words.argsort(dim=-1, stable=True)))
    law = torch.bincount(drawn, minlength=24) / labels**n
    perms = all_permutations(n)
    rising = 1 + (inverse(perms)[:, 1:] < inverse(perms)[:, :-1]).sum(-1)
    expected = [math.comb(n + labels - r, n) / labels**n if r <= labels else 0 for r in rising.tolist()]
    assert law.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["generator", "streams"])
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("name", SHUFFLES)
def test_draws(name, times, kind):
    size = 60_000
    source = torch.Generator().manual_seed(1) if kind == "generator" else SampleStreams(1, torch.arange(size)).step(0)
    shuffle, law = SHUFFLES[name], SHUFFLES[name].log_prob(all_permutations(4), times).exp()
    assert_draws(shuffle.sample(4, size, times, source), law)
    assert_draws(inverse(shuffle.sample_inverse(4, size, times, source)), law)


@pytest.mark.parametrize("name", SHUFFLES)
def test_samples_from_streams_do_not_depend_on_their_batch(name):
    whole = SHUFFLES[name].sample(9, 40, 3, SampleStreams(5, torch.arange(40)).step(2))
    some = SHUFFLES[name].sample(9, 3, 3, SampleStreams(5, torch.tensor([7, 30, 2])).step(2))
    assert torch.equal(some, whole[[7, 30, 2]])


@pytest.mark.parametrize("name", SHUFFLES)
def test_trajectories_lead_back(name):
    process = ForwardProcess(SHUFFLES[name], [0, 2, 3, 7])
    states, back = process.sample_walks(8, 5, 6, torch.Generator().manual_seed(0))
    assert states.shape == back.shape == (5, 6, 3, 8)
    before = torch.cat([torch.arange(8).expand(5, 6, 1, 8), states[:, :, :-1]], 2)
    assert torch.equal(compose(states, back), before)


def test_looking_now_and_then_gives_the_law_of_the_walk():
    states, _ = ForwardProcess(Riffle(), [0, 1, 3]).sample_walks(4, 60_000, 1, torch.Generator().manual_seed(2))
    states = states[:, 0].unbind(1)
    assert_draws(states[1], Riffle().log_prob(all_permutations(4), 3).exp())
    step = compose(inverse(states[0]), states[1])
    assert_draws(step, Riffle().log_prob(all_permutations(4), 2).exp())


@pytest.mark.parametrize("n", [4, 5, 6])
def test_independent_draws_cannot_often_be_reached(n):
    """Why the bound is not estimated from independent X_t, X_{t-1}: one riffle leads to few of the n! orders."""
    reachable = (Riffle().log_prob(all_permutations(n)) > -torch.inf).double().mean()
    assert 1 - float(reachable) == pytest.approx({4: 0.50, 5: 0.775, 6: 0.919}[n], abs=5e-4)


def test_single_cards_and_no_shuffles():
    for shuffle in SHUFFLES.values():
        assert shuffle.sample(1, 3, 4).tolist() == [[0]] * 3
        assert shuffle.sample(5, 2, 0).tolist() == [list(range(5))] * 2
        assert shuffle.sample(5, 0).shape == (0, 5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Riffle().sample(4, 2, 41), "0 to 40 at once, not 41"),
        (lambda: Riffle().sample(4, 2, -1), "not -1"),
        (lambda: Riffle().sample(0, 2), "at least one card"),
        (lambda: RandomInsertion().sample(4, 2, -1), "at least 0"),
        (lambda: RandomTransposition().log_prob(torch.arange(31), 2), "1 to 30 cards, not 31"),
        (lambda: ForwardProcess(Riffle(), [1, 2]), "rising from 0"),
        (lambda: ForwardProcess(Riffle(), [0, 2, 2]), "rising from 0"),
        (lambda: ForwardProcess(Riffle(), [0]), "rising from 0"),
    ],
)
def test_refusals(wrong, says):
    with pytest.raises(ValueError, match=says):
        wrong()
