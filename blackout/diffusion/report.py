"""Bits per dimension of a model for metrics.json: on both splits, by the bounds asked for, beside simple baselines.

Every estimate is a mean over images with a standard error. Several processes share the images; all of them must call,
and all get the same estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from blackout.data import CountData
from blackout.diffusion.guidance import start_mean
from blackout.diffusion.likelihood import (
    LARGEST_TABLE,
    adds_ends,
    bits_per_dim,
    end_bound,
    likelihood_bound,
    start_bound,
    step_bound,
    weighted_path_bound,
)
from blackout.diffusion.model import GOLDEN_RATIO, BlackoutDiffusion
from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes import Process, PureDeath
from blackout.distributed import my_batches, rank, sum_over_processes
from blackout.errors import UserError
from blackout.intervals import interval, spread
from blackout.random import SampleStreams, fold_seed

PAIRS = 2000
"""Pairs of times, over all images, from which on the mean of what is skewed has an interval that holds."""
_BATCH = 256
"""Images bounded together."""
_FINITE, _ENDS, _PATHS = 1001, 1002, 1003
"""Keys of the other bounds: not those of the first thousand repeats, nor of training, whose seed may be the same."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n images, its standard error and its 95 % interval (`interval`), in bits per dimension."""

    value: float
    standard_error: float
    n: int
    low: float
    high: float

    @staticmethod
    def of(nats: Tensor, shape: tuple[int, ...], place: Tensor | None = None) -> Estimate:
        """From one estimate per image [n], in nats; `place` as for `spread`."""
        bits = bits_per_dim(nats.double(), shape)
        error = spread(bits, place) / math.sqrt(len(bits)) if len(bits) > 1 else math.inf
        return Estimate(float(bits.mean()), error, len(bits), *interval(bits, place))


def continuous_bits(
    module: BlackoutDiffusion, counts: Tensor, repeats: int | None = None, seed: int = 0, labels: Tensor | None = None
) -> Estimate:
    """The bound of the process (an upper bound on the negative log-likelihood); in continuous time where it runs in it.

    Each image is observed at `repeats` pairs of antithetic times v and 1 - v; over images, v follows a Weyl sequence,
    which covers the times evenly: the standard error is that of images whose times are close.

    Args:
        module: the model, in eval mode.
        counts: integer counts [n, *shape].
        repeats: pairs of network evaluations per image; None for as many as make `PAIRS`.
        labels: class of each image, int64 [n], for -log p(x | class) as validation bounds it; None for -log p(x).
    """
    pairs, end = repeats or math.ceil(PAIRS / len(counts)), module.schedule.times[-1]

    def bound(denoiser: Denoiser, x0: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        total = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
        for repeat in range(pairs):
            v = torch.frac((index.double() + 0.5 + repeat * len(counts)) * GOLDEN_RATIO)
            for half, times in enumerate((v, 1 - v)):
                streams = SampleStreams(fold_seed(seed, repeat, half), index).at(0)
                nats = likelihood_bound(denoiser, module.process, x0, times, streams, final_time=end, mean=mean)
                total += nats / (2 * pairs)
        return total

    place = torch.frac((torch.arange(len(counts), dtype=torch.float64) + 0.5) * GOLDEN_RATIO)
    return Estimate.of(_of_images(module, counts, labels, bound), module.shape, place)


def _of_images(
    module: BlackoutDiffusion,
    counts: Tensor,
    labels: Tensor | None,
    bound: Callable[[Denoiser, Tensor, Tensor, Tensor], Tensor],
    *parts: int,
) -> Tensor:
    """A bound of every image in nats, float64 [*parts, n]; given their classes, or not.

    Args:
        bound: (denoiser, x0 [b, *shape], E[X_0], numbers of the images, int64 [b]) -> nats [*parts, b].
        parts: of the bound, if it has any.
    """
    total = torch.zeros(*parts, len(counts), dtype=torch.float64)
    for index in my_batches(len(counts), _BATCH):
        denoiser, mean, here = module.denoiser(), module.mean, index.to(module.device)
        if labels is not None:
            classes = labels[index].to(module.device)
            denoiser, mean = module.denoiser(classes), start_mean(module.mean, module.class_mean, classes)
        total[..., index] = bound(denoiser, counts[index].to(module.device), mean, here).cpu()
    return sum_over_processes(total)


def end_bits(module: BlackoutDiffusion, counts: Tensor, seed: int = 0, labels: Tensor | None = None) -> Estimate | None:
    """What the ends of the continuous bound of pure death cost, start and last step; None for other processes.

    The continuous bound contains it for counts beyond 255 alone, see `likelihood.likelihood_bound`. One evaluation
    per image.
    """
    process = module.process
    if not isinstance(process, PureDeath):
        return None

    def bound(denoiser: Denoiser, x0: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        return end_bound(denoiser, process, x0, mean, SampleStreams(fold_seed(seed, _ENDS), index).at(0))

    return Estimate.of(_of_images(module, counts, labels, bound), module.shape)


def finite_time_bits(
    module: BlackoutDiffusion, counts: Tensor, num_steps: int, seed: int = 0, labels: Tensor | None = None
) -> dict[str, Estimate]:
    """The rigorous bound of the Poisson sampler with `num_steps` steps of the model's schedule, and its parts.

    It takes `num_steps` network evaluations per image.

    Returns:
        `total`, and what it is the sum of: `start`, the divergence at the final time, `path`, and `last_step`, the
        births of the step to 0.

    Raises:
        ValueError: the process is not pure death, or its max_count is above 4095.
    """
    process, times = _pure_death(module), module.schedule.grid(num_steps)

    def bound(denoiser: Denoiser, x0: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        start = start_bound(process, x0, times[-1], mean)
        parts = torch.stack([start, torch.zeros_like(start), torch.zeros_like(start)])
        streams = SampleStreams(fold_seed(seed, _FINITE), index)
        for k in range(num_steps, 0, -1):
            nats = step_bound(denoiser, process, x0, times[k - 1], times[k], streams.at(k))
            parts[1 if k > 1 else 2] += nats
        return parts

    start, path, last = _of_images(module, counts, labels, bound, 3)
    named = {"total": start + path + last, "start": start, "path": path, "last_step": last}
    return {name: Estimate.of(nats, module.shape) for name, nats in named.items()}


def weighted_path_bits(
    module: BlackoutDiffusion, counts: Tensor, num_steps: int, paths: int, seed: int = 0, labels: Tensor | None = None
) -> Estimate:
    """The importance-weighted bound of the Poisson sampler with `num_steps` steps, by `paths` paths per image.

    It takes `num_steps` x `paths` network evaluations per image.

    Raises:
        ValueError: the process is not pure death.
    """
    process, times = _pure_death(module), module.schedule.grid(num_steps)

    def bound(denoiser: Denoiser, x0: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        streams = [SampleStreams(fold_seed(seed, _PATHS, path), index) for path in range(paths)]
        return weighted_path_bound(denoiser, process, times, x0, mean, streams)

    return Estimate.of(_of_images(module, counts, labels, bound), module.shape)


def _pure_death(module: BlackoutDiffusion) -> PureDeath:
    if not isinstance(module.process, PureDeath):
        raise ValueError("the finite-time bound is known for pure death only")
    return module.process


def histogram_bits(train: Tensor, test: Tensor, max_count: int) -> Estimate:
    """Every element independent with its own histogram, counted on `train` with one added to each cell, as Laplace.

    Args:
        train, test: integer counts [n, *shape].
    """
    cells = max_count + 1
    flat_train, flat_test = train.flatten(1), test.flatten(1)  # widened by elements: all would be gigabytes
    nats = torch.zeros(len(flat_test), dtype=torch.float64)
    for element in range(flat_train.shape[1]):
        histogram = torch.bincount(flat_train[:, element].long(), minlength=cells).double() + 1
        nats -= torch.log(histogram / histogram.sum())[flat_test[:, element].long()]
    return Estimate.of(nats, tuple(test.shape[1:]))


def likelihood_report(model: BlackoutDiffusion, data: CountData, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `sample.py evaluate=true` says of likelihoods.

    Those of a model with classes are given the classes, as in validation, and its bounds on -log p(x), by the null
    class, are called unconditional.

    Args:
        model: in eval mode.
        data: whose first few samples of each split are bounded.
        settings: images, repeats, finite_steps and paths of conf/sample.yaml.

    Returns:
        values: held-out and training bits per dimension by name; likelihood: how they were made. Both are of samples
        without missing entries, and empty where a split has none.
    """
    n, likelihood = settings["images"], dict[str, Any]()
    complete = data.complete
    if n and complete is None and rank() == 0:
        print(f"left out: bits per dimension: every sample of a split of {data.name} has missing entries")
    if not n or complete is None:
        return {"values": {}, "likelihood": likelihood}
    data, values = complete, dict[str, float]()
    given = {"": True, "_unconditional": False} if model.num_classes is not None else {"": False}
    for split, counts, of_split in (("train", data.train, data.train_labels), ("test", data.test, data.test_labels)):
        for suffix, conditional in given.items():
            labels = of_split[:n] if conditional and of_split is not None else None
            bounds = _bounds(model, counts[:n], labels, settings)
            likelihood[f"{split}{suffix}"] = bounds
            values[f"bits_per_dim_{split}{suffix}"] = bounds["continuous"]["value"]
    if settings["finite_steps"] and rank() == 0:
        steps, cost = settings["finite_steps"], likelihood["test"]["finite_time"]["cost_of_steps"]
        print(f"{steps} Poisson steps cost {cost:.3f} bits per dimension more than infinitely many (held-out data)")
    return {"values": values, "likelihood": likelihood}


def _bounds(
    model: BlackoutDiffusion, counts: Tensor, labels: Tensor | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The bounds that are asked for, of counts given their labels or not.

    Those of the sampler with so many steps come with what these cost beside infinitely many.
    """
    found: dict[str, Any] = {"continuous": asdict(continuous_bits(model, counts, settings["repeats"], labels=labels))}
    if ends := end_bits(model, counts, labels=labels):
        found["ends"] = asdict(ends)
    if not (steps := settings["finite_steps"]):
        return found
    parts = {name: asdict(bound) for name, bound in finite_time_bits(model, counts, steps, labels=labels).items()}
    total = parts.pop("total")
    limit = found["continuous"]["value"]
    if isinstance(model.process, PureDeath) and not adds_ends(model.process):
        limit += found["ends"]["value"]
    found["finite_time"] = {"num_steps": steps, **total, "cost_of_steps": total["value"] - limit, "parts": parts}
    if paths := settings["paths"]:
        weighted = weighted_path_bits(model, counts, steps, paths, labels=labels)
        found["importance_weighted"] = {"num_steps": steps, "paths": paths, **asdict(weighted)}
    return found


def check_settings(settings: Mapping[str, Any], process: Process) -> None:
    """Refuse settings of `likelihood_report` before samples are drawn.

    Raises:
        UserError: a number out of range, or the bound of a sampler that is not known for the process.
    """
    least = {"images": 0, "repeats": 1, "finite_steps": 1, "paths": 1}
    for name, smallest in least.items():
        value = settings[name]
        if value is not None and (type(value) is not int or value < smallest):
            raise UserError(f"likelihood.{name} must be a whole number of at least {smallest}, not {value!r}")
    if settings["paths"] and not settings["finite_steps"]:
        raise UserError("likelihood.paths needs likelihood.finite_steps: paths are of a sampler with so many steps")
    if settings["finite_steps"] and not isinstance(process, PureDeath):
        raise UserError(
            "likelihood.finite_steps bounds the Poisson sampler of pure death: leave it out for this process"
        )
    if settings["finite_steps"] and process.max_count > LARGEST_TABLE:
        raise UserError(
            f"likelihood.finite_steps needs max_count up to {LARGEST_TABLE}, not {process.max_count}:"
            " leave it out, and the bound in continuous time remains"
        )
