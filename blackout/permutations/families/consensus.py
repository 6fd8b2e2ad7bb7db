"""The order nearest to many: the least total Kendall distance (Kemeny 1959)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.permutations.group import inverse

EXACT = 14
"""Most items for which all sets of items are gone through."""


def consensus(orders: Tensor) -> Tensor:
    """The order with the least sum of Kendall distances to orders int64 [N, n], int64 [n].

    Exact to 14 items, by dynamic programming over the sets of items that come first. Above that, items by mean place,
    then moved one at a time while that helps: a local minimum.

    Raises:
        ValueError: no orders.
    """
    if orders.ndim != 2 or not len(orders):
        raise ValueError(f"at least one order is needed, as [N, n], not {list(orders.shape)}")
    places = inverse(orders)
    before = torch.stack([(places[:, a : a + 1] < places).sum(0) for a in range(orders.shape[1])]).cpu().numpy()
    n = orders.shape[1]
    best = _exact(before) if n <= EXACT else _improved(before, places.double().mean(0).argsort().tolist())
    return torch.tensor(best, dtype=torch.int64, device=orders.device)


def _exact(before: np.ndarray) -> list[int]:
    """`before[a, b]` orders have a before b. The cost of x after the set S is the number of orders that object."""
    n = len(before)
    sets = np.arange(2**n)
    member = (sets[:, None] >> np.arange(n)) & 1
    objections = member @ before.T  # [S, x]: x comes before members of S
    cost, last = np.zeros(2**n), np.zeros(2**n, dtype=np.int64)
    size = member.sum(1)
    for m in range(1, n + 1):
        layer = sets[size == m]
        rest = layer[:, None] & ~(1 << np.arange(n))
        candidates = np.where(member[layer] == 1, cost[rest] + objections[rest, np.arange(n)], np.inf)
        last[layer], cost[layer] = candidates.argmin(1), candidates.min(1)
    order, left = list[int](), 2**n - 1
    while left:
        order.append(int(last[left]))
        left &= ~(1 << order[-1])
    return order[::-1]


def _improved(before: np.ndarray, order: list[int]) -> list[int]:
    """Every item in turn to its best place, until none moves."""
    moved = True
    while moved:
        moved = False
        for item in list(order):
            others = [other for other in order if other != item]
            # at place p, those in front of it object as often as they come after it, the others the other way round
            ahead = np.concatenate([[0], np.cumsum(before[item, others])])
            behind = np.concatenate([np.cumsum(before[others, item][::-1])[::-1], [0]])
            cost = ahead + behind
            best = int(cost.argmin())
            if cost[best] < cost[order.index(item)]:
                order, moved = [*others[:best], item, *others[best:]], True
    return order
