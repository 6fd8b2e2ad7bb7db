"""Importance-weighted bounds on -log p(X_0) of the Poisson sampler with T steps.

The sampler is a latent variable model: its latent variables are the states of a path, its proposal is the forward
process. With log w = log p(path) - log q(path | X_0) of K forward paths

    -log p(X_0) <= -E log (1/K sum_k w_k),

which falls with K and ends at -log p(X_0) itself [Burda 2016, Theorem 1]: a network that is wrong in a
way that paths can make up for is bounded more tightly than by the mean of -log w, which is the finite-time bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes.base import per_sample, predicted
from blackout.diffusion.processes.pure_death import PureDeath
from blackout.diffusion.schedules import step_fraction
from blackout.random import SampleStreams


@torch.no_grad()
def path_log_weights(
    denoiser: Denoiser, process: PureDeath, times: Tensor, x0: Tensor, mean: Tensor, streams: SampleStreams
) -> Tensor:
    """log p(X_0, path) - log q(path | X_0) of one forward path per sample, by T evaluations [Burda 2016].

    Births are not clipped at max_count here, as in the finite-time bound: what the sampler clips only adds to p(X_0).

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        times: the sampler's grid, float64 [T + 1], from 0.
        x0: counts [B, ...].
        mean: E[X_0], broadcastable to x0, of the Poisson start.
        streams: of the samples; step k draws from `streams.at(k)`.

    Returns:
        float64 [B], nats; -inf where a path has births that the network holds to be impossible.
    """
    # the factorials of Poisson births and of the ways to die cancel but for those of X_0
    total, x = -per_sample(torch.lgamma(x0.double() + 1)), x0
    for k in range(1, len(times)):
        s, t = times[k - 1], times[k]
        xt = process.sample(x, t - s, streams.at(k))
        births, r = (x.long() - xt.long()).double(), step_fraction(s, t)
        prediction = predicted(denoiser, process, xt, t)
        log_rate = prediction.log_mean.double() + torch.log(r)
        chosen = torch.where(births > 0, births * (log_rate - torch.log(-torch.expm1(s - t))), 0.0)
        total = total + per_sample(chosen - prediction.mean.double() * r + xt.double() * (t - s))
        x = xt
    rate = (torch.exp(-times[-1]) * mean.double()).expand(x0.shape)
    return total + per_sample(torch.special.xlogy(x.double(), rate) - rate)


@torch.no_grad()
def weighted_path_bound(
    denoiser: Denoiser, process: PureDeath, times: Tensor, x0: Tensor, mean: Tensor, streams: list[SampleStreams]
) -> Tensor:
    """One estimate per sample of the bound by as many paths as there are streams: float64 [B], nats [Burda 2016]."""
    weights = [path_log_weights(denoiser, process, times, x0, mean, mine) for mine in streams]
    return math.log(len(weights)) - torch.logsumexp(torch.stack(weights), 0)
