"""Distributions over one step back of a shuffle [Zhang 2025, section 3.2.1]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.permutations.distributions.base import OrderDistribution, best_digits
from blackout.permutations.group import identity_like
from blackout.random import RandomSource


class InverseRiffle(OrderDistribution):
    """Every item goes to the left packet with probability sigmoid(score); left, then right packet, orders kept.

    [Zhang 2025, section 3.2.1]. An order with one descent comes from exactly one choice of
    packets, the identity from n + 1 of them (the first k left, the others right), an order with more descents from
    none. Scores 0 give the inverse of the riffle itself.

    Args:
        scores: [..., n].

    Raises:
        ValueError: scores without items.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; -inf for more than one descent."""
        scores, value = torch.broadcast_tensors(self.scores, value)
        cuts = self._cuts(scores.gather(-1, value))
        falls = value[..., 1:] < value[..., :-1]
        number = falls.sum(-1)
        cut = 1 + (falls.int().argmax(-1) if self._n > 1 else torch.zeros_like(number))
        found = torch.where(number == 0, cuts.logsumexp(-1), cuts.gather(-1, cut.unsqueeze(-1)).squeeze(-1))
        return found.masked_fill(number > 1, -torch.inf)

    def _cuts(self, z: Tensor) -> Tensor:
        """The log-probability that exactly the first k of a list with scores z [..., n] are left, [..., n + 1]."""
        left, right = F.logsigmoid(z), F.logsigmoid(-z)
        return F.pad(left.cumsum(-1), (1, 0)) + F.pad(right.flip(-1).cumsum(-1).flip(-1), (0, 1))

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        left = self._uniform(sample_shape, (self._n,), generator) < torch.sigmoid(self.scores.double())
        return _sorted_by_packet(left)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Those of the best choices of packets, the identity's n + 1 put together: as many as leave k others."""
        packets = torch.stack([F.logsigmoid(self.scores), F.logsigmoid(-self.scores)], -1)
        wanted, most = k + 2, k + self._n + 1
        while True:
            choices, log_probs = best_digits(packets, wanted)
            orders = _sorted_by_packet(choices == 0)
            sorted_already = (orders[..., 1:] > orders[..., :-1]).all(-1)
            if wanted >= most or not log_probs.numel() or int((~sorted_already).sum(-1).min()) >= k:
                break
            wanted = min(2 * wanted, most)
        identity = torch.arange(self._n, device=orders.device).expand(*self.batch_shape, 1, self._n)
        mass = self._cuts(self.scores).logsumexp(-1, keepdim=True)
        log_probs = torch.cat([mass, log_probs.masked_fill(sorted_already, -torch.inf)], -1)
        return torch.cat([identity, orders], -2), log_probs


def _sorted_by_packet(left: Tensor) -> Tensor:
    """The order that choices of packets bool [..., n] lead to."""
    return (~left).to(torch.uint8).argsort(dim=-1, stable=True)


class InverseTransposition(OrderDistribution):
    """Nothing with probability 1 - sigmoid(swap), else two items change places, chosen without replacement.

    p((i j)) = sigmoid(swap) (w_i w_j / (1 - w_i) + w_j w_i / (1 - w_j)), w = softmax(scores) [Zhang 2025, eq. 6].

    Args:
        scores: finite, [..., n], n at least 2.
        swap: the logit of a transposition, [...].

    Raises:
        ValueError: fewer than two items, or shapes that do not fit.
    """

    def __init__(self, scores: Tensor, swap: Tensor) -> None:
        super().__init__(scores, least=2)
        if swap.shape != self.batch_shape:
            raise ValueError(f"swap must have the shape {list(self.batch_shape)} of the batch, not {list(swap.shape)}")
        self.swap, self._log_w = swap, scores.log_softmax(-1)
        # log(1 - w_i): of the greatest weight by the sum of the others, because 1 - w would cancel
        first = scores.argmax(-1, keepdim=True)
        others = scores.scatter(-1, first, -torch.inf).logsumexp(-1, keepdim=True) - scores.logsumexp(-1, keepdim=True)
        rest = torch.log1p(-self._log_w.scatter(-1, first, -torch.inf).exp())
        self._log_rest = rest.scatter(-1, first, others)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; -inf unless the identity or one transposition."""
        moved = value != identity_like(value)
        number = moved.sum(-1)
        i = moved.int().argmax(-1, keepdim=True)
        j = torch.where(number.unsqueeze(-1) == 2, value.gather(-1, i), 1 - i.clamp(max=1))  # any pair where it is not
        swap = F.logsigmoid(self.swap) + self._pair(i, j).squeeze(-1)
        return torch.where(number == 0, F.logsigmoid(-self.swap), swap.masked_fill(number != 2, -torch.inf))

    def _pair(self, i: Tensor, j: Tensor) -> Tensor:
        """log of w_i w_j / (1 - w_i) + w_i w_j / (1 - w_j), for items i, j int64 [..., k]: [..., k]."""
        shape = torch.broadcast_shapes(i.shape[:-1], self.batch_shape)
        log_w, log_rest = (x.expand(*shape, self._n) for x in (self._log_w, self._log_rest))
        i, j = i.expand(*shape, -1), j.expand(*shape, -1)
        either = torch.logaddexp(-log_rest.gather(-1, i), -log_rest.gather(-1, j))
        return log_w.gather(-1, i) + log_w.gather(-1, j) + either

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        swaps = self._uniform(sample_shape, (1,), generator) < self.swap.double().sigmoid().unsqueeze(-1)
        noisy = self._log_w + self._gumbel(sample_shape, (self._n,), generator)
        first, second = noisy.topk(2).indices.split(1, -1)
        second = torch.where(swaps, second, first)
        identity = torch.arange(self._n, device=first.device).expand(noisy.shape)
        return identity.scatter(-1, first, second).scatter(-1, second, first)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """All 1 + n (n - 1) / 2."""
        i, j = torch.triu_indices(self._n, self._n, 1, device=self.scores.device)
        swap = F.logsigmoid(self.swap).unsqueeze(-1) + self._pair(i, j)
        orders = torch.arange(self._n, device=i.device).repeat(len(i) + 1, 1)
        rows = torch.arange(1, len(i) + 1, device=i.device)
        orders[rows, i], orders[rows, j] = j, i
        log_probs = torch.cat([F.logsigmoid(-self.swap).unsqueeze(-1), swap], -1)
        return orders.expand(*self.batch_shape, *orders.shape), log_probs


class InverseInsertion(OrderDistribution):
    """Item i moves to the end with probability softmax(scores)_i [Zhang 2025, eq. 7].

    Args:
        scores: finite, [..., n].

    Raises:
        ValueError: scores without items.
    """

    def __init__(self, scores: Tensor) -> None:
        super().__init__(scores)
        self._log_w = scores.log_softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; -inf unless one item moved to the end."""
        log_w, value = torch.broadcast_tensors(self._log_w, value)
        moved = value[..., -1:]
        possible = (self._order(moved) == value).all(-1)
        return log_w.gather(-1, moved).squeeze(-1).masked_fill(~possible, -torch.inf)

    def _order(self, item: Tensor) -> Tensor:
        """The order in which `item` [..., 1] comes last and those after it move up."""
        place = torch.arange(self._n, device=item.device)
        return torch.where(place == self._n - 1, item, place + (place >= item))

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        noisy = self._log_w + self._gumbel(sample_shape, (self._n,), generator)
        return self._order(noisy.argmax(-1, keepdim=True))

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """All n."""
        items = torch.arange(self._n, device=self.scores.device).expand(*self.batch_shape, self._n)
        return self._order(items.unsqueeze(-1)), self._log_w
