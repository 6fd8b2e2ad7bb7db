"""Sorting networks sort, their relaxation has the gradient it says, and other baselines learn from what they may."""

import pytest
import torch
from torch import nn

from blackout.networks import EdgeEncoder, ItemEncoder, SetTransformer
from blackout.permutations import all_permutations
from blackout.permutations.group import inverse, is_permutation
from blackout.permutations.metrics import tour_length
from blackout.permutations.shuffle import (
    ForwardProcess,
    ReverseAssignment,
    ReverseGPL,
    ReversePL,
    SinkhornLoss,
    SinkhornPixelLoss,
    SortingNetworkLoss,
    TwoOpt,
)
from blackout.permutations.shuffle.baselines import comparators, relaxed_sort
from blackout.permutations.shuffle.losses import LossInputs
from blackout.permutations.shuffle.reverse import Denoiser
from blackout.permutations.shuffles import Riffle
from blackout.random import SampleStreams


@pytest.mark.parametrize("layout", ["odd_even", "bitonic"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 8])
def test_networks_sort_every_list_of_zeros_and_ones(n, layout):
    """The zero-one principle (Knuth): then they sort every list."""
    lists = (torch.arange(2**n).unsqueeze(1) >> torch.arange(n)) % 2
    for lower, upper in comparators(n, layout):
        assert len({*lower, *upper}) == 2 * len(lower)
        a, b = lists[:, lower].clone(), lists[:, upper].clone()
        lists[:, lower], lists[:, upper] = torch.minimum(a, b), torch.maximum(a, b)
    assert bool((lists[:, 1:] >= lists[:, :-1]).all())


@pytest.mark.parametrize("error_free", [False, True])
@pytest.mark.parametrize("layout", ["odd_even", "bitonic"])
def test_steep_comparators_give_the_matrix_of_the_sort(layout, error_free):
    values = all_permutations(5).double()
    matrix = relaxed_sort(values, 1e7, layout, error_free)
    assert torch.allclose(
        matrix @ values.unsqueeze(-1), torch.arange(5.0, dtype=torch.float64).unsqueeze(-1), atol=1e-4
    )
    soft = relaxed_sort(values, 2.0, layout, error_free)
    for axis in (-1, -2):
        assert torch.allclose(soft.sum(axis), torch.ones_like(soft.sum(axis)))


def test_one_comparator_by_hand():
    values = torch.tensor([0.3, 0.1], dtype=torch.float64, requires_grad=True)
    stays = 0.5 + torch.atan(torch.tensor(2.0 * (0.1 - 0.3), dtype=torch.float64)) / torch.pi
    matrix = relaxed_sort(values, 2.0)
    assert torch.allclose(matrix, torch.stack([torch.stack([stays, 1 - stays]), torch.stack([1 - stays, stays])]))
    gradients = [
        torch.autograd.grad(relaxed_sort(values, 2.0, error_free=free)[0, 0], values)[0] for free in (False, True)
    ]
    expected = 2 / (torch.pi * (1 + 0.4**2))
    assert all(torch.allclose(g, torch.tensor([-expected, expected], dtype=torch.float64)) for g in gradients)


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
    law = Denoiser(network, reverse, items, False)
    return LossInputs(law, ForwardProcess(Riffle(), [0, 40]), items, SampleStreams(3, torch.arange(30)).at(0)), network


@pytest.mark.parametrize("loss, places, reverse", [
    (SinkhornLoss(), True, ReverseAssignment()), (SinkhornLoss(draws=3, temperature=0.5), True, ReverseAssignment(5)),
    (SinkhornPixelLoss(), True, ReverseAssignment()), (SortingNetworkLoss(5.0), False, ReversePL()),
    (SortingNetworkLoss(5.0, "bitonic", True), False, ReversePL()),
])  # fmt: skip
def test_losses_fall_as_the_right_order_gets_more_certain(loss, places, reverse):
    found = []
    for sharpness in (0.1, 1.0, 10.0):
        taught, network = lesson(places, reverse, sharpness)
        value, told = loss(taught)
        assert torch.equal(value.detach(), told["train/loss"])
        found.append(value.item())
        (slope,) = torch.autograd.grad(value, network.sharpness)
    assert found[0] > found[1] > found[2] > 0 and found[2] < 0.3 * found[0] and slope <= 0
    assert loss.labels is (type(loss) is not SinkhornPixelLoss)


def test_the_pixel_loss_is_nought_for_the_right_matrix_whatever_the_shuffle():
    taught, _ = lesson(True, ReverseAssignment(), 1e4)
    value, _ = SinkhornPixelLoss()(taught)
    assert value.item() < 1e-6


@pytest.mark.parametrize("loss, reverse", [(SinkhornLoss(), ReverseGPL()), (SortingNetworkLoss(), ReverseGPL())])
def test_a_loss_needs_its_reverse_law(loss, reverse):
    with pytest.raises(ValueError, match="reverse="):
        loss(lesson(True, reverse, 1.0)[0])


def test_bad_arguments():
    for bad in (
        lambda: SinkhornLoss(draws=0), lambda: SinkhornLoss(iterations=0), lambda: SinkhornLoss(temperature=0.0),
        lambda: SortingNetworkLoss(steepness=0.0), lambda: SortingNetworkLoss(layout="bubble"),
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
    described = encoder.describe(points)
    assert described.shape == (2, 6, 6, 16) and torch.allclose(described, described.transpose(1, 2))
    assert torch.allclose(encoder.describe(points + 0.25), described, atol=1e-5)
    with pytest.raises(ValueError, match="multiple of heads"):
        EdgeEncoder(16, heads=3)


def test_assignment_and_a_set_transformer_go_together():
    network = SetTransformer(ItemEncoder([3], 8), 4, width=8, depth=1, heads=2)
    law = Denoiser(network, ReverseAssignment(2), network.encode(torch.randn(5, 4, 3)), False)
    states = torch.rand(5, 2, 4).argsort(-1)
    top, log_probs = law(states, 40).top(3)
    assert top.shape == (5, 2, 3, 4) and is_permutation(top).all() and is_permutation(inverse(top)).all()
    assert bool((log_probs[..., :-1] >= log_probs[..., 1:]).all())
