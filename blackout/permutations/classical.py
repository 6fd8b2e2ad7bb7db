"""Classical families of distributions over orders, which are products, or chains, of digits of a code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Size, Tensor

from blackout.permutations.codes import Code, FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.distributions.base import OrderDistribution, best, check_k
from blackout.permutations.distributions.beam import best_digits
from blackout.permutations.distributions.plackett_luce import PlackettLuce
from blackout.permutations.group import all_permutations, inverse, is_permutation
from blackout.random import RandomSource, cumulative

# --- The order nearest to many: the least total Kendall distance (Kemeny 1959).

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


# --- Classical families whose code has independent digits: one pass of a model on that code is enough for them.


class IndependentDigits(OrderDistribution):
    """A product over the digits of a code.

    Args:
        log_weights: [..., n, n], digit i over its values, not normalised; outside the support they are not looked at.
        reference: the order relative to which orders are coded, int64 [n]; None is 0, 1, 2, ...

    Raises:
        ValueError: the reference is no order of n items.
    """

    code: ClassVar[type[Code]]

    def __init__(self, log_weights: Tensor, reference: Tensor | None = None) -> None:
        n = log_weights.shape[-1]
        super().__init__(log_weights.shape[:-2], n, None, False)
        if reference is not None and (reference.shape != (n,) or not bool(is_permutation(reference))):
            raise ValueError(f"the reference must be an order of the items 0..{n - 1}")
        self.reference = reference
        outside = ~self.code.support(n, log_weights.device)
        self.digit_log_probs = log_weights.double().masked_fill(outside, -math.inf).log_softmax(-1)
        """Of every digit's values, float64 [*batch, n, n]."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], float64.

        Raises:
            ValueError: a value is no permutation.
        """
        digits = self.code.encode(value, self.reference)
        shape = torch.broadcast_shapes(digits.shape[:-1], self.batch_shape)
        table = self.digit_log_probs.expand(*shape, self._n, self._n)
        return table.gather(-1, digits.expand(*shape, self._n).unsqueeze(-1)).squeeze(-1).sum(-1)

    @torch.no_grad()
    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]."""
        u = self._uniform(tuple(sample_shape), (self._n,), generator, self.digit_log_probs)
        rows = u.reshape(-1, *self.batch_shape, self._n).movedim(0, -1).contiguous()
        digits = torch.searchsorted(cumulative(self.digit_log_probs.exp()), rows, right=True)
        return self.code.decode(digits.movedim(-1, 0).reshape(u.shape), self.reference)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable orders, exactly."""
        check_k(k)
        digits, log_probs = best_digits(self.digit_log_probs, k)
        possible = (log_probs > -math.inf).unsqueeze(-1)
        certain = self.digit_log_probs.argmax(-1).unsqueeze(-2)  # in place of digits outside the support
        return best(self.code.decode(torch.where(possible, digits, certain), self.reference), log_probs, k)

    def _moments(self, statistic: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the sum over digits i of statistic[i, c_i], [*batch] each."""
        p = self.digit_log_probs.exp()
        mean = (p * statistic).sum(-1)
        return mean.sum(-1), ((p * statistic**2).sum(-1) - mean**2).sum(-1)


class Mallows(IndependentDigits):
    """phi^d / Z, d the Kendall distance of an order from the centre (Mallows 1957).

    With weights, phi^(sum of w_i L_i), L the Lehmer digits of the order relative to the centre: the digits of place i
    have their own spread phi^w_i (Fligner & Verducci 1986).

    Args:
        n: items.
        phi: not negative, a number or a tensor [...]: 0 is the centre alone, 1 uniform.
        centre: an order int64 [n]; None is 0, 1, 2, ...
        weights: not negative, [n], by place; None is all 1.

    Raises:
        ValueError: n < 1, a negative phi or weight, weights or a centre that do not fit.
    """

    code = Lehmer

    def __init__(
        self, n: int, phi: float | Tensor, centre: Tensor | None = None, weights: Tensor | None = None
    ) -> None:
        _check_size(n)
        self.phi = torch.as_tensor(phi, dtype=torch.float64)
        self.weights = torch.ones(n, dtype=torch.float64) if weights is None else weights.double()
        if not bool(((self.phi >= 0) & self.phi.isfinite()).all()):
            raise ValueError(f"phi must be a number that is not negative, not {phi}")
        if self.weights.shape != (n,) or not bool((self.weights >= 0).all()):
            raise ValueError(f"weights must be {n} numbers that are not negative")
        exponents = self.weights.to(self.phi.device).unsqueeze(-1) * torch.arange(n, device=self.phi.device)
        super().__init__(torch.special.xlogy(exponents, self.phi[..., None, None]), centre)

    @property
    def centre(self) -> Tensor:
        """The order of distance 0, int64 [n]."""
        return torch.arange(self._n) if self.reference is None else self.reference

    @property
    def distance_mean(self) -> Tensor:
        """Of the Kendall distance to the centre, [*batch]."""
        return self._moments(torch.arange(self._n, device=self.phi.device).double())[0]

    @property
    def distance_variance(self) -> Tensor:
        """Of the Kendall distance to the centre, [*batch]."""
        return self._moments(torch.arange(self._n, device=self.phi.device).double())[1]

    @classmethod
    def fit(cls, orders: Tensor, centre: Tensor | None = None) -> Mallows:
        """The maximum likelihood of orders [N, n], without weights.

        The centre, unless given, minimises the total distance (`consensus`: exactly to 14 items, above that a local
        minimum); phi makes the mean distance that of the data, which is where the likelihood, concave in log phi, is
        largest.

        Raises:
            ValueError: no orders, or all of them the reverse of a given centre (phi has no maximum).
        """
        n = orders.shape[-1]
        centre = consensus(orders) if centre is None else centre
        wanted = float(Lehmer.encode(orders, centre).sum(-1).double().mean())
        if wanted == 0:
            return cls(n, 0.0, centre)
        if wanted >= n * (n - 1) / 2:
            raise ValueError("all orders are the reverse of the centre: no phi is the most likely")
        least, most = -50.0, 50.0
        for _ in range(80):
            middle = (least + most) / 2
            low = float(cls(n, math.exp(middle)).distance_mean) < wanted
            least, most = (middle, most) if low else (least, middle)
        return cls(n, math.exp((least + most) / 2), centre)


class RepeatedInsertion(IndependentDigits):
    """Items go in one after another, item k at place v of the list so far with probability pi_k(v).

    Doignon, Pekec & Regenwetter (2004). Mallows is pi_k(v) proportional to phi^(k - v).

    Args:
        probabilities: [..., n, n], row k over v = 0..k.
        reference: the items in the order in which they go in, int64 [n]; None is 0, 1, 2, ...

    Raises:
        ValueError: rows that are no probabilities, or have some outside 0..k; a reference that does not fit.
    """

    code = Insertion

    def __init__(self, probabilities: Tensor, reference: Tensor | None = None) -> None:
        n = probabilities.shape[-1]
        if probabilities.ndim < 2 or probabilities.shape[-2] != n or n < 1:
            raise ValueError(f"probabilities must be [..., n, n], not {list(probabilities.shape)}")
        outside = probabilities.masked_select(~Insertion.support(n, probabilities.device))
        sums = probabilities.double().sum(-1)
        if bool((probabilities < 0).any()) or bool((outside != 0).any()) or bool(((sums - 1).abs() > 1e-5).any()):
            raise ValueError("row k must hold probabilities of the places 0..k, with sum 1, and 0 beyond")
        super().__init__(probabilities.double().log(), reference)

    @property
    def distance_mean(self) -> Tensor:
        """Of the Kendall distance to the reference, [*batch]."""
        return self._moments(self._inversions)[0]

    @property
    def distance_variance(self) -> Tensor:
        """Of the Kendall distance to the reference, [*batch]."""
        return self._moments(self._inversions)[1]

    @property
    def _inversions(self) -> Tensor:
        """k - v [n, n]: how many earlier items come after item k."""
        k = torch.arange(self._n, device=self.digit_log_probs.device).double()
        return k.unsqueeze(-1) - k

    @classmethod
    def fit(cls, orders: Tensor, reference: Tensor | None = None, prior: float = 0.0) -> RepeatedInsertion:
        """The maximum likelihood of orders [N, n] given the reference: how often items went in where.

        Args:
            prior: added to every count; 0 is the maximum likelihood.

        Raises:
            ValueError: no orders, or a negative prior.
        """
        if orders.ndim != 2 or not len(orders) or prior < 0:
            raise ValueError(
                f"orders [N, n], at least one, and prior >= 0 are needed, not {list(orders.shape)}, {prior}"
            )
        n = orders.shape[-1]
        digits = Insertion.encode(orders, reference)
        counts = torch.nn.functional.one_hot(digits, n).sum(0).double() + prior * Insertion.support(n, orders.device)
        return cls(counts / counts.sum(-1, keepdim=True), reference)


class Ewens(IndependentDigits):
    """theta^cycles / (theta (theta + 1) ... (theta + n - 1)) (Ewens 1972): independent digits of Fisher-Yates.

    Args:
        n: items.
        theta: not negative, a number or a tensor [...]: 1 is uniform, 0 uniform over the single cycles.

    Raises:
        ValueError: n < 1, or a negative theta.
    """

    code = FisherYates

    def __init__(self, n: int, theta: float | Tensor) -> None:
        _check_size(n)
        self.theta = torch.as_tensor(theta, dtype=torch.float64)
        if not bool(((self.theta >= 0) & self.theta.isfinite()).all()):
            raise ValueError(f"theta must be a number that is not negative, not {theta}")
        log_weights = torch.zeros(*self.theta.shape, n, n, dtype=torch.float64, device=self.theta.device)
        log_weights[..., :-1, 0] = self.theta.log().unsqueeze(-1)  # the last digit is 0 whatever theta
        super().__init__(log_weights)

    @property
    def cycles_mean(self) -> Tensor:
        """Of the number of cycles, [*batch]."""
        return self._moments(self._zeros)[0]

    @property
    def cycles_variance(self) -> Tensor:
        """Of the number of cycles, [*batch]."""
        return self._moments(self._zeros)[1]

    @property
    def _zeros(self) -> Tensor:
        """1 for a digit that is 0: it closes a cycle."""
        return (torch.arange(self._n, device=self.theta.device) == 0).double()


def _check_size(n: int) -> None:
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")


# --- Plackett-Luce digit by digit: the exact conditionals of any code, n passes of a model that knows them.

_ENUMERATED = 7
"""Most items for which conditionals without a closed form are summed over all orders."""


class PlackettLuceCodes(OrderDistribution):
    """Plackett-Luce as an autoregressive model of a code.

    `conditionals` is a causal denoiser (`blackout.permutations.factorized`): right with one digit a pass from the left,
    in one pass for `autoregressive_loss`. Closed forms for Lehmer, Fisher-Yates, insertion and inline; for others by
    enumeration, to 7 items.

    Args:
        log_weights: finite, [n].
        code: of `blackout.permutations.codes`.

    Raises:
        ValueError: weights that are no vector, or more than 7 of them with a code that has no closed form.
    """

    def __init__(self, log_weights: Tensor, code: type[Code]) -> None:
        if log_weights.ndim != 1 or not len(log_weights):
            raise ValueError(f"log_weights must be a vector [n], not {list(log_weights.shape)}")
        if code not in _CONDITIONALS and len(log_weights) > _ENUMERATED:
            raise ValueError(f"{code.__name__} conditionals are enumerated: at most {_ENUMERATED} items")
        super().__init__(Size(), len(log_weights), None, False)
        self.log_weights, self.code = log_weights.double(), code
        self._whole = PlackettLuce(self.log_weights)

    def conditionals(self, codes: Tensor) -> Tensor:
        """log P(c_i = v | c_<i), float64 [B, n, n]; -inf outside the support.

        Args:
            codes: int64 [B, n]; digits that are masked (n) count as 0 for those after them.
        """
        codes = codes.masked_fill(codes == self._n, 0)
        if self.code not in _CONDITIONALS:
            return _enumerated(self.log_weights, self.code, codes)
        return _CONDITIONALS[self.code](self.log_weights, codes)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], float64: the sum of the conditionals of the code's digits.

        Raises:
            ValueError: a value is no permutation.
        """
        digits = self.code.encode(value).reshape(-1, self._n)
        found = self.conditionals(digits).gather(2, digits.unsqueeze(-1)).squeeze(-1).sum(1)
        return found.view(value.shape[:-1])

    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, n]."""
        return self._whole.sample(sample_shape, generator)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """As `PlackettLuce.top`."""
        return self._whole.top(k)

    @property
    def distance_mean(self) -> Tensor:
        """Of the Kendall distance to 0, 1, 2, ...: the sum over pairs of P(the later item comes first)."""
        return _first(self.log_weights, torch.combinations(torch.arange(self._n), 2)).sum()

    @property
    def distance_variance(self) -> Tensor:
        """Of the same. Pairs without a common item are independent, so triples say all; O(n^3)."""
        pairs = torch.combinations(torch.arange(self._n), 2)
        p = _first(self.log_weights, pairs)
        variance = (p * (1 - p)).sum()
        if self._n < 3:
            return variance
        triples = torch.combinations(torch.arange(self._n), 3)
        orders = all_permutations(3)
        law = PlackettLuce(self.log_weights[triples].unsqueeze(-2)).log_prob(orders).exp()
        inversions = torch.tensor([0.0, 1, 1, 2, 2, 3], dtype=law.dtype)
        mean = (law * inversions).sum(-1)
        alone = torch.stack([_first(self.log_weights, triples[:, pair]) for pair in ([0, 1], [0, 2], [1, 2])])
        return variance + ((law * inversions**2).sum(-1) - mean**2 - (alone * (1 - alone)).sum(0)).sum()


def _first(log_weights: Tensor, pairs: Tensor) -> Tensor:
    """P(the second item of a pair [P, 2] comes before the first), [P]."""
    return torch.sigmoid(log_weights[pairs[:, 1]] - log_weights[pairs[:, 0]])


def _lehmer(log_weights: Tensor, codes: Tensor) -> Tensor:
    """Digit i is the rank of the next item among those left."""
    found, n = _impossible(codes), codes.shape[1]
    left = torch.arange(n, device=codes.device).expand(len(codes), n)
    for i in range(n):
        found[:, i, : n - i] = log_weights[left].log_softmax(-1)
        place = torch.arange(n - i - 1, device=codes.device)
        left = left.gather(1, place + (place >= codes[:, i : i + 1]))
    return found


def _fisher_yates(log_weights: Tensor, codes: Tensor) -> Tensor:
    """Digit i is the place of the next item, counted from i, in the deck after i swaps."""
    found, n = _impossible(codes), codes.shape[1]
    deck = torch.arange(n, device=codes.device).repeat(len(codes), 1)
    for i in range(n):
        found[:, i, : n - i] = log_weights[deck[:, i:]].log_softmax(-1)
        j, own = i + codes[:, i : i + 1], deck[:, i : i + 1].clone()
        deck[:, i : i + 1] = deck.gather(1, j)
        deck.scatter_(1, j, own)
    return found


def _insertion(log_weights: Tensor, codes: Tensor) -> Tensor:
    """The order of the first k + 1 items is Plackett-Luce too: the ratio of the order after and before item k goes in.

    In front of place v stand items whose sums of what is left now include w_k; behind it nothing changes.
    """
    found, n = _impossible(codes), codes.shape[1]
    order = torch.zeros(len(codes), 0, dtype=torch.int64, device=codes.device)
    for k in range(n):
        own = log_weights[k].expand(len(codes), 1)
        left = torch.cat([log_weights[order].flip(1).logcumsumexp(1).flip(1), torch.full_like(own, -torch.inf)], 1)
        grown = torch.logaddexp(left, own)
        ratio = (left - grown)[:, :k].cumsum(1)
        found[:, k, : k + 1] = own - grown + torch.cat([torch.zeros_like(own), ratio], 1)
        place = torch.arange(k + 1, device=codes.device)
        at = codes[:, k : k + 1]
        shifted = torch.cat([order, torch.zeros_like(at)], 1).gather(1, place - (place > at).long())
        order = torch.where(place == at, k, shifted)
    return found


def _inline(log_weights: Tensor, codes: Tensor) -> Tensor:
    """Digit i is the next item itself."""
    found, n = _impossible(codes), codes.shape[1]
    used = torch.zeros(codes.shape, dtype=torch.bool, device=codes.device)
    for i in range(n):
        left = log_weights.expand(codes.shape).masked_fill(used, -torch.inf)
        found[:, i] = left.log_softmax(-1)
        used = used.scatter(1, codes[:, i : i + 1], True)
    return found


def _enumerated(log_weights: Tensor, code: type[Code], codes: Tensor) -> Tensor:
    """Bayes over all orders, digit by digit."""
    found, n = _impossible(codes), codes.shape[1]
    orders = all_permutations(n).to(codes.device)
    table, law = code.encode(orders), PlackettLuce(log_weights).log_prob(orders).exp()
    possible = torch.ones(len(codes), len(orders), dtype=torch.bool, device=codes.device)
    for i in range(n):
        mass = torch.zeros(len(codes), n, dtype=law.dtype, device=codes.device)
        mass.index_add_(1, table[:, i], possible * law)
        found[:, i] = (mass / mass.sum(1, keepdim=True)).log()
        possible &= table[:, i] == codes[:, i : i + 1]
    return found


def _impossible(codes: Tensor) -> Tensor:
    """-inf for every value of every digit, float64 [B, n, n]."""
    return torch.full((*codes.shape, codes.shape[1]), -torch.inf, dtype=torch.float64, device=codes.device)


_CONDITIONALS: dict[type[Code], Callable[[Tensor, Tensor], Tensor]] = {
    Lehmer: _lehmer,
    FisherYates: _fisher_yates,
    Insertion: _insertion,
    Inline: _inline,
}
