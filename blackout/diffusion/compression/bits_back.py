"""Bits-back coding of counts along the chain of the Poisson sampler.

The forward process's X_t1 is popped from the stack as if it were drawn, and the births between it
and X_0 are pushed with the sampler's probabilities. So it goes on to X_T, which is pushed with the
probabilities of the sampler's start. The stack grows by

    -log p(X_T) - sum_k log p(X_k-1 | X_k) + sum_k log q(X_k | X_k-1),

whose mean is the finite-time bound (Santos et al. 2023, eq. 15, with weights r_k), see
`path_log_weights`. Decoding returns all that the forward process drew. No count is impossible:
counts of negligible probability keep 2^-24 and are written out.

References: Townsend et al. 2019; Kingma et al. 2019.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from blackout.diffusion.compression.coder import Coder, Integers
from blackout.diffusion.compression.distributions import (
    BinnedDistribution,
    poisson_counts,
    surviving_counts,
)
from blackout.diffusion.finite_time_bound import path_log_weights
from blackout.diffusion.grid_ends import extra_logits
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.predictions import predict_statistic
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.survival import step_fraction
from blackout.diffusion.time_grids import logit_times
from blackout.random import SampleStreams

FIRST_LOGIT = 7.0  # logit(e^-t) of the first time of the second grid, for max_count 1
LAST_LOGIT = -10.0  # of its last time
MAX_LOG_RATE = 22.0  # more than the logarithm of the largest count, 2^31 - 1


def coding_grids(model: BlackoutDiffusion, steps: int) -> tuple[Tensor, Tensor]:
    """Return two grids of times [steps + 1]: the model's, and one in which most births are rare.

    References: Santos et al. 2023, eq. 60, and this project; checked in
    tests/diffusion/test_compression.py.
    """
    assert isinstance(model.process, PureDeath)
    margin = extra_logits(model.process.max_count)
    return model.schedule.grid(steps), logit_times(steps, FIRST_LOGIT + margin, LAST_LOGIT - margin)


def expected_nats(model: BlackoutDiffusion, counts: Tensor, times: Tensor) -> Tensor:
    """Return the expected length of the code of each sample [n, *shape] in nats, float64 [n]."""
    assert isinstance(model.process, PureDeath)
    x0 = counts.to(model.device)
    streams = SampleStreams(0, torch.arange(len(counts), device=model.device))
    log_weights = path_log_weights(
        model.denoiser(), model.process, times, x0, model.data_mean, streams
    )
    return -log_weights.cpu()


def encode_counts(
    model: BlackoutDiffusion, counts: Tensor, times: Tensor, coder: Coder, batch_size: int = 64
) -> None:
    """Push counts [n, *shape] onto the coder, along times [T + 1]; the last batch ends on top."""
    for first, end in _batches(len(counts), batch_size):
        batch = counts[first:end]
        x = batch.reshape(-1).long().cpu().numpy()
        for k in range(1, len(times)):
            earlier = x
            x = _survivor_distribution(earlier, times[k] - times[k - 1]).pop(coder)
            _birth_distribution(model, batch.shape, x, times, k).push(coder, earlier - x)
        _start_distribution(model, batch.shape, times).push(coder, x)


def decode_counts(
    model: BlackoutDiffusion, n: int, times: Tensor, coder: Coder, batch_size: int = 64
) -> Tensor:
    """Pop the counts, int64 [n, *shape], that `encode_counts` pushed with the same arguments."""
    batches: list[Tensor] = []
    for first, end in reversed(_batches(n, batch_size)):
        shape = torch.Size((end - first, *model.shape))
        x = _start_distribution(model, shape, times).pop(coder)
        for k in range(len(times) - 1, 0, -1):
            earlier = x + _birth_distribution(model, shape, x, times, k).pop(coder)
            _survivor_distribution(earlier, times[k] - times[k - 1]).push(coder, x)
            x = earlier
        batches.insert(0, torch.from_numpy(x.reshape(shape)))
    return torch.cat(batches)


def _batches(n: int, batch_size: int) -> list[tuple[int, int]]:
    """Return (first, end) of batches of 1, 2, 4, ... up to `batch_size` samples.

    The bits that the first batch draws are borrowed, so it is small.
    """
    edges = [0]
    while edges[-1] < n:
        edges.append(min(n, edges[-1] + min(batch_size, edges[-1] + 1)))
    return list(pairwise(edges))


def _birth_distribution(
    model: BlackoutDiffusion, shape: torch.Size, x: Integers, times: Tensor, k: int
) -> BinnedDistribution:
    """Return the births of the sampler's step from time k to k - 1, given states x [n].

    References: Santos et al. 2023, Algorithm 2.
    """
    states = torch.from_numpy(x.reshape(shape)).to(model.device)
    with torch.no_grad():
        prediction = predict_statistic(model.denoiser(), model.process, states, times[k])
    log_mean = prediction.log_mean.double().cpu().numpy().reshape(-1)
    log_rate = log_mean + float(step_fraction(times[k - 1], times[k]).log())
    rate = np.exp(np.nan_to_num(log_rate).clip(max=MAX_LOG_RATE))
    return poisson_counts(rate, model.process.max_count - x)


def _start_distribution(
    model: BlackoutDiffusion, shape: torch.Size, times: Tensor
) -> BinnedDistribution:
    """Return the sampler's start at the last time, Poisson(q_T E[X_0]), for samples of a shape.

    References: this project; checked in tests/verification/test_kernel_bias.py.
    """
    data_mean = model.data_mean.double().cpu().expand(shape).numpy().reshape(-1)
    rate = float(torch.exp(-times[-1])) * data_mean
    return poisson_counts(rate, np.full(len(rate), model.process.max_count, dtype=np.int64))


def _survivor_distribution(x: Integers, duration: Tensor) -> BinnedDistribution:
    """Return what is left of counts x [n] after the forward process has run for a duration."""
    return surviving_counts(x, torch.exp(-duration), -torch.expm1(-duration))
