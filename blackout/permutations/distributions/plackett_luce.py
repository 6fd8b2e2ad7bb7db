"""The Plackett-Luce distribution: one score per item, and its fit to orders.

References: Plackett 1975; Luce 1959.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blackout.permutations.distributions.base import gather_last
from blackout.permutations.distributions.sequential import PlaceScores, SequentialDistribution
from blackout.random import RandomSource


class PlackettLuce(SequentialDistribution):
    """The Plackett-Luce distribution: the next item has a probability proportional to exp(score).

    log p(order) = sum over i of z_i - log sum_{j >= i} exp(z_j), where z = scores[order]. Its mode
    is exact.

    Args:
        scores: finite log-worths, [..., n].
        width: width of the beam search of `top`; the first permutation, the mode, is always exact.

    Raises:
        ValueError: scores without items.

    References: Zhang et al. 2025, eq. 8; Plackett 1975; Luce 1959.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders, [...], in the dtype of the scores.

        Args:
            value: int64 [..., n], or [..., m] for orders of some of the items.

        References: Zhang et al. 2025, eq. 8.
        """
        z = gather_last(self.scores, value)
        return (z - z.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw permutations by sorting scores plus Gumbel noise."""
        noisy = self.scores + self._gumbel(sample_shape, (self._n,), generator)
        return noisy.argsort(dim=-1, descending=True, stable=True)

    @property
    def mode(self) -> Tensor:
        """The items by falling score, int64 [*batch, n]; equal scores by rising index."""
        return self.scores.argsort(dim=-1, descending=True, stable=True)

    def place_scores(self) -> PlaceScores:
        """Return the same scores for every position, see `SequentialDistribution.place_scores`."""
        return lambda parent, item: self.scores.reshape(-1, 1, self._n)


def fit_plackett_luce(orders: Tensor, num_items: int | None = None, prior: float = 1e-3) -> Tensor:
    """Return log-worths of items, float64 [num_items], by penalised maximum likelihood.

    Args:
        orders: of some of the items, int64 [N, m].
        num_items: total; None for m.
        prior: precision of a normal prior on the log-worths, which keeps them finite.

    References: Plackett 1975; checked in tests/permutations/coded/test_report.py.
    """
    size = num_items or orders.shape[1]
    log_worths = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_worths], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        """Return the negative mean log-likelihood plus the penalty, a scalar."""
        optimizer.zero_grad()
        penalty = prior * log_worths.square().sum()
        loss = penalty - PlackettLuce(log_worths).log_prob(orders).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return log_worths.detach()


def describe_worths(distribution: PlackettLuce, names: Sequence[str]) -> dict[str, Any]:
    """Return the worths of a Plackett-Luce distribution by name of the item, largest first.

    They sum to 1: each is the probability that the item is first.

    Args:
        distribution: of the n items.
        names: of the items.
    """
    worths = distribution.scores.double().softmax(-1).tolist()
    order = sorted(range(len(worths)), key=lambda item: -worths[item])
    return {"worths": {names[item]: worths[item] for item in order}}
