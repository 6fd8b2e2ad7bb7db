"""The distribution that undoes one random insertion.

References: Zhang et al. 2025, eq. 7.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.permutations.distributions.base import PermutationDistribution, gather_last
from blackout.random import RandomSource


class InverseInsertion(PermutationDistribution):
    """The inverse of a random insertion.

    Item i moves to the end with probability softmax(scores)_i.

    Args:
        scores: finite, [..., n].

    Raises:
        ValueError: scores without items.

    References: Zhang et al. 2025, eq. 7.
    """

    @property
    def _log_w(self) -> Tensor:
        """The log of softmax(scores), [*batch, n]."""
        return self.scores.log_softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...].

        It is -inf unless a single item moved to the end.

        References: Zhang et al. 2025, eq. 7.
        """
        item = value[..., -1:]
        is_possible = (self._move_to_end(item) == value).all(-1)
        return gather_last(self._log_w, item).squeeze(-1).masked_fill(~is_possible, -torch.inf)

    def _move_to_end(self, item: Tensor) -> Tensor:
        """Return the permutation that moves an item [..., 1] to the end, int64 [..., n]."""
        position = torch.arange(self._n, device=item.device)
        return torch.where(position == self._n - 1, item, position + (position >= item))

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw the item by the largest score plus Gumbel noise."""
        noisy = self._log_w + self._gumbel(sample_shape, (self._n,), generator)
        return self._move_to_end(noisy.argmax(-1, keepdim=True))

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return all n possible permutations."""
        items = torch.arange(self._n, device=self.scores.device).expand(*self.batch_shape, self._n)
        return self._move_to_end(items.unsqueeze(-1)), self._log_w
