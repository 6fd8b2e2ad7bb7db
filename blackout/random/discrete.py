"""Draws from finite distributions by inversion of their distribution functions, and resampling."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.random.streams import RandomSource, uniform

CHUNK_WEIGHTS = 1 << 24  # weights whose cumulative sums are formed at once: 128 MiB in float64
LARGEST_BELOW_1 = 1 - 2**-53  # float64


def categorical(weights: Tensor, generator: RandomSource = None) -> Tensor:
    """Draw indices of the last axis, with probabilities proportional to their weights.

    Args:
        weights: non-negative [B, ..., S], not all zero.
        generator: streams or a torch generator; None is torch's global one.

    Returns:
        int64 [B, ...].

    Example:
        >>> categorical(torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])).tolist()
        [1, 0]
    """
    num_states = weights.shape[-1]
    uniforms = uniform(tuple(weights.shape[:-1]), generator, weights.device)
    rows = weights.reshape(-1, num_states)
    chunk_rows = max(1, CHUNK_WEIGHTS // num_states)

    indices = []
    chunks = zip(rows.split(chunk_rows), uniforms.reshape(-1).split(chunk_rows), strict=True)
    for chunk, chunk_uniforms in chunks:
        cdf = cumulative_probabilities(chunk)
        indices.append(torch.searchsorted(cdf, chunk_uniforms[:, None], right=True).squeeze(1))
    return torch.cat(indices).view(uniforms.shape).clamp_(max=num_states - 1)


def cumulative_probabilities(weights: Tensor) -> Tensor:
    """Return the cumulative sums of weights [..., S] over the last axis, divided by the total.

    Returns:
        float64 [..., S]; the last value of each row is exactly 1.
    """
    sums = weights.double().cumsum(-1)
    return sums / sums[..., -1:]


def systematic_resampling(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw P ancestors of P weighted particles by systematic resampling, from one uniform.

    A particle with normalised weight w is chosen floor(P w) or ceil(P w) times, and P w times on
    average.

    Args:
        weights: non-negative [..., P], not all zero.
        uniforms: [..., 1], one for each group of particles.

    Returns:
        Indices, int64 [..., P], increasing.

    References: Kitagawa 1996; Carpenter et al. 1999.
    """
    num_particles = weights.shape[-1]
    points = (uniforms + torch.arange(num_particles, device=uniforms.device)) / num_particles
    # the last point may round to 1, above which there is no particle, not even one of weight 0
    points = points.clamp(max=LARGEST_BELOW_1)
    ancestors = torch.searchsorted(cumulative_probabilities(weights), points, right=True)
    return ancestors.clamp_(max=num_particles - 1)


def inverse_cdf(cdfs: Tensor, rows: Tensor, uniforms: Tensor) -> Tensor:
    """Return the first k with u < cdfs[row, k], or the last k, for every element.

    The bisection reads single values; rows of the table are not copied for every element.

    Args:
        cdfs: distribution functions over k, [R, S], non-decreasing.
        rows: row of each element, int32 or int64 of any shape.
        uniforms: of the shape of `rows`.

    Returns:
        Integers in 0, ..., S - 1, of the shape and dtype of `rows`.

    Example:
        >>> cdfs = torch.tensor([[0.5, 1.0], [0.1, 1.0]])
        >>> inverse_cdf(cdfs, torch.tensor([0, 1]), torch.tensor([0.3, 0.3])).tolist()
        [0, 1]
    """
    remaining = cdfs.shape[-1]
    values = cdfs.reshape(-1)
    first = (rows * remaining).reshape(-1)
    uniforms = uniforms.reshape(-1)
    position = first.clone()
    while remaining > 1:
        half = remaining // 2
        is_above = values.index_select(0, position + (half - 1)) <= uniforms
        position.add_(is_above, alpha=half)
        remaining -= half
    return position.sub_(first).view(rows.shape)
