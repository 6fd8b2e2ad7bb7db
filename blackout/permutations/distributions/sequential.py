"""The base class of distributions that choose one item after another, sampled and searched alike.

References: Zhang et al. 2025, section 3.5 and appendix D.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.permutations.distributions.base import PermutationDistribution
from blackout.random import RandomSource

# (parent of each prefix int64 [N, K], its last item int64 [N, K]; None at the first position)
# -> scores of the items for the next position, [N, K, n]; [N, 1, n] if they do not depend on
# prefixes
PlaceScores: TypeAlias = Callable[[Tensor | None, Tensor | None], Tensor]
# (position, scores [N, K, n] with -inf for used items)
# -> (parent of each new prefix int64 [N, K'], its last item int64 [N, K'])
Selection: TypeAlias = Callable[[int, Tensor], tuple[Tensor, Tensor]]


class SequentialDistribution(PermutationDistribution):
    """A distribution that chooses one item after another, by a softmax over the items left.

    Its mode is intractable: `mode` and `top` are the results of a beam search, which are exact only
    if `width` is at least n!.

    References: Zhang et al. 2025, eqs. 8 and 9.
    """

    def place_scores(self) -> PlaceScores:
        """Return the scores of the flattened batch, position by position.

        These are the rows of the scores [*batch, n, n].
        """
        rows = iter(self.scores.reshape(-1, 1, self._n, self._n).unbind(2))
        return lambda parent, item: next(rows)

    def _log_normaliser(self, scores: Tensor) -> Tensor:
        """Return the logsumexp over the items left, [N, K, 1].

        It is 0 for a prefix that no item can follow, so that its log-probability stays -inf; the
        difference of two infinities would be nan.
        """
        log_sum = scores.logsumexp(-1, keepdim=True)
        return log_sum.masked_fill_(log_sum == -torch.inf, 0.0)

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw permutations exactly, position by position with Gumbel noise.

        Raises:
            ValueError: earlier choices left no item for a position.
        """
        n = self._n
        noise = self._gumbel(sample_shape, (n, n), generator)
        noise = noise.reshape(-1, self.batch_shape.numel(), n, n).transpose(0, 1)
        no_item_left = torch.zeros(noise.shape[:2], dtype=torch.bool, device=noise.device)
        same_prefix = torch.arange(noise.shape[1], device=noise.device).expand(noise.shape[:2])

        def select(position: int, scores: Tensor) -> tuple[Tensor, Tensor]:
            """Choose the item with the largest score plus noise for every prefix."""
            value, item = (scores + noise[:, :, position]).max(-1)
            no_item_left.logical_or_(value == -torch.inf)
            parent = same_prefix if position > 0 else torch.zeros_like(same_prefix)
            return parent, item

        orders = build_orders(self.place_scores(), n, select)
        ensure(
            not bool(no_item_left.any()),
            "scores of -inf leave no item for a position: at least one must be finite",
        )
        return orders.transpose(0, 1).reshape(*sample_shape, *self.batch_shape, n)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the permutations that a beam search of width max(k, `width`) finds.

        The search is exact while it can keep all prefixes. Where fewer permutations are possible,
        the others have -inf and no meaning.

        References: Zhang et al. 2025, section 3.5 and appendix D.
        """
        n = self._n
        total = self.scores.new_zeros(self.batch_shape.numel(), 1)

        def select(position: int, scores: Tensor) -> tuple[Tensor, Tensor]:
            """Choose the most probable prefixes with one more item."""
            nonlocal total
            scores += total[..., None] - self._log_normaliser(scores)
            num_prefixes = min(max(k, self.width), scores.shape[1] * (n - position))
            total, flat = scores.flatten(1).topk(num_prefixes)
            return flat // n, flat % n

        orders = build_orders(self.place_scores(), n, select)
        return orders.view(*self.batch_shape, -1, n), total.view(*self.batch_shape, -1)


def build_orders(place_scores: PlaceScores, n: int, select: Selection) -> Tensor:
    """Build permutations position by position, by sampling or by beam search.

    A prefix is a pointer to its parent and the item that it adds, so that nothing is copied on the
    way. The permutations are traced back at the end.

    Args:
        place_scores: scores of the items for the next position.
        n: items.
        select: chooses the prefixes that continue, and the next item of each.

    Returns:
        Permutations int64 [N, K, n].

    References: this project; checked in tests/permutations/distributions/test_distributions.py.
    """
    # 1. choose the items
    parent: Tensor | None = None
    item: Tensor | None = None
    steps: list[tuple[Tensor, Tensor]] = []
    used = torch.zeros(())
    for position in range(n):
        scores = place_scores(parent, item)
        if position == 0:
            used = torch.zeros_like(scores, dtype=torch.bool)
        parent, item = select(position, scores.masked_fill(used, -torch.inf))
        used = used.gather(1, parent[..., None].expand(-1, -1, n))
        used.scatter_(2, item[..., None], True)
        steps.append((parent, item))
    # 2. trace them back from the last position
    prefix = torch.arange(used.shape[1], device=used.device).expand(used.shape[:2])
    orders = torch.empty(used.shape, dtype=torch.int64, device=used.device)
    for position, (parent, item) in reversed(list(enumerate(steps))):
        orders[..., position] = item.gather(1, prefix)
        prefix = parent.gather(1, prefix)
    return orders
