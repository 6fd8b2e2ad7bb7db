"""Plackett-Luce digit by digit: the exact conditionals of any code, n passes of a model that knows them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Size, Tensor

from blackout.permutations.codes import Code, FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.distributions.base import OrderDistribution
from blackout.permutations.distributions.plackett_luce import PlackettLuce
from blackout.permutations.group import all_permutations
from blackout.random import RandomSource

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
