"""What every reverse step offers, and the ways of rounding an expected count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes import Process
from blackout.random import RandomSource, bernoulli

Rounding: TypeAlias = Callable[[Tensor, RandomSource], Tensor]
"""(y [B, ...], where randomness comes from) -> whole numbers of y's shape and dtype."""


class Kernel(Protocol):
    """One reverse step."""

    def __call__(
        self, denoiser: Denoiser, process: Process, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        """X_s given X_t.

        Args:
            denoiser: evaluated as often as the method needs.
            process: whose path is walked back.
            xt: states [B, ...].
            s, t: float64 scalars, s < t.

        Returns:
            States of xt's shape and dtype.

        Raises:
            ValueError: the method needs another kind of prediction or process.
        """
        ...


@runtime_checkable
class StatefulKernel(Protocol):
    """A kernel that remembers earlier steps, such as a multistep method: every run of the sampler gets a fresh one."""

    def fresh(self) -> Kernel:
        """The same method before its first step."""
        ...


@component(passed=("rounding",), called=("y", "generator"))
def nearest_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """The paper's. Biased: while y < 1/2 nothing is born, however many steps are taken."""
    return torch.round(y)


@component(passed=("rounding",), called=("y", "generator"))
def stochastic_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """floor(y) + Bernoulli(y - floor(y)): unbiased, so the mean number of births is y r."""
    floor = torch.floor(y)
    return floor + bernoulli((y - floor).double(), generator).to(y.dtype)
