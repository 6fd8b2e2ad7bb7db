"""Kernels of processes on finitely many states: bridges, and the distribution of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.guidance import GuidedPair
from blackout.diffusion.kernels.base import ReverseStep, require_prediction
from blackout.diffusion.predictions import CategoricalPrediction, Prediction, require
from blackout.diffusion.processes import FiniteProcess
from blackout.random import categorical


@component("kernel")
@dataclass(frozen=True)
class LevelBridge:
    """Draw X_0 from the predicted distribution, then X_s from the exact bridge from X_0 to X_t.

    For distribution heads, in continuous and discrete time. Exact for a single element whatever the
    step; elements are drawn independently, which costs O(step). Guidance acts on the distribution
    of X_s (`step_distribution`).

    References: Austin et al. 2021, eq. 4.
    """

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        requirement = (
            "a process of finitely many states and a head that predicts a distribution over "
            "levels, such as process=uniform head=levels"
        )
        process = require(step.process, FiniteProcess, self, step.process, requirement)
        prediction = require_prediction(
            step.denoiser(step.x, step.t), CategoricalPrediction, self, process, requirement
        )
        if isinstance(prediction, GuidedPair):
            return draw_guided_step(process, prediction, step)
        x0 = categorical(prediction.expected.movedim(1, -1), step.generator)
        return process.bridge(x0, step.x, step.s, step.t, step.generator)


def step_distribution(
    process: FiniteProcess, prediction: Prediction, xt: Tensor, s: Tensor, t: Tensor
) -> Tensor:
    """Return P(X_s = . | X_t) of every element, float64 [B, ..., S].

    For a guided pair it is p^(1 - g) p_c^g, whose sum is not 1. Normalised, it has guided rates as
    the step becomes short, and in one step to s = 0 a single element follows p(x) p(c | x)^g
    exactly. Bridges from a draw of P(X_0 | X_t)^(1 - g) P_c^g have other rates: those of
    absorption, for one, are then the same whatever the class.

    References: of a pair this project; checked in tests/verification/test_guided_processes.py.
    """
    if not isinstance(prediction, GuidedPair):
        return process.step_pmf(prediction.expected, xt, s, t)
    return prediction.tilt(*(process.step_pmf(part.expected, xt, s, t) for part in prediction.both))


def draw_guided_step(process: FiniteProcess, pair: GuidedPair, step: ReverseStep) -> Tensor:
    """Draw X_s [B, ...] from `step_distribution`, normalised.

    States that both models hold impossible stay as they are.

    References: this project; checked in tests/verification/test_guided_processes.py.
    """
    mass = step_distribution(process, pair, step.x, step.s, step.t)
    possible = mass.sum(-1) > 0
    xs = categorical(torch.where(possible[..., None], mass, 1.0), step.generator)
    return torch.where(possible, xs, step.x.long()).to(step.x.dtype)
