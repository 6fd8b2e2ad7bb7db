"""Exact draws of binomial, Poisson and Bernoulli variables from a torch generator or from streams.

Binomials of uint8 counts that share p come from tables (`binomial_table`). Otherwise torch's
kernels draw from a `torch.Generator`. From streams the draws are those of `torch_draws`, compiled
where that is possible (`compiled_draws`). All are exact in distribution and computed in float64,
whatever the dtype of the counts; checked in tests/random/test_counts.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.random import compiled_draws, torch_draws
from blackout.random.binomial_table import binomial_by_table, has_table
from blackout.random.streams import Draw, RandomSource, StepStreams, can_read_values, uniform


def binomial(
    n: Tensor,
    p: Tensor,
    generator: RandomSource = None,
    complement: Tensor | None = None,
) -> Tensor:
    """Draw Binomial(n, p), elementwise.

    Args:
        n: non-negative integers of any shape [B, ...].
        p: success probabilities, broadcastable to n.
        generator: streams or a torch generator; None is torch's global one.
        complement: 1 - p, where it is known more accurately than float64 can subtract it.

    Returns:
        Counts with the dtype and shape of n.

    Raises:
        ValueError: a probability is not finite (from streams, on a CPU).

    Example:
        >>> n = torch.tensor([[3, 200]], dtype=torch.uint8)
        >>> binomial(n, torch.tensor([1.0, 0.0])).tolist()
        [[3, 0]]
    """
    p = p.to(n.device, torch.float64)
    q = 1 - p if complement is None else complement.to(n.device, torch.float64)
    # the rarer outcome is drawn, so that its probability is at most 1/2 and has all its digits
    flipped = p > q
    rare = torch.minimum(p, q)
    if has_table(n, rare):
        if rare.ndim:
            flipped = _one_per_sample(flipped, n)
            rare = _one_per_sample(rare, n)
        kernels = None if n.is_cpu else compiled_draws.load(n.device)
        return binomial_by_table(_next_draw(generator, n), n, rare, flipped, kernels)

    n_float = n.to(torch.float64).contiguous()
    rare = rare.expand(n.shape)
    if not isinstance(generator, StepStreams):
        counts = torch.binomial(n_float, rare, generator=generator)
    elif kernels := compiled_draws.load_if_worthwhile(n):
        counts = kernels.binomial(generator.next_draw().keys, n_float, rare)
    else:
        counts = torch_draws.binomial(generator.next_draw(), n_float, rare)
    if can_read_values(flipped) and not bool(flipped.any()):
        return counts.to(n.dtype)
    return torch.where(flipped, n - counts, counts).to(n.dtype)


def poisson(rate: Tensor, generator: RandomSource = None) -> Tensor:
    """Draw Poisson(rate), elementwise.

    Args:
        rate: non-negative, of any shape [B, ...].
        generator: streams or a torch generator; None is torch's global one.

    Returns:
        Whole numbers, float64 of rate's shape, because a count may exceed the caller's integer
        type.

    Raises:
        ValueError: a rate is not finite (from streams, on a CPU).

    Example:
        >>> poisson(torch.zeros(2, 3)).sum()
        tensor(0., dtype=torch.float64)
    """
    rate = rate.to(torch.float64).contiguous()
    if not isinstance(generator, StepStreams):
        return torch.poisson(rate, generator=generator)
    draw = generator.next_draw()
    if kernels := compiled_draws.load_if_worthwhile(rate):
        return kernels.poisson(draw.keys, rate)
    return torch_draws.poisson(draw, rate)


def bernoulli(p: Tensor, generator: RandomSource = None) -> Tensor:
    """Draw True with probability p, elementwise: bool of p's shape [B, ...].

    Example:
        >>> bernoulli(torch.tensor([0.0, 1.0])).tolist()
        [False, True]
    """
    return uniform(tuple(p.shape), generator, p.device) < p


def _one_per_sample(values: Tensor, n: Tensor) -> Tensor:
    """Reshape values [B or 1, 1, ...] to [B], for the samples of n [B, ...]."""
    return values.expand(len(n), *values.shape[1:]).reshape(-1)


def _next_draw(generator: RandomSource, n: Tensor) -> Draw:
    """Return the next draw of streams, or a draw with keys from a torch generator."""
    if isinstance(generator, StepStreams):
        return generator.next_draw()
    device = n.device if generator is None else generator.device
    keys = torch.empty(len(n), dtype=torch.int64, device=device)
    return Draw(keys.random_(generator=generator).to(n.device))
