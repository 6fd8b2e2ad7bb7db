"""Every reverse distribution by enumeration: normalisation, modes, beams, samples."""

import math

import pytest
import torch
from torch import Size

from blackout.permutations import all_permutations, inverse
from blackout.permutations.distributions import (
    GeneralizedPlackettLuce,
    InverseInsertion,
    InverseRiffle,
    InverseTransposition,
    PlackettLuce,
    PointerDistribution,
)
from blackout.permutations.group import is_permutation
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle
from blackout.random import SampleStreams
from tests.permutations.sampling_checks import assert_samples_follow


def make_distribution(kind, n, batch=(), seed=0, scale=1.5, dtype=torch.float64):
    """Return a distribution with random scores."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return scale * torch.randn((*batch, *shape), generator=generator, dtype=dtype)

    if kind is GeneralizedPlackettLuce:
        return kind(normal(n, n))
    if kind is InverseTransposition:
        return kind(normal(n), normal())
    return kind(normal(n))


DISTRIBUTIONS = [
    PlackettLuce,
    GeneralizedPlackettLuce,
    InverseRiffle,
    InverseTransposition,
    InverseInsertion,
]
SUPPORT_SIZES = {
    PlackettLuce: math.factorial,
    GeneralizedPlackettLuce: math.factorial,
    InverseRiffle: lambda n: 2**n - n,
    InverseTransposition: lambda n: 1 + n * (n - 1) // 2,
    InverseInsertion: lambda n: n,
}


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_probabilities_sum_to_one_over_the_support(kind, n):
    if n < 2 and kind is InverseTransposition:
        return
    probabilities = make_distribution(kind, n, (3,)).log_prob(all_permutations(n)[:, None]).exp()
    assert probabilities.shape == (math.factorial(n), 3)
    assert torch.allclose(
        probabilities.sum(0), torch.ones(3, dtype=torch.float64), atol=1e-10, rtol=0
    )
    assert ((probabilities > 0).sum(0) == SUPPORT_SIZES[kind](n)).all()


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_probabilities_of_extreme_scores_sum_to_one(kind):
    log_probs = make_distribution(kind, 4, (20,), scale=60.0).log_prob(all_permutations(4)[:, None])
    assert not log_probs.isnan().any()
    assert torch.allclose(
        log_probs.exp().sum(0), torch.ones(20, dtype=torch.float64), atol=1e-10, rtol=0
    )


def test_plackett_luce_matches_its_definition():
    scores = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    w = scores.exp()
    for order in all_permutations(3):
        a, b, _ = order
        expected = w[a] / w.sum() * w[b] / (w.sum() - w[a])
        assert float(PlackettLuce(scores).log_prob(order).exp()) == pytest.approx(float(expected))


@pytest.mark.parametrize("n", range(1, 6))
def test_equal_rows_are_plackett_luce_and_scores_are_invariant_to_shifts(n):
    perms = all_permutations(n)
    plackett_luce = make_distribution(PlackettLuce, n)
    rows = plackett_luce.scores.expand(n, n)
    assert torch.allclose(
        GeneralizedPlackettLuce(rows).log_prob(perms), plackett_luce.log_prob(perms), atol=1e-12
    )
    generalized = make_distribution(GeneralizedPlackettLuce, n)
    shifted = generalized.scores + torch.randn(n, 1, dtype=torch.float64)
    shifted[-1] = torch.randn(n, dtype=torch.float64)
    assert torch.allclose(
        GeneralizedPlackettLuce(shifted).log_prob(perms), generalized.log_prob(perms), atol=1e-12
    )


@pytest.mark.parametrize("n", range(1, 7))
def test_zero_scores_invert_the_shuffles(n):
    perms = all_permutations(n)
    zeros = torch.zeros(n, dtype=torch.float64)
    riffle = InverseRiffle(zeros).log_prob(perms).exp()
    assert torch.allclose(riffle, Riffle().log_prob(inverse(perms)).exp(), atol=1e-12)
    insertion = InverseInsertion(zeros).log_prob(perms).exp()
    assert torch.allclose(insertion, RandomInsertion().log_prob(inverse(perms)).exp(), atol=1e-12)
    if n > 1:
        swap = torch.tensor(math.log(n - 1), dtype=torch.float64)
        transposition = InverseTransposition(zeros, swap).log_prob(perms).exp()
        assert torch.allclose(
            transposition, RandomTransposition().log_prob(perms).exp(), atol=1e-12
        )


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_inverse_riffle_is_the_sum_over_choices_of_packets(n):
    riffle = make_distribution(InverseRiffle, n)
    is_left = torch.cartesian_prod(*[torch.tensor([False, True])] * n).view(-1, n)
    p = torch.where(is_left, riffle.scores.sigmoid(), (-riffle.scores).sigmoid()).prod(-1)
    orders = (~is_left).to(torch.uint8).argsort(dim=-1, stable=True)
    for order in all_permutations(n):
        expected = float(p[(orders == order).all(-1)].sum())
        assert float(riffle.log_prob(order).exp()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_the_top_orders_are_the_sorted_enumeration(kind, n):
    for seed in range(5):
        distribution = make_distribution(kind, n, (4,), seed)
        perms = all_permutations(n)
        log_probs_sorted = distribution.log_prob(perms[:, None]).T.sort(-1, descending=True)
        for k in (1, 3, 200):
            orders, log_probs = distribution.top(k)
            num_orders = min(k, SUPPORT_SIZES[kind](n))
            # a beam of 64 is exact up to n = 4; beyond, only the mode of Plackett-Luce is exact
            assert orders.shape == (4, num_orders, n) and bool(is_permutation(orders).all())
            assert torch.allclose(
                distribution.log_prob(orders.movedim(1, 0)).T, log_probs, atol=1e-12
            )
            if k == 200 or n < 5 or kind not in (PlackettLuce, GeneralizedPlackettLuce):
                assert torch.allclose(
                    log_probs, log_probs_sorted.values[:, :num_orders], atol=1e-12
                )
            for row in orders.tolist():
                assert len(set(map(tuple, row))) == num_orders


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_mode_is_the_most_probable_order(kind):
    perms = all_permutations(4)
    num_worse = 0
    for seed in range(40):
        distribution = make_distribution(
            kind, 4, (10,), seed, scale=2.0 if kind is GeneralizedPlackettLuce else 0.5
        )
        mode = distribution.mode
        best = distribution.log_prob(perms[:, None]).max(0).values
        assert mode.shape == (10, 4)
        assert torch.allclose(distribution.log_prob(mode), best, atol=1e-12)
        if kind is InverseRiffle:  # rounding every packet does not give the most probable order
            rounded = (distribution.scores <= 0).to(torch.uint8).argsort(dim=-1, stable=True)
            num_worse += int((distribution.log_prob(rounded) < best - 1e-9).sum())
    assert kind is not InverseRiffle or 0.6 < num_worse / 400 < 0.74


def test_greedy_rows_are_not_the_mode_of_generalised_plackett_luce():
    distribution = GeneralizedPlackettLuce(
        2 * torch.randn(4000, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    )
    greedy = GeneralizedPlackettLuce(distribution.scores, width=1).mode
    worse = distribution.log_prob(greedy) < distribution.log_prob(distribution.mode) - 1e-9
    assert 0.09 < float(worse.double().mean()) < 0.13


def test_a_narrow_beam_of_plackett_luce_starts_with_the_mode():
    distribution = PlackettLuce(
        torch.randn(10, 30, generator=torch.Generator().manual_seed(0)), width=2
    )
    orders, log_probs = distribution.top(2)
    assert torch.equal(orders[:, 0], distribution.mode) and bool(
        (log_probs[:, 0] >= log_probs[:, 1]).all()
    )


def test_forbidden_items_never_appear():
    """Tours start at the first city: of 200 requested orders only 3! exist."""
    scores = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[:, 0, 1:] = scores[:, 1:, 0] = -torch.inf
    distribution = GeneralizedPlackettLuce(scores)
    orders, log_probs = distribution.top(200)
    assert (
        orders.shape == (2, 6, 4)
        and bool((orders[..., 0] == 0).all())
        and bool(log_probs.isfinite().all())
    )
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(2, dtype=torch.float64))
    probabilities = distribution.log_prob(all_permutations(4)[:, None]).exp()
    assert (
        torch.allclose(probabilities.sum(0), torch.ones(2, dtype=torch.float64))
        and not probabilities[6:].any()
    )
    assert bool((distribution.sample(Size([50]))[..., 0] == 0).all())


def test_rows_without_a_free_item_lose_their_mass():
    """Row 1 allows only what row 0 may have taken.

    Half of the mass is lost, and no invalid order is produced from it.
    """
    scores = torch.tensor([[0.0, 0.0], [0.0, -torch.inf]], dtype=torch.float64)
    distribution = GeneralizedPlackettLuce(scores)
    assert distribution.log_prob(all_permutations(2)).exp().tolist() == [0.0, 0.5]
    assert distribution.top(5)[0].tolist() == [[1, 0]]
    with pytest.raises(ValueError, match="leave no item"):
        distribution.sample(Size([64]), torch.Generator().manual_seed(0))
    # no item may come first
    first = torch.tensor([[-torch.inf, -torch.inf], [0.0, 0.0]], requires_grad=True)
    log_prob = GeneralizedPlackettLuce(first).log_prob(torch.tensor([1, 0]))
    assert log_prob == -torch.inf and bool(torch.autograd.grad(log_prob, first)[0].isfinite().all())


@pytest.mark.parametrize("source", ["generator", "streams"])
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_samples_follow_the_distribution(kind, source):
    size = 100_000
    streams = SampleStreams(3, torch.arange(size)).step(1)
    generator = torch.Generator().manual_seed(3) if source == "generator" else streams
    distribution = make_distribution(kind, 4, seed=7)
    assert_samples_follow(
        distribution.sample(Size([size]), generator),
        distribution.log_prob(all_permutations(4)).exp(),
    )


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_batch_shapes_and_streams(kind):
    distribution = make_distribution(kind, 5, (6, 2))
    assert distribution.batch_shape == (6, 2) and distribution.event_shape == (5,)
    batch = distribution.sample(Size([3]), SampleStreams(0, torch.arange(6)).step(0))
    assert batch.shape == (3, 6, 2, 5) and bool(is_permutation(batch).all())
    assert distribution.log_prob(batch).shape == (3, 6, 2) and bool(
        (distribution.log_prob(batch) > -torch.inf).all()
    )
    parameters = [distribution.scores[[4]]] + (
        [distribution.swap_logit[[4]]] if kind is InverseTransposition else []
    )
    same_samples = kind(*parameters).sample(Size([3]), SampleStreams(0, torch.tensor([4])).step(0))
    assert torch.equal(same_samples[:, 0], batch[:, 4])
    assert make_distribution(kind, 5).sample(
        generator=SampleStreams(0, torch.arange(1)).step(0)
    ).shape == (5,)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_gradients_match_finite_differences(kind):
    perms = all_permutations(3)
    generator = torch.Generator().manual_seed(0)
    shape = (3, 3) if kind is GeneralizedPlackettLuce else (3,)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    extra = (
        [torch.tensor(0.3, dtype=torch.float64, requires_grad=True)]
        if kind is InverseTransposition
        else []
    )

    def log_probs(*parameters):
        values = kind(*parameters).log_prob(perms)
        return values[values > -torch.inf]

    assert torch.autograd.gradcheck(log_probs, [scores, *extra])
    gradient = torch.autograd.grad(log_probs(scores, *extra).sum(), scores)[0]
    assert bool(gradient.isfinite().all())


def test_the_posterior_weighted_score_is_the_gradient_of_the_marginal_likelihood():
    """All of S_3 is enumerated, for log sum_s p(x | s) p(s)."""
    scores = torch.randn(
        3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )
    likelihood = torch.rand(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_prob = GeneralizedPlackettLuce(scores).log_prob(all_permutations(3))
    marginal = (likelihood * log_prob.exp()).sum()
    weighted = ((likelihood * log_prob.exp() / marginal).detach() * log_prob).sum()
    first, second = (
        torch.autograd.grad(x, scores, retain_graph=True)[0] for x in (marginal.log(), weighted)
    )
    assert torch.allclose(first, second, atol=1e-12)


@pytest.mark.parametrize(
    ("make_invalid", "message"),
    [
        (lambda: PlackettLuce(torch.zeros(0)), "n at least 1"),
        (lambda: GeneralizedPlackettLuce(torch.zeros(2, 3)), r"\[..., n, n\]"),
        (lambda: InverseTransposition(torch.zeros(1), torch.tensor(0.0)), "at least 2"),
        (
            lambda: InverseTransposition(torch.zeros(2, 3), torch.zeros(3)),
            r"the shape \[2\] of the batch",
        ),
        (lambda: PlackettLuce(torch.zeros(3)).top(0), "k must be at least 1"),
    ],
)
def test_invalid_distributions_are_refused(make_invalid, message):
    with pytest.raises(ValueError, match=message):
        make_invalid()


class TabulatedPointers:
    """Scores of every place given the places before it, of a random distribution on orders."""

    def __init__(self, n: int) -> None:
        self.orders = all_permutations(n)
        generator = torch.Generator().manual_seed(5)
        weights = torch.rand(len(self.orders), generator=generator, dtype=torch.float64) ** 4
        self.probabilities = weights / weights.sum()

    def score_orders(self, orders):
        n = orders.shape[-1]
        scores = torch.full((*orders.shape, n), -math.inf, dtype=torch.float64)
        for row in range(len(orders)):
            for place in range(n):
                prefix = orders[row, 0, :place]
                starts_so = (self.orders[:, :place] == prefix).all(1)
                for item in range(n):
                    follows = starts_so & (self.orders[:, place] == item)
                    if bool(follows.any()):
                        scores[row, 0, place, item] = self.probabilities[follows].sum().log()
        return scores


@pytest.mark.parametrize("n", [3, 4])
def test_pointers_can_represent_a_random_distribution_on_orders(n):
    """A generalised Plackett-Luce distribution has no such scores, as its rows ignore prefixes."""
    pointers = TabulatedPointers(n)
    distribution = PointerDistribution(pointers, torch.zeros(1, n, dtype=torch.float64))
    log_probs = distribution.log_prob(pointers.orders.unsqueeze(1)).squeeze(1)
    assert torch.allclose(log_probs.exp(), pointers.probabilities)
