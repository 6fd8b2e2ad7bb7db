"""What the distributions over orders share: batches, lists of different length, where randomness comes from."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from blackout.permutations.group import is_permutation
from blackout.random import RandomSource, StepStreams, uniform


class _Order(constraints.Constraint):
    """Permutations of 0..n-1 along the last axis."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return is_permutation(value)


class OrderDistribution(Distribution):
    """A batch of distributions over orders of n items: values are int64 permutations [..., n].

    An order is the permutation that takes the present list to the next one, x -> x[order]: order[i] is the item that
    comes i-th.

    Args:
        batch_shape: of the parameters.
        n: items.
        mask: bool [..., n], which places of a list hold an item; those without come last, and stay where they are. None
            means all.
        validate_args: whether values are checked, as in `torch.distributions`; False unless asked for.

    Raises:
        ValueError: a mask whose items do not come first, or without an item.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = _Order()
    mode_is_exact: ClassVar[bool] = True
    """Whether `mode` is the most probable order, or the best that a search found."""

    def __init__(self, batch_shape: Size, n: int, mask: Tensor | None, validate_args: bool | None) -> None:
        self.mask = mask
        if mask is not None:
            if mask.shape[-1] != n or mask.dtype != torch.bool:
                raise ValueError(f"the mask must be bool [..., {n}], not {mask.dtype} {list(mask.shape)}")
            if not bool(mask[..., 0].all()) or bool((mask[..., 1:] & ~mask[..., :-1]).any()):
                raise ValueError("the mask must be true for the first one or more places of a list, then false")
            self.mask = mask.expand(*batch_shape, n)
        super().__init__(batch_shape, Size((n,)), validate_args=bool(validate_args))

    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]. From streams, the first axis of the batch is the samples."""
        raise NotImplementedError

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable orders, or the best a beam finds, falling.

        Returns:
            Orders int64 [*batch, K, n] and log-probabilities [*batch, K], K at most k and no more than the orders any
            list of the batch has. Where a list has fewer, -1 and -inf take their place: no order is ever invalid or
            there twice.

        Raises:
            ValueError: k < 1.
        """
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The most probable order, int64 [*batch, n]."""
        return self.top(1)[0].squeeze(-2)

    @property
    def _n(self) -> int:
        return self.event_shape[0]

    def _checked(self, value: Tensor) -> Tensor:
        """The value, refused where validation was asked for and it is no order."""
        if self._validate_args:
            self._validate_sample(value)
        return value

    def _uniform(
        self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource, like: Tensor
    ) -> Tensor:
        """Float64 uniforms [*sample_shape, *batch, *event], above 0.

        From streams the first axis of the batch (of the draw, if there is no batch) is the samples.
        """
        batch, sample = tuple(self.batch_shape), tuple(sample_shape)
        if not isinstance(source, StepStreams):
            return uniform((*sample, *batch, *event), source, like.device).clamp_(min=2.0**-54)
        if not batch:
            return uniform((*(sample or (1,)), *event), source, like.device).view(*sample, *event)
        return uniform((batch[0], *sample, *batch[1:], *event), source, like.device).movedim(0, len(sample))

    def _gumbel(
        self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource, like: Tensor
    ) -> Tensor:
        """Standard Gumbel numbers of the same shape."""
        return self._uniform(sample_shape, event, source, like).log_().neg_().log_().neg_()


def check_k(k: int) -> None:
    """Raises ValueError unless k orders can be asked for."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")


def best(orders: Tensor, log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of orders [..., M, n], sorted; what has no probability is taken away or blanked with -1."""
    log_probs, which = log_probs.sort(dim=-1, descending=True, stable=True)
    log_probs, which = log_probs[..., :k], which[..., :k]
    orders = orders.gather(-2, which.unsqueeze(-1).expand(*which.shape, orders.shape[-1]))
    possible = log_probs > -torch.inf
    most = int(possible.sum(-1).max()) if possible.numel() else 0
    orders, possible = orders[..., :most, :], possible[..., :most]
    return orders.masked_fill(~possible.unsqueeze(-1), -1), log_probs[..., :most]
