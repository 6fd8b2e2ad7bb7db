"""What the distributions over orders share: batches, random numbers, best digits; laws that choose item after item."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from blackout.random import RandomSource, StepStreams, uniform


class OrderDistribution(Distribution):
    """A batch of distributions over orders of n items: values are int64 permutations [..., n].

    An order is the permutation that takes the present list to the next one, x -> x[order]: order[i] is the item that
    comes i-th. A subclass implements `log_prob`, `_draw` and `_candidates`.

    Args:
        scores: [..., n], or [..., n, n] if there are two `dims`; what stands before is the batch.
        dims: of one list's scores, 1 or 2.
        least: items at least.

    Raises:
        ValueError: scores of another shape.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    mode_is_exact: ClassVar[bool] = True
    """Whether `mode` is the most probable order, or the best that a search found."""

    def __init__(self, scores: Tensor, dims: int = 1, least: int = 1) -> None:
        n = scores.shape[-1] if scores.ndim >= dims else 0
        if n < least or (dims == 2 and scores.shape[-2] != n):
            shape = ", ".join(["n"] * dims)
            raise ValueError(f"scores must be [..., {shape}] with n at least {least}, not {list(scores.shape)}")
        self.scores = scores
        super().__init__(scores.shape[:-dims], Size((n,)), validate_args=False)

    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]. From streams, the first axis of the batch is the samples."""
        with torch.no_grad():
            return self._draw(tuple(sample_shape), generator)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable orders, or the best a beam finds, falling.

        Returns:
            Orders int64 [*batch, K, n] and log-probabilities [*batch, K], K at most k and no more than the orders any
            list of the batch has. Where a list has fewer, -1 and -inf take their place: no order is ever invalid or
            there twice.

        Raises:
            ValueError: k < 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        with torch.no_grad():
            orders, log_probs = self._candidates(k)
        log_probs, which = log_probs.sort(dim=-1, descending=True, stable=True)
        log_probs, which = log_probs[..., :k], which[..., :k]
        orders = orders.gather(-2, which.unsqueeze(-1).expand(*which.shape, self._n))
        possible = log_probs > -torch.inf
        most = int(possible.sum(-1).max()) if possible.numel() else 0
        orders, possible = orders[..., :most, :], possible[..., :most]
        return orders.masked_fill(~possible.unsqueeze(-1), -1), log_probs[..., :most]

    @property
    def mode(self) -> Tensor:
        """The most probable order, int64 [*batch, n]."""
        return self.top(1)[0].squeeze(-2)

    @property
    def _n(self) -> int:
        return self.event_shape[0]

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """As `sample`."""
        raise NotImplementedError

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Orders int64 [*batch, M, n], the k best among them, and log-probabilities [*batch, M]; -inf for none."""
        raise NotImplementedError

    def _uniform(self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource) -> Tensor:
        """Float64 uniforms [*sample_shape, *batch, *event], above 0.

        From streams the first axis of the batch (of the draw, if there is no batch) is the samples.
        """
        device = self.scores.device
        if not isinstance(source, StepStreams):
            return uniform((*sample_shape, *self.batch_shape, *event), source, device).clamp_(min=2.0**-54)
        if not self.batch_shape:
            return uniform((*(sample_shape or (1,)), *event), source, device).view(*sample_shape, *event)
        first, *rest = self.batch_shape
        return uniform((first, *sample_shape, *rest, *event), source, device).movedim(0, len(sample_shape))

    def _gumbel(self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource) -> Tensor:
        """Standard Gumbel numbers of the same shape."""
        return self._uniform(sample_shape, event, source).log_().neg_().log_().neg_()


def best_digits(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable choices of independent digits, exactly.

    Digit by digit, keeping the k best: what a digit adds does not depend on the others, so none that is dropped could
    come back. Only the k - 1 digits whose two best values are nearest to each other need be looked at: k - 1 choices,
    one of these digits changed each, are no worse than any with another one changed. Ours; checked by
    `tests.permutations.test_distributions`.

    Args:
        log_probs: [..., n, V], digit i over its values; -inf where it may not be.

    Returns:
        int64 [..., K, n] and log-probabilities [..., K], falling, K at most k, the same for all; -inf for none.
    """
    *batch, n, values = log_probs.shape
    best = log_probs.topk(min(2, values), dim=-1)
    gaps = best.values[..., 0] - best.values[..., -1]
    open_ = gaps.topk(min(n, max(k - 1, 1)), dim=-1, largest=False).indices
    total = best.values[..., 0].sum(-1, keepdim=True)
    changed = torch.empty(*batch, 1, 0, dtype=torch.int64, device=total.device)
    # what a digit loses by a value that is not its best
    loss = (log_probs - best.values[..., :1]).gather(-2, open_.unsqueeze(-1).expand(*open_.shape, values))
    for i in range(open_.shape[-1]):
        candidates = (total.unsqueeze(-1) + loss[..., i, None, :]).flatten(-2)
        total, flat = candidates.topk(min(k, candidates.shape[-1]))
        kept = changed.gather(-2, (flat // values).unsqueeze(-1).expand(*flat.shape, i))
        changed = torch.cat([kept, (flat % values).unsqueeze(-1)], -1)
    digits = best.indices[..., 0].unsqueeze(-2).expand(*batch, total.shape[-1], n)
    return digits.scatter(-1, open_.unsqueeze(-2).expand_as(changed), changed), total


Rows: TypeAlias = Callable[[Tensor | None, Tensor | None], Tensor]
"""(which of the prefixes before, int64 [N, K], and the item that goes on from each; None at first) -> scores of the
items for the next place, [N, K, n], or [N, 1, n] where prefixes do not matter."""
Pick: TypeAlias = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(place, scores [N, K, n], -inf for items used) -> (which prefixes go on, int64 [N, K'], and the item of each)."""


def walk(rows: Rows, n: int, pick: Pick) -> Tensor:
    """Orders int64 [N, K, n], place by place.

    A prefix is a pointer to its parent and the item it adds, so that nothing is copied from place to place; orders are
    traced back at the end.
    """
    parent: Tensor | None = None
    item: Tensor | None = None
    steps, used = list[tuple[Tensor, Tensor]](), torch.zeros(())
    for i in range(n):
        scores = rows(parent, item)
        used = used if i else torch.zeros_like(scores, dtype=torch.bool)
        parent, item = pick(i, scores.masked_fill(used, -torch.inf))
        used = used.gather(1, parent[..., None].expand(-1, -1, n)).scatter_(2, item[..., None], True)
        steps.append((parent, item))
    at = torch.arange(used.shape[1], device=used.device).expand(used.shape[:2])
    orders = torch.empty(used.shape, dtype=torch.int64, device=used.device)
    for i, (parent, item) in reversed(list(enumerate(steps))):
        orders[..., i] = item.gather(1, at)
        at = parent.gather(1, at)
    return orders


class SequentialLaw(OrderDistribution):
    """Every place chooses among the items left: p(order) = prod over i of softmax over these of `rows`.

    Its mode is intractable: `mode` and `top` are what a beam search finds, exact only where n! is at most `width`.

    Args:
        scores, dims: as for `OrderDistribution`.
        width: of the beam of `mode` and, at least, of `top`.
    """

    mode_is_exact: ClassVar[bool] = False

    def __init__(self, scores: Tensor, dims: int = 1, width: int = 64) -> None:
        super().__init__(scores, dims)
        self.width = width

    def rows(self) -> Rows:
        """The scores place by place, of the batch as one: N lists."""
        raise NotImplementedError

    def _mass(self, scores: Tensor) -> Tensor:
        """log of what the items left have together, [N, K, 1]; 0 of a prefix that no item may follow, which stays at
        -inf, where -inf - -inf would be no number.
        """
        mass = scores.logsumexp(-1, keepdim=True)
        return mass.masked_fill_(mass == -torch.inf, 0.0)

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """One place after another by Gumbel noise.

        Raises:
            ValueError: the choices left no item for a place.
        """
        n = self._n
        noise = (
            self._gumbel(sample_shape, (n, n), generator).reshape(-1, self.batch_shape.numel(), n, n).transpose(0, 1)
        )
        stuck = torch.zeros(noise.shape[:2], dtype=torch.bool, device=noise.device)
        same = torch.arange(noise.shape[1], device=noise.device).expand(noise.shape[:2])

        def pick(i: int, scores: Tensor) -> tuple[Tensor, Tensor]:
            value, item = (scores + noise[:, :, i]).max(-1)
            stuck.logical_or_(value == -torch.inf)
            return same if i else torch.zeros_like(same), item

        orders = walk(self.rows(), n, pick)
        if bool(stuck.any()):
            raise ValueError("scores of -inf left no item for a place")
        return orders.transpose(0, 1).reshape(*sample_shape, *self.batch_shape, n)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """What a beam of max(k, width) finds [Zhang 2025, section 3.5, appendix D]: after each place the most probable
        prefixes go on. All are kept, and the search is exact, while there are no more. -inf where fewer orders are
        possible, and then the order means nothing.
        """
        n, total = self._n, self.scores.new_zeros(self.batch_shape.numel(), 1)

        def pick(i: int, scores: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal total
            scores += total[..., None] - self._mass(scores)
            total, flat = scores.flatten(1).topk(min(max(k, self.width), scores.shape[1] * (n - i)))
            return flat // n, flat % n

        orders = walk(self.rows(), n, pick)
        return orders.view(*self.batch_shape, -1, n), total.view(*self.batch_shape, -1)
