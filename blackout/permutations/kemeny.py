"""The Kemeny consensus: the order with the smallest sum of Kendall distances to given orders.

Orders are lists of items, the first chosen first.

Example:
    >>> import torch
    >>> consensus(torch.tensor([[0, 1, 2], [0, 2, 1], [0, 1, 2]])).tolist()
    [0, 1, 2]

References: Kemeny 1959.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.permutations.group import inverse

MAX_EXACT_CONSENSUS = 14  # items up to which `consensus` uses all sets of items


def consensus(orders: Tensor) -> Tensor:
    """Return the Kemeny consensus: the order with the smallest sum of Kendall distances to orders.

    It is exact up to 14 items, by dynamic programming over the sets of items that come first. Above
    that, items are sorted by mean position, and moved one at a time while that reduces the sum: a
    local minimum.

    Args:
        orders: int64 [N, n].

    Returns:
        int64 [n].

    Raises:
        ValueError: no orders.

    References: Kemeny 1959.
    """
    ensure(
        orders.ndim == 2 and len(orders),
        f"at least one order is needed, as [N, n], not {list(orders.shape)}",
    )
    ranks = inverse(orders)
    n = orders.shape[1]
    wins = torch.stack([(ranks[:, a : a + 1] < ranks).sum(0) for a in range(n)]).cpu().numpy()
    return torch.tensor(kemeny_order(wins), dtype=torch.int64, device=orders.device)


def kemeny_order(wins: np.ndarray) -> list[int]:
    """Return the consensus of pairwise wins.

    Args:
        wins: wins[a, b] is the number, or weight, of orders with a before b, [n, n].
    """
    if len(wins) <= MAX_EXACT_CONSENSUS:
        return _exact_kemeny_order(wins)
    by_wins = wins.sum(1).argsort()[::-1].tolist()
    return improve_order(wins, by_wins)


def _exact_kemeny_order(wins: np.ndarray) -> list[int]:
    """Return the exact Kemeny consensus of pairwise wins [n, n].

    The method is dynamic programming over sets of items. The cost of x after the set S is the
    number of orders with x before a member of S, summed over the members.

    References: Kemeny 1959; Held and Karp 1962; checked by enumeration in
    tests/permutations/test_kemeny.py.
    """
    n = len(wins)
    items = np.arange(n)
    sets = np.arange(2**n)
    is_member = (sets[:, None] >> items) & 1
    set_size = is_member.sum(1)
    # 1. smallest cost of every set, and its last item
    disagreements = is_member @ wins.T  # [S, x]: orders with x before members of S
    cost = np.zeros(2**n)
    last_item = np.zeros(2**n, dtype=np.int64)
    for size in range(1, n + 1):
        layer = sets[set_size == size]
        without = layer[:, None] & ~(1 << items)
        candidates = np.where(
            is_member[layer] == 1, cost[without] + disagreements[without, items], np.inf
        )
        last_item[layer] = candidates.argmin(1)
        cost[layer] = candidates.min(1)
    # 2. trace the order back from the set of all items
    order: list[int] = []
    remaining = 2**n - 1
    while remaining:
        item = int(last_item[remaining])
        order.append(item)
        remaining &= ~(1 << item)
    return order[::-1]


def improve_order(wins: np.ndarray, order: list[int]) -> list[int]:
    """Move every item to its best position until none moves, a local minimum of the Kemeny sum.

    Args:
        wins: see `kemeny_order`.
        order: of n items.

    References: this project; checked in tests/permutations/test_kemeny.py.
    """
    improved = True
    while improved:
        improved = False
        for item in list(order):
            other_items = [index for index in order if index != item]
            # disagreements of the item at position p with the items before it and behind it
            with_previous = np.concatenate([[0], np.cumsum(wins[item, other_items])])
            with_following = np.concatenate([np.cumsum(wins[other_items, item][::-1])[::-1], [0]])
            cost = with_previous + with_following
            best = int(cost.argmin())
            if cost[best] < cost[order.index(item)]:
                order = [*other_items[:best], item, *other_items[best:]]
                improved = True
    return order
