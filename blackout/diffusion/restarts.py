"""Samples that start from noised data instead of noise: the sampler runs from X_t to X_0."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.diffusion.draw import CountDraw
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.protocols import Watch
from blackout.random import SampleStreams

NOISE_KEY = 21  # key of the forward process among the uses of a seed


def restart(
    draw: CountDraw, x0: Tensor, t: Tensor, index: Tensor, seed: int, callback: Watch
) -> Tensor:
    """Corrupt data up to time t with the forward process, and sample back from there.

    Args:
        draw: the model, its sampler and classes.
        x0: data [n, *shape], or [1, *shape] for the same data in every sample.
        t: a time of the process, float64 [].
        index: numbers of the samples, int64 [n].
        seed: of the samples.
        callback: called with (step, steps, state [n, *shape]), first for X_t.

    Returns:
        Samples [n, *shape].
    """
    model: BlackoutDiffusion = draw.model
    sampler = draw.sampler.memoryless
    times = sampler.times(model.schedule)
    times = torch.cat([times[times < t], t[None]])
    noise = SampleStreams(seed, index[: len(x0)]).fold_in(NOISE_KEY).step(0)
    xt = model.process.sample(x0, t, noise)
    classes = None if draw.classes is None else draw.classes[index % len(draw.classes)]
    denoiser = model.denoiser(classes)
    last = len(times) - 1

    def report(k: int, state: Tensor, _: object) -> None:
        callback(last - k, last, state)

    with torch.no_grad(), sampler.evaluating(model.averaged):
        xt = xt.expand(len(index), *xt.shape[1:])
        plan = SamplingPlan(denoiser, model.process, times, sampler.kernel, device=xt.device)
        streams = SampleStreams(seed, index)
        return run_sampler(plan, xt.shape, streams, start=xt, callback=report)


def time_at(draw: CountDraw, fraction: float) -> Tensor:
    """Return the time at which a fraction of the sampler's steps remains, float64 []."""
    times = draw.sampler.memoryless.times(draw.model.schedule)
    return times[max(1, round(fraction * (len(times) - 1)))]


def restoration_panels(
    draw: CountDraw, x0: Tensor, survival: float, index: Tensor, seed: int
) -> Tensor:
    """Remove units from an image at random, and return restorations with their mean and spread.

    Args:
        draw: the model and its sampler.
        x0: one sample of the data, [1, *shape].
        survival: probability with which a unit is kept, e^-t (Santos et al. 2023, eq. 8).
        index: numbers of the samples, int64 [n].
        seed: of the samples.

    Returns:
        [4 + n, *shape] on the CPU: the data; what is left; mean and standard deviation of the
        samples, the largest deviation as bright as the largest count; the samples.
    """
    t = -torch.tensor(survival, dtype=torch.float64).log()
    states: list[Tensor] = []

    def keep_first(step: int, steps: int, state: Tensor) -> None:
        if not states:
            states.append(state[:1].cpu().clone())

    x = restart(draw, x0, t, index, seed, keep_first).cpu()
    std, mean = torch.std_mean(x.double(), 0, correction=0, keepdim=True)
    std = std * (draw.model.process.max_count / std.max().clamp(min=1e-9))
    return torch.cat([x0.cpu(), states[0], mean, std, x])
