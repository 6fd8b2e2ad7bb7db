"""The likelihood bound of jump processes in continuous time: the integral over the path, and what happens at its ends.

The formulas are in `blackout.diffusion.likelihood`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes.base import JumpProcess, Process
from blackout.diffusion.schedules import logit_survival, time_of_logit
from blackout.random import RandomSource

_TINY = 1e-300
_WIDTH = 3.0
"""Of the logistic distribution of u that estimates of the continuous bound draw from.

Narrower ones leave out the tails, where a network errs most and one image in thousands then counts for hundreds."""


def rate_divergence(kappa: Tensor, rate: Tensor) -> Tensor:
    """kappa - lambda + lambda log(lambda / kappa), elementwise, float64, >= 0."""
    log_ratio = torch.log(rate.clamp(min=_TINY)) - torch.log(kappa.clamp(min=_TINY))
    return kappa - rate + rate * log_ratio


def per_sample(x: Tensor) -> Tensor:
    """The sum over the elements of every sample, [B, ...] -> [B]."""
    return x.flatten(1).sum(1)


def proposal(v: Tensor, last: float, limit: float, plateau: float) -> tuple[Tensor, Tensor]:
    """Logits u [B] of quantiles v in (0, 1), and the density there: a logistic law cut to [last, limit].

    With a plateau of half-width a, flat between -a and a and logistic beyond: of density

        [sigma((u + a) / w) - sigma((u - a) / w)] / 2a,

    because an element whose counts go up to M has something to tell at every logit between -log M and log M.
    """
    if plateau == 0:
        low, high = (1 / (1 + math.exp(-end / _WIDTH)) for end in (last, limit))
        u = _WIDTH * torch.logit(low + (high - low) * v)
        return u, torch.sigmoid(u / _WIDTH) * torch.sigmoid(-u / _WIDTH) / (_WIDTH * (high - low))
    a = plateau / _WIDTH
    ends, zero = torch.tensor([last, limit], dtype=torch.float64) / _WIDTH, torch.zeros(2, dtype=torch.float64)
    low, high = (torch.logaddexp(ends + a, zero) - torch.logaddexp(ends - a, zero)).tolist()
    reached = low + (high - low) * v
    # F = log(1 + e^(u/w + a)) - log(1 + e^(u/w - a)) is the distribution function times 2a; its inverse is
    # e^(u/w) = (e^F - 1) / (e^a - e^(F - a))
    u = _WIDTH * (torch.log(torch.expm1(reached)) - a - torch.log(-torch.expm1(reached - 2 * a)))
    density = (torch.sigmoid(u / _WIDTH + a) - torch.sigmoid(u / _WIDTH - a)) / (_WIDTH * (high - low))
    return u, density


@torch.no_grad()
def path_integral(
    denoiser: Denoiser, process: JumpProcess, x0: Tensor, v: Tensor, generator: RandomSource, limit: float, last: float,
    plateau: float = 0.0,
) -> Tensor:  # fmt: skip
    """One unbiased estimate per sample of the continuous bound over u in [last, limit]: float64 [B], nats.

    See `likelihood.continuous_bound` for the arguments; `plateau` for `proposal`.
    """
    u, density = proposal(v, last, limit, plateau)
    t = time_of_logit(u)
    xt = process.sample(x0, t, generator)
    rates = process.rates(predicted(denoiser, process, xt, t).expected, xt, t)
    divergence = rate_divergence(rates, process.reverse_rates(x0, xt, t))
    return torch.sigmoid(-u) / density * per_sample(divergence)  # dt = (1 - q) du


@torch.no_grad()
def bound_to_prior(
    denoiser: Denoiser, process: JumpProcess, x0: Tensor, v: Tensor, generator: RandomSource, limit: float,
    final_time: Tensor | None = None, plateau: float = 0.0,
) -> Tensor:  # fmt: skip
    """`path_integral` from logit survival `limit` to the final time, plus the prior's KL there: float64 [B], nats."""
    last = -limit if final_time is None else float(logit_survival(final_time))
    path = path_integral(denoiser, process, x0, v, generator, limit, last, plateau)
    return path + per_sample(process.prior_divergence(x0, path_ends(limit, final_time, x0.device)[1]))


@torch.no_grad()
def log_likelihood_at_start(
    denoiser: Denoiser, process: JumpProcess, x0: Tensor, first: Tensor, generator: RandomSource
) -> Tensor:
    """log P(X_0 | X_t) at the earliest time t = `first`, one draw of X_t per sample: float64 [B], nats."""
    prediction = predicted(denoiser, process, process.sample(x0, first, generator), first.expand(len(x0)))
    return per_sample(prediction.log_probs.double().gather(1, x0.long()[:, None]))


def path_ends(limit: float, final_time: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """The earliest time, of logit survival `limit`, and the final one, else of -limit: float64 scalars."""
    ends = torch.tensor([limit, -limit], dtype=torch.float64, device=device)
    if final_time is not None:
        ends[1] = logit_survival(final_time)
    first, last = time_of_logit(ends)
    return first, last


def predicted(denoiser: Denoiser, process: Process, xt: Tensor, t: Tensor) -> Any:
    """The prediction given X_t, of the process's kind.

    Raises:
        ValueError: it is of another kind.
    """
    prediction, kind = denoiser(xt, t), process.prediction
    if isinstance(prediction, kind):
        return prediction
    which = f"{type(process).__name__} needs a {kind.__name__}"
    raise ValueError(f"the likelihood bound of the process {which}, not the head's {type(prediction).__name__}")
