"""The Mallows distribution, and its fit to orders.

Its Lehmer code has independent digits, so that a model of codes represents it in one pass.

Example:
    >>> import torch
    >>> from blackout.permutations import all_permutations
    >>> distribution = Mallows(3, phi=0.5)
    >>> round(distribution.log_prob(all_permutations(3)).exp().sum().item(), 6)
    1.0

References: Mallows 1957.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.permutations.codes import Lehmer
from blackout.permutations.distributions.base import PermutationDistribution, independent_log_prob
from blackout.permutations.group import is_permutation
from blackout.permutations.kemeny import consensus
from blackout.random import RandomSource, cumulative_probabilities

# the bisection for log phi of Mallows
LOG_PHI_LIMIT = 50.0
BISECTIONS = 80


class Mallows(PermutationDistribution):
    """The Mallows distribution, p(order) = phi^d / Z, with the Kendall distance d from the centre.

    Its Lehmer digits are independent. There is no `top`; for phi < 1 the mode is the centre.

    Args:
        n: items.
        phi: dispersion, a non-negative number or tensor [...]; 0 is the centre alone, 1 is uniform.
        centre: reference order int64 [n]; None for 0, 1, 2, ...

    Raises:
        ValueError: n < 1, a negative phi, or a centre that is no order of n items.

    References: Mallows 1957; Severo et al. 2025, section 3.2 and eq. 2 with one block.
    """

    def __init__(self, n: int, phi: float | Tensor, centre: Tensor | None = None) -> None:
        self.phi = torch.as_tensor(phi, dtype=torch.float64)
        self.reference = centre
        if not bool(((self.phi >= 0) & self.phi.isfinite()).all()):
            raise ValueError(f"phi must be a number that is not negative, not {phi}")
        # digit i has the weight phi^v for each value v up to n - 1 - i
        values = torch.arange(n, dtype=torch.float64, device=self.phi.device).expand(n, n)
        super().__init__(torch.special.xlogy(values, self.phi[..., None, None]), 2)
        if centre is not None and (centre.shape != (n,) or not bool(is_permutation(centre))):
            raise ValueError(
                f"centre must have each of the items 0..{n - 1} once, not {centre.tolist()}"
            )
        support = Lehmer.support(n, self.phi.device)
        # of the values of every digit, float64 [*batch, n, n]
        self.digit_log_probs = self.scores.masked_fill(~support, -math.inf).log_softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], float64 [...].

        Raises:
            ValueError: a value is no permutation.
        """
        return independent_log_prob(self.digit_log_probs, Lehmer.encode(value, self.reference))

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw the digits by inversion of their distribution functions."""
        u = self._uniform(sample_shape, (self._n,), generator)
        rows = u.reshape(-1, *self.batch_shape, self._n).movedim(0, -1).contiguous()
        cumulative = cumulative_probabilities(self.digit_log_probs.exp())
        digits = torch.searchsorted(cumulative, rows, right=True)
        return Lehmer.decode(digits.movedim(-1, 0).reshape(u.shape), self.reference)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the distance from the centre, float64 [*batch] each.

        The distance is the sum of the digits.

        References: this project; checked in tests/permutations/distributions/test_mallows.py.
        """
        p = self.digit_log_probs.exp()
        value = torch.arange(self._n, device=p.device).double()
        mean = (p * value).sum(-1)
        variance = (p * value**2).sum(-1) - mean**2
        return mean.sum(-1), variance.sum(-1)

    def describe(self, names: Sequence[str]) -> dict[str, Any]:
        """Return dispersion and centre as plain values, with the items by name.

        Args:
            names: of the n items.
        """
        centre = range(self._n) if self.reference is None else self.reference.tolist()
        return {"phi": float(self.phi), "centre": [names[item] for item in centre]}

    @classmethod
    def fit(cls, orders: Tensor) -> Mallows:
        """Return the maximum-likelihood fit to orders int64 [N, n].

        The centre is the `consensus`, exact up to 14 items. phi makes the expected distance that of
        the data, where the likelihood, which is concave in log phi, is largest.

        Raises:
            ValueError: no orders.

        References: this project; checked in tests/permutations/distributions/test_mallows.py.
        """
        n = orders.shape[-1]
        centre = consensus(orders)
        mean_distance = float(Lehmer.encode(orders, centre).sum(-1).double().mean())
        phi = math.exp(log_phi_of_distance(n, mean_distance)) if mean_distance else 0.0
        return cls(n, phi, centre)


def log_phi_of_distance(n: int, mean_distance: float) -> float:
    """Return log phi of the Mallows distribution of n items with an expected distance, in -50..50.

    References: this project; checked in tests/permutations/distributions/test_mallows.py.
    """
    values = np.arange(n, dtype=np.float64)
    low = -LOG_PHI_LIMIT
    high = LOG_PHI_LIMIT
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        # weights of the values of a digit, relative to the largest of them
        weights = np.exp(middle * (values - (0 if middle < 0 else n)))
        digit_means = np.cumsum(weights * values) / np.cumsum(weights)
        if digit_means.sum() < mean_distance:
            low = middle
        else:
            high = middle
    return (low + high) / 2
