"""Correctors: steps that stay at one time and move a sample towards the model's distribution there.

They mend what an imperfect network did on the way; with a perfect one the same evaluations are better spent on more
steps of the predictor.

With guided rates they leave p_t(x) p_t(c | x)^g as it is, and with known elements held in their place the law of the
others given these: nothing needs weighing. They are therefore what mends guidance and inpainting without particles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from blackout.component import component
from blackout.diffusion.kernels import FOR_RATES, Kernel, ReverseStep, fitting, leap, reverse_rates
from blackout.diffusion.predictions import require
from blackout.diffusion.processes import JumpProcess
from blackout.diffusion.schedules import check_range, in_range, logit_survival, time_of_logit
from blackout.errors import ensure

MOST_STEPS = 1_000_000
"""Of a sampler or a corrector: nobody waits for more, and a grid of times must fit in memory."""
_NEEDED = "a process in continuous time: a chain of steps has no rates"


class Corrector(Protocol):
    """One step at time s, after the predictor `kernel` came there from t."""

    def __call__(self, kernel: Kernel, at: ReverseStep, /) -> Tensor:
        """Another X_s: states of the shape [B, ...] and dtype of `at.x`, which here is X_s already.

        Raises:
            ValueError: the method needs another kind of prediction or process.
        """


@component("corrector")
@dataclass(frozen=True)
class ThinAndBridge:
    """Let X_s decay back towards t, then take the predictor's step from there to s. Ours (test_loop_laws.py).

    With the exact reverse kernel it leaves the distribution of X_s as it is, whatever the length of the step back.

    Args:
        back: how far to go back, as a share of the predictor's step in logit survival.

    Raises:
        ValueError: back is not in (0, 1]; when called, a process in discrete time.
    """

    back: float = 0.5

    def __post_init__(self) -> None:
        ensure(0 < self.back <= 1, f"back must be in (0, 1], not {self.back}")

    def __call__(self, kernel: Kernel, at: ReverseStep) -> Tensor:
        """Another X_s, of the shape [B, ...] and dtype of `at.x`: see `Corrector`."""
        u_s, u_t = logit_survival(at.s), logit_survival(at.t)
        earlier = time_of_logit(u_s + self.back * (u_t - u_s))
        # as X_(earlier - s) given X_0 = X_s
        decayed = require(at.process, JumpProcess, self, at.process, _NEEDED).sample(at.x, earlier - at.s, at.generator)
        return kernel(replace(at, x=decayed, t=earlier))


@component("corrector")
@dataclass(frozen=True)
class LevelCorrector:
    """A stay at time s: forward and reverse jumps together for a while leave the distribution p_s as it is.

    The rates are those of both generators at s, frozen for `fraction` (t - s) [Campbell 2022, section 4.4].
    A perfect network gains nothing by it; an imperfect one is brought nearer to its own distribution at s.

    Args:
        fraction: length of the stay in units of the step t - s.

    Raises:
        ValueError: fraction is not positive; when called, a chain in discrete time.
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        ensure(self.fraction > 0, f"the corrector's fraction of a step must be positive, not {self.fraction}")

    def __call__(self, kernel: Kernel, at: ReverseStep) -> Tensor:
        """Another X_s, of the shape [B, ...] and dtype of `at.x`: see `Corrector`."""
        jump = require(at.process, JumpProcess, self, at.process, _NEEDED)
        prediction = fitting(at.denoiser(at.x, at.s), jump.prediction, self, jump, FOR_RATES)
        moves = [
            (reverse_rates(jump, prediction, at.x, at.s), jump.reverse_jumps(at.x)),
            (jump.forward_rates(at.x, at.s), jump.forward_jumps(at.x)),
        ]
        return leap(jump, at.x, moves, self.fraction * float(at.t - at.s), at.generator)


THIN_AND_BRIDGE = ThinAndBridge()


@dataclass(frozen=True)
class Correction:
    """How often, how and where to correct.

    Args:
        steps: corrector steps after every step of the kernel; 0 for none.
        corrector: one such step.
        between: (lowest, highest) logit of survival of the times to correct at; None for all.

    Raises:
        ValueError: a negative number of steps, or an empty range.
    """

    steps: int = 0
    corrector: Corrector = THIN_AND_BRIDGE
    between: Sequence[float] | None = None

    def __post_init__(self) -> None:
        ensure(0 <= self.steps <= MOST_STEPS, f"corrector_steps must be in 0..{MOST_STEPS:,}, not {self.steps}")
        check_range(self.between, "corrector_between")

    def at(self, s: float) -> int:
        """The number of corrector steps at time s; never any at s = 0, where all is done."""
        return self.steps if s > 0 and in_range(self.between, s) else 0
