"""Queries about orders: conditions in words, and probabilities under them.

Answers are the most probable orders, and the probabilities of positions and of pairs.

Orders int64 [b, K, n] with log-weights [b, K] represent a distribution: all permutations with their
log-probabilities, or samples of equal weight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.errors import UserError, refuse
from blackout.permutations.distributions import most_probable
from blackout.permutations.group import identity_like, inverse, is_permutation
from blackout.representation import format_fields

MAX_EXACT_ITEMS = 7  # up to which all orders are enumerated
NUM_LETTERS = 26  # items that also have letters as names
CLAUSE = re.compile(r"(.+?)\s+(?:(before|after)\s+(.+)|(first|last)|at\s+(\d{1,6}))")


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition on orders: items before others, or at positions.

    Attributes:
        text: as the user wrote it.
        earliest: first position where each item may be, int64 [n].
        latest: last position where each item may be, int64 [n].
        before: pairs of items, the first of which comes before the second, int64 [pairs, 2].
    """

    text: str
    earliest: Tensor
    latest: Tensor
    before: Tensor

    __repr__ = format_fields

    @classmethod
    def read(cls, text: str, n: int, names: Sequence[str] = ()) -> Condition:
        """Parse a condition such as "A before C, D first"; also `after`, `last` and `at 2`.

        Positions count from 0.

        Args:
            text: clauses separated by commas or `and`, all of which must hold.
            n: items.
            names: of the items, if they have any. Items are also 0, 1, 2, ... and A, B, C, ...
                unless one has such a name.

        Raises:
            UserError: another form, an item that does not exist or is ambiguous, or a condition
                that no order fulfils.

        References: Horn 1974, for jobs with due dates, decides whether an order fulfils it.
        """
        index = {chr(ord("A") + i): i for i in range(min(n, NUM_LETTERS))}
        index |= {str(i): i for i in range(n)}
        index_of_names = {name: i for i, name in enumerate(names)}
        index = index_of_names if index_of_names.keys() & index.keys() else index | index_of_names

        def parse_item(name: str) -> int:
            """Return the number of an item."""
            if name not in index:
                letters = f", A..{chr(64 + n)}" if n <= NUM_LETTERS else ""
                allowed = ", ".join(names[:5]) if names else f"0..{n - 1}{letters}"
                raise UserError(f"condition: there is no item {name!r}; items are {allowed}")
            refuse(
                names.count(name) > 1,
                f"condition: {names.count(name)} items are called {name!r}; use its number",
            )
            return index[name]

        # 1. parse the clauses
        earliest = [0] * n
        latest = [n - 1] * n
        pairs: list[tuple[int, int]] = []
        for clause in re.split(r",|\s+and\s+", text):
            match = CLAUSE.fullmatch(clause.strip())
            if match is None:
                raise UserError(
                    f"condition: {clause.strip()!r} is not understood: say A before B, A after B, "
                    "A first, A last, A at 2 (positions from 0), separated by commas"
                )
            item = parse_item(match[1])
            if match[2]:
                second = parse_item(match[3])
                pairs.append((item, second) if match[2] == "before" else (second, item))
                continue
            named_positions = {"first": 0, "last": n - 1}
            position = int(match[5]) if match[5] else named_positions[match[4]]
            earliest[item] = max(earliest[item], position)
            latest[item] = min(latest[item], position)
        # 2. pairs narrow the positions of their items
        for _ in range(n):
            for i, j in pairs:
                earliest[j] = max(earliest[j], earliest[i] + 1)
                latest[i] = min(latest[i], latest[j] - 1)
        # 3. an order exists if the item with the smallest last position can always come next
        remaining = set(range(n))
        for position in range(n):
            candidates = (i for i in remaining if earliest[i] <= position)
            item = min(candidates, key=latest.__getitem__, default=-1)
            refuse(
                item < 0 or latest[item] < position,
                f"condition: no order fulfils {text!r}; leave out a clause",
            )
            remaining.remove(item)
        before = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
        return cls(text, torch.tensor(earliest), torch.tensor(latest), before)

    def is_fulfilled(self, orders: Tensor) -> Tensor:
        """Return whether orders [..., n] fulfil the condition, bool [...].

        An entry that is no permutation does not.
        """
        valid = is_permutation(orders)
        ranks = inverse(torch.where(valid.unsqueeze(-1), orders, identity_like(orders)))
        before = self.before.to(orders.device)
        in_range = (ranks >= self.earliest.to(orders.device)) & (
            ranks <= self.latest.to(orders.device)
        )
        pairs_hold = (ranks[..., before[:, 0]] < ranks[..., before[:, 1]]).all(-1)
        return valid & in_range.all(-1) & pairs_hold


def merge_duplicates(states: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Merge equal lists: the first gets the logsumexp of their log-probabilities, the others -inf.

    Args:
        states: int64 [b, M, m].
        log_probs: [b, M].

    Returns:
        The same lists in another order, and their log-probabilities.

    References: this project; checked in tests/permutations/test_shuffle_diffusion.py.
    """
    n = states.shape[-1]
    # 1. sort by a hash; after it neighbours are compared entry by entry, so that collisions do no
    # harm
    generator = torch.Generator().manual_seed(n)
    weights = torch.randint(-(2**62), 2**62, (n, n), generator=generator).to(states.device)
    keys = weights[torch.arange(n, device=states.device), states].sum(-1)
    order = keys.argsort(dim=1, stable=True)
    states = states.gather(1, order.unsqueeze(-1).expand_as(states))
    log_probs = log_probs.gather(1, order)
    # 2. number the groups of equal lists
    is_first = torch.ones_like(log_probs, dtype=torch.bool)
    is_first[:, 1:] = (states[:, 1:] != states[:, :-1]).any(-1)
    group = is_first.long().cumsum(1) - 1
    # 3. logsumexp of each group
    largest = torch.full_like(log_probs, -torch.inf).scatter_reduce(1, group, log_probs, "amax")
    offset = largest.gather(1, group).masked_fill(log_probs == -torch.inf, 0.0)
    total = torch.zeros_like(log_probs).scatter_add(1, group, (log_probs - offset).exp())
    merged = (largest + total.log()).gather(1, group)
    return states, merged.masked_fill(~is_first, -torch.inf)


def summarise_orders(
    orders: Tensor, log_weights: Tensor, top: int, condition: Condition | None = None
) -> dict[str, Tensor]:
    """Summarise weighted orders, given a condition.

    The summary has the marginal probabilities and the most probable orders.

    Args:
        orders: int64 [b, K, n].
        log_weights: [b, K], not normalised.
        top: number of most probable orders.
        condition: that the orders must fulfil; None for none.

    Returns:
        `places` float64 [b, n, n], the probability of every item (column) at every position (row);
        `pairs` [b, n, n], that every item (row) comes before every other (column); `top` and
        `top_log_prob` of `most_probable_orders`; with a condition `condition_log_prob` [b], the
        log-probability of it.

    Raises:
        UserError: no order fulfils the condition.

    References: this project; checked in tests/permutations/test_queries.py.
    """
    log_weights = log_weights.double()
    condition_log_prob = log_weights.new_zeros(len(orders))
    if condition is not None:
        total = log_weights.logsumexp(1)
        log_weights = log_weights.masked_fill(~condition.is_fulfilled(orders), -torch.inf)
        condition_log_prob = log_weights.logsumexp(1) - total
        if bool((condition_log_prob == -torch.inf).any()):
            raise UserError(
                f"condition: none of {orders.shape[1]:,} orders of this model "
                f"fulfils {condition.text!r}; leave out a part of it"
            )
    log_weights = log_weights.log_softmax(-1)
    weights = log_weights.exp().unsqueeze(-1)
    ranks = inverse(orders)
    pairs = [((ranks[..., i : i + 1] < ranks) * weights).sum(1) for i in range(orders.shape[-1])]
    summary = {"places": place_probabilities(orders, log_weights), "pairs": torch.stack(pairs, 1)}
    summary |= most_probable_orders(orders, log_weights, top)
    if condition is not None:
        summary["condition_log_prob"] = condition_log_prob
    return summary


def place_probabilities(orders: Tensor, log_weights: Tensor) -> Tensor:
    """Return the probability of every item at every position, float64 [b, n, n].

    Rows are positions.

    Args:
        orders: int64 [b, K, n].
        log_weights: [b, K], not normalised.

    References: this project; checked in tests/permutations/test_queries.py.
    """
    weights = log_weights.double().softmax(-1)[..., None, None].expand(*orders.shape, 1)
    n = orders.shape[-1]
    one_hot = torch.zeros(*orders.shape, n, dtype=torch.float64, device=orders.device)
    return one_hot.scatter_(-1, orders.unsqueeze(-1), weights).sum(1)


def most_probable_orders(orders: Tensor, log_probs: Tensor, top: int) -> dict[str, Tensor]:
    """Return the most probable orders after equal ones are merged.

    Args:
        orders: int64 [b, K, n].
        log_probs: [b, K].
        top: how many.

    Returns:
        `top` int64 [b, top, n], -1 where there are fewer, and `top_log_prob` [b, top].

    References: this project; checked in tests/permutations/test_queries.py.
    """
    best, log_probs = most_probable(*merge_duplicates(orders, log_probs), top)
    num_missing = max(0, top - orders.shape[1])
    best = best.masked_fill((log_probs == -torch.inf).unsqueeze(-1), -1)
    return {
        "top": F.pad(best, (0, 0, 0, num_missing), value=-1),
        "top_log_prob": F.pad(log_probs, (0, num_missing), value=-torch.inf),
    }


def read_integer(request: Mapping[str, Any], name: str, minimum: int = 1) -> int:
    """Return an integer setting; `minimum` if it is missing.

    Raises:
        UserError: it is smaller, or no integer.
    """
    value = request.get(name, minimum)
    if type(value) is not int or value < minimum:
        raise UserError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
    return value
