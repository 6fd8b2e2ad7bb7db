"""Baselines: the Sinkhorn loss, tours by two-opt, and encoders of edges."""

import pytest
import torch
from torch import nn

from blackout.networks import EdgeEncoder, ItemEncoder, SetTransformer
from blackout.permutations.distributions import Matching
from blackout.permutations.forward_process import ForwardProcess
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
from blackout.permutations.shuffles import Riffle
from blackout.random import SampleStreams


class PerfectNetwork(nn.Module):
    """A network that knows the right order: scores by the first number of an item."""

    def __init__(self, places):
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(0.1))
        self.places = places

    def encode(self, items):
        return items

    def scores(self, features, t):
        value = features[..., 0]
        if not self.places:
            return -self.sharpness * value
        place = torch.arange(value.shape[1]).view(1, -1, 1)
        return -self.sharpness * (place - value.unsqueeze(1)) ** 2


def make_loss_inputs(places, reverse, sharpness):
    """Return inputs of a loss for a perfect network of this sharpness, and the network."""
    items = torch.arange(4.0).view(1, 4, 1).expand(30, 4, 1)
    network = PerfectNetwork(places)
    network.sharpness.data.fill_(sharpness)
    denoiser = Denoiser(network, reverse, items, False, items)
    streams = SampleStreams(3, torch.arange(30)).step(0)
    return LossInputs(denoiser, ForwardProcess(Riffle(), [0, 40]), items, streams), network


def assert_loss_falls_with_certainty(loss, places, reverse):
    """Assert that a loss falls as a perfect network becomes more certain."""
    values = []
    for sharpness in (0.1, 1.0, 10.0):
        inputs, network = make_loss_inputs(places, reverse, sharpness)
        value, _ = loss(inputs)
        values.append(value.item())
        (slope,) = torch.autograd.grad(value, network.sharpness)
    assert values[0] > values[1] > values[2] > 0 and values[2] < 0.3 * values[0] and slope <= 0


@pytest.mark.parametrize(
    "loss, places, reverse",
    [
        (SinkhornLoss(), True, ReverseAssignment()),
        (SinkhornLoss(draws=3, temperature=0.5), True, ReverseAssignment(5)),
    ],
)
def test_losses_fall_as_a_perfect_network_becomes_more_certain(loss, places, reverse):
    assert_loss_falls_with_certainty(loss, places, reverse)
    assert loss.labels


def test_the_sinkhorn_loss_needs_assignments():
    with pytest.raises(ValueError, match="reverse="):
        SinkhornLoss()(make_loss_inputs(True, ReverseGPL(), 1.0)[0])


def test_invalid_arguments_are_refused():
    for make_loss in (
        lambda: SinkhornLoss(draws=0),
        lambda: SinkhornLoss(iterations=0),
        lambda: SinkhornLoss(temperature=0.0),
        lambda: ReverseAssignment(-1),
    ):
        with pytest.raises(ValueError):
            make_loss()


def test_two_opt_shortens_tours_without_a_network():
    points = torch.rand(20, 9, 2, generator=torch.Generator().manual_seed(0))
    denoiser = Denoiser(nn.Identity(), ReversePL(), points, True, points)
    steps = []
    orders, log_probs = TwoOpt()(
        denoiser, [3, 5], SampleStreams(0, torch.arange(20)), lambda *call: steps.append(call)
    )
    assert orders.shape == (20, 1, 8) and is_permutation(orders).all() and not log_probs.any()
    tours = torch.cat([torch.zeros(20, 1, 1, dtype=torch.int64), orders + 1], -1).squeeze(1)
    shortened = points[torch.arange(20).unsqueeze(1), tours]
    assert (
        bool((tour_length(shortened) < tour_length(points)).all())
        and TwoOpt().evaluations(2, 8) == 0
    )
    assert [step for step, _ in steps] == [2]


def test_edge_features_are_equivariant_and_invariant_to_shifts():
    """Features are permuted with their points, depend on distances, and bad sizes are refused."""
    torch.manual_seed(0)
    encoder = EdgeEncoder(16, heads=2)
    points = torch.rand(2, 6, 2)
    order = torch.tensor([0, 3, 1, 5, 2, 4])
    features = encoder(points)
    assert features.shape == (2, 6, 16) and torch.allclose(
        encoder(points[:, order]), features[:, order], atol=1e-5
    )
    distance_part = features - encoder.points(points)
    point_part = encoder.points(points)
    assert float(distance_part.detach().std(1).mean()) > 0.01
    torch.testing.assert_close(encoder(points + 0.25), features, atol=1e-4, rtol=1e-3)
    encoder.edges.weight.data.zero_()
    torch.testing.assert_close(encoder(points), point_part + encoder.out.bias, atol=1e-5, rtol=1e-5)
    edges = encoder.edge_features(points)
    assert edges.shape == (2, 6, 6, 16) and torch.allclose(edges, edges.transpose(1, 2))
    assert torch.allclose(encoder.edge_features(points + 0.25), edges, atol=1e-5)
    with pytest.raises(ValueError, match="multiple of heads"):
        EdgeEncoder(16, heads=3)


def test_assignments_use_the_requested_number_of_iterations():
    scores = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0))
    orders = torch.arange(5).expand(3, 5)
    unnormalised, normalised = (
        ReverseAssignment(number)(scores).log_prob(orders) for number in (0, 9)
    )
    assert torch.equal(unnormalised, Matching(scores).log_prob(orders))
    assert torch.equal(normalised, Matching(scores, 9).log_prob(orders)) and not torch.allclose(
        unnormalised, normalised
    )


def test_assignments_work_with_a_set_transformer():
    network = SetTransformer(ItemEncoder([3], 8), 4, width=8, depth=1, heads=2)
    items = torch.randn(5, 4, 3)
    denoiser = Denoiser(network, ReverseAssignment(2), network.encode(items), False, items)
    states = torch.rand(5, 2, 4).argsort(-1)
    top, log_probs = denoiser(states, 40).top(3)
    assert (
        top.shape == (5, 2, 3, 4)
        and is_permutation(top).all()
        and is_permutation(inverse(top)).all()
    )
    assert bool((log_probs[..., :-1] >= log_probs[..., 1:]).all())
