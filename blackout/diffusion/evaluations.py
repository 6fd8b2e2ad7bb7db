"""Number of network function evaluations (NFE) that a sample takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from blackout.diffusion.heads import Head, LevelHead
from blackout.diffusion.kernels import Kernel, ReverseStep
from blackout.diffusion.particles import particles_per_sample
from blackout.diffusion.processes import FiniteProcess, Process, Uniform
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import CountingDenoiser, SamplingPlan, run_sampler
from blackout.diffusion.schedule import Schedule


class EvaluatedModel(Protocol):
    """The parts of a model that determine how often its network is evaluated."""

    head: Head
    process: Process
    schedule: Schedule
    gain: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""


def evaluations_per_sample(
    model: EvaluatedModel,
    sampler: Sampler,
    *,
    with_classes: bool = False,
    with_known_elements: bool = False,
) -> int:
    """Return the number of network evaluations that a sample costs (NFE).

    Guidance doubles them where it acts; P particles make P times as many.

    Args:
        model: with its head, process and schedule.
        sampler: its grid, kernel, correction and guidance are counted.
        with_classes: whether samples have classes, towards which they may be guided.
        with_known_elements: whether elements of the samples are known, for which they may have
            particles.
    """
    num_particles = particles_per_sample(sampler, model.process, with_known_elements)
    if num_particles > 1:
        sampler = sampler.memoryless
    times = sampler.times(model.schedule)
    shape = (1,) if model.gain is None else model.shape
    per_particle = count_evaluations(
        times, model.process, model.head, sampler, guided=with_classes, shape=shape
    )
    return per_particle * num_particles


def count_evaluations(
    times: Tensor,
    process: Process,
    head: Head,
    sampler: Sampler,
    *,
    guided: bool = False,
    shape: tuple[int, ...] = (1,),
) -> int:
    """Return the number of network evaluations of a run, counted in a trial run with zeros.

    Args:
        times: the sampler's grid, float64 [T + 1].
        process: the forward process.
        head: reads zeros in place of a network's output.
        sampler: its kernel and correctors are counted.
        guided: whether samples have classes. Where guidance acts on a step, judged by the time the
            step starts at, each evaluation counts twice.
        shape: of the sample, for heads with parameters of every element.
    """
    correction = sampler.correction
    if isinstance(process, FiniteProcess):
        # as many evaluations as for two levels, which need no matrix for every time
        process = Uniform(1)
        head = LevelHead(process, 1)
    counting = CountingDenoiser(lambda xt, t: head(torch.zeros(1, head.outputs, *shape), xt, t))

    def correct_once(kernel: Kernel, step: ReverseStep) -> Tensor:
        """Make one corrector step, and count it as all of them."""
        before = counting.evaluations
        x = correction.corrector(kernel, step)
        counting.evaluations += (correction.steps - 1) * (counting.evaluations - before)
        return x

    # 1. Evaluations until the start and until the end of every step.
    totals: list[int] = []
    single = replace(correction, steps=min(correction.steps, 1), corrector=correct_once)
    plan = SamplingPlan(counting, process, times, sampler.kernel, single)
    run_sampler(
        plan,
        (1, *shape),
        torch.Generator().manual_seed(0),
        callback=lambda k, xt, prediction: totals.append(counting.evaluations),
    )

    # 2. Each counts once for every model that guidance evaluates.
    evaluations = 0
    for (before, after), t in zip(pairwise(totals), reversed(times[1:].tolist()), strict=True):
        num_models = sampler.guidance.evaluations_at(t) if guided else 1
        evaluations += (after - before) * num_models
    return evaluations
