"""Shuffle diffusion against enumeration: what the network may see, exact laws of its chain, beams, losses."""

import math

import pytest
import torch
from torch import Size, nn

from benchmarks.permutation_laws import laws
from blackout.networks import ItemEncoder, SetTransformer, TokenEncoder
from blackout.permutations import all_permutations, compose, inverse
from blackout.permutations.datasets import one_permutation
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
from blackout.permutations.shuffles import (
    ForwardProcess,
    RandomInsertion,
    RandomTransposition,
    Riffle,
    default_schedule,
)
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
    torch.manual_seed(seed)
    made = SetTransformer(TokenEncoder(n, 16), n, reverse.places, reverse.swap, width=16, depth=1, heads=2, scale=1.0)
    return made.eval().requires_grad_(False)


def denoiser(n, reverse, batch=1, first_fixed=False, seed=0):
    made = network(n, reverse, seed)
    items = torch.arange(n).repeat(batch, 1)
    return Denoiser(made, reverse, made.encode(items), first_fixed, items)


@pytest.mark.parametrize("name", CHAINS)
def test_the_chain_is_a_distribution_and_draws_follow_it(name):
    reverse, process = CHAINS[name]
    n = 4
    law = laws(denoiser(n, reverse), process.times, point(n))[-1, 0]  # of the list as it is given
    assert float(law.sum()) == pytest.approx(1, abs=1e-6)
    size = 20_000
    orders, log_probs = Sample()(denoiser(n, reverse, size), process.times, SampleStreams(1, torch.arange(size)))
    counts = torch.bincount(lexicographic_rank(orders[:, 0]), minlength=24)
    assert p_value(counts.double(), law) > 1e-4
    assert log_probs.shape == (size, 1) and (log_probs <= 0).all()


@pytest.mark.parametrize("name", CHAINS)
def test_the_bound_is_one(name):
    """Averaged over the forward walks, it is at least the exact -log p of the right order."""
    reverse, process = CHAINS[name]
    n, walks = 3, 4000
    law = laws(denoiser(n, reverse), process.times)[-1, 0]
    law_of = denoiser(n, reverse, walks)
    states, back = process.sample_walks(n, walks, 1, SampleStreams(0, torch.arange(walks)).step(0))
    log_p = law_of(states[:, 0], torch.tensor(process.times)).log_prob(back[:, 0]).sum(1)
    bound = math.lgamma(n + 1) + process.log_prob(back)[:, 0] - log_p
    assert torch.isfinite(bound).all()
    # weighting by e^-bound is importance sampling of p itself
    weights = (-bound).exp()
    error = float(weights.std() / walks**0.5)
    assert float(weights.mean()) == pytest.approx(float(law[0]), abs=4 * error)
    assert float(bound.mean()) >= -math.log(float(law[0])) - 4 * float(bound.std() / walks**0.5)


@pytest.mark.parametrize("name", CHAINS)
def test_a_wide_beam_finds_every_order_with_its_probability(name):
    reverse, process = CHAINS[name]
    n = 4
    law = laws(denoiser(n, reverse), process.times, point(n))[-1, 0]
    orders, log_probs = Beam(width=24, inner=24)(denoiser(n, reverse), process.times, SampleStreams(0, torch.arange(1)))
    possible = log_probs[0] > -torch.inf
    found = orders[0][possible]
    rank = lexicographic_rank(found)
    assert is_permutation(found).all()
    assert len(rank.unique()) == len(found) == int((law > 1e-12).sum())
    torch.testing.assert_close(log_probs[0][possible].exp().double(), law[rank], atol=1e-6, rtol=1e-4)
    assert (log_probs[0][:-1] >= log_probs[0][1:]).all()
    narrow, best = Beam(width=1, inner=24)(denoiser(n, reverse), process.times, SampleStreams(0, torch.arange(1)))
    assert narrow.shape == (1, 1, n) and torch.isfinite(best).all()


def test_equal_lists_are_put_together():
    states = torch.tensor([[[0, 1, 2], [1, 0, 2], [0, 1, 2], [2, 1, 0]]])
    log_probs = torch.tensor([[0.2, 0.3, 0.1, 0.0]]).log()
    found, total = merge_duplicates(states, log_probs)
    sums = {tuple(state): float(p.exp()) for state, p in zip(found[0].tolist(), total[0], strict=True) if p > -9}
    assert sums == {(0, 1, 2): pytest.approx(0.3), (1, 0, 2): pytest.approx(0.3)}


def test_items_do_not_see_places_and_places_only_earlier_ones():
    n = 5
    net = network(n, ReverseGPL())
    features = net.encode(torch.arange(n)[None]).requires_grad_()
    scores = net.scores(features, torch.tensor([2.0]))
    assert scores.shape == (1, n, n)
    seen = net.attention_mask
    assert seen[:n, :n].all() and not seen[:n, n:].any() and seen[n:, :n].all()
    assert torch.equal(seen[n:, n:], torch.ones(n, n, dtype=torch.bool).tril(-1))
    # and attention obeys: changing place tokens' positions leaves the items' rows of a layer alone
    x = torch.randn(1, 2 * n, 16)
    y = x.clone()
    y[:, n + 3] = torch.randn(16)
    before, after = net.layers[0](x, seen), net.layers[0](y, seen)
    same = torch.isclose(before, after).all(-1)[0]
    assert same[: n + 3].all() and not same[n + 3 :].any()


def test_a_fixed_first_item_stays():
    n = 5
    for reverse, schedule in ((ReverseGPL(), [0, 2, 4]), (ReversePL(), [0, 2, 4])):
        law_of = denoiser(n, reverse, 3, first_fixed=True)
        assert law_of.num_free == n - 1
        orders, _ = Greedy()(law_of, schedule[1:], SampleStreams(0, torch.arange(3)))
        assert orders.shape == (3, 1, n - 1) and is_permutation(orders).all()


def test_the_times_are_the_published_ones():
    for n, schedule in ((9, [0, 3, 5, 9]), (25, [0, 5, 7, 11]), (36, [0, 6, 8, 12]), (100, [0, 8, 10, 15])):
        assert default_schedule(Riffle(), n, False) == schedule
    assert default_schedule(Riffle(), 9, True) == list(range(10))
    for law in (RandomTransposition(), RandomInsertion()):
        looks = default_schedule(law, 6, False)
        assert looks[0] == 0 and looks == sorted(set(looks)) and len(looks) == 3
    for bad in ([0], [1, 2], [0, 2, 2], [0, 1.5], [0, 41], [0, True], [0, "a"]):
        with pytest.raises(ValueError):
            ForwardProcess(Riffle(), bad)


def lesson(loss_network, n, batch, seed=0):
    torch.manual_seed(seed)
    items = torch.randn(batch, n, 3)
    features = loss_network.encode(items)
    walks = Denoiser(loss_network, ReverseGPL(), features, False, items)
    return LossInputs(walks, ForwardProcess(Riffle(), [0, 2, 7]), items, SampleStreams(3, torch.arange(batch)).step(0))


def small(n):
    torch.manual_seed(1)
    return SetTransformer(ItemEncoder([3], 16), n, width=16, depth=1, heads=2)


def test_a_random_step_is_the_trajectory_on_average():
    net, batch = small(4), 3000
    whole, _ = TrajectoryLoss()(lesson(net, 4, batch))
    one, _ = RandomTimeLoss()(lesson(net, 4, batch))
    assert one.item() == pytest.approx(whole.item(), abs=0.15)
    losses = [RandomTimeLoss()(lesson(net, 4, 64))[0] for _ in range(2)]
    assert torch.equal(*losses)


def test_squared_distances_are_those_of_the_lists():
    items, before = torch.randn(2, 4, 3), torch.rand(2, 5, 4).argsort(-1)
    after = torch.rand(2, 5, 4).argsort(-1)
    between = squared_distances(items, before).gather(-1, after.unsqueeze(-1)).squeeze(-1).sum(-1)
    rows = torch.arange(2).view(2, 1, 1)
    direct = (items[rows, before] - items[rows, after]).square().flatten(2).sum(-1)
    torch.testing.assert_close(between, direct)


class Fixed(nn.Module):
    """A network of three free scores, for lists of three."""

    def __init__(self, scores):
        super().__init__()
        self.matrix = nn.Parameter(scores)

    def encode(self, items):
        return items

    def scores(self, features, t):
        return self.matrix.expand(len(features), -1, -1)


@pytest.mark.parametrize("entropy", [0.0, 0.5])
def test_the_gradient_without_labels_is_that_of_the_likelihood(entropy):
    """With all of S_3 drawn many times: E of the weighted gradients = gradient of log sum p(x | sigma) p(sigma)."""
    torch.manual_seed(0)
    scores, items = torch.randn(3, 3), 0.7 * torch.randn(1, 3, 2)
    every, n, batch = all_permutations(3), 3, 4000
    states = torch.tensor([[1, 2, 0]])

    net = Fixed(scores.clone())
    law = ReverseGPL()(net.matrix)
    log_p = law.log_prob(every)
    square = squared_distances(items, compose(states, inverse(states)).unsqueeze(1))[0, 0]
    looks = -square.gather(1, compose(states.expand(6, n), every).T).sum(0) / 2
    goal = torch.logsumexp(looks + log_p, 0) - entropy * (log_p.exp() * log_p).sum()
    exact = torch.autograd.grad(goal, net.matrix)[0]

    net = Fixed(scores.clone())
    streams = SampleStreams(0, torch.arange(batch)).step(0)
    one = Denoiser(net, ReverseGPL(), items.expand(batch, 3, 2), False, items.expand(batch, 3, 2))
    # the same shuffle for everyone: a walk of a fixed state
    taught = LossInputs(one, ForwardProcess(Riffle(), [0, 5]), items.expand(batch, 3, 2), streams)
    walk = states.expand(batch, 1, 1, 3).contiguous()
    object.__setattr__(taught, "sample_walks", lambda number, s=walk: (s, inverse(s), torch.tensor([[5]])))
    loss = LabelFreeLoss(draws=64, decay=0.9, entropy=entropy)
    loss.baseline.fill_(1 / 64)
    found = -torch.autograd.grad(loss(taught)[0], net.matrix)[0]
    torch.testing.assert_close(found[:2], exact[:2], atol=0.03, rtol=0.1)


def test_the_baseline_is_a_buffer_and_moves():
    net = small(4)
    loss = LabelFreeLoss(draws=4)
    assert dict(loss.named_buffers())["baseline"] == 0
    value, told = loss(lesson(net, 4, 8))
    assert 0 < float(loss.baseline) < 0.01 and set(told) == {"train/match"}
    value.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    for bad in ({"draws": 1}, {"entropy": -1.0}, {"deviation": 0.0}, {"decay": 1.0}, {"walks": 0}):
        with pytest.raises(ValueError):
            LabelFreeLoss(**bad)


def test_looks_see_the_start_and_every_step():
    seen = []
    law_of = denoiser(4, ReverseGPL(), 2)
    Greedy()(law_of, [2, 5, 9], SampleStreams(0, torch.arange(2)), lambda step, orders: seen.append((step, orders)))
    assert [step for step, _ in seen] == [0, 1, 2, 3]
    assert torch.equal(seen[0][1], identity_like(seen[0][1]))


@pytest.mark.deep
@pytest.mark.parametrize("reverse", [ReverseGPL(), ReversePL()])
def test_beams_of_five_items_find_the_most_probable_order(reverse):
    """Of random chains of four steps, by all ways together; and a narrow beam is sure only where it is right."""
    torch.manual_seed(0)
    network = SetTransformer(TokenEncoder(5, 8), 5, places=reverse.places, width=8, depth=1, heads=2).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    with torch.no_grad():
        items = torch.rand(18, 5).argsort(1)
        denoiser = Denoiser(network, reverse, network.encode(items), False, items)
        exact = laws(denoiser, [1, 2, 3, 4], point(5))[-1]
        streams = SampleStreams(0, torch.arange(18))
        orders, log_probs = Beam()(denoiser, [1, 2, 3, 4], streams)
        narrow, least = Beam(width=30)(denoiser, [1, 2, 3, 4], streams)
    assert torch.allclose(log_probs[:, 0].exp().double(), exact.amax(1), atol=1e-5)
    # Compared by their probabilities: rounding may exchange two orders that are about as probable.
    highest = exact.amax(1, keepdim=True)
    assert torch.allclose(exact.gather(1, lexicographic_rank(orders[:, :1])), highest, atol=1e-6)
    places = place_probabilities(orders, log_probs)
    every = all_permutations(5)
    expected = torch.stack([(exact[:, :, None] * (every == item)).sum(1) for item in range(5)], -1)
    assert torch.allclose(places, expected, atol=1e-6)
    assert bool(is_certified(log_probs).all())
    right = torch.isclose(exact.gather(1, lexicographic_rank(narrow[:, :1])), highest, atol=1e-6).squeeze(1)
    assert bool((right | ~is_certified(least)).all()) and not bool(is_certified(least[:, :1] - 5).any())


@pytest.mark.parametrize("n", [4, 5])
def test_a_pointer_law_is_one_and_place_by_place_what_it_is_at_once(n):
    """By enumeration: probabilities of all orders add up to 1, draws follow them, the beam finds the best; no row is
    that of a generalised Plackett-Luce law, and the gradient goes through what was chosen.
    """
    torch.manual_seed(0)
    net = SetTransformer(TokenEncoder(n, 16), n, prefix=True, width=16, depth=2, heads=2, scale=1.0).eval()
    items = torch.arange(n).repeat(2, 1)
    one = Denoiser(net, ReversePointer(), net.encode(items), False, items)
    every = all_permutations(n)
    law = one(torch.stack([every[:2], every[2:4]]), torch.tensor([2, 5]))  # [2 lists, 2 states]
    log_p = law.log_prob(every[:, None, None])
    assert torch.allclose(log_p.exp().sum(0), torch.ones(2, 2), atol=1e-5)
    with torch.no_grad():
        best, own = law.top(len(every))
        # All orders, each with its probability, which falls. Rounding may exchange two that are about as probable.
        assert torch.equal(lexicographic_rank(best).sort(-1).values, torch.arange(len(every)).expand(2, 2, -1))
        assert torch.allclose(own, log_p.movedim(0, -1).gather(-1, lexicographic_rank(best)), atol=1e-5)
        assert torch.allclose(own, log_p.sort(0, descending=True).values.movedim(0, -1), atol=1e-5)
        drawn = lexicographic_rank(law.sample(Size([4000]), torch.Generator().manual_seed(0)))[:, 1, 0]
    assert p_value(torch.bincount(drawn, minlength=len(every)).double(), log_p[:, 1, 0].detach().double().exp()) > 1e-4
    shown = law.pointers.score_orders(every.unsqueeze(1).expand(-1, 4, -1))[:, 0, -2].log_softmax(-1)
    assert float(shown.detach().std(0).max()) > 1e-3  # of the last place but one, by what came before
    (gradient,) = torch.autograd.grad(log_p[5, 0, 0], net.prefix_projection.weight)
    assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize("reverse", [ReverseGPL(), ReversePL()])
def test_a_network_that_is_too_sure_is_no_worse_than_uniform(reverse):
    """Scores are made smaller, to nothing where nothing can be known."""
    source = one_permutation(3, held_out=40)
    source._lists["test"] = torch.rand(40, 3).argsort(1)  # nothing can be known of these
    model = ShuffleDiffusion(
        network(3, reverse), ForwardProcess(Riffle(), [0, 40]), reverse, TrajectoryLoss(), Greedy(), source.facts
    )
    model.network.scale, model.source = 1e3, lambda: source
    if model.network.head is not None:
        model.network.head[-1].weight.mul_(1e3)
    batch = source.batch("test", torch.arange(40))
    streams = SampleStreams(0, torch.arange(40))
    before = float(model.nll_bits(batch["items"], streams.step(0)).mean())
    model.calibrate(10**6)
    after = float(model.nll_bits(batch["items"], streams.step(0)).mean())
    assert model.sharpness < 0.1 and after < math.log2(6) + 0.1 < 4 < before
