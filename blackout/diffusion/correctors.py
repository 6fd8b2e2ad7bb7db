"""Correctors: steps at a fixed time that move a sample towards the model's distribution there.

They reduce the errors that an imperfect network made in earlier steps; with a perfect one the same
evaluations are better spent on more steps. With guided rates they leave p_t(x) p_t(c | x)^g as it
is, and with known elements in place the distribution of the others given these. Neither needs
weights.

    ThinAndBridge     decay a little, then take the kernel's step again
    LevelCorrector    forward and reverse jumps together
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from blackout.component import component
from blackout.diffusion.kernels.base import Kernel, ReverseStep, require_prediction
from blackout.diffusion.kernels.tau_leap import NEEDED_FOR_RATES, leap, reverse_rates
from blackout.diffusion.predictions import require
from blackout.diffusion.processes import JumpProcess
from blackout.diffusion.survival import (
    check_logit_range,
    in_logit_range,
    logit_survival,
    time_of_logit,
)
from blackout.errors import ensure

MAX_STEPS = 1_000_000  # of a sampler or a corrector; a grid of times must fit in memory
NEEDED_PROCESS = "a process in continuous time: a chain of steps has no rates"  # for messages


class Corrector(Protocol):
    """Protocol of a corrector step at time s, taken after the kernel's step from t to s."""

    def __call__(self, kernel: Kernel, step: ReverseStep, /) -> Tensor:
        """Return a corrected X_s: states of the shape [B, ...] and dtype of `step.x`.

        Args:
            kernel: which made the step from t to s.
            step: the same step, whose x is X_s already.

        Raises:
            ValueError: the method needs another kind of prediction or process.
        """


@component("corrector")
@dataclass(frozen=True)
class ThinAndBridge:
    """Corrector that lets X_s decay towards time t, then repeats the kernel's step to s.

    With the exact reverse kernel it leaves the distribution of X_s as it is, whatever the length of
    the step back.

    References: this project; checked in tests/verification/test_sampling_loop.py.

    Args:
        back: how far to go back, as a share of the kernel's step in logit survival.

    Raises:
        ValueError: back is not in (0, 1]; when called, a process in discrete time.
    """

    back: float = 0.5

    def __post_init__(self) -> None:
        ensure(0 < self.back <= 1, f"back must be in (0, 1], not {self.back}")

    def __call__(self, kernel: Kernel, step: ReverseStep) -> Tensor:
        """Return a corrected X_s, of the shape [B, ...] and dtype of `step.x`."""
        u_s = logit_survival(step.s)
        u_t = logit_survival(step.t)
        earlier = time_of_logit(u_s + self.back * (u_t - u_s))
        process = require(step.process, JumpProcess, self, step.process, NEEDED_PROCESS)
        # decay from s to the earlier time is that of X_(earlier - s) given X_0 = X_s
        thinned = process.sample(step.x, earlier - step.s, step.generator)
        return kernel(replace(step, x=thinned, t=earlier))


@component("corrector")
@dataclass(frozen=True)
class LevelCorrector:
    """Corrector that makes forward and reverse jumps at time s, which together leave p_s invariant.

    The rates are those of both generators at s, held constant for `fraction` (t - s). A perfect
    network gains nothing by it; samples of an imperfect one approach its own distribution at s.

    References: Campbell et al. 2022, section 4.4.

    Args:
        fraction: length of the stay in units of the step t - s.

    Raises:
        ValueError: fraction is not positive; when called, a chain in discrete time.
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        ensure(
            self.fraction > 0,
            f"the corrector's fraction of a step must be positive, not {self.fraction}",
        )

    def __call__(self, kernel: Kernel, step: ReverseStep) -> Tensor:
        """Return a corrected X_s, of the shape [B, ...] and dtype of `step.x`."""
        process = require(step.process, JumpProcess, self, step.process, NEEDED_PROCESS)
        prediction = require_prediction(
            step.denoiser(step.x, step.s), process.prediction, self, process, NEEDED_FOR_RATES
        )
        moves = [
            (reverse_rates(process, prediction, step.x, step.s), process.reverse_jumps(step.x)),
            (process.forward_rates(step.x, step.s), process.forward_jumps(step.x)),
        ]
        duration = self.fraction * float(step.t - step.s)
        return leap(process, step.x, moves, duration, step.generator)


THIN_AND_BRIDGE = ThinAndBridge()


@component("correction")
@dataclass(frozen=True)
class Correction:
    """Settings of corrector steps: how many, of which kind, and at which times.

    Args:
        steps: corrector steps after every step of the kernel; 0 for none.
        corrector: one such step.
        logit_range: (lowest, highest) logit of survival of the times to correct at; None for all.

    Raises:
        ValueError: a negative number of steps, or an empty range.
    """

    steps: int = 0
    corrector: Corrector = THIN_AND_BRIDGE
    logit_range: Sequence[float] | None = None

    def __post_init__(self) -> None:
        ensure(
            0 <= self.steps <= MAX_STEPS,
            f"steps must be in 0..{MAX_STEPS:,}, not {self.steps}",
        )
        check_logit_range(self.logit_range, "logit_range")

    def steps_at(self, s: float) -> int:
        """Return the number of corrector steps at time s; 0 at s = 0, the data."""
        return self.steps if self.steps and s > 0 and in_logit_range(self.logit_range, s) else 0


NO_CORRECTION = Correction()  # the default of samplers and plans
