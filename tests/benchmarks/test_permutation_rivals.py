"""Sorting networks sort, their relaxation has the gradient it says, and rivals learn from what they may."""

import pytest
import torch

from benchmarks.permutation_rivals import SinkhornPixelLoss, SortingNetworkLoss, comparators, relaxed_sort
from blackout.permutations import all_permutations
from blackout.permutations.shuffle import ReverseAssignment, ReverseGPL, ReversePL
from tests.permutations.test_baselines import falls_with_certainty, lesson


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


@pytest.mark.parametrize("loss, places, reverse", [
    (SinkhornPixelLoss(), True, ReverseAssignment()), (SortingNetworkLoss(5.0), False, ReversePL()),
    (SortingNetworkLoss(5.0, "bitonic", True), False, ReversePL()),
])  # fmt: skip
def test_losses_fall_as_the_right_order_gets_more_certain(loss, places, reverse):
    falls_with_certainty(loss, places, reverse)
    assert loss.labels is (type(loss) is not SinkhornPixelLoss)


def test_the_pixel_loss_is_nought_for_the_right_matrix_whatever_the_shuffle():
    taught, _ = lesson(True, ReverseAssignment(), 1e4)
    value, _ = SinkhornPixelLoss()(taught)
    assert value.item() < 1e-6


def test_bad_arguments():
    for bad in (
        lambda: SortingNetworkLoss()(lesson(True, ReverseGPL(), 1.0)[0]),
        lambda: SortingNetworkLoss(steepness=0.0), lambda: SortingNetworkLoss(layout="bubble"),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            bad()
