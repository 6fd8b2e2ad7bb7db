"""Orders by matching items with places: independent choices of places, Sinkhorn's normalisation, optimal assignment."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from blackout.permutations.distributions.base import Rows, SequentialLaw
from blackout.random import RandomSource


class Matching(SequentialLaw):
    """Every place chooses an item by itself, and what counts are the choices that are orders.

    log p(order) = sum over i of log M[i, order_i], where M is e^scores after `iterations` of Sinkhorn's normalisation
    of rows and columns, and a softmax of each row in the end. The law of orders among these choices is intractable (its
    normaliser is a permanent), so that probabilities of orders sum to less than 1 and -log p bounds it from above.

    `mode` is exact, by assignment, and the first of `top`; the others are those of a beam. `sample` is the best
    assignment of scores with Gumbel noise, the Gumbel-Matching law of [Mena 2018, section 3.2]: not the law of
    `log_prob`.

    Args:
        scores: finite, [..., n, n], rows are places and columns items.
        iterations: of Sinkhorn's normalisation; 0 for n softmaxes.

    Raises:
        ValueError: scores that are not square, or iterations below 0.
    """

    mode_is_exact: ClassVar[bool] = True

    def __init__(self, scores: Tensor, iterations: int = 0) -> None:
        super().__init__(scores, 2)
        self.log_matrix = sinkhorn(scores, iterations)

    def log_prob(self, value: Tensor) -> Tensor:
        """Sum of the log-probabilities of orders' [..., n] places, in the scores' dtype."""
        n, shape = self._n, torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        chosen = value.expand(*shape, n).unsqueeze(-1)
        return self.log_matrix.expand(*shape, n, n).gather(-1, chosen).squeeze(-1).sum(-1)

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        return _assigned(self.noisy(sample_shape, generator))

    def noisy(self, sample_shape: tuple[int, ...], generator: RandomSource = None) -> Tensor:
        """Scores plus Gumbel noise, [*sample_shape, *batch, n, n]."""
        noise = self._gumbel(sample_shape, (self._n, self._n), generator)
        return self.scores + noise.to(self.scores.dtype)

    @property
    def mode(self) -> Tensor:
        """The best assignment, int64 [*batch, n]."""
        return _assigned(self.log_matrix)

    def rows(self) -> Rows:
        """As `SequentialLaw.rows`."""
        places = iter(self.log_matrix.reshape(-1, 1, self._n, self._n).unbind(2))
        return lambda parent, item: next(places)

    def _mass(self, scores: Tensor) -> Tensor:
        """0: a place's choice does not depend on which items are left."""
        return scores.new_zeros(())

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """The best assignment, and what else the beam finds."""
        orders, log_probs = super()._candidates(k)
        best = self.mode.unsqueeze(-2)
        log_probs = log_probs.masked_fill((orders == best).all(-1), -torch.inf)
        return torch.cat([best, orders], -2), torch.cat([self.log_prob(best.squeeze(-2)).unsqueeze(-1), log_probs], -1)


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """log of a matrix [..., n, n] whose rows sum to 1, and its columns ever more nearly.

    [Sinkhorn 1964], in logarithms [Mena 2018, section 2].

    Args:
        scores: [..., n, n], divided by a temperature if there is one.
        iterations: normalisations of rows and columns in turn, before the last one of rows.

    Raises:
        ValueError: iterations below 0.
    """
    if iterations < 0:
        raise ValueError(f"iterations of Sinkhorn's normalisation must be at least 0, not {iterations}")
    for _ in range(iterations):
        scores = scores.log_softmax(-1).log_softmax(-2)
    return scores.log_softmax(-1)


def _assigned(matrix: Tensor) -> Tensor:
    """The orders of largest sum, int64 [..., n], of [..., n, n]."""
    from scipy.optimize import linear_sum_assignment

    flat = matrix.detach().reshape(-1, *matrix.shape[-2:]).cpu().double().numpy()
    columns = np.stack([linear_sum_assignment(one, maximize=True)[1] for one in flat])
    return torch.from_numpy(columns).view(matrix.shape[:-1]).to(matrix.device)
