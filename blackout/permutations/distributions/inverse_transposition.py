"""The distribution that undoes one random transposition.

References: Zhang et al. 2025, eq. 6.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.permutations.distributions.base import PermutationDistribution, gather_last
from blackout.permutations.group import identity_like
from blackout.random import RandomSource


class InverseTransposition(PermutationDistribution):
    """The inverse of a random transposition: no change, or a swap of two items.

    The two items are chosen without replacement.

    p(identity) = 1 - s and p((i j)) = s (w_i w_j / (1 - w_i) + w_j w_i / (1 - w_j)), with
    s = sigmoid(swap_logit) and w = softmax(scores).

    Args:
        scores: finite, [..., n], n at least 2.
        swap_logit: log-odds of a swap against no change, [...].

    Raises:
        ValueError: fewer than two items, or shapes that do not fit.

    References: Zhang et al. 2025, eq. 6.
    """

    def __init__(self, scores: Tensor, swap_logit: Tensor) -> None:
        super().__init__(scores, min_items=2)
        if swap_logit.shape != self.batch_shape:
            raise ValueError(
                f"swap_logit must have the shape {list(self.batch_shape)} of the batch, "
                f"not {list(swap_logit.shape)}"
            )
        self.swap_logit = swap_logit
        self._log_w = scores.log_softmax(-1)
        # log(1 - w_i). For the largest weight it is computed from the other weights, because
        # 1 - w_i would cancel.
        largest = scores.argmax(-1, keepdim=True)
        without_largest = scores.scatter(-1, largest, -torch.inf)
        log_sum = scores.logsumexp(-1, keepdim=True)
        log_others = without_largest.logsumexp(-1, keepdim=True) - log_sum
        log_rest = torch.log1p(-self._log_w.scatter(-1, largest, -torch.inf).exp())
        self._log_rest = log_rest.scatter(-1, largest, log_others)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...]; -inf if more than two items move.

        References: Zhang et al. 2025, eq. 6.
        """
        moves = value != identity_like(value)
        num_moves = moves.sum(-1)
        i = moves.int().argmax(-1, keepdim=True)
        # any other item if this is no transposition; the value is not used then
        j = torch.where(num_moves.unsqueeze(-1) == 2, value.gather(-1, i), 1 - i.clamp(max=1))
        identity = F.logsigmoid(-self.swap_logit)
        transposition = F.logsigmoid(self.swap_logit) + self._pair_log_prob(i, j).squeeze(-1)
        transposition = transposition.masked_fill(num_moves != 2, -torch.inf)
        return torch.where(num_moves == 0, identity, transposition)

    def _pair_log_prob(self, i: Tensor, j: Tensor) -> Tensor:
        """Return log(w_i w_j / (1 - w_i) + w_i w_j / (1 - w_j)) of pairs of items, [..., k].

        The items i and j are int64 [..., k].
        """
        log_factor = torch.logaddexp(
            -gather_last(self._log_rest, i), -gather_last(self._log_rest, j)
        )
        return gather_last(self._log_w, i) + gather_last(self._log_w, j) + log_factor

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw whether to swap, and the pair by the two largest scores plus Gumbel noise."""
        u = self._uniform(sample_shape, (1,), generator)
        swaps = u < self.swap_logit.double().sigmoid().unsqueeze(-1)
        noisy = self._log_w + self._gumbel(sample_shape, (self._n,), generator)
        i, j = noisy.topk(2).indices.split(1, -1)
        j = torch.where(swaps, j, i)
        identity = torch.arange(self._n, device=i.device).expand(noisy.shape)
        return identity.scatter(-1, i, j).scatter(-1, j, i)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the identity and all n (n - 1) / 2 transpositions."""
        i, j = torch.triu_indices(self._n, self._n, 1, device=self.scores.device)
        orders = torch.arange(self._n, device=i.device).repeat(len(i) + 1, 1)
        row = torch.arange(1, len(i) + 1, device=i.device)
        orders[row, i] = j
        orders[row, j] = i
        identity = F.logsigmoid(-self.swap_logit).unsqueeze(-1)
        transpositions = F.logsigmoid(self.swap_logit).unsqueeze(-1) + self._pair_log_prob(i, j)
        log_probs = torch.cat([identity, transpositions], -1)
        return orders.expand(*self.batch_shape, *orders.shape), log_probs
