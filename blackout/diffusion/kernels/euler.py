"""Euler steps of jump processes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blackout.component import component
from blackout.diffusion.guidance import GuidedPair
from blackout.diffusion.kernels.base import ReverseStep, require_prediction
from blackout.diffusion.kernels.tau_leap import NEEDED_FOR_RATES, TauLeap, reverse_rates
from blackout.diffusion.predictions import Prediction, require
from blackout.diffusion.processes import JumpProcess
from blackout.random import categorical


@component("kernel")
@dataclass(frozen=True)
class EulerStep:
    """Euler step: a jump from X_t to level j has the probability rate(X_t -> j) (t - s).

    First order in the step; elements jump independently, each at most once. Where the
    probabilities of an element's jumps sum to more than 1 they are normalised. Of ordered
    processes, such as counts, several jumps add up: their step is that of `TauLeap`. The same holds
    for the last step, to s = 0, which draws X_0 itself from a distribution head.

    References: Lou et al. 2024, section 4.1; Chu et al. 2025, appendix C.3.
    """

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        requirement = "a process in continuous time"
        process = require(step.process, JumpProcess, self, step.process, requirement)
        if process.ordered or float(step.s) == 0.0:
            return TauLeap()(step)
        prediction = require_prediction(
            step.denoiser(step.x, step.t), process.prediction, self, process, NEEDED_FOR_RATES
        )
        mass = euler_distribution(process, prediction, step)
        return categorical(mass, step.generator).to(step.x.dtype)


def euler_distribution(
    process: JumpProcess, prediction: Prediction | GuidedPair, step: ReverseStep
) -> Tensor:
    """Return the weights of all levels after a step of an unordered process, float64 [B, ..., S].

    They sum to 1, or to more where the jumps alone do.

    References: Lou et al. 2024, section 4.1.
    """
    rates = reverse_rates(process, prediction, step.x, step.t).movedim(1, -1)
    jumps = rates * float(step.t - step.s)
    stay_probability = (1.0 - jumps.sum(-1, keepdim=True)).clamp(min=0.0)
    return jumps.scatter(-1, step.x.long()[..., None], stay_probability)
