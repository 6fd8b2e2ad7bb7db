"""Baselines learn from what they may, and search without a network."""

import pytest
import torch
from torch import nn

from blackout.networks import EdgeEncoder, ItemEncoder, SetTransformer
from blackout.permutations.distributions import Matching
from blackout.permutations.group import inverse, is_permutation
from blackout.permutations.metrics import tour_length
from blackout.permutations.shuffle import (
    ReverseAssignment,
    ReverseGPL,
    ReversePL,
    SinkhornLoss,
    TwoOpt,
)
from blackout.permutations.shuffle.decoding import Denoiser
from blackout.permutations.shuffle.losses import LossInputs
from blackout.permutations.shuffles import ForwardProcess, Riffle
from blackout.random import SampleStreams


class Scores(nn.Module):
    """A network that knows the right order: scores by the first number of an item."""

    def __init__(self, places):
        super().__init__()
        self.sharpness, self.places = nn.Parameter(torch.tensor(0.1)), places

    def encode(self, items):
        return items

    def scores(self, features, t):
        value = features[..., 0]
        if not self.places:
            return -self.sharpness * value
        place = torch.arange(value.shape[1]).view(1, -1, 1)
        return -self.sharpness * (place - value.unsqueeze(1)) ** 2


def lesson(places, reverse, sharpness):
    items = torch.arange(4.0).view(1, 4, 1).expand(30, 4, 1)
    network = Scores(places)
    network.sharpness.data.fill_(sharpness)
    law = Denoiser(network, reverse, items, False, items)
    streams = SampleStreams(3, torch.arange(30)).step(0)
    return LossInputs(law, ForwardProcess(Riffle(), [0, 40]), items, streams), network


def falls_with_certainty(loss, places, reverse):
    """A loss and its slope, as the right order gets more certain."""
    found = []
    for sharpness in (0.1, 1.0, 10.0):
        taught, network = lesson(places, reverse, sharpness)
        value, _ = loss(taught)
        found.append(value.item())
        (slope,) = torch.autograd.grad(value, network.sharpness)
    assert found[0] > found[1] > found[2] > 0 and found[2] < 0.3 * found[0] and slope <= 0


@pytest.mark.parametrize("loss, places, reverse", [
    (SinkhornLoss(), True, ReverseAssignment()), (SinkhornLoss(draws=3, temperature=0.5), True, ReverseAssignment(5)),
])  # fmt: skip
def test_losses_fall_as_the_right_order_gets_more_certain(loss, places, reverse):
    falls_with_certainty(loss, places, reverse)
    assert loss.labels


def test_a_loss_needs_its_reverse_law():
    with pytest.raises(ValueError, match="reverse="):
        SinkhornLoss()(lesson(True, ReverseGPL(), 1.0)[0])


def test_bad_arguments():
    for bad in (
        lambda: SinkhornLoss(draws=0), lambda: SinkhornLoss(iterations=0), lambda: SinkhornLoss(temperature=0.0),
        lambda: ReverseAssignment(-1),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            bad()


def test_two_opt_finds_tours_without_a_network():
    points = torch.rand(20, 9, 2, generator=torch.Generator().manual_seed(0))
    law = Denoiser(nn.Identity(), ReversePL(), points, True, points)
    seen = []
    orders, log_probs = TwoOpt()(law, [3, 5], SampleStreams(0, torch.arange(20)), lambda *at: seen.append(at))
    assert orders.shape == (20, 1, 8) and is_permutation(orders).all() and not log_probs.any()
    tours = torch.cat([torch.zeros(20, 1, 1, dtype=torch.int64), orders + 1], -1).squeeze(1)
    found = points[torch.arange(20).unsqueeze(1), tours]
    assert bool((tour_length(found) < tour_length(points)).all()) and TwoOpt().evaluations(2, 8) == 0
    assert [step for step, _ in seen] == [2]


def test_edges_turn_with_the_points():
    """Features follow their points, add what distances say, and refuse bad sizes."""
    torch.manual_seed(0)
    encoder = EdgeEncoder(16, heads=2)
    points, order = torch.rand(2, 6, 2), torch.tensor([0, 3, 1, 5, 2, 4])
    features = encoder(points)
    assert features.shape == (2, 6, 16) and torch.allclose(encoder(points[:, order]), features[:, order], atol=1e-5)
    added, alone = features - encoder.points(points), encoder.points(points)
    assert float(added.detach().std(1).mean()) > 0.01
    torch.testing.assert_close(encoder(points + 0.25), features, atol=1e-4, rtol=1e-3)
    encoder.edges.weight.data.zero_()
    torch.testing.assert_close(encoder(points), alone + encoder.out.bias, atol=1e-5, rtol=1e-5)
    described = encoder.edge_features(points)
    assert described.shape == (2, 6, 6, 16) and torch.allclose(described, described.transpose(1, 2))
    assert torch.allclose(encoder.edge_features(points + 0.25), described, atol=1e-5)
    with pytest.raises(ValueError, match="multiple of heads"):
        EdgeEncoder(16, heads=3)


def test_assignments_are_normalised_as_often_as_they_are_told():
    scores = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0))
    orders = torch.arange(5).expand(3, 5)
    once, often = (ReverseAssignment(number)(scores).log_prob(orders) for number in (0, 9))
    assert torch.equal(once, Matching(scores).log_prob(orders))
    assert torch.equal(often, Matching(scores, 9).log_prob(orders)) and not torch.allclose(once, often)


def test_assignment_and_a_set_transformer_go_together():
    network = SetTransformer(ItemEncoder([3], 8), 4, width=8, depth=1, heads=2)
    items = torch.randn(5, 4, 3)
    law = Denoiser(network, ReverseAssignment(2), network.encode(items), False, items)
    states = torch.rand(5, 2, 4).argsort(-1)
    top, log_probs = law(states, 40).top(3)
    assert top.shape == (5, 2, 3, 4) and is_permutation(top).all() and is_permutation(inverse(top)).all()
    assert bool((log_probs[..., :-1] >= log_probs[..., 1:]).all())
