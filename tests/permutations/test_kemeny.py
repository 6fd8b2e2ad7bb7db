"""The Kemeny consensus has the smallest sum of distances."""

from __future__ import annotations

import pytest
import torch
from torch import Size

from blackout.permutations import all_permutations, inverse, kendall_distance
from blackout.permutations.distributions import Mallows
from blackout.permutations.kemeny import consensus


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_consensus_has_the_smallest_total_distance(n):
    perms = all_permutations(n)
    for seed in range(5):
        orders = torch.rand(7, n, generator=torch.Generator().manual_seed(seed)).argsort()
        totals = kendall_distance(inverse(perms)[:, None], inverse(orders)[None]).sum(-1)
        total = kendall_distance(inverse(consensus(orders)).expand(7, n), inverse(orders)).sum()
        assert int(total) == int(totals.min())


def test_the_consensus_of_many_items():
    centre = torch.rand(20, generator=torch.Generator().manual_seed(0)).argsort()
    orders = Mallows(20, 0.6, centre).sample(Size([400]), torch.Generator().manual_seed(1))
    assert torch.equal(consensus(orders), centre)
    nine_orders = torch.rand(9, 12, generator=torch.Generator().manual_seed(2)).argsort()
    # 20 items, 8 of which are unanimous
    padded = torch.cat([nine_orders, torch.arange(12, 20).expand(9, 8)], -1)
    assert consensus(padded)[12:].tolist() == list(range(12, 20))

    def cost(order, orders):
        return int(kendall_distance(inverse(order).expand(orders.shape), inverse(orders)).sum())

    assert cost(consensus(padded), padded) <= 1.02 * cost(consensus(nine_orders), nine_orders)
