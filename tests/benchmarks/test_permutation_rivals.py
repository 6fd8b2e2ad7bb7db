"""The rivals of the tables learn from what they may."""

import pytest

from benchmarks.permutation_rivals import SinkhornPixelLoss, SortingNetworkLoss
from blackout.permutations.shuffle import ReverseAssignment, ReverseGPL, ReversePL
from tests.permutations.test_baselines import falls_with_certainty, lesson


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
