"""Every element's own mean and dispersion: what counts of very different scale are measured in.

An element's concentration r is that of the negative binomial distribution with its mean m and variance m + m^2 / r.
Thinning to a share q keeps r and makes the mean q m, so that one number serves all times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_LEAST, _MOST = 0.02, 1e4
"""Bounds of the concentration: an element that is hardly ever above 0; counts that are Poisson or less dispersed."""


@dataclass(frozen=True)
class Elements:
    """What is known of every element of the data, float32 [*shape] each, and of a gain that all of them share.

    Attributes:
        mean: E[X_0], positive.
        concentration: r, positive.
        gain: R = 1 / Var(S), [], where E[X_0 | S] = S E[X_0]: the average covariance of two elements over the product
            of their means is 1 / R. Depth, exposure and brightness are such gains; very large for data without one.
    """

    mean: Tensor
    concentration: Tensor
    gain: Tensor

    @property
    def own_concentration(self) -> Tensor:
        """That of an element given the gain, r' with 1 / r' = 1 / r - 1 / R."""
        inverse = 1 / self.concentration - 1 / self.gain
        return 1 / torch.maximum(inverse, 1 / (_MOST * (1 + self.mean)))


def gain(total_variance: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """R, float64 []: from the variance of totals beyond the sum of variances.

    Args:
        total_variance: Var(sum X_0), [].
        mean, variance: of every element, float64 [*shape].
    """
    shared = (total_variance - variance.sum()) / (mean.sum().square() - mean.square().sum()).clamp(min=1e-30)
    return 1 / shared.clamp(min=1 / _MOST, max=1 / _LEAST)


def concentration(mean: Tensor, variance: Tensor) -> Tensor:
    """r = m^2 / (v - m) by moments, within [0.02, 10^4 + 10^4 m]: never so large that float32 loses counts in it.

    Args:
        mean, variance: of every element, float64 [*shape].
    """
    most = _MOST * (1 + mean)
    excess = variance - mean
    r = torch.where(excess > 0, mean.square() / excess.clamp(min=1e-30), most)
    return torch.minimum(r, most).clamp(min=_LEAST)


class CountInputs(nn.Module):
    """Counts on the scale that makes negative binomial counts about equally noisy, every element on its own.

    With q = e^-t, an element's mean m and its concentration r,

        z = log((r + X_t) / (r + q m)) sqrt(r (r + q m) / (1 + q m)):

    for large r (Poisson counts) (X_t - q m) / sqrt(1 + q m), for small r a logarithm, which tells 0 from 1 where the
    largest counts are thousands. At most X_t itself where nearly all has decayed.

    Args:
        shape: of the data.
    """

    mean: Tensor
    concentration: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        for name in ("mean", "concentration"):  # a model's own, from which it is made again
            self.register_buffer(name, torch.ones(tuple(shape)), persistent=False)

    def measure(self, elements: Elements) -> None:
        """Take the data's means and concentrations in place of ones.

        Raises:
            ValueError: they are of another shape.
        """
        if elements.mean.shape != self.mean.shape:
            raise ValueError(f"inputs of shape {list(self.mean.shape)}, data of {list(elements.mean.shape)}")
        self.mean.copy_(elements.mean)
        self.concentration.copy_(elements.concentration)

    def forward(self, xt: Tensor, t: Tensor) -> Tensor:
        """Counts [B, *shape] at float64 times [B] -> float32 [B, *shape]."""
        survival = torch.exp(-t).float().reshape(-1, *[1] * (xt.dim() - 1))
        expected, r = survival * self.mean, self.concentration
        ratio = torch.log1p((xt.float() - expected) / (r + expected))
        return ratio * torch.sqrt(r * ((r + expected) / (1 + expected)))


def measure(network: nn.Module, elements: Elements) -> None:
    """Give the data's elements to every part of a network that asks for them."""
    for part in network.modules():
        if isinstance(part, CountInputs):
            part.measure(elements)
