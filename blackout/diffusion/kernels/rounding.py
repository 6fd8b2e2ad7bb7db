"""Rounding an expected count to a whole number, which the exact bridges need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.component import component
from blackout.random import RandomSource, bernoulli

# (y [B, ...], source of random numbers) -> whole numbers of y's shape and dtype
Rounding: TypeAlias = Callable[[Tensor, RandomSource], Tensor]


@component(partial_for=("rounding",), call_arguments=("y", "generator"))
def nearest_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """Round y [B, ...] to the nearest whole number, as the paper does.

    Biased: while y < 1/2 nothing is born, however many steps are taken.

    References: Santos et al. 2023, section 3.
    """
    return torch.round(y)


@component(partial_for=("rounding",), call_arguments=("y", "generator"))
def stochastic_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """Return floor(y) + Bernoulli(y - floor(y)), [B, ...].

    Unbiased, so that the mean number of births is y r.

    References: this project; checked in tests/verification/test_pure_death_kernels.py.
    """
    floor = torch.floor(y)
    return floor + bernoulli((y - floor).double(), generator).to(y.dtype)
