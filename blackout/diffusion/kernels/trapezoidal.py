"""Second-order kernels of pure death with two network evaluations per step.

Trapezoidal             Poisson leaps with an extrapolated count
PosteriorTrapezoidal    exact bridges from an extrapolated distribution
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.kernels.base import ReverseStep
from blackout.diffusion.kernels.pure_death import PosteriorBridge
from blackout.diffusion.predictions import MissingCount
from blackout.diffusion.survival import step_fraction
from blackout.errors import ensure
from blackout.random import categorical

MAX_ENUMERATED_COUNT = 1023  # PosteriorTrapezoidal lists every missing count of every element


@component("kernel")
@dataclass(frozen=True)
class Trapezoidal:
    """Kernel of the theta-trapezoidal method, in a form that is unbiased in the mean.

    Half a step of the clock tau = -log(1 - e^-t) is a Poisson leap to rho of fraction
    h = 1 - sqrt(1 - r). The other half is one of the same fraction with the extrapolated count

        [2 y(X_rho, rho) - (1 - h) y(X_t, t)]_+.

    The conditional mean of X_0 is a martingale, so that y(X_rho, rho) is (1 - h) y(X_t, t) on
    average. The mean number of births of the whole step is therefore y r (up to the positive part).
    Halves of equal length (theta = 1/2) keep the weights at 2 and 1 however long the step. The step
    to s = 0, whose clock never ends, is a single Poisson leap.

    Second order where no birth more than halves another element's rate. Elsewhere the positive part
    cuts, and the order is 1.

    References: Anderson and Mattingly 2011; this form is this project's, checked in
        tests/verification/test_pure_death_kernels.py.
    """

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        y_t = step.predict_count(self).expected
        if float(step.s) == 0:
            return step.poisson_leap(y_t)

        rho = step.midpoint()
        x_rho = step.until(rho).poisson_leap(y_t)
        second_half = step.continue_from(x_rho, rho)
        y_rho = second_half.predict_count(self).expected
        h = step_fraction(rho, step.t)
        return second_half.poisson_leap((2 * y_rho - (1 - h) * y_t).clamp(min=0))


@component("kernel")
@dataclass(frozen=True)
class PosteriorTrapezoidal:
    """Kernel of trapezoidal steps on whole distributions; exact for independent elements.

    Stage 1 draws N from its distribution P_t(N | X_t) and takes the exact bridge to rho, which
    halves the clock -log(1 - e^-t) as in `Trapezoidal`; b of the units are born there. Stage 2 is
    the bridge from rho to s with N of

        [2 P_rho(n | X_rho) - P_t(b + n | X_t) Bin(b; b + n, h) / Z]_+, normalised.

    Here h is the fraction of stage 1, after which b units of an element have come back. The second
    term is what the first prediction implies for the units that are still missing at rho. It is
    P_rho itself where the element does not depend on the others. The difference is therefore what
    the other elements add, and is extrapolated to the whole step. The step to s = 0, whose clock
    never ends, is a single posterior bridge.

    It keeps max_count + 1 float32 numbers per element a few times over.

    References: this project; checked in tests/verification/test_pure_death_kernels.py.

    Raises:
        ValueError: when called, the head predicts no distribution, the count is guided, or counts
            go beyond 1,023.
    """

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        max_count = step.process.max_count
        ensure(
            max_count <= MAX_ENUMERATED_COUNT,
            f"the posterior trapezoidal step takes counts up to {MAX_ENUMERATED_COUNT}, "
            f"not {max_count}: use sampler=trapezoidal",
        )
        if float(step.s) == 0:
            return PosteriorBridge()(step)

        # 1. The exact bridge from t to rho.
        rho = step.midpoint()
        p_t = step.predict_distribution(self, "trapezoidal step")
        x_rho = step.until(rho).bridge(p_t.sample(step.generator))

        # 2. The exact bridge from rho to s, from an extrapolated distribution.
        second_half = step.continue_from(x_rho, rho)
        p_rho = second_half.predict_distribution(self, "trapezoidal step")
        counts_t = step.x.to(torch.int64)
        counts_rho = x_rho.to(torch.int64)
        births = counts_rho - counts_t
        h = step_fraction(rho, step.t)
        implied = tabulate_remaining(p_t, births, h, max_count - counts_t, max_count)
        predicted = tabulate_log_probs(p_rho, max_count - counts_rho, max_count).double()
        mass = (2 * torch.exp(predicted) - torch.exp(implied)).clamp_(min=0.0)
        return second_half.bridge(categorical(mass.movedim(0, -1), step.generator))


def tabulate_log_probs(distribution: MissingCount, largest: Tensor, max_count: int) -> Tensor:
    """Return log P(N = n) for n = 0..max_count, float32 [max_count + 1, B, ...].

    Args:
        distribution: P(N).
        largest: the largest possible N, int64 [B, ...]; -inf beyond.
        max_count: largest count.
    """
    rows = []
    for n in range(max_count + 1):
        number = torch.full_like(largest, n)
        log_prob = distribution.log_prob(torch.minimum(number, largest))
        rows.append(torch.where(number > largest, -math.inf, log_prob))
    return torch.stack(rows)


def tabulate_remaining(
    distribution: MissingCount, births: Tensor, h: Tensor, largest: Tensor, max_count: int
) -> Tensor:
    """Return the log distribution of the units that remain missing after b of N were born.

    Each of the N missing units was born with probability h. By Bayes' rule, n of them remain with
    probability P(N = b + n) Bin(b; b + n, h) / Z.

    References: this project; checked in tests/verification/test_pure_death_kernels.py.

    Args:
        distribution: P(N).
        births: b, int64 [B, ...].
        h: float64, broadcastable to them.
        largest: the largest possible N, int64 [B, ...].
        max_count: largest count.

    Returns:
        float64 [max_count + 1, B, ...].
    """
    table = tabulate_log_probs(distribution, largest, max_count).double()
    n = torch.arange(len(table), device=births.device).view(-1, *[1] * births.ndim)
    total = births + n
    prior = table.gather(0, total.clamp(max=max_count)).where(total <= largest, -math.inf)
    # b! and h^b are the same for every n
    log_ways = torch.lgamma(total.double() + 1) - torch.lgamma(n.double() + 1)
    joint = prior + log_ways + n * torch.log1p(-h)
    return joint - torch.logsumexp(joint, 0)
