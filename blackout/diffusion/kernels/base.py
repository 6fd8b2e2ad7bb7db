"""What all kernels share: the reverse step they are to make, and their protocols.

A kernel makes a reverse step, from X_t to X_s with s < t, with the help of a denoiser. The loop
that walks a grid of times with a kernel is `blackout.diffusion.sampling.run_sampler`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast, runtime_checkable

from torch import Tensor

from blackout.diffusion.grid_ends import GridEnds
from blackout.diffusion.guidance import GuidedCount, GuidedPair
from blackout.diffusion.predictions import (
    CountPrediction,
    Denoiser,
    Kind,
    MissingCount,
    Prediction,
    require,
)
from blackout.diffusion.processes import Process
from blackout.diffusion.survival import reverse_clock, step_fraction
from blackout.random import RandomSource, poisson
from blackout.representation import format_fields


@dataclass(frozen=True)
class ReverseStep:
    """Input of a kernel: the reverse step to make, from time t to s < t.

    Args:
        denoiser: evaluated as often as the method needs.
        process: the forward process that is reversed.
        x: states X_t [B, ...].
        s: time that the step leads to, a float64 scalar.
        t: time of `x`, a float64 scalar.
        generator: source of the step's random numbers.
    """

    denoiser: Denoiser
    process: Process
    x: Tensor
    s: Tensor
    t: Tensor
    generator: RandomSource = None

    __repr__ = format_fields

    def predict_count(self, part: object) -> CountPrediction:
        """Evaluate the denoiser at (X_t, t), and check that it predicts the missing count.

        Args:
            part: the kernel or corrector, for the message.

        Raises:
            ValueError: the denoiser predicts something else.
        """
        requirement = (
            "a head that predicts the missing count (and for some samplers its distribution)"
        )
        prediction = self.denoiser(self.x, self.t)
        return require(prediction, CountPrediction, part, self.process, requirement)

    def predict_distribution(self, part: object, purpose: str) -> MissingCount:
        """Evaluate the denoiser at (X_t, t), and return the predicted distribution P(N | X_t).

        Args:
            part: the kernel, for the message.
            purpose: what the distribution is for, such as "bridge", for the message.

        Raises:
            ValueError: only a mean is predicted, or the count is guided, which leaves only a mean.
        """
        prediction = self.predict_count(part)
        if isinstance(prediction, GuidedCount):
            raise ValueError(
                f"guidance leaves no distribution for the posterior {purpose}: "
                "use sampler=trapezoidal"
            )
        if prediction.distribution is None:
            raise ValueError(
                f"the posterior {purpose} needs a head that predicts a distribution, such as "
                "head=logistic_mixture: train with one, or use sampler=trapezoidal"
            )
        return prediction.distribution

    def poisson_leap(self, y: Tensor) -> Tensor:
        """Return X_s = X_t + Poisson(y r) [B, ...], clipped to max_count.

        References: Santos et al. 2023, Algorithm 2; see `PoissonLeap`.

        Args:
            y: expected missing count [B, ...], held constant over the step.
        """
        births = poisson(y * step_fraction(self.s, self.t), self.generator)
        return add_births(self.x, births, self.process)

    def bridge(self, missing: Tensor) -> Tensor:
        """Return X_s [B, ...] by the exact bridge from X_0 = X_t + missing.

        References: Santos et al. 2023, eq. 12.

        Args:
            missing: whole numbers [B, ...].
        """
        x0 = (self.x + missing).to(self.x.dtype)
        return self.process.bridge(x0, self.x, self.s, self.t, self.generator)

    def midpoint(self) -> Tensor:
        """Return the scalar time rho that halves the step on the time scale of `reverse_clock`.

        References: this project; checked in tests/verification/test_pure_death_kernels.py.
        """
        middle = (reverse_clock(self.s) + reverse_clock(self.t)) / 2
        return reverse_clock(middle)  # the clock is its own inverse

    def until(self, time: Tensor) -> ReverseStep:
        """Return the first part of the step: from t to `time`, between s and t."""
        return replace(self, s=time)

    def continue_from(self, x: Tensor, time: Tensor) -> ReverseStep:
        """Return the second part of the step, from states x at `time` to s."""
        return replace(self, x=x, t=time)


class Kernel(Protocol):
    """Protocol of a kernel, which makes one reverse step of the sampling loop."""

    def __call__(self, step: ReverseStep, /) -> Tensor:
        """Return X_s given X_t: states of the shape [B, ...] and dtype of `step.x`.

        Raises:
            ValueError: the method needs another kind of prediction or process.
        """


@runtime_checkable
class StatefulKernel(Kernel, Protocol):
    """A kernel that uses earlier steps of the same run, such as a multistep method.

    `blackout.diffusion.sampling.run_sampler` starts a new run of it for every batch. Called by
    itself, it makes a step without earlier ones.
    """

    memoryless: ClassVar[Kernel]  # its replacement where states are exchanged between steps

    def start(self, data_mean: Tensor | None) -> Kernel:
        """Return the kernel of one run.

        Args:
            data_mean: E[X_0] of a Poisson start; None for other starts.
        """

    def earliest_time(self, ends: GridEnds) -> float:
        """Return the earliest final time at which a Poisson start is accurate enough.

        The default is that of kernels that do not correct the start.
        """
        return ends.earliest_time()


def add_births(x: Tensor, births: Tensor, process: Process) -> Tensor:
    """Return x + births, clipped to max_count, in x's dtype and shape [B, ...].

    References: Santos et al. 2023, Algorithm 2.
    """
    return (x + births).clamp_(max=process.max_count).to(x.dtype)


def require_prediction(
    prediction: Prediction, kind: type[Kind], part: object, process: object, requirement: str
) -> Kind | GuidedPair:
    """Return the prediction, after checking its class; of a guided pair, both classes are checked.

    Args:
        prediction: of a denoiser.
        kind: the class that is needed.
        part: the kernel or corrector, for the message.
        process: the process it is used with, for the message.
        requirement: what it needs, in words.

    Raises:
        ValueError: it is of another kind.
    """
    parts = prediction.both if isinstance(prediction, GuidedPair) else (prediction,)
    for single in parts:
        require(single, kind, part, process, requirement)
    return cast("Kind | GuidedPair", prediction)
