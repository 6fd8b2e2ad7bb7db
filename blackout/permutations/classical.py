"""Classical families of distributions over orders, which are products, or chains, of digits of a code; and their fits.

The order nearest to many others comes first, because a Mallows law is fitted about it. Then that law, whose Lehmer code
has independent digits, so that one pass of a model on it is enough; the maximum likelihood of Plackett-Luce; mixtures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from blackout.errors import ensure
from blackout.permutations.codes import Lehmer
from blackout.permutations.distributions import PermutationDistribution, PlackettLuce, independent_log_prob
from blackout.permutations.group import inverse, is_permutation
from blackout.random import RandomSource, StepStreams, cumulative_probabilities

EXACT = 14
"""Most items for which the consensus goes through all sets of items."""
_VOTERS, _PAIRS = 4000, 2**24
"""Most orders that mixtures are fitted to, and numbers that say who has what before what."""
_STARTS, _FIRST_TURNS, _TURNS, _HUNTER = 4, 8, 100, 2
"""Of expectation-maximisation: starts for each number of laws, turns to choose between them, turns of the chosen one,
and steps of Plackett-Luce a turn."""
_PATIENCE = 3  # numbers of laws in a row that are no better on validation orders, after which none is tried
_EXACT_IN_TURNS = 10  # items to which every turn finds the best centre; beyond, it improves the last one


def consensus(orders: Tensor) -> Tensor:
    """The order with the least sum of Kendall distances to orders int64 [N, n], int64 [n] [Kemeny 1959].

    Exact to 14 items, by dynamic programming over the sets of items that come first. Above that, items by mean place,
    then moved one at a time while that helps: a local minimum.

    Raises:
        ValueError: no orders.
    """
    ensure(orders.ndim == 2 and len(orders), f"at least one order is needed, as [N, n], not {list(orders.shape)}")
    places, n = inverse(orders), orders.shape[1]
    before = torch.stack([(places[:, a : a + 1] < places).sum(0) for a in range(n)]).cpu().numpy()
    return torch.tensor(_kemeny(before), dtype=torch.int64, device=orders.device)


def _kemeny(before: np.ndarray) -> list[int]:
    """The order, n integers, of `consensus` [Kemeny 1959]; items with fewest objections first where not exact.

    `before[a, b]` orders, or their weights, of [n, n], have a before b.
    """
    return _exact(before) if len(before) <= EXACT else _improved(before, before.sum(1).argsort()[::-1].tolist())


def _exact(before: np.ndarray) -> list[int]:
    """The n items in the order of `consensus` [Kemeny 1959], by the sets of items that come first, as in [Held 1962].

    `before[a, b]` orders, of [n, n], have a before b. The cost of x after the set S is the number of orders that have x
    before a member, summed over the members. Checked by enumeration in tests/permutations/test_families.py.
    """
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
    """Every item in turn to its best place, until none moves: a local minimum of the distance of [Kemeny 1959].

    Ours (tests/permutations/test_families.py); `before` [n, n] as in `_exact`, and orders of n integers.
    """
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


class Mallows(PermutationDistribution):
    """phi^d / Z, d the Kendall distance of an order from the centre [Mallows 1957].

    Its Lehmer digits are independent [Severo 2025, eq. 2 with one block]. No `top`: to phi 1 its mode is the centre.

    Args:
        n: items.
        phi: not negative, a number or a tensor [...]: 0 is the centre alone, 1 uniform.
        centre: an order int64 [n], the `reference`; None is 0, 1, 2, ...

    Raises:
        ValueError: n < 1, a negative phi, or a centre that does not fit.
    """

    def __init__(self, n: int, phi: float | Tensor, centre: Tensor | None = None) -> None:
        """Of digit i the weight phi^v of every value v up to n - 1 - i, normalised, float64 [*batch, n, n]: see the
        class.
        """
        self.phi, self.reference = torch.as_tensor(phi, dtype=torch.float64), centre
        if not bool(((self.phi >= 0) & self.phi.isfinite()).all()):
            raise ValueError(f"phi must be a number that is not negative, not {phi}")
        exponents = torch.arange(n, dtype=torch.float64, device=self.phi.device).expand(n, n)
        super().__init__(torch.special.xlogy(exponents, self.phi[..., None, None]), 2)
        if centre is not None and (centre.shape != (n,) or not bool(is_permutation(centre))):
            raise ValueError(f"the reference must be an order of the items 0..{n - 1}")
        self.digit_log_probs = self.scores.masked_fill(~Lehmer.support(n, self.phi.device), -math.inf).log_softmax(-1)
        """Of every digit's values, float64 [*batch, n, n]."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], float64.

        Raises:
            ValueError: a value is no permutation.
        """
        return independent_log_prob(self.digit_log_probs, Lehmer.encode(value, self.reference))

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Orders [..., n] by digits, each drawn by inversion of its law: see the class."""
        u = self._uniform(sample_shape, (self._n,), generator)
        rows = u.reshape(-1, *self.batch_shape, self._n).movedim(0, -1).contiguous()
        digits = torch.searchsorted(cumulative_probabilities(self.digit_log_probs.exp()), rows, right=True)
        return Lehmer.decode(digits.movedim(-1, 0).reshape(u.shape), self.reference)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the distance, float64 [*batch] each: digits add up to it.

        Ours (tests/permutations/test_families.py).
        """
        p, digit = self.digit_log_probs.exp(), torch.arange(self._n, device=self.digit_log_probs.device).double()
        mean = (p * digit).sum(-1)
        return mean.sum(-1), ((p * digit**2).sum(-1) - mean**2).sum(-1)

    @classmethod
    def fit(cls, orders: Tensor) -> Mallows:
        """The maximum likelihood of orders int64 [N, n].

        The centre minimises the total distance (`consensus`: exactly to 14 items, above that a local minimum); phi
        makes the mean distance that of the data, which is where the likelihood, concave in log phi, is largest. Ours
        (tests/permutations/test_families.py).

        Raises:
            ValueError: no orders.
        """
        n, centre = orders.shape[-1], consensus(orders)
        wanted = float(Lehmer.encode(orders, centre).sum(-1).double().mean())
        return cls(n, math.exp(_log_phi(n, wanted)) if wanted else 0.0, centre)


def _log_phi(n: int, wanted: float) -> float:
    """log phi of the Mallows law of n items whose mean distance is `wanted`, by bisection, from -50 to 50.

    A float: the mean of digits as in `Mallows.moments`. Ours (tests/permutations/test_families.py).
    """
    digits, least, most = np.arange(n, dtype=np.float64), -50.0, 50.0
    for _ in range(80):
        middle = (least + most) / 2
        # of the digits 0..k, relative to the largest of these weights
        weights = np.exp(middle * (digits - (0 if middle < 0 else n)))
        low = (np.cumsum(weights * digits) / np.cumsum(weights)).sum() < wanted
        least, most = (middle, most) if low else (least, middle)
    return (least + most) / 2


def fit_plackett_luce(orders: Tensor, num_items: int | None = None, prior: float = 1e-3) -> Tensor:
    """Scores of items, float64 [num_items], by maximum likelihood of orders int64 [N, m] of some of them.

    The likelihood is that of [Plackett 1975]; checked against known weights in `tests.permutations.coded.test_data`.

    Args:
        orders: items, the first chosen first.
        num_items: how many there are; None for m.
        prior: of a normal law around 0 on the scores, which keeps them finite.
    """
    scores = torch.zeros(num_items or orders.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scores], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        """Minus the mean log-likelihood with the prior of `fit_plackett_luce`: a scalar."""
        optimizer.zero_grad()
        value = prior * scores.square().sum() - PlackettLuce(scores).log_prob(orders).mean()
        value.backward()
        return value

    optimizer.step(loss)
    return scores.detach()


@dataclass(frozen=True, eq=False)
class Mixture:
    """Orders of several kinds of voters: of kind k with probability weights[k].

    Ours (tests/permutations/test_families.py).

    Args:
        weights: float64 [K], with sum 1.
        laws: K of them, of orders of the same items.
    """

    weights: Tensor
    laws: Sequence[Mallows | PlackettLuce]

    def log_prob(self, value: Tensor) -> Tensor:
        """log sum_k w_k p_k of orders [..., n], of Plackett-Luce also of some of the items, [..., m]; float64 [...].

        See the class.
        """
        each = torch.stack([law.log_prob(value) for law in self.laws], -1).double()
        return (each + self.weights.log()).logsumexp(-1)

    def sample(self, number: int, streams: StepStreams) -> Tensor:
        """Orders of all items, int64 [number, n]: a kind by its weight, then an order of its law, as in the class."""
        u = streams.next_draw().uniform((number, 1))
        kind = torch.searchsorted(self.weights.cumsum(0)[:-1], u.double())
        each = torch.stack([law.sample(Size([number]), streams) for law in self.laws], 1)
        return each[torch.arange(number), kind.squeeze(1)]

    @classmethod
    def fit(
        cls, orders: Tensor, family: type[Mallows | PlackettLuce], number: int, num_items: int | None = None
    ) -> Mixture:
        """Fit so many Mallows or Plackett-Luce laws by expectation-maximisation.

        It is tried from several starts, kinds about orders of the data that are far from each other, and
        the likeliest goes on. A turn of Plackett-Luce takes steps of Hunter's algorithm, with a tenth of
        a voter in every win and loss.

        Args:
            orders: items, the first chosen first, int64 [N, m]; at most the first 4,000 are fitted to.
            family: of the laws; Mallows orders all items, Plackett-Luce any m of them.
            number: of laws, at least 1.
            num_items: how many there are; None for m.

        Raises:
            ValueError: no laws, no orders, orders with no such items or one item twice, or more items
                than Mallows laws order.

        References: Dempster et al. 1977; Hunter 2004; Arthur and Vassilvitskii 2007.
        """
        ensure(number >= 1, f"a mixture has at least one law, not {number}")
        orders, n = _checked_orders(orders, family, num_items)
        rng = np.random.default_rng(0)
        data = orders[: max(100, min(_VOTERS, _PAIRS // n**2))].cpu().numpy()
        before = _pairs(data, n)
        step = _mallows_step if family is Mallows else _plackett_luce_step
        starts = [_far_apart(before, n, number, rng) for _ in range(1 if number == 1 else _STARTS)]
        tried = [_maximised(data, before, n, step, shares, _FIRST_TURNS) for shares in starts]
        shares, _, _ = max(tried, key=lambda one: one[2])
        shares, laws, _ = _maximised(data, before, n, step, shares, _TURNS)
        return cls(torch.from_numpy(shares.mean(0)), laws)

    @classmethod
    def choose(
        cls,
        orders: Tensor,
        validation: Tensor,
        family: type[Mallows | PlackettLuce],
        num_items: int | None = None,
    ) -> Mixture:
        """Fit 1, 2, 3, ... laws to orders and return the mixture that is likeliest on validation orders.

        It stops when several numbers in a row are no better, or when there is a law for every order.

        Args:
            orders, family, num_items: as for `fit`.
            validation: orders of the same kind, int64 [M, m], which none is fitted to.

        Raises:
            ValueError: see `fit`; or no validation orders.

        References: this project; checked in tests/permutations/test_families.py.
        """
        validation, _ = _checked_orders(validation, family, num_items)
        best = cls.fit(orders, family, 1, num_items)
        best_score = float(best.log_prob(validation).mean())
        number, last_better = 1, 1
        while number < len(orders) and number - last_better < _PATIENCE:
            number += 1
            mixture = cls.fit(orders, family, number, num_items)
            score = float(mixture.log_prob(validation).mean())
            if score > best_score:
                best, best_score, last_better = mixture, score, number
        return best


def _checked_orders(orders: Tensor, family: type, num_items: int | None) -> tuple[Tensor, int]:
    """Return orders int64 [N, m] as a tensor, and the number of items n.

    Raises:
        ValueError: see `Mixture.fit`.
    """
    orders = torch.as_tensor(orders)
    n = num_items or orders.shape[-1]
    if not orders.numel() or orders.ndim != 2 or (family is Mallows and n != orders.shape[1]):
        raise ValueError(f"orders [N, m] of all {n} items are needed, not {list(orders.shape)}")
    ordered = orders.sort(1).values
    whole = not orders.is_floating_point() and int(ordered.min()) >= 0 and int(ordered.max()) < n
    ensure(whole and bool((ordered.diff() > 0).all()), f"each order must name different items of 0..{n - 1} once")
    return orders, n


def _pairs(orders: np.ndarray, n: int) -> np.ndarray:
    """Whether an order of [N, m] has item a before item b, float32 [N, n * n]; 0 both ways where one is missing."""
    places = np.full((len(orders), n), n)
    np.put_along_axis(places, orders, np.arange(orders.shape[1])[None], 1)
    before = (places[:, :, None] < places[:, None, :]) & (places < n)[:, None, :]
    return before.reshape(len(orders), -1).astype(np.float32)


def _far_apart(before: np.ndarray, n: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """Shares [N, number] of every order in kinds about some of them, drawn far from each other [Arthur 2007]."""
    distances = list[np.ndarray]()
    chances = np.full(len(before), 1 / len(before))
    for _ in range(number):
        seed = before[rng.choice(len(before), p=chances)].reshape(n, n)
        distances.append(before @ seed.T.ravel())
        nearest = np.minimum.reduce(distances).astype(np.float64) + 1e-9
        chances = nearest / nearest.sum()
    near = np.exp(np.minimum.reduce(distances)[:, None] - np.stack(distances, 1).astype(np.float64))
    return np.asarray(near / near.sum(1, keepdims=True))


def _maximised(
    orders: np.ndarray, before: np.ndarray, n: int, step: Any, shares: np.ndarray, turns: int
) -> tuple[np.ndarray, list[Any], float]:
    """Shares, laws and the log-likelihood after so many turns, or where they gain less than 1e-4 a voter.

    Expectation-maximisation [Dempster 1977], of orders [N, m], `before` [N, n * n] and shares [N, K].
    """
    laws: list[Any] = [None] * shares.shape[1]
    likelihood = -math.inf
    for _ in range(turns):
        both = [step(orders, before, n, share, law) for share, law in zip(shares.T, laws, strict=True)]
        laws = [law for law, _ in both]
        joint = np.stack([log_p for _, log_p in both], 1) + np.log(shares.mean(0) + 1e-12)
        each = np.logaddexp.reduce(joint, axis=1)
        shares, last, likelihood = np.exp(joint - each[:, None]), likelihood, float(each.sum())
        if likelihood - last < 1e-4 * len(orders):
            break
    return shares, laws, likelihood


def _mallows_step(
    orders: np.ndarray, before: np.ndarray, n: int, share: np.ndarray, law: Mallows | None
) -> tuple[Mallows, np.ndarray]:
    """The law of orders [N, n] that count by their share [N], and the log-probability of every order [N].

    As `Mallows.fit`, with weights: the maximisation of [Dempster 1977].
    """
    wins = (share.astype(np.float32) @ before).reshape(n, n).astype(np.float64)
    if law is None or law.reference is None or n <= _EXACT_IN_TURNS:
        centre = np.array(_kemeny(wins))
    else:
        centre = np.array(_improved(wins, law.reference.tolist()))
    places = centre.argsort()
    against = before @ (places[:, None] > places[None]).astype(np.float32).ravel()
    log_phi = _log_phi(n, float(share @ against / max(share.sum(), 1e-12)))
    normaliser = np.logaddexp.accumulate(log_phi * np.arange(n)).sum()
    return Mallows(n, math.exp(log_phi), torch.from_numpy(centre)), log_phi * against - normaliser


def _plackett_luce_step(
    orders: np.ndarray, before: np.ndarray, n: int, share: np.ndarray, law: PlackettLuce | None
) -> tuple[PlackettLuce, np.ndarray]:
    """The law, with strengths of mean 1, and the log-probability of every order [N].

    Strength of an item = wins / sum over the choices it was in of 1 / the strength of all there [Hunter 2004], of
    orders [N, m] that count by their share [N].
    """
    strength, m = np.ones(n) if law is None else law.scores.exp().numpy(), orders.shape[1]
    wins = np.bincount(orders[:, :-1].ravel(), np.repeat(share, m - 1), n) + 0.1
    for _ in range(_HUNTER):
        left = strength[orders][:, ::-1].cumsum(1)[:, ::-1]
        lost = np.cumsum(np.append(1 / left[:, :-1], np.zeros((len(orders), 1)), 1), 1)
        strength = wins / (np.bincount(orders.ravel(), (share[:, None] * lost).ravel(), n) + 0.1)
        strength = strength / strength.mean()
    chosen = strength[orders]
    return PlackettLuce(torch.from_numpy(np.log(strength))), np.log(chosen / chosen[:, ::-1].cumsum(1)[:, ::-1]).sum(1)
