"""Shuffle diffusion against enumeration.

What the network may attend to, exact distributions of its chain, beams and losses.
"""

import math

import pytest
import torch
from torch import Size, nn

from benchmarks.permutation_distributions import exact_marginals
from blackout.networks import ItemEncoder, SetTransformer, TokenEncoder
from blackout.permutations import all_permutations, compose, inverse
from blackout.permutations.datasets import one_permutation
from blackout.permutations.forward_process import ForwardProcess, default_schedule
from blackout.permutations.group import identity_like, is_permutation, lexicographic_rank
from blackout.permutations.queries import merge_duplicates, place_probabilities
from blackout.permutations.shuffle import (
    Beam,
    Greedy,
    LabelFreeLoss,
    RandomTimeLoss,
    ReverseGPL,
    ReverseInsertion,
    ReversePL,
    ReversePointer,
    ReverseRiffle,
    ReverseTransposition,
    Sample,
    TrajectoryLoss,
)
from blackout.permutations.shuffle.decoding import Denoiser, is_certified
from blackout.permutations.shuffle.losses import LossInputs, squared_distances
from blackout.permutations.shuffle.model import ShuffleDiffusion
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle
from blackout.random import SampleStreams
from blackout.verification.draws import p_value
from tests.verification.permutation_claims import point

CHAINS = {
    "gpl": (ReverseGPL(), ForwardProcess(Riffle(), [0, 2, 4])),
    "pl": (ReversePL(), ForwardProcess(Riffle(), [0, 2, 4])),
    "riffle": (ReverseRiffle(), ForwardProcess(Riffle(), [0, 1, 2])),
    "transposition": (ReverseTransposition(), ForwardProcess(RandomTransposition(), [0, 1, 2])),
    "insertion": (ReverseInsertion(), ForwardProcess(RandomInsertion(), [0, 1, 2])),
}


def network(n, reverse, seed=0):
    """Return a transformer with random weights for n tokens."""
    torch.manual_seed(seed)
    transformer = SetTransformer(
        TokenEncoder(n, 16), n, reverse.places, reverse.swap, width=16, depth=1, heads=2, scale=1.0
    )
    return transformer.eval().requires_grad_(False)


def denoiser(n, reverse, batch=1, first_fixed=False, seed=0):
    """Return a denoiser of identical lists of n tokens."""
    transformer = network(n, reverse, seed)
    items = torch.arange(n).repeat(batch, 1)
    return Denoiser(transformer, reverse, transformer.encode(items), first_fixed, items)


@pytest.mark.parametrize("name", CHAINS)
def test_samples_of_the_chain_follow_its_exact_distribution(name):
    reverse, process = CHAINS[name]
    n = 4
    # for the list in its original order
    probabilities = exact_marginals(denoiser(n, reverse), process.times, point(n))[-1, 0]
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-6)
    size = 20_000
    orders, log_probs = Sample()(
        denoiser(n, reverse, size), process.times, SampleStreams(1, torch.arange(size))
    )
    counts = torch.bincount(lexicographic_rank(orders[:, 0]), minlength=24)
    assert p_value(counts.double(), probabilities) > 1e-4
    assert log_probs.shape == (size, 1) and (log_probs <= 0).all()


@pytest.mark.parametrize("name", CHAINS)
def test_the_bound_is_above_the_exact_negative_log_likelihood(name):
    """Averaged over forward walks, for the right order."""
    reverse, process = CHAINS[name]
    n = 3
    walks = 4000
    probabilities = exact_marginals(denoiser(n, reverse), process.times)[-1, 0]
    chain = denoiser(n, reverse, walks)
    states, reverse_steps = process.sample_walks(
        n, walks, 1, SampleStreams(0, torch.arange(walks)).step(0)
    )
    log_p = chain(states[:, 0], torch.tensor(process.times)).log_prob(reverse_steps[:, 0]).sum(1)
    bound = math.lgamma(n + 1) + process.log_prob(reverse_steps)[:, 0] - log_p
    assert torch.isfinite(bound).all()
    # the mean of e^-bound is an importance-sampling estimate of p
    weights = (-bound).exp()
    error = float(weights.std() / walks**0.5)
    assert float(weights.mean()) == pytest.approx(float(probabilities[0]), abs=4 * error)
    assert float(bound.mean()) >= -math.log(float(probabilities[0])) - 4 * float(
        bound.std() / walks**0.5
    )


@pytest.mark.parametrize("name", CHAINS)
def test_a_wide_beam_returns_every_order_with_its_probability(name):
    reverse, process = CHAINS[name]
    n = 4
    probabilities = exact_marginals(denoiser(n, reverse), process.times, point(n))[-1, 0]
    orders, log_probs = Beam(width=24, inner=24)(
        denoiser(n, reverse), process.times, SampleStreams(0, torch.arange(1))
    )
    possible = log_probs[0] > -torch.inf
    possible_orders = orders[0][possible]
    rank = lexicographic_rank(possible_orders)
    assert is_permutation(possible_orders).all()
    assert len(rank.unique()) == len(possible_orders) == int((probabilities > 1e-12).sum())
    torch.testing.assert_close(
        log_probs[0][possible].exp().double(), probabilities[rank], atol=1e-6, rtol=1e-4
    )
    assert (log_probs[0][:-1] >= log_probs[0][1:]).all()
    narrow_orders, narrow_log_probs = Beam(width=1, inner=24)(
        denoiser(n, reverse), process.times, SampleStreams(0, torch.arange(1))
    )
    assert narrow_orders.shape == (1, 1, n) and torch.isfinite(narrow_log_probs).all()


def test_duplicate_lists_are_merged():
    states = torch.tensor([[[0, 1, 2], [1, 0, 2], [0, 1, 2], [2, 1, 0]]])
    log_probs = torch.tensor([[0.2, 0.3, 0.1, 0.0]]).log()
    merged, merged_log_probs = merge_duplicates(states, log_probs)
    sums = {
        tuple(state): float(p.exp())
        for state, p in zip(merged[0].tolist(), merged_log_probs[0], strict=True)
        if p > -9
    }
    assert sums == {(0, 1, 2): pytest.approx(0.3), (1, 0, 2): pytest.approx(0.3)}


def test_items_do_not_attend_to_places_and_places_only_to_earlier_ones():
    n = 5
    net = network(n, ReverseGPL())
    features = net.encode(torch.arange(n)[None]).requires_grad_()
    scores = net.scores(features, torch.tensor([2.0]))
    assert scores.shape == (1, n, n)
    mask = net.attention_mask
    assert mask[:n, :n].all() and not mask[:n, n:].any() and mask[n:, :n].all()
    assert torch.equal(mask[n:, n:], torch.ones(n, n, dtype=torch.bool).tril(-1))
    # changing a place token changes neither the items' rows of a layer nor earlier places
    x = torch.randn(1, 2 * n, 16)
    y = x.clone()
    y[:, n + 3] = torch.randn(16)
    before = net.layers[0](x, mask)
    after = net.layers[0](y, mask)
    unchanged = torch.isclose(before, after).all(-1)[0]
    assert unchanged[: n + 3].all() and not unchanged[n + 3 :].any()


def test_a_fixed_first_item_is_not_sampled():
    n = 5
    for reverse, schedule in ((ReverseGPL(), [0, 2, 4]), (ReversePL(), [0, 2, 4])):
        chain = denoiser(n, reverse, 3, first_fixed=True)
        assert chain.num_free == n - 1
        orders, _ = Greedy()(chain, schedule[1:], SampleStreams(0, torch.arange(3)))
        assert orders.shape == (3, 1, n - 1) and is_permutation(orders).all()


def test_default_schedules_are_the_published_ones():
    for n, schedule in (
        (9, [0, 3, 5, 9]),
        (25, [0, 5, 7, 11]),
        (36, [0, 6, 8, 12]),
        (100, [0, 8, 10, 15]),
    ):
        assert default_schedule(Riffle(), n, every_step=False) == schedule
    assert default_schedule(Riffle(), 9, every_step=True) == list(range(10))
    for shuffle in (RandomTransposition(), RandomInsertion()):
        schedule_of_three = default_schedule(shuffle, 6, every_step=False)
        assert (
            schedule_of_three[0] == 0
            and schedule_of_three == sorted(set(schedule_of_three))
            and len(schedule_of_three) == 3
        )
    for times in ([0], [1, 2], [0, 2, 2], [0, 1.5], [0, 41], [0, True], [0, "a"]):
        with pytest.raises(ValueError):
            ForwardProcess(Riffle(), times)


def make_loss_inputs(loss_network, n, batch, seed=0):
    """Return inputs of a loss for random items."""
    torch.manual_seed(seed)
    items = torch.randn(batch, n, 3)
    features = loss_network.encode(items)
    denoiser = Denoiser(loss_network, ReverseGPL(), features, False, items)
    return LossInputs(
        denoiser,
        ForwardProcess(Riffle(), [0, 2, 7]),
        items,
        SampleStreams(3, torch.arange(batch)).step(0),
    )


def small_network(n):
    """Return a small transformer of items with three numbers."""
    torch.manual_seed(1)
    return SetTransformer(ItemEncoder([3], 16), n, width=16, depth=1, heads=2)


def test_the_loss_of_a_random_step_is_that_of_the_trajectory_on_average():
    net = small_network(4)
    batch = 3000
    trajectory_loss, _ = TrajectoryLoss()(make_loss_inputs(net, 4, batch))
    random_time_loss, _ = RandomTimeLoss()(make_loss_inputs(net, 4, batch))
    assert random_time_loss.item() == pytest.approx(trajectory_loss.item(), abs=0.15)
    losses = [RandomTimeLoss()(make_loss_inputs(net, 4, 64))[0] for _ in range(2)]
    assert torch.equal(*losses)


def test_squared_distances_match_a_direct_computation():
    items = torch.randn(2, 4, 3)
    before = torch.rand(2, 5, 4).argsort(-1)
    after = torch.rand(2, 5, 4).argsort(-1)
    between = squared_distances(items, before).gather(-1, after.unsqueeze(-1)).squeeze(-1).sum(-1)
    rows = torch.arange(2).view(2, 1, 1)
    direct = (items[rows, before] - items[rows, after]).square().flatten(2).sum(-1)
    torch.testing.assert_close(between, direct)


class FixedScores(nn.Module):
    """A network of free scores, for lists of three."""

    def __init__(self, scores):
        super().__init__()
        self.matrix = nn.Parameter(scores)

    def encode(self, items):
        return items

    def scores(self, features, t):
        return self.matrix.expand(len(features), -1, -1)


@pytest.mark.parametrize("entropy", [0.0, 0.5])
def test_the_label_free_gradient_is_that_of_the_likelihood(entropy):
    """The mean of the weighted gradients is the gradient of log sum p(x | sigma) p(sigma).

    All of S_3 is sampled many times.
    """
    torch.manual_seed(0)
    scores = torch.randn(3, 3)
    items = 0.7 * torch.randn(1, 3, 2)
    permutations = all_permutations(3)
    n = 3
    batch = 4000
    states = torch.tensor([[1, 2, 0]])

    net = FixedScores(scores.clone())
    distribution = ReverseGPL()(net.matrix)
    log_p = distribution.log_prob(permutations)
    square = squared_distances(items, compose(states, inverse(states)).unsqueeze(1))[0, 0]
    log_likelihood = -square.gather(1, compose(states.expand(6, n), permutations).T).sum(0) / 2
    objective = torch.logsumexp(log_likelihood + log_p, 0) - entropy * (log_p.exp() * log_p).sum()
    exact = torch.autograd.grad(objective, net.matrix)[0]

    net = FixedScores(scores.clone())
    streams = SampleStreams(0, torch.arange(batch)).step(0)
    copies = Denoiser(
        net, ReverseGPL(), items.expand(batch, 3, 2), False, items.expand(batch, 3, 2)
    )
    # the same shuffle for every copy: a walk to a fixed state
    inputs = LossInputs(
        copies, ForwardProcess(Riffle(), [0, 5]), items.expand(batch, 3, 2), streams
    )
    walk = states.expand(batch, 1, 1, 3).contiguous()
    object.__setattr__(
        inputs, "sample_walks", lambda number, s=walk: (s, inverse(s), torch.tensor([[5]]))
    )
    loss = LabelFreeLoss(draws=64, decay=0.9, entropy=entropy)
    loss.baseline.fill_(1 / 64)
    gradient = -torch.autograd.grad(loss(inputs)[0], net.matrix)[0]
    torch.testing.assert_close(gradient[:2], exact[:2], atol=0.03, rtol=0.1)


def test_the_baseline_is_a_buffer_that_is_updated():
    net = small_network(4)
    loss = LabelFreeLoss(draws=4)
    assert dict(loss.named_buffers())["baseline"] == 0
    value, metrics = loss(make_loss_inputs(net, 4, 8))
    assert 0 < float(loss.baseline) < 0.01 and set(metrics) == {"train/match"}
    value.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    for options in (
        {"draws": 1},
        {"entropy": -1.0},
        {"deviation": 0.0},
        {"decay": 1.0},
        {"walks": 0},
    ):
        with pytest.raises(ValueError):
            LabelFreeLoss(**options)


def test_callbacks_receive_the_start_and_every_step():
    calls = []
    chain = denoiser(4, ReverseGPL(), 2)
    Greedy()(
        chain,
        [2, 5, 9],
        SampleStreams(0, torch.arange(2)),
        lambda step, orders: calls.append((step, orders)),
    )
    assert [step for step, _ in calls] == [0, 1, 2, 3]
    assert torch.equal(calls[0][1], identity_like(calls[0][1]))


@pytest.mark.deep
@pytest.mark.parametrize("reverse", [ReverseGPL(), ReversePL()])
def test_beams_find_the_most_probable_order_of_five_items(reverse):
    """Random chains of four steps, against all paths together.

    A narrow beam is certified only where it is right.
    """
    torch.manual_seed(0)
    network = SetTransformer(
        TokenEncoder(5, 8), 5, places=reverse.places, width=8, depth=1, heads=2
    ).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    with torch.no_grad():
        items = torch.rand(18, 5).argsort(1)
        denoiser = Denoiser(network, reverse, network.encode(items), False, items)
        exact = exact_marginals(denoiser, [1, 2, 3, 4], point(5))[-1]
        streams = SampleStreams(0, torch.arange(18))
        orders, log_probs = Beam()(denoiser, [1, 2, 3, 4], streams)
        narrow_orders, narrow_log_probs = Beam(width=30)(denoiser, [1, 2, 3, 4], streams)
    assert torch.allclose(log_probs[:, 0].exp().double(), exact.amax(1), atol=1e-5)
    # Orders are compared by their probabilities: rounding may swap two orders of nearly equal ones.
    highest = exact.amax(1, keepdim=True)
    assert torch.allclose(exact.gather(1, lexicographic_rank(orders[:, :1])), highest, atol=1e-6)
    places = place_probabilities(orders, log_probs)
    permutations = all_permutations(5)
    expected = torch.stack(
        [(exact[:, :, None] * (permutations == item)).sum(1) for item in range(5)], -1
    )
    assert torch.allclose(places, expected, atol=1e-6)
    assert bool(is_certified(log_probs).all())
    is_optimal = torch.isclose(
        exact.gather(1, lexicographic_rank(narrow_orders[:, :1])), highest, atol=1e-6
    ).squeeze(1)
    assert bool((is_optimal | ~is_certified(narrow_log_probs)).all()) and not bool(
        is_certified(narrow_log_probs[:, :1] - 5).any()
    )


@pytest.mark.parametrize("n", [4, 5])
def test_pointer_distributions_are_normalised_and_sampled_exactly(n):
    """By enumeration: probabilities sum to 1, samples follow them, and the beam finds the best.

    Later rows depend on earlier choices, unlike those of a generalised Plackett-Luce distribution,
    and the gradient flows through the choices.
    """
    torch.manual_seed(0)
    net = SetTransformer(
        TokenEncoder(n, 16), n, prefix=True, width=16, depth=2, heads=2, scale=1.0
    ).eval()
    items = torch.arange(n).repeat(2, 1)
    denoiser_of_two = Denoiser(net, ReversePointer(), net.encode(items), False, items)
    permutations = all_permutations(n)
    # [2 lists, 2 states]
    distribution = denoiser_of_two(
        torch.stack([permutations[:2], permutations[2:4]]), torch.tensor([2, 5])
    )
    log_p = distribution.log_prob(permutations[:, None, None])
    assert torch.allclose(log_p.exp().sum(0), torch.ones(2, 2), atol=1e-5)
    with torch.no_grad():
        best, best_log_probs = distribution.top(len(permutations))
        # all orders in falling probability; rounding may swap two of nearly equal ones
        assert torch.equal(
            lexicographic_rank(best).sort(-1).values,
            torch.arange(len(permutations)).expand(2, 2, -1),
        )
        assert torch.allclose(
            best_log_probs, log_p.movedim(0, -1).gather(-1, lexicographic_rank(best)), atol=1e-5
        )
        assert torch.allclose(
            best_log_probs, log_p.sort(0, descending=True).values.movedim(0, -1), atol=1e-5
        )
        ranks = lexicographic_rank(
            distribution.sample(Size([4000]), torch.Generator().manual_seed(0))
        )[:, 1, 0]
    assert (
        p_value(
            torch.bincount(ranks, minlength=len(permutations)).double(),
            log_p[:, 1, 0].detach().double().exp(),
        )
        > 1e-4
    )
    later_row = distribution.pointers.score_orders(permutations.unsqueeze(1).expand(-1, 4, -1))[
        :, 0, -2
    ].log_softmax(-1)
    # the row before the last depends on earlier choices
    assert float(later_row.detach().std(0).max()) > 1e-3
    (gradient,) = torch.autograd.grad(log_p[5, 0, 0], net.prefix_projection.weight)
    assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize("reverse", [ReverseGPL(), ReversePL()])
def test_calibration_makes_an_overconfident_network_uniform(reverse):
    """Scores shrink, to zero if nothing can be predicted."""
    source = one_permutation(3, num_test=40)
    source._lists["test"] = torch.rand(40, 3).argsort(1)  # random orders, which cannot be predicted
    model = ShuffleDiffusion(
        network(3, reverse),
        ForwardProcess(Riffle(), [0, 40]),
        reverse,
        TrajectoryLoss(),
        Greedy(),
        source.facts,
    )
    model.network.scale = 1e3
    model.source = lambda: source
    if model.network.head is not None:
        model.network.head[-1].weight.mul_(1e3)
    batch = source.batch("test", torch.arange(40))
    streams = SampleStreams(0, torch.arange(40))
    before = float(model.nll_bits(batch["items"], streams.step(0)).mean())
    model.calibrate(10**6)
    after = float(model.nll_bits(batch["items"], streams.step(0)).mean())
    assert model.sharpness < 0.1 and after < math.log2(6) + 0.1 < 4 < before
