"""The base class of distributions on permutations, and what several of them use."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from blackout.errors import ensure
from blackout.random import RandomSource, StepStreams, uniform
from blackout.representation import format_arguments

BEAM_WIDTH = 64  # prefixes that a beam search keeps, unless the caller says otherwise
MIN_UNIFORM = 2.0**-54  # half the spacing of uniforms, so that their logarithm is finite


class PermutationDistribution(Distribution):
    """A batch of distributions on the permutations of n items, with values int64 [..., n].

    A permutation takes a list x to x[permutation]: its i-th entry is the item that comes i-th. A
    subclass implements `log_prob`, `_sample` and `_candidates`.

    Args:
        scores: [..., n], or [..., n, n] if `score_dims` is 2; the dimensions before are the batch.
        score_dims: dimensions of the scores of one list, 1 or 2.
        min_items: smallest n that is allowed.
        width: smallest width of the beam search for `mode` and `top`, in classes that need one.

    Raises:
        ValueError: scores of another shape.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    __repr__ = format_arguments

    def __init__(
        self, scores: Tensor, score_dims: int = 1, min_items: int = 1, width: int = BEAM_WIDTH
    ) -> None:
        n = scores.shape[-1] if scores.ndim >= score_dims else 0
        if n < min_items or (score_dims == 2 and scores.shape[-2] != n):
            shape = ", ".join(["n"] * score_dims)
            raise ValueError(
                f"scores must be [..., {shape}] with n at least {min_items}, "
                f"not {list(scores.shape)}"
            )
        self.scores = scores
        self.width = width
        super().__init__(scores.shape[:-score_dims], Size((n,)), validate_args=False)

    def sample(  # type: ignore[override]
        self, sample_shape: Size = Size(), generator: RandomSource = None
    ) -> Tensor:
        """Draw permutations, int64 [*sample_shape, *batch, n].

        Args:
            sample_shape: as in `torch.distributions`.
            generator: source of random numbers. With streams, the first dimension of the batch is
                the index of the sample.
        """
        with torch.no_grad():
            return self._sample(tuple(sample_shape), generator)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k most probable permutations, or the best that a beam search finds.

        Args:
            k: how many.

        Returns:
            Permutations int64 [*batch, K, n] and log-probabilities [*batch, K], in falling order. K
            is at most k, and at most the largest number of possible permutations in the batch.
            Lists with fewer are padded with -1 and -inf, so that no permutation is invalid or
            occurs twice.

        Raises:
            ValueError: k < 1.
        """
        ensure(k >= 1, f"k must be at least 1, not {k}")
        with torch.no_grad():
            orders, log_probs = most_probable(*self._candidates(k), k)
        possible = log_probs > -torch.inf
        num_orders = int(possible.sum(-1).max()) if possible.numel() else 0
        orders = orders[..., :num_orders, :]
        possible = possible[..., :num_orders]
        return orders.masked_fill(~possible.unsqueeze(-1), -1), log_probs[..., :num_orders]

    @property
    def mode(self) -> Tensor:
        """The most probable permutation, int64 [*batch, n]."""
        return self.top(1)[0].squeeze(-2)

    @property
    def _n(self) -> int:
        return self.event_shape[0]

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw permutations, int64 [*sample_shape, *batch, n], see `sample`."""
        raise NotImplementedError

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return permutations among which are the k most probable, int64 [*batch, M, n].

        With them come their log-probabilities [*batch, M]; -inf marks an entry that is no possible
        permutation.
        """
        raise NotImplementedError

    def _uniform(
        self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource
    ) -> Tensor:
        """Draw positive float64 uniforms [*sample_shape, *batch, *event].

        With streams, the first dimension of the batch is the index of the sample; without a batch,
        the first dimension of `sample_shape` is.
        """
        device = self.scores.device
        if not isinstance(source, StepStreams):
            shape = (*sample_shape, *self.batch_shape, *event)
            return uniform(shape, source, device).clamp_(min=MIN_UNIFORM)
        if not self.batch_shape:
            u = uniform((*(sample_shape or (1,)), *event), source, device)
            return u.view(*sample_shape, *event)
        num_lists, *rest = self.batch_shape
        u = uniform((num_lists, *sample_shape, *rest, *event), source, device)
        return u.movedim(0, len(sample_shape))

    def _gumbel(
        self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource
    ) -> Tensor:
        """Draw standard Gumbel noise, float64 [*sample_shape, *batch, *event].

        The index of the largest score plus noise has the distribution softmax(scores).

        References: Mena et al. 2018, section 3.2.
        """
        return self._uniform(sample_shape, event, source).log_().neg_().log_().neg_()


def most_probable(orders: Tensor, log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k most probable permutations and their log-probabilities, in falling order.

    Equal log-probabilities keep their order.

    Args:
        orders: int64 [..., M, n].
        log_probs: [..., M].
        k: how many; fewer are returned if M < k.

    References: this project; checked in tests/permutations/distributions/test_distributions.py.
    """
    log_probs, rank = log_probs.sort(dim=-1, descending=True, stable=True)
    return orders.take_along_dim(rank[..., :k, None], -2), log_probs[..., :k]


def independent_log_prob(log_probs: Tensor, digits: Tensor) -> Tensor:
    """Return the log-probability of digits that are independent, [...] of the common batch shape.

    Args:
        log_probs: of the V values of each digit, [..., n, V].
        digits: int64 [..., n].

    References: Severo et al. 2025, eq. 2 with a single block.
    """
    return gather_last(log_probs, digits.unsqueeze(-1)).squeeze(-1).sum(-1)


def gather_last(values: Tensor, index: Tensor) -> Tensor:
    """Gather along the last dimension, with broadcasting of the others.

    Args:
        values: [..., V].
        index: int64 [..., m].

    Returns:
        [..., m] of the common batch shape.
    """
    shape = np.broadcast_shapes(values.shape[:-1], index.shape[:-1])
    return values.expand(*shape, -1).gather(-1, index.expand(*shape, -1))
