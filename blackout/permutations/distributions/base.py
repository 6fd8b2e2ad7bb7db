"""What the distributions over orders share: batches, random numbers, the best of independent digits."""

from __future__ import annotations

from typing import ClassVar

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
