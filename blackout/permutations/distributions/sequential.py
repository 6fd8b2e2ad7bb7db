"""Orders by choosing one item after another, by scores that may depend on the place and on all that was chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from blackout.permutations.distributions.base import OrderDistribution
from blackout.random import RandomSource

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
