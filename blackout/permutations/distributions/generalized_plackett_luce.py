"""The generalised Plackett-Luce (GPL) distribution: one row of scores per position.

References: Zhang et al. 2025, eq. 9.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.permutations.distributions.base import BEAM_WIDTH, gather_last
from blackout.permutations.distributions.sequential import SequentialDistribution


class GeneralizedPlackettLuce(SequentialDistribution):
    """The generalised Plackett-Luce (GPL) distribution: every position has its own scores.

    log p(order) = sum over i of S[i, order_i] - log sum_{j >= i} exp(S[i, order_j]). Adding a
    constant to a row changes nothing, and the last row has no effect; with equal rows it is
    Plackett-Luce. The scores of a row do not depend on earlier choices, so that one GPL
    distribution cannot represent every distribution; a chain of them can.

    Args:
        scores: S, [..., n, n]; rows are positions, columns are items, and -inf forbids an item at a
            position. Every sequence of earlier choices should leave an allowed item. Otherwise
            probability mass is lost, and `sample` raises an error if it gets there.
        width: smallest width of the beam search of `mode` and `top`; 1 is the greedy choice.

    Raises:
        ValueError: scores that are not square.

    References: Zhang et al. 2025, eq. 9.
    """

    def __init__(self, scores: Tensor, width: int = BEAM_WIDTH) -> None:
        super().__init__(scores, 2, width=width)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...]; -inf for a forbidden item.

        References: Zhang et al. 2025, eq. 9.
        """
        permuted = gather_last(self.scores, value.unsqueeze(-2))
        used = torch.ones(self._n, self._n, dtype=torch.bool, device=permuted.device).tril_(-1)
        # The lowest finite number in place of -inf, and one more column of it: a row whose allowed
        # items are all used keeps a finite normaliser, and its log-probability is not nan.
        lowest = torch.finfo(permuted.dtype).min
        padded = F.pad(permuted.masked_fill(used, lowest), (0, 1), value=lowest)
        return padded.log_softmax(-1).diagonal(dim1=-2, dim2=-1).sum(-1)

    @property
    def mode(self) -> Tensor:
        """The most probable permutation that the search finds, int64 [*batch, n].

        For width 1 it is the greedy choice.
        """
        if self.width > 1:
            return super().mode
        rows = self.scores.reshape(-1, self._n, self._n)
        used = torch.zeros_like(rows[:, 0])  # -inf where an item is used
        items: list[Tensor] = []
        for position in range(self._n):
            item = (rows[:, position] + used).argmax(-1, keepdim=True)
            items.append(item)
            used.scatter_(-1, item, -torch.inf)
        if used.numel() and bool(used.amax() > -torch.inf):
            # a position had no allowed item left and took a used one
            return super().mode
        return torch.cat(items, -1).view(self.scores.shape[:-1])
