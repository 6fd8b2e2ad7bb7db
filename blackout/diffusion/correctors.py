"""Correctors: steps that stay at one level and move a sample towards the model's law there.

They mend what an imperfect network did on the way; with a perfect one the same evaluations are better spent on more
steps of the predictor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from blackout.diffusion.counts import poisson
from blackout.diffusion.kernels import Denoiser, Kernel
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.processes.base import expand_time
from blackout.diffusion.schedules import logit_survival, time_of_logit
from blackout.diffusion.streams import RandomSource


class Corrector(Protocol):
    """One step at level s, after the predictor `kernel` came there from t."""

    def __call__(
        self,
        kernel: Kernel,
        denoiser: Denoiser,
        process: Process,
        xs: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        """Another X_s: counts of xs's shape and dtype."""
        ...

    def evaluations(self, kernel: Kernel, s: float) -> int:
        """How often one step at level s evaluates the denoiser."""
        ...


@dataclass(frozen=True)
class ThinAndBridge:
    """Let X_s decay back towards t, then take the predictor's step from there to s.

    With the exact reverse kernel it leaves the law of X_s as it is, whatever the length of the step back. For
    processes that are homogeneous in time.

    Args:
        back: how far to go back, as a share of the predictor's step in logit survival.

    Raises:
        ValueError: back is not in (0, 1]; when called, a process whose speed changes.
    """

    back: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.back <= 1:
            raise ValueError(f"back must be in (0, 1], not {self.back}")

    def __call__(
        self,
        kernel: Kernel,
        denoiser: Denoiser,
        process: Any,
        xs: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        u_s, u_t = logit_survival(s), logit_survival(t)
        earlier = time_of_logit(u_s + self.back * (u_t - u_s))
        lived, alone = process.elapsed(earlier) - process.elapsed(s), process.elapsed(earlier - s)
        if not torch.allclose(lived, alone, rtol=1e-6):
            raise ValueError("thin_and_bridge needs a process homogeneous in time: use sampler/corrector=level")
        # so that X_earlier given X_s is X_(earlier - s) given X_0 = X_s
        thinned = process.sample(xs, earlier - s, generator)
        return kernel(denoiser, process, thinned, s, earlier, generator)

    def evaluations(self, kernel: Kernel, s: float) -> int:
        return kernel.evaluations(s)


@dataclass(frozen=True)
class BirthDeath:
    """Deaths of the forward process and births of the reverse one at the same time (Campbell et al. 2022, section 4.4).

    Both run for `length` times t - s at frozen s, where their sum leaves the law of X_s as it is; a single leap of
    both does so only in the limit of small `length`.

    Raises:
        ValueError: length is not positive; when called, another process than pure death.
    """

    length: float = 0.5

    def __post_init__(self) -> None:
        if not self.length > 0:
            raise ValueError(f"length must be positive, not {self.length}")

    def __call__(
        self,
        kernel: Kernel,
        denoiser: Denoiser,
        process: Process,
        xs: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        if not isinstance(process, PureDeath):
            raise ValueError("the corrector birth_death is for pure death: use sampler/corrector=level")
        duration = expand_time(self.length * (t - s), xs)
        births = poisson(denoiser(xs, s).mean.double() * duration / torch.expm1(expand_time(s, xs)), generator)
        survivors = process.sample(xs, duration, generator)
        return (survivors + births).clamp_(max=process.max_count).to(xs.dtype)

    def evaluations(self, kernel: Kernel, s: float) -> int:
        return 1
