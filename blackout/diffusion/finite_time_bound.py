"""Bounds of the Poisson sampler in finite time, for pure death, in nats per sample.

    step_bound             one step of the finite-time bound
    start_bound            its first term: the KL of the Poisson start
    weighted_path_bound    the importance-weighted bound, from whole paths

The sampler that takes Poisson(y r_k) births per step is a latent variable model. Its bound is known
exactly: the KL of its start and of each of its T steps. It falls to the continuous bound
(`blackout.diffusion.likelihood`) as T grows.

References: Santos et al. 2023, eqs. 69 and 70, with their constant; Burda et al. 2016; as bounds
    this project, checked in tests/verification/test_likelihood_bounds.py.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from blackout.counts import per_sample
from blackout.diffusion.predictions import Denoiser, predict_statistic
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.survival import missing_fraction, step_fraction
from blackout.errors import ensure
from blackout.random import RandomSource, SampleStreams

LARGEST_TABLE = 4095  # largest count for which tables of E log D! are computed


def start_bound(process: PureDeath, x0: Tensor, t: Tensor, data_mean: Tensor) -> Tensor:
    """Return the KL of the Poisson start: KL(Binomial(X_0, q_T) || Poisson(q_T E[X_0])).

    Elements whose mean over the data is 0 contribute 0 when they are 0 here, and infinity
    otherwise. Counts beyond 4,095 get a bound on it: KL(Binomial(n, q) || Poisson(n q)) <= -log(1 -
    q) - q, about q^2 / 2, which is twice as much (by enumeration, for q up to 0.99).

    References: this project; checked in tests/verification/test_time_grid_ends.py.

    Args:
        process: pure death.
        x0: counts [B, ...].
        t: the final time.
        data_mean: E[X_0], broadcastable to x0.

    Returns:
        float64 [B], nats per sample.
    """
    t = torch.as_tensor(t, dtype=torch.float64)
    rate = (torch.exp(-t) * data_mean.double()).expand(x0.shape)
    expected = x0.double() * torch.exp(-t)
    if process.max_count > LARGEST_TABLE:
        surplus = torch.where(x0 > 0, -torch.log1p(-torch.exp(-t)) - torch.exp(-t), 0.0)
        poisson_divergence = torch.where(expected > 0, expected * torch.log(expected / rate), 0.0)
        return per_sample(surplus + (poisson_divergence + rate - expected))
    # Poisson(q_T E[X_0]) is the number of births of a step from an empty pixel, infinitely late
    table = births_constant(process.max_count, float(t), math.inf)
    constant = table.to(x0.device)[x0.long()]
    return per_sample(constant + rate - torch.special.xlogy(expected, rate))


@torch.no_grad()
def step_bound(
    denoiser: Denoiser,
    process: PureDeath,
    x0: Tensor,
    s: Tensor,
    t: Tensor,
    generator: RandomSource = None,
) -> Tensor:
    """Estimate one term of the finite-time bound, E KL(q(X_s | X_0, X_t) || Poisson(y r) births).

    There is one draw of X_t per sample.

    References: Santos et al. 2023, eqs. 69 and 70, with their constant.

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        x0: counts [B, ...].
        s: end of the step, a time of the grid, float64 scalar.
        t: the time of the grid after s, where the step begins, float64 scalar.
        generator: source of random numbers.

    Returns:
        float64 [B], nats per sample.

    Raises:
        ValueError: max_count above 4,095, for which the table of E log (N - D)! is too large.
    """
    xt = process.sample(x0, t, generator)
    prediction = predict_statistic(denoiser, process, xt, t)
    missing = x0.long() - xt.long()
    constant = births_constant(process.max_count, float(s), float(t)).to(x0.device)[missing]
    r = step_fraction(s, t)
    births = missing.double() * r
    log_rate = prediction.log_mean.double() + torch.log(r)
    return per_sample(constant + (prediction.expected * r - births * log_rate))


@lru_cache(maxsize=4096)
def births_constant(max_count: int, s: float, t: float) -> Tensor:
    """Return the part of `step_bound` without the network, -H(D) + E log D!, for every N.

    D ~ Binomial(N, r) are the births of a step from t to s. The value equals
    log N! - E log (N - D)! + N (r log r + (1 - r) log(1 - r)).

    References: Santos et al. 2023, eq. 69, of which eq. 70 leaves this out; checked in
        tests/verification/test_likelihood_bounds.py.

    Returns:
        float64 [max_count + 1], over N.

    Raises:
        ValueError: max_count above 4,095.
    """
    ensure(
        max_count <= LARGEST_TABLE,
        f"the finite-time bound needs max_count up to {LARGEST_TABLE}, not {max_count}: "
        "use the continuous one",
    )
    times = torch.tensor([s, t], dtype=torch.float64)
    r = step_fraction(*times)
    missing_probability = missing_fraction(*times)
    n = torch.arange(max_count + 1, dtype=torch.float64)
    log_factorial = torch.lgamma(n + 1)
    # row N, column N - D
    births = (n[:, None] - n).clamp(min=0)
    log_ways = log_factorial[:, None] - log_factorial - torch.lgamma(births + 1)
    log_pmf = (
        log_ways + torch.special.xlogy(n, missing_probability) + torch.special.xlogy(births, r)
    )
    pmf = torch.exp(log_pmf).tril()
    # r is 0 where nothing is left at the final time
    probabilities = torch.stack([r, missing_probability])
    entropy_rate = torch.special.xlogy(probabilities, probabilities).sum()
    return log_factorial - pmf @ log_factorial + n * entropy_rate


@torch.no_grad()
def path_log_weights(
    denoiser: Denoiser,
    process: PureDeath,
    times: Tensor,
    x0: Tensor,
    data_mean: Tensor,
    streams: SampleStreams,
) -> Tensor:
    """Return the log importance weight log p(X_0, path) - log q(path | X_0) of a random path.

    One path of the forward process is drawn per sample. It costs T network evaluations.

    Births of p are Poisson(y r), of q binomial. They are not clipped at max_count, as in the
    finite-time bound: clipping in the sampler only adds to p(X_0).

    References: Burda et al. 2016; Santos et al. 2023, eq. 53; checked in
        tests/verification/test_weighted_paths.py.

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        times: the sampler's grid, float64 [T + 1], from 0.
        x0: counts [B, ...].
        data_mean: E[X_0], broadcastable to x0, of the Poisson start.
        streams: of the samples; step k draws from `streams.step(k)`.

    Returns:
        float64 [B], nats; -inf where a path has births that the network predicts to be impossible.
    """
    # the factorials of Poisson births and of the ways to die cancel but for those of X_0
    log_weight = -per_sample(torch.lgamma(x0.double() + 1))
    x = x0
    for k in range(1, len(times)):
        s = times[k - 1]
        t = times[k]
        xt = process.sample(x, t - s, streams.step(k))
        births = (x.long() - xt.long()).double()
        r = step_fraction(s, t)
        prediction = predict_statistic(denoiser, process, xt, t)
        log_rate = prediction.log_mean.double() + torch.log(r)
        log_ratio = births * (log_rate - torch.log(-torch.expm1(s - t)))
        log_births = torch.where(births > 0, log_ratio, 0.0)
        step_log_weight = log_births - prediction.expected * r + xt.double() * (t - s)
        log_weight = log_weight + per_sample(step_log_weight)
        x = xt
    rate = (torch.exp(-times[-1]) * data_mean.double()).expand(x0.shape)
    return log_weight + per_sample(torch.special.xlogy(x.double(), rate) - rate)


@torch.no_grad()
def weighted_path_bound(
    denoiser: Denoiser,
    process: PureDeath,
    times: Tensor,
    x0: Tensor,
    data_mean: Tensor,
    streams: list[SampleStreams],
) -> Tensor:
    """Estimate the importance-weighted bound from K paths per sample, float64 [B], nats.

    The sampler is a latent variable model: its latent variables are the states of a path, its
    proposal is the forward process. With log w = log p(path) - log q(path | X_0) of K forward paths

        -log p(X_0) <= -E log (1/K sum_k w_k),

    which falls with K to -log p(X_0) itself. A network whose errors paths can make up for is
    bounded more tightly than by the mean of -log w, which is the finite-time bound.

    References: Burda et al. 2016, Theorem 1.

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        times: the sampler's grid, float64 [T + 1], from 0.
        x0: counts [B, ...].
        data_mean: E[X_0], broadcastable to x0, of the Poisson start.
        streams: of each of the K paths.
    """
    log_weights = [
        path_log_weights(denoiser, process, times, x0, data_mean, path_streams)
        for path_streams in streams
    ]
    return math.log(len(log_weights)) - torch.logsumexp(torch.stack(log_weights), 0)
