"""The one sampling loop (Algorithm 2): walk a grid of times backwards, from the prior or from any state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import torch
import yaml
from torch import Tensor, nn

from blackout.component import Stats, component
from blackout.counts import count_dtype, time_on
from blackout.diffusion.correctors import MOST_STEPS, THIN_AND_BRIDGE, Correction, Corrector
from blackout.diffusion.guidance import Guidance
from blackout.diffusion.heads import Head, LevelHead
from blackout.diffusion.inpainting import KnownElements, KnownPath
from blackout.diffusion.kernels import (
    BinomialBridge,
    Kernel,
    MultistepLeap,
    ReverseStep,
    StatefulKernel,
    Trapezoidal,
)
from blackout.diffusion.predictions import CategoricalPrediction, Denoiser, Prediction
from blackout.diffusion.processes import FiniteProcess, Process, Uniform
from blackout.diffusion.schedules import widest
from blackout.errors import UserError, refuse
from blackout.files import CONF
from blackout.random import RandomSource, SampleStreams
from blackout.training.instantiate import make

_BRIDGED, _MANY = 0.003, 2000
"""Survival from which on narrow counts are bridged, training samples from which on predictions need no calibration."""


class CountingDenoiser:
    """A denoiser that counts how often it was evaluated, keeps its last prediction, and where it was asked for, and
    checks that all are finite.

    Args:
        denoiser: what is evaluated.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        self.evaluations = 0
        self.last: Prediction | None = None
        self.asked = (torch.empty(0), torch.empty(0))
        self._ready: Prediction | None = None
        self._sum: Tensor | float = 0.0  # finite as long as all that was predicted is

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """Of states [B, ...] at times t, a scalar or [B]: see `Denoiser`."""
        ready, self._ready = self._ready, None
        self.evaluations += ready is None
        self.last, self.asked = self._denoiser(xt, t) if ready is None else ready, (xt, t)
        self._sum = self._sum + sum(map(_total, getattr(self.last, "both", (self.last,))))
        if xt.device.type == "cpu":
            self.check()
        return self.last

    def go_on(self, rows: Tensor, t: Tensor) -> None:
        """The next states are these rows of the last ones: what was said of them at this time t is not asked again."""
        if self.asked[1] is t and self.last is not None:
            self._ready = _of_rows(self.last, rows)

    def check(self) -> None:
        """Wait for the device and look.

        Raises:
            UserError: a prediction was not finite.
        """
        if not math.isfinite(self._sum):
            raise UserError("the network's output is not finite (NaN or infinity): its weights cannot be sampled with")


def _of_rows(part: Any, rows: Tensor) -> Any:
    """These rows of a prediction [B, ...], of all that it consists of."""
    if isinstance(part, Tensor):
        return part[rows]
    held = {one.name: _of_rows(getattr(part, one.name), rows) for one in fields(part)} if is_dataclass(part) else {}
    return replace(part, **held) if held else part


def _total(prediction: Prediction) -> Tensor:
    """A number that is finite if the prediction is."""
    if isinstance(prediction, CategoricalPrediction):
        return prediction.log_probs.amax(1).sum()  # others may be -inf
    return prediction.mean.sum()


Callback: TypeAlias = Callable[[int, Tensor, Prediction | None], None]
"""Called with (k, X_{t_k}, prediction) for the start, k = T, and after every step, down to k = 0. The prediction is the
last one made in that step: of X_0 given an earlier state; None at the start."""

BINOMIAL_BRIDGE, TRAPEZOIDAL = BinomialBridge(), Trapezoidal()
NO_CORRECTION = Correction()


@torch.no_grad()  # in inference_mode autocast would cast all weights anew at every evaluation
def sample(
    denoiser: Denoiser,
    process: Process,
    times: Tensor,
    shape: tuple[int, ...],
    generator: torch.Generator | SampleStreams | None = None,
    callback: Callback | None = None,
    *,
    kernel: Kernel = BINOMIAL_BRIDGE,
    correction: Correction = NO_CORRECTION,
    mean: Tensor | None = None,
    known: KnownElements | None = None,
    start: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Walk a batch back from times[-1] to times[0].

    Args:
        denoiser: (xt, t) -> prediction; its network must be in eval mode.
        process: the forward process to be reversed.
        times: float64 [T + 1], increasing: a grid, or a part of one.
        shape: [B, ...] of the batch.
        generator: streams make sample k a function of (seed, k, step) alone.
        callback: receives (k, X_{t_k}, prediction) for every time, k = T first.
        kernel: the reverse step; one that keeps state is replaced by a fresh one.
        correction: corrector steps after the kernel's.
        mean: E[X_0], broadcastable to shape, for a prior that can use it (pure death's Poisson start).
        known: elements of X_0 that are given, for inpainting.
        start: X_{times[-1]}, states of `shape`; None draws it from the prior.
        device: where the batch is.

    Returns:
        X_0, integer counts of `shape`; where times[0] > 0, the states X_{times[0]}.

    Raises:
        ValueError: times that do not increase from 0 or above, or a start of another shape.
        UserError: the network's output is not finite.
    """
    times, device = times.cpu(), torch.device(device)  # whoever asks for a time's value does not wait for the device
    if times.ndim != 1 or not len(times) or times[0] < 0 or not bool((times.diff() > 0).all()):
        raise ValueError("the times of a sampler must increase from 0 or above")
    if start is None:
        xt = process.prior(shape, time_on(times[-1], device), source_at(generator, len(times)), mean=mean)
    elif tuple(start.shape) == tuple(shape) and not start.is_floating_point():
        xt = start.to(device, count_dtype(process.num_states - 1))
    else:
        what = f"{start.dtype} {tuple(start.shape)}"
        raise ValueError(f"the start must be integers of shape {tuple(shape)}, not {what}")
    path = None if known is None else KnownPath(known.of_batch(shape, device), process, generator)
    counting = CountingDenoiser(denoiser)
    if isinstance(kernel, MultistepLeap) and start is None:
        kernel = kernel.fresh(mean)
    elif isinstance(kernel, StatefulKernel):
        kernel = kernel.fresh()
    for k in range(len(times) - 1, -1, -1):
        if k < len(times) - 1:
            counting.last = None  # let go of it before the next one is made: over 256 levels it is large
            s, t, source = times[k], times[k + 1], source_at(generator, k + 1)
            xt = kernel(ReverseStep(counting, process, xt, s, t, source))
        if path is not None:
            xt = path.at(k, times[k], xt)
        # correctors act on known elements in their place, and these return to it afterwards (Lugmayr et al. 2022,
        # Algorithm 1): the elements that were born beside them are brought in line
        for _ in range(correction.at(float(times[k])) if correction.steps and k < len(times) - 1 else 0):
            xt = correction.corrector(kernel, ReverseStep(counting, process, xt, s, t, source))
            xt = xt if path is None else path.put(xt)
        if callback is not None:
            callback(k, xt, counting.last)
    counting.check()
    return xt if times[0] > 0 else xt.clamp(max=process.max_count).to(count_dtype(process.max_count))


def source_at(generator: torch.Generator | SampleStreams | None, step: int) -> RandomSource:
    """The numbers of one step; a torch generator simply goes on."""
    return generator.at(step) if isinstance(generator, SampleStreams) else generator


def kernel_of_data(given: Mapping[str, Any], stats: Stats) -> dict[str, Any]:
    """What is null of a sampler that is left to the data, `sampler=counts`. Ours.

    Narrow counts are drawn from their predicted distribution nearly from the start, which is of first order and takes
    twice as many steps. A network that was trained on few samples expects too little or too much of its own, which
    calibration mends.
    """
    late = "kernel" not in given and stats.get("outputs", 1) > 1  # a count's mean, and its distribution
    kernel = {"kernel": {"_target_": "blackout.diffusion.PosteriorBridge", "survival": _BRIDGED}} if late else {}
    chosen = {"num_steps": 100 if late else 50, "calibrated": stats.get("number", _MANY) < _MANY}
    return kernel | {name: value for name, value in chosen.items() if given.get(name, value) is None}


@component("sampler", from_stats=kernel_of_data)
@dataclass(frozen=True)
class Sampler:
    """How a model is sampled; by default as `sampler=trapezoidal`, the command line's.

    Args:
        kernel: the reverse step.
        num_steps: steps along the grid; each costs as many network evaluations as kernel and correctors need.
        grid: num_steps -> times; None follows the family of the training schedule.
        poisson_start: start from Poisson(q_T E[X_0]) rather than from black.
        corrector_steps, corrector, corrector_between: see `Correction`.
        guidance, guidance_between, guidance_particles: see `Guidance`.
        batch_size: samples per evaluation of the network.
        keep_dropout: leave the network in train mode, as the reference code did.
        bfloat16: evaluate it in bfloat16 autocast; counts and draws stay exact.
        inpainting_particles: of every sample with known elements; 1 overwrites them and weighs nothing; None is 16
            where particles can be weighed, else 1.
        calibrated: scale predictions so that samples are as bright as the training data, by what the end of training
            has measured (`calibration`), if it has; for kernels that draw from the mean.

    Raises:
        ValueError: a number is out of range.
    """

    kernel: Kernel = TRAPEZOIDAL
    num_steps: int = 100
    grid: Callable[[int], Tensor] | None = None
    poisson_start: bool = True
    corrector_steps: int = 0
    corrector: Corrector = THIN_AND_BRIDGE
    corrector_between: Sequence[float] | None = None
    guidance: float = 1.0
    guidance_between: Sequence[float] | None = None
    batch_size: int = 256
    keep_dropout: bool = False
    bfloat16: bool = False
    guidance_particles: int = 1
    inpainting_particles: int | None = None
    calibrated: bool = False
    correction: Correction = field(init=False, repr=False, compare=False)
    """Corrector steps after the kernel's."""
    towards: Guidance = field(init=False, repr=False, compare=False)
    """How samples are guided to their classes."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "inpainting_particles"):
            value, free = getattr(self, name), name == "inpainting_particles"
            if not (free and value is None) and (type(value) is not int or not 1 <= value <= MOST_STEPS):
                raise ValueError(f"{name} must be a whole number in 1..{MOST_STEPS:,}, not {value!r}")
        correction = Correction(self.corrector_steps, self.corrector, self.corrector_between)
        object.__setattr__(self, "correction", correction)
        towards = Guidance(self.guidance, self.guidance_between, self.guidance_particles)
        object.__setattr__(self, "towards", towards)
        if not self.lends:
            object.__setattr__(self, "grid", widest(self.grid))

    @property
    def lends(self) -> bool:
        """Whether it may start early: no other start may."""
        return isinstance(self.kernel, MultistepLeap) and self.poisson_start

    @contextmanager
    def evaluating(self, network: nn.Module) -> Iterator[None]:
        """Inside, the network is evaluated like this; afterwards every submodule is in the mode it was in."""
        modes = {module: module.training for module in network.modules()}
        device = next((p.device.type for p in network.parameters()), "cpu")
        # autocast keeps the weights it has cast of those that ask for gradients, and casts the others every time
        frozen = [parameter.requires_grad_(True) for parameter in network.parameters() if not parameter.requires_grad]
        network.train(self.keep_dropout)
        try:
            with torch.autocast(device, torch.bfloat16, enabled=self.bfloat16):
                yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)
            for module, mode in modes.items():
                module.training = mode


def count_evaluations(
    times: Tensor, process: Process, head: Head, sampler: Sampler, guided: bool = False, shape: tuple[int, ...] = (1,)
) -> int:
    """The number of network function evaluations (NFE) of a sample, found by drawing one element without a network.

    Args:
        times, process: as for `sample`.
        head: the model's, which is given zeros in place of a network's output.
        sampler: its kernel and correctors are counted.
        guided: where its guidance acts on a step, judged by the time the step starts at, each evaluation counts twice.
        shape: of what is drawn, for heads that know the data's elements.
    """
    ended, correction = list[int](), sampler.correction
    if isinstance(process, FiniteProcess):  # a kernel asks as often of two levels, which need no matrix for every time
        process = Uniform(1)
        head = LevelHead(process, 1)

    def corrected(kernel: Kernel, at: ReverseStep) -> Tensor:
        before = counting.evaluations
        x = correction.corrector(kernel, at)
        counting.evaluations += (correction.steps - 1) * (counting.evaluations - before)
        return x

    counting = CountingDenoiser(lambda xt, t: head(torch.zeros(1, head.outputs, *shape), xt, t))
    once = replace(correction, steps=min(correction.steps, 1), corrector=corrected)
    sample(
        counting, process, times, (1, *shape), torch.Generator().manual_seed(0),
        lambda k, xt, prediction: ended.append(counting.evaluations), kernel=sampler.kernel, correction=once,
    )  # fmt: skip
    per_step = [after - before for before, after in pairwise(ended)]  # from t_T down
    starts = reversed(times[1:].tolist())
    return sum(n * (2 if guided and sampler.towards.doubles(t) else 1) for n, t in zip(per_step, starts, strict=True))


def named_sampler(name: str) -> Sampler:
    """The sampler that `sampler=<name>` is on the command line, from conf/sampler.yaml.

    Raises:
        UserError: there is none of that name.
    """
    known = yaml.safe_load((CONF / "sampler.yaml").read_text())
    samplers = {choice: part for choice, part in known.items() if part and "kernel" in part}
    refuse(name not in samplers, f"sampler={name!r}: there is no such sampler, only {', '.join(samplers)}")
    described = {argument: value for argument, value in samplers[name].items() if argument != "defaults"}
    return make(described, "sampler")


def chosen_sampler(own: Sampler, asked: Sampler | str | None, num_steps: int | None) -> Sampler:
    """The sampler a user asks for: by itself, by name, or a model's own; with another number of steps if one is given.

    Raises:
        UserError: there is none of that name.
        ValueError: not a positive number of steps.
    """
    sampler = named_sampler(asked) if isinstance(asked, str) else asked or own
    return sampler if num_steps is None else replace(sampler, num_steps=num_steps)
