"""Mean and dispersion of every element of count data, and the gain that all elements share.

An element's concentration r is that of the negative binomial distribution with its mean m and
variance m + m^2 / r. Binomial thinning to a survival probability q keeps r and makes the mean q m,
so one number describes the dispersion at all times of the forward process.

References: this project; checked in tests/networks/test_elements.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.representation import format_fields

MIN_CONCENTRATION = 0.02  # of an element that is hardly ever above 0
MAX_CONCENTRATION = 1e4  # of counts that are Poisson or less dispersed
ROUNDING = 1e-12  # a difference below this fraction of a sum is rounding error


@dataclass(frozen=True)
class Elements:
    """Moments of count data: mean and concentration of every element, and the gain they share.

    The gain S of a sample scales the means of all its elements, E[X_0 | S] = S E[X_0]. Sequencing
    depth, exposure time and brightness are such gains.

    Attributes:
        mean: E[X_0] in counts, positive, float32 [*shape].
        concentration: r, positive, float32 [*shape].
        gain: R = 1 / Var(S), float32 []. The covariance of two elements divided by the product of
            their means is 1 / R on average; R is very large for data without a shared gain.

    Example:
        >>> elements = Elements(torch.tensor([4.0]), torch.tensor([0.8]), torch.tensor(4.0))
        >>> elements.conditional_concentration
        tensor([1.2500])
    """

    mean: Tensor
    concentration: Tensor
    gain: Tensor

    __repr__ = format_fields

    @property
    def conditional_concentration(self) -> Tensor:
        """Concentration r' of every element given the gain, [*shape].

        It solves 1 + 1 / r = (1 + 1 / R) (1 + 1 / r').
        """
        inverse = (1 / self.concentration - 1 / self.gain) / (1 + 1 / self.gain)
        return 1 / torch.maximum(inverse, 1 / (MAX_CONCENTRATION * (1 + self.mean)))


def estimate_gain(total_variance: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Estimate R of the gain from the covariance of elements: the excess variance of their total.

    Args:
        total_variance: Var(sum X_0) over samples, float64 [].
        mean: of every element, float64 [*shape].
        variance: of every element, float64 [*shape].

    Returns:
        float64 [], in [0.02, 10^4]; 10^4 where a single element has all the counts.
    """
    squared_total = mean.sum().square()
    mean_products = squared_total - mean.square().sum()
    covariance = total_variance - variance.sum()
    gain_variance = torch.where(
        mean_products > ROUNDING * squared_total, covariance / mean_products, 0.0
    )
    return 1 / gain_variance.clamp(min=1 / MAX_CONCENTRATION, max=1 / MIN_CONCENTRATION)


def estimate_concentration(mean: Tensor, variance: Tensor) -> Tensor:
    """Estimate concentrations by the method of moments, r = m^2 / (v - m).

    The upper bound 10^4 (1 + m) is low enough for float32 to resolve single counts in r + X_t.

    Args:
        mean: of every element, float64 [*shape].
        variance: of every element, float64 [*shape].

    Returns:
        float64 [*shape], in [0.02, 10^4 (1 + m)].
    """
    upper_bound = MAX_CONCENTRATION * (1 + mean)
    excess = variance - mean
    moments = mean.square() / excess.clamp(min=1e-30)
    r = torch.where(excess > 0, moments, upper_bound)
    return torch.minimum(r, upper_bound).clamp(min=MIN_CONCENTRATION)
