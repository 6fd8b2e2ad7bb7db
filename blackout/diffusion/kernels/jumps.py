"""Reverse steps of the other processes: exact bridges from a draw or a guess of what is predicted, and leaps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.guidance import GuidedPair
from blackout.diffusion.kernels.base import Rounding, stochastic_rounding
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    Denoiser,
    Kind,
    Prediction,
    require,
)
from blackout.diffusion.processes import BirthDeath, FiniteProcess, JumpProcess, Process
from blackout.random import RandomSource, categorical, poisson, uniform


@component("kernel")
@dataclass(frozen=True)
class LevelBridge:
    """Draw X_0 from the predicted distribution, then X_s from the exact bridge between X_0 and X_t.

    For distribution heads, in continuous and discrete time. Exact for a single element whatever the step; elements
    are drawn independently, which costs O(step). Guidance acts on the distribution of X_s (`guided_step`).
    """

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        needed = (
            "a process of finitely many states and a head that predicts a distribution over levels, such as "
            "process=uniform head=levels"
        )
        finite = require(process, FiniteProcess, self, process, needed)
        prediction = fitting(denoiser(xt, t), CategoricalPrediction, self, process, needed)
        if isinstance(prediction, GuidedPair):
            return draw_step(finite, prediction, xt, s, t, generator)
        return finite.bridge(draw_level(prediction, generator), xt, s, t, generator)


@component("kernel")
@dataclass(frozen=True)
class BirthDeathBridge:
    """Round the two predicted numbers of `BirthDeath` to whole ones, then take the exact bridge they fix.

    Args:
        rounding: of the numbers.

    Raises:
        ValueError: when called, guided rates: no numbers of missing and of immigrants have them, where births are rarer
            than immigration or deaths more frequent than those of X_t immigrants.
    """

    rounding: Rounding = stochastic_rounding

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        needed = "process=birth_death and its head"
        birth_death = require(process, BirthDeath, self, process, needed)
        prediction = fitting(denoiser(xt, t), BirthDeathPrediction, self, process, needed)
        if isinstance(prediction, GuidedPair):
            raise ValueError("the bridge of immigration and death has no guided rates: use sampler=tau_leap")
        y, x = prediction.mean, xt.long()
        # I is at most X_t, and X_0 - S at most what is left up to max_count above the survivors S = X_t - I
        immigrants = torch.minimum(self.rounding(y[:, 1], generator).long(), x)
        headroom = (birth_death.max_count - (x - immigrants)).clamp(min=0)
        missing = torch.minimum(self.rounding(y[:, 0], generator).long(), headroom)
        return birth_death.bridge_from(missing, immigrants, xt, s, t, generator)


@component("kernel")
@dataclass(frozen=True)
class TauLeap:
    """Leaps of every reverse type at frozen rates for t - s (Algorithm 4 with the time increment it lacks).

    Types of ordered processes add up, Poisson each, clipped to the state space (Campbell et al. 2022); of unordered
    ones at most one happens. The last step, to s = 0, draws X_0 itself from a distribution head. Guidance acts on the
    rates, and on the distribution of the last step.
    """

    def __call__(
        self,
        denoiser: Denoiser,
        process: Process,
        xt: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        jump = require(process, JumpProcess, self, process, "a process in continuous time")
        prediction = fitting(
            denoiser(xt, t), jump.prediction, self, process, "a head that predicts what its rates need"
        )
        if float(s) == 0.0 and isinstance(prediction, CategoricalPrediction):
            return draw_level(prediction, generator).to(xt.dtype)
        if float(s) == 0.0 and isinstance(prediction, GuidedPair) and isinstance(process, FiniteProcess):
            return draw_step(process, prediction, xt, s, t, generator)
        return leap(
            jump, xt, [(reverse_rates(jump, prediction, xt, t), jump.reverse_jumps(xt))], float(t - s), generator
        )


def fitting(prediction: Prediction, kind: type[Kind], part: object, process: object, needed: str) -> Kind | GuidedPair:
    """The prediction, if it is of this kind, or a pair of such ones to be guided; see `require`."""
    if not isinstance(prediction, GuidedPair):
        return require(prediction, kind, part, process, needed)
    require(prediction.unconditional, kind, part, process, needed)
    require(prediction.conditional, kind, part, process, needed)
    return prediction


def reverse_rates(process: JumpProcess, prediction: Prediction, xt: Tensor, t: Tensor) -> Tensor:
    """kappa, or kappa^(1 - g) kappa_c^g of a pair: float64 [B, R, ...] per unit of t."""
    if not isinstance(prediction, GuidedPair):
        return process.rates(prediction.mean, xt, t)
    return prediction.tilt(*(process.rates(one.expected, xt, t) for one in prediction.both))


def step_law(process: FiniteProcess, prediction: Prediction, xt: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """P(X_s = . | X_t) of every element, float64 [B, ..., S], or for a pair p^(1 - g) p_c^g, whose sum is not 1.

    Normalised, the latter has guided rates as the step becomes short, and in one step to s = 0 a single element follows
    p(x) p(c | x)^g exactly. (Bridges from a draw of P(X_0 | X_t)^(1 - g) P_c^g have other rates: those of absorption,
    for one, are then the same whatever the class.)
    """
    if not isinstance(prediction, GuidedPair):
        return process.step_pmf(prediction.expected, xt, s, t)
    return prediction.tilt(*(process.step_pmf(one.expected, xt, s, t) for one in prediction.both))


def draw_step(
    process: FiniteProcess, pair: GuidedPair, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource
) -> Tensor:
    """X_s from `step_law`, normalised; states that the models hold impossible stay as they are."""
    law = step_law(process, pair, xt, s, t)
    possible = law.sum(-1) > 0
    drawn = categorical(torch.where(possible[..., None], law, 1.0), generator)
    return torch.where(possible, drawn, xt.long()).to(xt.dtype)


def draw_level(prediction: CategoricalPrediction, generator: RandomSource) -> Tensor:
    """X_0 from the predicted distribution, int64 [B, ...], elements independent."""
    return categorical(prediction.probs.movedim(1, -1).double(), generator)


def leap(
    process: JumpProcess, xt: Tensor, moves: list[tuple[Tensor, Tensor]], duration: float, generator: RandomSource
) -> Tensor:
    """X_t after jumps at constant rates for a while.

    Args:
        process: ordered ones add up all that happens, others take one jump at most.
        xt: states [B, ...].
        moves: rates, float64 [B, R, ...], of R types of jumps and what each adds, broadcastable to the same shape.
        duration: in units of t.

    Returns:
        States of xt's shape and dtype.
    """
    if process.ordered:
        total = sum((poisson(rates * duration, generator) * jumps).sum(1) for rates, jumps in moves)
        return (xt + total).clamp(0, process.num_states - 1).to(xt.dtype)
    rates = torch.cat([r for r, _ in moves], dim=1).movedim(1, -1)
    jumps = torch.cat([j.expand(r.shape) for r, j in moves], dim=1)
    exit_rate = rates.sum(-1)
    # nothing happens with probability e^(-exit rate duration), else one jump, in proportion to its rate
    stays = uniform(tuple(xt.shape), generator, xt.device) < torch.exp(-exit_rate * duration)
    # where nothing can happen any weights will do
    chosen = categorical(torch.where(exit_rate[..., None] > 0, rates, 1.0), generator)
    jump = jumps.gather(1, chosen[:, None]).squeeze(1)
    return torch.where(stays | (exit_rate == 0), xt.long(), xt + jump).to(xt.dtype)
