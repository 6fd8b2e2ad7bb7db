"""Tau-leaping of any process in continuous time: jumps at rates that are held constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.guidance import GuidedPair
from blackout.diffusion.kernels.base import ReverseStep, require_prediction
from blackout.diffusion.kernels.finite_states import LevelBridge
from blackout.diffusion.predictions import Prediction, require
from blackout.diffusion.processes import FiniteProcess, JumpProcess
from blackout.random import RandomSource, categorical, poisson, uniform

NEEDED_FOR_RATES = "a head that predicts what rates need"  # for messages


@component("kernel")
@dataclass(frozen=True)
class TauLeap:
    """Tau-leaping: reverse jumps of every type at the rates of X_t, held constant over the step.

    Algorithm 4 lacks the time increment t - s. Jumps of ordered processes add up, Poisson for each
    type, clipped to the state space; of unordered ones at most one happens. The last step, to
    s = 0, draws X_0 itself from a distribution head. Guidance acts on the rates, and on the
    distribution of the last step.

    References: Santos et al. 2023, Algorithm 4; Campbell et al. 2022, section 4.3.
    """

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        requirement = "a process in continuous time"
        process = require(step.process, JumpProcess, self, step.process, requirement)
        if float(step.s) == 0.0 and isinstance(process, FiniteProcess):
            return LevelBridge()(step)
        prediction = require_prediction(
            step.denoiser(step.x, step.t), process.prediction, self, process, NEEDED_FOR_RATES
        )
        rates = reverse_rates(process, prediction, step.x, step.t)
        moves = [(rates, process.reverse_jumps(step.x))]
        return leap(process, step.x, moves, float(step.t - step.s), step.generator)


def reverse_rates(process: JumpProcess, prediction: Prediction, xt: Tensor, t: Tensor) -> Tensor:
    """Return the reverse rates kappa, float64 [B, R, ...] per unit of t.

    For a guided pair they are kappa^(1 - g) kappa_c^g.

    References: Nisonoff et al. 2024, eq. 2.
    """
    if not isinstance(prediction, GuidedPair):
        return process.rates(prediction.expected, xt, t)
    return prediction.tilt(*(process.rates(part.expected, xt, t) for part in prediction.both))


def leap(
    process: JumpProcess,
    xt: Tensor,
    moves: list[tuple[Tensor, Tensor]],
    duration: float,
    generator: RandomSource,
) -> Tensor:
    """Return states after jumps at constant rates, of xt's shape and dtype.

    References: Santos et al. 2023, Algorithm 4.

    Args:
        process: of an ordered one, all jumps that happen add up; of others at most one happens.
        xt: states [B, ...].
        moves: rates, float64 [B, R, ...], of R types of jumps, and what each adds to the state,
            broadcastable to the same shape.
        duration: in units of t.
        generator: source of random numbers.
    """
    if process.ordered:
        total = sum((poisson(rates * duration, generator) * jumps).sum(1) for rates, jumps in moves)
        return (xt + total).clamp(0, process.num_states - 1).to(xt.dtype)

    rates = torch.cat([r for r, _ in moves], dim=1).movedim(1, -1)
    jumps = torch.cat([j.expand(r.shape) for r, j in moves], dim=1)
    exit_rate = rates.sum(-1)
    # nothing happens with probability e^(-exit rate duration), else one jump, by its rate
    is_unchanged = uniform(tuple(xt.shape), generator, xt.device) < torch.exp(-exit_rate * duration)
    # elements without possible jumps get weights of 1; their draw is discarded below
    jump_type = categorical(torch.where(exit_rate[..., None] > 0, rates, 1.0), generator)
    jump = jumps.gather(1, jump_type[:, None]).squeeze(1)
    return torch.where(is_unchanged | (exit_rate == 0), xt.long(), xt + jump).to(xt.dtype)
