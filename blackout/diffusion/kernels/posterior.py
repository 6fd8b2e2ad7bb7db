"""The second-order step of pure death that works with whole distributions of the missing count."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.guidance import GuidedCount
from blackout.diffusion.kernels.births import PosteriorBridge, fraction, predicted_count
from blackout.diffusion.predictions import Denoiser, MissingCount
from blackout.diffusion.processes import Process
from blackout.diffusion.schedules import reverse_clock
from blackout.random import RandomSource, uniform

LARGEST = 1023
"""Largest max_count: every number a missing count can be is enumerated in every element."""


@dataclass(frozen=True)
class PosteriorTrapezoidal:
    """Second order with two evaluations per step, and exact for independent elements, whatever the step.

    Stage 1 draws N from its distribution P_t(N | X_t) and takes the exact bridge to rho, which halves the clock
    -log(1 - e^-t) as in `Trapezoidal`; b of the units are born there. Stage 2 is the bridge from rho to s with N of

        [2 P_rho(n | X_rho) - P_t(b + n | X_t) Bin(b; b + n, h) / Z]_+, normalised.

    The second term, with h the fraction of stage 1, is what the first prediction says is still missing at rho in an
    element of which b units came back: it is P_rho itself where the element does not depend on the others, so that the
    difference is what has been learned from the others meanwhile, which is extrapolated to the whole step. The step to
    s = 0, whose clock never ends, is a single posterior bridge.

    It keeps max_count + 1 float32 numbers per element a few times over.

    Raises:
        ValueError: when called, the head predicts no distribution, the count is guided, or counts go beyond `LARGEST`.
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
        if process.max_count > LARGEST:
            raise ValueError(
                f"the posterior trapezoidal step enumerates counts: at most {LARGEST}, not {process.max_count}"
            )
        if float(s) == 0:
            return PosteriorBridge()(denoiser, process, xt, s, t, generator)
        rho = reverse_clock((reverse_clock(s) + reverse_clock(t)) / 2)
        first = self._distribution(denoiser, process, xt, t)
        x_rho = process.bridge((xt + first.sample(generator)).to(xt.dtype), xt, rho, t, generator)
        second = self._distribution(denoiser, process, x_rho, rho)
        top, before, between = process.max_count, xt.to(torch.int64), x_rho.to(torch.int64)
        expected = remaining(first, between - before, fraction(rho, t, xt), top - before, top)
        found = tabulated(second, top - between, top).double()
        mass = (2 * torch.exp(found) - torch.exp(expected)).clamp_(min=0.0)
        missing = _drawn(mass, uniform(tuple(xt.shape), generator, xt.device))
        return process.bridge((x_rho + missing).to(xt.dtype), x_rho, s, rho, generator)

    def _distribution(self, denoiser: Denoiser, process: Process, x: Tensor, t: Tensor) -> MissingCount:
        prediction = predicted_count(self, denoiser, process, x, t)
        if isinstance(prediction, GuidedCount):
            raise ValueError(
                "guidance leaves no distribution for the posterior trapezoidal step: use sampler=trapezoidal"
            )
        if prediction.distribution is None:
            raise ValueError("the posterior trapezoidal step needs a head that predicts a distribution")
        return prediction.distribution


def tabulated(distribution: MissingCount, largest: Tensor, max_count: int) -> Tensor:
    """log P(N = n) for n = 0..max_count in front, float32 [max_count + 1, B, ...]; -inf beyond `largest` [B, ...]."""
    rows = []
    for n in range(max_count + 1):
        number = torch.full_like(largest, n)
        rows.append(torch.where(number > largest, -math.inf, distribution.log_prob(torch.minimum(number, largest))))
    return torch.stack(rows)


def remaining(distribution: MissingCount, births: Tensor, h: Tensor, largest: Tensor, max_count: int) -> Tensor:
    """log P(N - b = n | b of N came back, each with chance h) for n = 0..max_count, float64 [max_count + 1, B, ...].

    Args:
        distribution: P(N).
        births: b, int64 [B, ...].
        h: float64, broadcastable to them.
        largest: the largest possible N, int64 [B, ...].
        max_count: largest count.
    """
    table = tabulated(distribution, largest, max_count).double()
    n = torch.arange(len(table), device=births.device).view(-1, *[1] * births.ndim)
    total = births + n
    prior = table.gather(0, total.clamp(max=max_count)).where(total <= largest, -math.inf)
    ways = torch.lgamma(total.double() + 1) - torch.lgamma(n.double() + 1)  # b! and h^b are the same for every n
    joint = prior + ways + n * torch.log1p(-h)
    return joint - torch.logsumexp(joint, 0)


def _drawn(mass: Tensor, u: Tensor) -> Tensor:
    """Whole numbers with probabilities proportional to mass [levels, B, ...] float64, by uniforms u [B, ...]."""
    passed = mass.cumsum(0)
    number = (passed <= u * passed[-1]).sum(0)
    possible = (mass > 0).to(torch.int64)
    last = len(mass) - 1 - possible.flip(0).argmax(0)  # rounding must not lead beyond what is possible
    return torch.minimum(number, last)
