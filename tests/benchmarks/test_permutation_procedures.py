"""The procedures that permutations are compared with give the same results."""

import torch

from benchmarks import permutation_procedures as direct
from blackout.permutations import all_permutations, compose
from blackout.permutations.codes import FisherYates, Insertion, Lehmer
from blackout.permutations.distributions import GeneralizedPlackettLuce, InverseRiffle, PlackettLuce
from blackout.permutations.shuffles import Riffle
from tests.permutations.sampling_checks import assert_samples_follow


def test_codes_are_equal():
    perms = all_permutations(5)
    for name, code in (("lehmer", Lehmer), ("fisher_yates", FisherYates), ("insertion", Insertion)):
        digits = getattr(direct, f"{name}_encode")(perms)
        assert torch.equal(digits, code.encode(perms))
        assert torch.equal(getattr(direct, f"{name}_decode")(digits), perms)


def test_log_probabilities_and_beams_are_equal():
    torch.manual_seed(0)
    scores = torch.randn(6, 7, 7)
    order = torch.rand(6, 7).argsort()
    general = GeneralizedPlackettLuce(scores).log_prob(order)
    assert torch.allclose(direct.generalized_log_prob(scores, order), general, atol=1e-5)
    plain = PlackettLuce(scores[:, 0]).log_prob(order)
    assert torch.allclose(direct.plackett_luce_log_prob(scores[:, 0], order), plain, atol=1e-5)
    orders, totals = GeneralizedPlackettLuce(scores, 30).top(30)
    beams, sums = direct.copying_beam(scores, 30)
    assert torch.equal(orders, beams) and torch.allclose(totals, sums, atol=1e-5)


def test_walks_have_the_right_distribution():
    torch.manual_seed(0)
    states, targets = direct.walk_with_targets(4, 30_000, [0, 1, 3])
    assert torch.equal(compose(states[1], targets[1]), states[0])
    assert_samples_follow(states[1], Riffle().log_prob(all_permutations(4), 3).exp())
    states, back = direct.plain_walk(4, 30_000, [0, 1, 3])
    assert torch.equal(compose(states[1], back[1]), states[0])
    assert_samples_follow(states[1], Riffle().log_prob(all_permutations(4), 3).exp())


def test_plain_layers_are_equal():
    torch.manual_seed(0)
    scores = torch.randn(5, 30, 30)
    vector = torch.randn(5, 30, dtype=torch.float64)
    assert torch.equal(direct.plain_greedy(scores), GeneralizedPlackettLuce(scores, width=1).mode)
    assert torch.equal(direct.plain_fisher_yates(FisherYates.encode(x := scores[0].argsort())), x)
    orders, log_probs = InverseRiffle(vector).top(16)
    assert not (orders == torch.arange(30)).all(-1).any()  # each order has one choice of packets
    plain_orders, plain_log_probs = direct.plain_riffle_top(vector, 16)
    assert torch.equal(orders, plain_orders) and torch.allclose(log_probs, plain_log_probs)
