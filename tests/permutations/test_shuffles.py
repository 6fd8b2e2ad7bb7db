"""Shuffles against their definitions: probabilities by enumeration, samples by chi-square."""

import math

import pytest
import torch

from blackout.permutations import all_permutations, compose, inverse
from blackout.permutations.forward_process import ForwardProcess
from blackout.permutations.group import lexicographic_rank
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle
from blackout.random import SampleStreams
from tests.permutations.sampling_checks import assert_samples_follow
from tests.verification.permutation_claims import (
    insertion_distribution,
    point,
    riffle_distribution,
    transitions,
    transposition_distribution,
)

SHUFFLES = {
    "riffle": Riffle(),
    "transposition": RandomTransposition(),
    "insertion": RandomInsertion(),
}


DEFINITIONS = {
    "riffle": riffle_distribution,
    "transposition": transposition_distribution,
    "insertion": insertion_distribution,
}


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("name", SHUFFLES)
def test_repeated_shuffles_are_products_of_one(name, n):
    step = transitions(DEFINITIONS[name](n), n)
    expected = point(n)
    for times in range(5):
        probabilities = SHUFFLES[name].log_prob(all_permutations(n), times).exp()
        assert torch.allclose(probabilities, expected, atol=1e-13)
        assert float(probabilities.sum()) == pytest.approx(1, abs=1e-12)
        expected = expected @ step


@pytest.mark.parametrize("name", SHUFFLES)
def test_probabilities_on_six_cards_sum_to_one(name):
    for times in (1, 2, 3, 9):
        assert float(
            SHUFFLES[name].log_prob(all_permutations(6), times).exp().sum()
        ) == pytest.approx(1, abs=1e-12)


def test_one_riffle_of_four_cards_has_known_probabilities():
    probabilities = Riffle().log_prob(all_permutations(4)).exp()
    assert (
        float(probabilities[0]) == pytest.approx(5 / 16)
        and int((probabilities > 0).sum()) == 2**4 - 4
    )
    assert probabilities[1:][probabilities[1:] > 0].tolist() == pytest.approx([1 / 16] * 11)


@pytest.mark.parametrize("labels", [2, 3, 4, 8])
def test_sorting_random_labels_inverts_a_riffle(labels):
    """For n = 4 and a labels, an order with r rising sequences has probability C(n + a - r, n) /
    a^n."""
    n = 4
    words = torch.cartesian_prod(*[torch.arange(labels)] * n)
    ranks = lexicographic_rank(inverse(words.argsort(dim=-1, stable=True)))
    probabilities = torch.bincount(ranks, minlength=24) / labels**n
    perms = all_permutations(n)
    rising_sequences = 1 + (inverse(perms)[:, 1:] < inverse(perms)[:, :-1]).sum(-1)
    expected = [
        math.comb(n + labels - r, n) / labels**n if r <= labels else 0
        for r in rising_sequences.tolist()
    ]
    assert probabilities.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["generator", "streams"])
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("name", SHUFFLES)
def test_samples_follow_the_shuffle(name, times, kind):
    size = 60_000
    source = (
        torch.Generator().manual_seed(1)
        if kind == "generator"
        else SampleStreams(1, torch.arange(size)).step(0)
    )
    shuffle = SHUFFLES[name]
    probabilities = SHUFFLES[name].log_prob(all_permutations(4), times).exp()
    assert_samples_follow(shuffle.sample(4, size, times, source), probabilities)
    assert_samples_follow(inverse(shuffle.sample_inverse(4, size, times, source)), probabilities)


@pytest.mark.parametrize("name", SHUFFLES)
def test_samples_from_streams_do_not_depend_on_their_batch(name):
    batch = SHUFFLES[name].sample(9, 40, 3, SampleStreams(5, torch.arange(40)).step(2))
    rows = SHUFFLES[name].sample(9, 3, 3, SampleStreams(5, torch.tensor([7, 30, 2])).step(2))
    assert torch.equal(rows, batch[[7, 30, 2]])


@pytest.mark.parametrize("name", SHUFFLES)
def test_reverse_steps_lead_back_along_the_walk(name):
    process = ForwardProcess(SHUFFLES[name], [0, 2, 3, 7])
    states, reverse_steps = process.sample_walks(8, 5, 6, torch.Generator().manual_seed(0))
    assert states.shape == reverse_steps.shape == (5, 6, 3, 8)
    before = torch.cat([torch.arange(8).expand(5, 6, 1, 8), states[:, :, :-1]], 2)
    assert torch.equal(compose(states, reverse_steps), before)


def test_states_at_scheduled_times_follow_the_walk():
    states, _ = ForwardProcess(Riffle(), [0, 1, 3]).sample_walks(
        4, 60_000, 1, torch.Generator().manual_seed(2)
    )
    states = states[:, 0].unbind(1)
    assert_samples_follow(states[1], Riffle().log_prob(all_permutations(4), 3).exp())
    step = compose(inverse(states[0]), states[1])
    assert_samples_follow(step, Riffle().log_prob(all_permutations(4), 2).exp())


@pytest.mark.parametrize("n", [4, 5, 6])
def test_independent_samples_are_rarely_reachable_by_one_riffle(n):
    """One riffle reaches few of the n! orders.

    The bound is therefore not estimated from independent X_t and X_{t-1}.
    """
    reachable = (Riffle().log_prob(all_permutations(n)) > -torch.inf).double().mean()
    assert 1 - float(reachable) == pytest.approx({4: 0.50, 5: 0.775, 6: 0.919}[n], abs=5e-4)


def test_a_single_card_and_zero_shuffles():
    for shuffle in SHUFFLES.values():
        assert shuffle.sample(1, 3, 4).tolist() == [[0]] * 3
        assert shuffle.sample(5, 2, 0).tolist() == [list(range(5))] * 2
        assert shuffle.sample(5, 0).shape == (0, 5)


@pytest.mark.parametrize(
    ("make_invalid", "message"),
    [
        (lambda: Riffle().sample(4, 2, 41), "0 to 40 at once, not 41"),
        (lambda: Riffle().sample(4, 2, -1), "not -1"),
        (lambda: Riffle().sample(0, 2), "at least one card"),
        (lambda: Riffle().log_prob(torch.arange(4), -1), "at least 0, not -1"),
        (lambda: RandomInsertion().sample(4, 2, -1), "at least 0"),
        (lambda: RandomTransposition().log_prob(torch.arange(31), 2), "1 to 30 cards, not 31"),
        (lambda: ForwardProcess(Riffle(), [1, 2]), "rising from 0"),
        (lambda: ForwardProcess(Riffle(), [0, 2, 2]), "rising from 0"),
        (lambda: ForwardProcess(Riffle(), [0]), "rising from 0"),
    ],
)
def test_invalid_shuffles_are_refused(make_invalid, message):
    with pytest.raises(ValueError, match=message):
        make_invalid()
