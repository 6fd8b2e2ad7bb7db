"""The losses of the tables' baselines."""

import pytest

from benchmarks.permutation_baselines import SinkhornPixelLoss, SortingNetworkLoss
from blackout.permutations.shuffle import ReverseAssignment, ReverseGPL, ReversePL
from tests.permutations.test_baselines import assert_loss_falls_with_certainty, make_loss_inputs


@pytest.mark.parametrize(
    "loss, places, reverse",
    [
        (SinkhornPixelLoss(), True, ReverseAssignment()),
        (SortingNetworkLoss(5.0), False, ReversePL()),
        (SortingNetworkLoss(5.0, "bitonic", True), False, ReversePL()),
    ],
)
def test_losses_fall_as_a_perfect_network_becomes_more_certain(loss, places, reverse):
    assert_loss_falls_with_certainty(loss, places, reverse)
    assert loss.labels is (type(loss) is not SinkhornPixelLoss)


def test_the_pixel_loss_is_zero_for_the_right_matrix():
    inputs, _ = make_loss_inputs(True, ReverseAssignment(), 1e4)
    value, _ = SinkhornPixelLoss()(inputs)
    assert value.item() < 1e-6


def test_invalid_arguments_are_refused():
    for call in (
        lambda: SortingNetworkLoss()(make_loss_inputs(True, ReverseGPL(), 1.0)[0]),
        lambda: SortingNetworkLoss(steepness=0.0),
        lambda: SortingNetworkLoss(layout="bubble"),
    ):
        with pytest.raises(ValueError):
            call()
