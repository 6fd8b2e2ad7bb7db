"""Distributions over one step back of a shuffle (Zhang et al., ICLR 2025, section 3.2, eqs 6-8)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from blackout.permutations.distributions.base import OrderDistribution, best, check_k
from blackout.permutations.distributions.beam import best_digits
from blackout.permutations.group import identity_like
from blackout.random import RandomSource


class InverseRiffle(OrderDistribution):
    """Every item goes to the left packet with probability sigmoid(score); left, then right packet, orders kept.

    An order with one descent comes from exactly one choice of packets, the identity from n + 1 of them (the first k
    left, the others right), an order with more descents from none. Scores 0 give the inverse of the riffle itself.

    Args:
        scores: [..., n].
        mask: bool [..., n], see `OrderDistribution`.
        validate_args: whether `log_prob` checks that values are permutations.

    Raises:
        ValueError: scores without items, or a bad mask.
    """

    def __init__(self, scores: Tensor, mask: Tensor | None = None, validate_args: bool | None = None) -> None:
        _check_scores(scores, 1)
        super().__init__(scores.shape[:-1], scores.shape[-1], mask, validate_args)
        self.scores = scores

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; -inf for more than one descent."""
        scores, value = torch.broadcast_tensors(self.scores, self._checked(value))
        cuts = self._cuts(scores.gather(-1, value))
        falls = value[..., 1:] < value[..., :-1]
        number = falls.sum(-1)
        cut = 1 + (falls.int().argmax(-1) if self._n > 1 else torch.zeros_like(number))
        found = torch.where(number == 0, cuts.logsumexp(-1), cuts.gather(-1, cut.unsqueeze(-1)).squeeze(-1))
        if self.mask is not None:
            number = number.masked_fill(~((value == identity_like(value)) | self.mask).all(-1), self._n)
        return found.masked_fill(number > 1, -torch.inf)

    def _cuts(self, z: Tensor) -> Tensor:
        """The log-probability that exactly the first k of a list with scores z [..., n] are left, [..., n + 1]."""
        left, right = F.logsigmoid(z), F.logsigmoid(-z)
        if self.mask is not None:
            left, right = left.masked_fill(~self.mask, 0.0), right.masked_fill(~self.mask, 0.0)
        cuts = F.pad(left.cumsum(-1), (1, 0)) + F.pad(right.flip(-1).cumsum(-1).flip(-1), (0, 1))
        if self.mask is None:
            return cuts
        return torch.cat([cuts[..., :1], cuts[..., 1:].masked_fill(~self.mask, -torch.inf)], -1)

    @torch.no_grad()
    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]."""
        u = self._uniform(tuple(sample_shape), (self._n,), generator, self.scores)
        left = u < torch.sigmoid(self.scores.double())
        return _sorted_by_packet(left if self.mask is None else left & self.mask)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable orders, exactly: those of the k + n + 1 best choices, the identity's put together."""
        check_k(k)
        packets, log_probs = best_digits(self._packets(), k + self._n + 1)
        orders = _sorted_by_packet(packets == 0)
        sorted_already = (orders[..., 1:] > orders[..., :-1]).all(-1)
        log_probs = log_probs.masked_fill(sorted_already, -torch.inf)
        identity = torch.arange(self._n, device=orders.device).expand(*self.batch_shape, 1, self._n)
        mass = self._cuts(self.scores).logsumexp(-1, keepdim=True)
        return best(torch.cat([identity, orders], -2), torch.cat([mass, log_probs], -1), k)

    def _packets(self) -> Tensor:
        """The log-probabilities of left and right, [*batch, n, 2]; a place without an item is always right."""
        both = torch.stack([F.logsigmoid(self.scores), F.logsigmoid(-self.scores)], -1)
        if self.mask is None:
            return both
        certain = torch.tensor([-torch.inf, 0.0], dtype=both.dtype, device=both.device)
        return torch.where(self.mask.unsqueeze(-1), both, certain)


class InverseTransposition(OrderDistribution):
    """Nothing with probability 1 - sigmoid(swap), else two items change places, chosen without replacement.

    p((i j)) = sigmoid(swap) (w_i w_j / (1 - w_i) + w_j w_i / (1 - w_j)), w = softmax(scores).

    Args:
        scores: finite, [..., n], n at least 2.
        swap: the logit of a transposition, [...].
        mask: bool [..., n], see `OrderDistribution`; at least two items.
        validate_args: whether `log_prob` checks that values are permutations.

    Raises:
        ValueError: fewer than two items, shapes that do not fit, or a bad mask.
    """

    def __init__(
        self, scores: Tensor, swap: Tensor, mask: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        _check_scores(scores, 2)
        if swap.shape != scores.shape[:-1]:
            raise ValueError(f"swap must have the shape {list(scores.shape[:-1])} of the batch, not {list(swap.shape)}")
        if mask is not None and not bool(mask[..., 1].all()):
            raise ValueError("a transposition needs at least two items in every list")
        super().__init__(swap.shape, scores.shape[-1], mask, validate_args)
        self.scores, self.swap = scores, swap
        filled = scores if self.mask is None else scores.masked_fill(~self.mask, -torch.inf)
        self._log_w = filled.log_softmax(-1)
        # log(1 - w_i): of the greatest weight by the sum of the others, because 1 - w would cancel
        first = filled.argmax(-1, keepdim=True)
        others = filled.scatter(-1, first, -torch.inf).logsumexp(-1, keepdim=True) - filled.logsumexp(-1, keepdim=True)
        rest = torch.log1p(-self._log_w.scatter(-1, first, -torch.inf).exp())
        self._log_rest = rest.scatter(-1, first, others)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; -inf unless the identity or one transposition."""
        log_w, log_rest, value = torch.broadcast_tensors(self._log_w, self._log_rest, self._checked(value))
        moved = value != identity_like(value)
        number = moved.sum(-1)
        i = moved.int().argmax(-1, keepdim=True)
        j = torch.where(number.unsqueeze(-1) == 2, value.gather(-1, i), 1 - i.clamp(max=1))  # any pair where it is not
        pair = _pair_log_prob(*(x.gather(-1, at).squeeze(-1) for at in (i, j) for x in (log_w, log_rest)))
        stay, swap = F.logsigmoid(-self.swap), F.logsigmoid(self.swap) + pair
        return torch.where(number == 0, stay, swap.masked_fill(number != 2, -torch.inf))

    @torch.no_grad()
    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]."""
        swaps = (
            self._uniform(tuple(sample_shape), (1,), generator, self.scores) < self.swap.double().sigmoid()[..., None]
        )
        noisy = self._log_w + self._gumbel(tuple(sample_shape), (self._n,), generator, self.scores)
        first, second = noisy.topk(2).indices.split(1, -1)
        second = torch.where(swaps, second, first)
        return (
            torch.arange(self._n, device=first.device)
            .expand(noisy.shape)
            .scatter(-1, first, second)
            .scatter(-1, second, first)
        )

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable of all 1 + n (n - 1) / 2 orders, exactly."""
        check_k(k)
        i, j = torch.triu_indices(self._n, self._n, 1, device=self.scores.device)
        pair = _pair_log_prob(self._log_w[..., i], self._log_rest[..., i], self._log_w[..., j], self._log_rest[..., j])
        swap = F.logsigmoid(self.swap).unsqueeze(-1) + pair
        orders = torch.arange(self._n, device=i.device).repeat(len(i) + 1, 1)
        rows = torch.arange(1, len(i) + 1, device=i.device)
        orders[rows, i], orders[rows, j] = j, i
        log_probs = torch.cat([F.logsigmoid(-self.swap).unsqueeze(-1), swap], -1)
        return best(orders.expand(*self.batch_shape, *orders.shape), log_probs, k)


class InverseInsertion(OrderDistribution):
    """Item i moves to the end with probability softmax(scores)_i.

    Args:
        scores: finite, [..., n].
        mask: bool [..., n], see `OrderDistribution`; the end is that of a list's items.
        validate_args: whether `log_prob` checks that values are permutations.

    Raises:
        ValueError: scores without items, or a bad mask.
    """

    def __init__(self, scores: Tensor, mask: Tensor | None = None, validate_args: bool | None = None) -> None:
        _check_scores(scores, 1)
        super().__init__(scores.shape[:-1], scores.shape[-1], mask, validate_args)
        self.scores = scores
        filled = scores if self.mask is None else scores.masked_fill(~self.mask, -torch.inf)
        self._log_w = filled.log_softmax(-1)
        length = torch.full(self.batch_shape, self._n, device=scores.device) if mask is None else self.mask.sum(-1)  # type: ignore[union-attr]
        self._last = length.unsqueeze(-1) - 1

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; -inf unless one item moved to the end."""
        log_w, value = torch.broadcast_tensors(self._log_w, self._checked(value))
        last = self._last.expand(*value.shape[:-1], 1)
        moved = value.gather(-1, last)
        possible = (self._order(moved, last) == value).all(-1)
        return log_w.gather(-1, moved).squeeze(-1).masked_fill(~possible, -torch.inf)

    def _order(self, item: Tensor, last: Tensor) -> Tensor:
        """The order in which `item` [..., 1] comes at place `last` and those between move up."""
        place = torch.arange(self._n, device=item.device)
        return torch.where(place == last, item, place + ((place >= item) & (place < last)))

    @torch.no_grad()
    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]."""
        noisy = self._log_w + self._gumbel(tuple(sample_shape), (self._n,), generator, self.scores)
        return self._order(noisy.argmax(-1, keepdim=True), self._last)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable of the n orders, exactly."""
        check_k(k)
        items = torch.arange(self._n, device=self.scores.device)
        orders = self._order(items.expand(*self.batch_shape, self._n).unsqueeze(-1), self._last.unsqueeze(-1))
        return best(orders, self._log_w, k)


def _sorted_by_packet(left: Tensor) -> Tensor:
    """The order that choices of packets bool [..., n] lead to; places without an item are right, and so stay last."""
    return (~left).to(torch.uint8).argsort(dim=-1, stable=True)


def _pair_log_prob(log_w_i: Tensor, log_rest_i: Tensor, log_w_j: Tensor, log_rest_j: Tensor) -> Tensor:
    """log of w_i w_j / (1 - w_i) + w_i w_j / (1 - w_j)."""
    return log_w_i + log_w_j + torch.logaddexp(-log_rest_i, -log_rest_j)


def _check_scores(scores: Tensor, least: int) -> None:
    if scores.ndim < 1 or scores.shape[-1] < least:
        raise ValueError(f"scores must be [..., n] with n at least {least}, not {list(scores.shape)}")
