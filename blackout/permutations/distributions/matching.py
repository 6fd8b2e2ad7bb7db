"""Linear assignment of items to positions, as in Gumbel-Sinkhorn networks.

References: Mena et al. 2018.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.permutations.distributions.base import independent_log_prob
from blackout.permutations.distributions.sequential import SequentialDistribution
from blackout.permutations.relaxations import sinkhorn
from blackout.random import RandomSource


class Matching(SequentialDistribution):
    """Independent choices of an item for every position, restricted to permutations.

    log p(order) = sum over i of log M[i, order_i], where M is exp(scores) after Sinkhorn
    normalisation, with a softmax of each row at the end. The exact distribution on permutations
    would divide by the permanent of M, which is intractable; here the probabilities of all
    permutations sum to less than 1, and -log p is an upper bound.

    `mode`, and the first result of `top`, are exact by linear assignment; the others come from a
    beam search. `sample` draws from the Gumbel-Matching distribution, the best assignment of scores
    plus Gumbel noise, which is not the distribution of `log_prob`.

    Args:
        scores: finite, [..., n, n]; rows are positions and columns are items.
        iterations: Sinkhorn iterations; 0 for one softmax per position.

    Raises:
        ValueError: scores that are not square, or iterations < 0.

    References: Mena et al. 2018, sections 2 and 3.2.
    """

    def __init__(self, scores: Tensor, iterations: int = 0) -> None:
        super().__init__(scores, 2)
        self._unnormalised = scores
        self.scores = sinkhorn(scores, iterations)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the sum of the log-probabilities of all positions, [...], for orders [..., n]."""
        return independent_log_prob(self.scores, value)

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw from the Gumbel-Matching distribution (Mena et al. 2018, section 3.2)."""
        return best_assignment(self.perturbed_scores(sample_shape, generator))

    def perturbed_scores(
        self, sample_shape: tuple[int, ...], generator: RandomSource = None
    ) -> Tensor:
        """Return the unnormalised scores plus Gumbel noise, [*sample_shape, *batch, n, n]."""
        noise = self._gumbel(sample_shape, (self._n, self._n), generator)
        return self._unnormalised + noise.to(self.scores.dtype)

    @property
    def mode(self) -> Tensor:
        """The best assignment, int64 [*batch, n]."""
        return best_assignment(self.scores)

    def _log_normaliser(self, scores: Tensor) -> Tensor:
        """Return 0: the choice at a position does not depend on the items left."""
        return scores.new_zeros(())

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the best assignment, and the other permutations that the beam search finds."""
        orders, log_probs = super()._candidates(k)
        mode = self.mode.unsqueeze(-2)
        mode_log_prob = self.log_prob(mode.squeeze(-2)).unsqueeze(-1)
        log_probs = log_probs.masked_fill((orders == mode).all(-1), -torch.inf)
        return torch.cat([mode, orders], -2), torch.cat([mode_log_prob, log_probs], -1)


def best_assignment(scores: Tensor) -> Tensor:
    """Return the permutations with the largest sum of scores[i, order_i], int64 [..., n].

    Scores are [..., n, n].
    """
    from scipy.optimize import linear_sum_assignment

    matrices = scores.detach().reshape(-1, *scores.shape[-2:]).cpu().double().numpy()
    columns = np.stack([linear_sum_assignment(matrix, maximize=True)[1] for matrix in matrices])
    return torch.from_numpy(columns).view(scores.shape[:-1]).to(scores.device)
