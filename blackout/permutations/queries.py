"""What is asked about orders: conditions in words, the likeliest orders, how likely items are at places.

Orders int64 [b, K, n] with log-weights [b, K] stand for a law: all of S_n with their probabilities, or draws.
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

MOST_EXACT = 7
"""Items to which all orders are gone through."""
_CLAUSE = re.compile(r"(.+?)\s+(?:(before|after)\s+(.+)|(first|last)|at\s+(\d{1,6}))")


@dataclass(frozen=True, eq=False)
class Condition:
    """That items come before others, or at places.

    Attributes:
        text: as it was given.
        least, most: the first and the last place where each item may be, int64 [n].
        before: pairs of items, the first of which comes before the second, int64 [pairs, 2].
    """

    text: str
    least: Tensor
    most: Tensor
    before: Tensor

    @classmethod
    def read(cls, text: str, n: int, names: Sequence[str] = ()) -> Condition:
        """In words: "A before C, D first"; also `after`, `last`, and `at 2`, places counted from 0.

        That an order exists is asked as for jobs with due dates [Horn 1974]. Shapes: see the class.

        Args:
            text: what has to hold, all of it, parted by commas or `and`.
            n: items.
            names: of the items, if they have any; they are also 0, 1, 2, ... or A, B, C, ... unless one is called so.

        Raises:
            UserError: other words, an item that there is none of, or are two of, or what no order fulfils.
        """
        known = {chr(ord("A") + i): i for i in range(min(n, 26))} | {str(i): i for i in range(n)}
        own = {name: i for i, name in enumerate(names)}
        known = own if own.keys() & known.keys() else known | own
        least, most, pairs = [0] * n, [n - 1] * n, list[tuple[int, int]]()

        def item(name: str) -> int:
            if name not in known:
                told = ", ".join(names[:5]) if names else f"0..{n - 1}" + (f", A..{chr(64 + n)}" if n <= 26 else "")
                raise UserError(f"given: there is no item {name!r}, but {told}")
            refuse(names.count(name) > 1, f"given: {names.count(name)} items are called {name!r}")
            return known[name]

        for clause in re.split(r",|\s+and\s+", text):
            if not (found := _CLAUSE.fullmatch(clause.strip())):
                raise UserError(f"given: {clause.strip()!r} is not understood: say A before B, A after B, A first, "
                                "A last, A at 2 (places from 0), parted by commas")  # fmt: skip
            i = item(found[1])
            if found[2]:
                pairs.append((i, item(found[3])) if found[2] == "before" else (item(found[3]), i))
            else:
                place = int(found[5]) if found[5] else 0 if found[4] == "first" else n - 1
                least[i], most[i] = max(least[i], place), min(most[i], place)
        for _ in range(n):
            for i, j in pairs:
                least[j], most[i] = max(least[j], least[i] + 1), min(most[i], most[j] - 1)
        # an order exists if the item with the earliest last place, of those that may come, always can [Horn 1974]
        left = set(range(n))
        for place in range(n):
            i = min((i for i in left if least[i] <= place), key=most.__getitem__, default=-1)
            refuse(i < 0 or most[i] < place, f"given: no order fulfils {text!r}")
            left.remove(i)
        return cls(text, torch.tensor(least), torch.tensor(most), torch.tensor(pairs, dtype=torch.int64).view(-1, 2))

    def holds(self, orders: Tensor) -> Tensor:
        """Whether it does of orders [..., n], bool [...]; not of what is none.

        Ours (tests/permutations/test_queries.py).
        """
        whole = is_permutation(orders)
        places = inverse(torch.where(whole.unsqueeze(-1), orders, identity_like(orders)))
        before = self.before.to(orders.device)
        inside = (places >= self.least.to(orders.device)) & (places <= self.most.to(orders.device))
        return whole & inside.all(-1) & (places[..., before[:, 0]] < places[..., before[:, 1]]).all(-1)


def merged(states: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Equal lists of [b, M, m], log-probabilities [b, M], put together: the first gets the sum, the others -inf.

    Ours; checked in `tests.permutations.test_shuffle`.
    """
    n = states.shape[-1]
    # equal lists have equal sums of these whole numbers; neighbours after sorting are compared themselves
    numbers = torch.randint(-(2**62), 2**62, (n, n), generator=torch.Generator().manual_seed(n)).to(states.device)
    keys = numbers[torch.arange(n, device=states.device), states].sum(-1)
    order = keys.argsort(dim=1, stable=True)
    states = states.gather(1, order.unsqueeze(-1).expand_as(states))
    log_probs = log_probs.gather(1, order)
    new = torch.ones_like(log_probs, dtype=torch.bool)
    new[:, 1:] = (states[:, 1:] != states[:, :-1]).any(-1)
    group = new.long().cumsum(1) - 1
    most = torch.full_like(log_probs, -torch.inf).scatter_reduce(1, group, log_probs, "amax")
    offset = most.gather(1, group).masked_fill(log_probs == -torch.inf, 0.0)
    mass = torch.zeros_like(log_probs).scatter_add(1, group, (log_probs - offset).exp())
    return states, (most + mass.log()).gather(1, group).masked_fill(~new, -torch.inf)


def answers(orders: Tensor, log_weights: Tensor, top: int, given: Condition | None = None) -> dict[str, Tensor]:
    """What weighted orders int64 [b, K, n], with log-weights [b, K], say under a condition: weighted shares.

    Ours (tests/permutations/test_queries.py).

    Returns:
        `places` float64 [b, n, n], how likely every item (column) is at every place; `pairs`, how likely every item
        (row) comes before every other; `top` and `top_log_prob` of `likeliest`; with a condition `given_log_prob` [b].

    Raises:
        UserError: no order fulfils it.
    """
    log_weights = log_weights.double()
    mass = log_weights.new_zeros(len(orders))
    if given is not None:
        mass, log_weights = log_weights.logsumexp(1), log_weights.masked_fill(~given.holds(orders), -torch.inf)
        mass = log_weights.logsumexp(1) - mass
        if bool((mass == -torch.inf).any()):
            raise UserError(f"given: none of {orders.shape[1]:,} orders of this model fulfils {given.text!r}")
    log_weights = log_weights.log_softmax(-1)
    weights, ranks = log_weights.exp().unsqueeze(-1), inverse(orders)
    pairs = [((ranks[..., i : i + 1] < ranks) * weights).sum(1) for i in range(orders.shape[-1])]
    found = {"places": place_probabilities(orders, log_weights), "pairs": torch.stack(pairs, 1)}
    return {**found, **likeliest(orders, log_weights, top), **({"given_log_prob": mass} if given else {})}


def place_probabilities(orders: Tensor, log_weights: Tensor) -> Tensor:
    """How likely every item is at every place by weighted orders, float64 [b, n, n], rows are places.

    Sums of weights, as in `answers`. Ours (tests/permutations/test_queries.py).

    Args:
        orders: int64 [b, K, n].
        log_weights: [b, K], not normalised.
    """
    weights = log_weights.double().softmax(-1)[..., None, None].expand(*orders.shape, 1)
    found = torch.zeros(*orders.shape, orders.shape[-1], dtype=torch.float64, device=orders.device)
    return found.scatter_(-1, orders.unsqueeze(-1), weights).sum(1)


def likeliest(orders: Tensor, log_probs: Tensor, top: int) -> dict[str, Tensor]:
    """`top` int64 [b, top, n], the likeliest of orders [b, K, n], -1 for none, with `top_log_prob` [b, top].

    Ours (tests/permutations/test_queries.py).
    """
    best, log_probs = most_probable(*merged(orders, log_probs), top)
    more = max(0, top - orders.shape[1])
    best = best.masked_fill((log_probs == -torch.inf).unsqueeze(-1), -1)
    return {
        "top": F.pad(best, (0, 0, 0, more), value=-1),
        "top_log_prob": F.pad(log_probs, (0, more), value=-torch.inf),
    }


def whole(request: Mapping[str, Any], name: str, least: int = 1) -> int:
    """A whole number among settings, `least` if it is not given.

    Raises:
        UserError: it is less, or something else.
    """
    if type(value := request.get(name, least)) is not int or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
