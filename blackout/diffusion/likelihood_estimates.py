"""Estimates of likelihood bounds over images: means with standard errors, in bits per dimension.

    continuous_bits       the bound in continuous time (`continuous_nats` of every image)
    end_bits              what the ends of that bound cost
    strict_bits           both, of every image, to be compared with baselines
    finite_time_bits      the bound of the Poisson sampler with a number of steps, and its parts
    weighted_path_bits    the importance-weighted bound of that sampler

Distributed processes share the images: all of them must call, and all get the same estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from blackout.confidence_intervals import interval, spread
from blackout.diffusion.finite_time_bound import start_bound, step_bound, weighted_path_bound
from blackout.diffusion.guidance import start_mean
from blackout.diffusion.likelihood import (
    bits_per_dim,
    end_bound,
    includes_ends,
    likelihood_bound,
)
from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes import DiscreteTimeChain, FiniteProcess, Process, PureDeath
from blackout.diffusion.schedule import Schedule
from blackout.distributed import my_batches, sum_over_processes
from blackout.random import SampleStreams, fold_seed, low_discrepancy

MIN_PAIRS = 2000  # pairs of times, over all images, for a valid interval of so skewed a mean
BATCH_SIZE = 256  # images bounded together

# keys of the other bounds: above those of the first thousand repeats of the continuous one, and
# apart from those of training, whose seed may be the same
FINITE_TIME_KEY = 1001
ENDS_KEY = 1002
PATHS_KEY = 1003

# (denoiser, x0 [b, *shape], E[X_0], numbers of the images, int64 [b]) -> nats [*parts, b]
Bound: TypeAlias = Callable[[Denoiser, Tensor, Tensor, Tensor], Tensor]


class BoundedModel(Protocol):
    """The parts of a model that a bound depends on, as `BlackoutDiffusion` has them."""

    process: Process
    schedule: Schedule
    data_mean: Tensor
    class_mean: Tensor | None

    def denoiser(self, classes: Tensor | None = None) -> Denoiser:
        """Return (xt, t) -> prediction, given classes [B] or None."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n images in bits per dimension, its standard error and its 95 % interval."""

    value: float
    standard_error: float
    n: int
    low: float
    high: float

    @staticmethod
    def from_nats(nats: Tensor, shape: tuple[int, ...], place: Tensor | None = None) -> Estimate:
        """Return the estimate from one value per image, in nats.

        References: this project; checked in tests/verification/test_likelihood_bounds.py.

        Args:
            nats: of every image, [n].
            shape: of an image.
            place: along the time axis, [n], as for `blackout.confidence_intervals.spread`.
        """
        bits = bits_per_dim(nats.double(), shape)
        error = spread(bits, place) / math.sqrt(len(bits)) if len(bits) > 1 else math.inf
        return Estimate(float(bits.mean()), error, len(bits), *interval(bits, place))


def bound_images(
    model: BoundedModel,
    counts: Tensor,
    labels: Tensor | None,
    bound: Bound,
    parts: tuple[int, ...] = (),
) -> Tensor:
    """Return a bound of every image in nats, float64 [*parts, n].

    Args:
        model: in eval mode.
        counts: integer counts [n, *shape].
        labels: class of each image, int64 [n], or None.
        bound: see `Bound`.
        parts: shape of the parts that the bound returns, if any.
    """
    nats = torch.zeros(*parts, len(counts), dtype=torch.float64)
    device = model.data_mean.device
    for index in my_batches(len(counts), BATCH_SIZE):
        if labels is None:
            denoiser = model.denoiser()
            data_mean = model.data_mean
        else:
            classes = labels[index].to(device)
            denoiser = model.denoiser(classes)
            data_mean = start_mean(model.data_mean, model.class_mean, classes)
        nats[..., index] = bound(
            denoiser, counts[index].to(device), data_mean, index.to(device)
        ).cpu()
    return sum_over_processes(nats)


# --- continuous time


def continuous_bits(
    model: BoundedModel,
    counts: Tensor,
    repeats: int | None = None,
    seed: int = 0,
    labels: Tensor | None = None,
) -> Estimate:
    """Return the mean of `continuous_nats` over images in bits; arguments as there.

    Its standard error is that of images whose times are close.
    """
    nats = continuous_nats(model, counts, repeats, seed, labels)
    return Estimate.from_nats(nats, counts.shape[1:], low_discrepancy(torch.arange(len(counts))))


def continuous_nats(
    model: BoundedModel,
    counts: Tensor,
    repeats: int | None = None,
    seed: int = 0,
    labels: Tensor | None = None,
) -> Tensor:
    """Return `likelihood_bound` of every image, float64 [n]: an upper bound in the mean.

    Each image is observed at `repeats` pairs of antithetic times v and 1 - v; over images, v
    follows a Weyl sequence, which covers the times evenly.

    Args:
        model: in eval mode.
        counts: integer counts [n, *shape].
        repeats: pairs of network evaluations per image; None for as many as make 2,000 over all
            images.
        seed: of the random numbers.
        labels: class of each image, int64 [n], for -log p(x | class) as validation bounds it; None
            for -log p(x).
    """
    pairs = repeats or math.ceil(MIN_PAIRS / len(counts))
    final_time = model.schedule.times[-1]

    def bound(denoiser: Denoiser, x0: Tensor, data_mean: Tensor, index: Tensor) -> Tensor:
        """Return the mean of `likelihood_bound` over pairs of times, nats [b]."""
        total = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
        for repeat in range(pairs):
            v = low_discrepancy(index + repeat * len(counts))
            for half, times in enumerate((v, 1 - v)):
                source = SampleStreams(fold_seed(seed, repeat, half), index).step(0)
                nats = likelihood_bound(
                    denoiser,
                    model.process,
                    x0,
                    times,
                    source,
                    final_time=final_time,
                    data_mean=data_mean,
                )
                total += nats / (2 * pairs)
        return total

    return bound_images(model, counts, labels, bound)


def end_bits(
    model: BoundedModel, counts: Tensor, seed: int = 0, labels: Tensor | None = None
) -> Estimate | None:
    """Return the mean of `end_nats` in bits; None for processes other than pure death."""
    nats = end_nats(model, counts, seed, labels)
    return None if nats is None else Estimate.from_nats(nats, counts.shape[1:])


def end_nats(
    model: BoundedModel, counts: Tensor, seed: int = 0, labels: Tensor | None = None
) -> Tensor | None:
    """Return `end_bound` of every image, float64 [n]; None for processes other than pure death.

    The continuous bound includes it for counts beyond 255 alone, see `likelihood_bound`. It takes
    one evaluation per image; arguments as for `continuous_nats`.
    """
    process = model.process
    if not isinstance(process, PureDeath):
        return None

    def bound(denoiser: Denoiser, x0: Tensor, data_mean: Tensor, index: Tensor) -> Tensor:
        """Return `end_bound`, nats [b]."""
        source = SampleStreams(fold_seed(seed, ENDS_KEY), index).step(0)
        return end_bound(denoiser, process, x0, data_mean, source)

    return bound_images(model, counts, labels, bound)


def strict_bits(
    model: BoundedModel, counts: Tensor, nats: Tensor, labels: Tensor | None = None
) -> Tensor | None:
    """Return upper bounds in bits per dimension of every image, float64 [n], by `likelihood_bound`.

    The cost of the ends (`end_bound`), which it leaves out for pure death up to 255 counts, is
    added.

    Args:
        model: in eval mode.
        counts: integer counts [n, *shape].
        nats: of `likelihood_bound`, float64 [n].
        labels: class of each image, int64 [n], or None.

    Returns:
        None for processes whose bound lacks its last step: those on unbounded counts other than
        pure death.
    """
    process = model.process
    if isinstance(process, PureDeath):
        if not includes_ends(process):
            ends = end_nats(model, counts, labels=labels)
            assert ends is not None
            nats = nats + ends
    elif not isinstance(process, FiniteProcess | DiscreteTimeChain):
        return None
    return bits_per_dim(nats, counts.shape[1:])


# --- the Poisson sampler with a number of steps


def finite_time_bits(
    model: BoundedModel,
    counts: Tensor,
    num_steps: int,
    seed: int = 0,
    labels: Tensor | None = None,
) -> dict[str, Estimate]:
    """Return the strict bound of pure death's Poisson sampler, and its parts.

    They are `start_bound` and `step_bound` over images, by `num_steps` network evaluations per
    image.

    References: Santos et al. 2023, eqs. 69 and 70, with their constant.

    Args:
        model: in eval mode.
        counts: integer counts [n, *shape].
        num_steps: T, of the grid of the model's schedule.
        seed: of the random numbers.
        labels: class of each image, int64 [n], or None.

    Returns:
        `total`, and what it is the sum of: `start`, the divergence at the final time, `path`, and
        `last_step`, the births of the step to 0.

    Raises:
        ValueError: max_count is above 4,095.
    """
    process = model.process
    times = model.schedule.grid(num_steps)
    assert isinstance(process, PureDeath)

    def bound(denoiser: Denoiser, x0: Tensor, data_mean: Tensor, index: Tensor) -> Tensor:
        """Return nats [3, b] of start, path and last step."""
        parts = torch.zeros(3, len(x0), dtype=torch.float64, device=x0.device)
        parts[0] = start_bound(process, x0, times[-1], data_mean)
        streams = SampleStreams(fold_seed(seed, FINITE_TIME_KEY), index)
        for k in range(num_steps, 0, -1):
            part = 1 if k > 1 else 2
            parts[part] += step_bound(
                denoiser, process, x0, times[k - 1], times[k], streams.step(k)
            )
        return parts

    start, path, last_step = bound_images(model, counts, labels, bound, parts=(3,))
    nats = {
        "total": start + path + last_step,
        "start": start,
        "path": path,
        "last_step": last_step,
    }
    shape = counts.shape[1:]
    return {name: Estimate.from_nats(values, shape) for name, values in nats.items()}


def weighted_path_bits(
    model: BoundedModel,
    counts: Tensor,
    num_steps: int,
    paths: int,
    seed: int = 0,
    labels: Tensor | None = None,
) -> Estimate:
    """Return the importance-weighted bound of pure death's Poisson sampler.

    It is `weighted_path_bound` over images, by `num_steps` x `paths` network evaluations each.

    References: Burda et al. 2016, Theorem 1.

    Args:
        model: in eval mode.
        counts: integer counts [n, *shape].
        num_steps: T, of the grid of the model's schedule.
        paths: of every image.
        seed: of the random numbers.
        labels: class of each image, int64 [n], or None.
    """
    process = model.process
    times = model.schedule.grid(num_steps)
    assert isinstance(process, PureDeath)

    def bound(denoiser: Denoiser, x0: Tensor, data_mean: Tensor, index: Tensor) -> Tensor:
        """Return `weighted_path_bound`, nats [b]."""
        streams = [SampleStreams(fold_seed(seed, PATHS_KEY, path), index) for path in range(paths)]
        return weighted_path_bound(denoiser, process, times, x0, data_mean, streams)

    return Estimate.from_nats(bound_images(model, counts, labels, bound), counts.shape[1:])
