"""The sampling loop; the settings of samplers are in `blackout.diffusion.sampler`.

`run_sampler` walks a grid of times backwards, from the prior or from any state, by a
`SamplingPlan`.

References: Santos et al. 2023, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blackout.counts import count_dtype, time_on
from blackout.diffusion.correctors import NO_CORRECTION, Correction
from blackout.diffusion.guidance import GuidedPair
from blackout.diffusion.inpainting import KnownElements, KnownPath
from blackout.diffusion.kernels import BinomialBridge, Kernel, ReverseStep, StatefulKernel
from blackout.diffusion.predictions import CategoricalPrediction, Denoiser, Prediction
from blackout.diffusion.processes import Process
from blackout.errors import UserError
from blackout.random import RandomSource, SampleStreams
from blackout.representation import format_fields

# Called with (k, X_{t_k}, prediction) for the start, k = T, and after every step, down to k = 0.
# The prediction is the last one made in that step, of X_0 given an earlier state; None at the
# start.
Callback: TypeAlias = Callable[[int, Tensor, Prediction | None], None]

BINOMIAL_BRIDGE = BinomialBridge()  # of plans without a kernel: one evaluation per step


@dataclass(frozen=True)
class SamplingPlan:
    """Everything that determines a batch of samples, except its size and its random numbers.

    Args:
        denoiser: (xt, t) -> prediction, with conditions and guidance applied; its network must be
            in eval mode.
        process: the forward process to be reversed.
        times: float64 [T + 1], increasing: a grid, or a part of one.
        kernel: the reverse step; every run starts a stateful one anew.
        correction: corrector steps after the kernel's.
        data_mean: E[X_0], broadcastable to a batch, for a prior that can use it (pure death's
            Poisson start); None starts without it.
        known_elements: observed elements of X_0, for inpainting.
        device: where the batch is.
    """

    denoiser: Denoiser
    process: Process
    times: Tensor
    kernel: Kernel = BINOMIAL_BRIDGE
    correction: Correction = NO_CORRECTION
    data_mean: Tensor | None = None
    known_elements: KnownElements | None = None
    device: torch.device | str = "cpu"

    __repr__ = format_fields


@torch.no_grad()  # in inference_mode autocast would cast all weights again at every evaluation
def run_sampler(
    plan: SamplingPlan,
    shape: tuple[int, ...],
    generator: torch.Generator | SampleStreams | None = None,
    *,
    start: Tensor | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """Walk a batch back from times[-1] to times[0].

    References: Santos et al. 2023, Algorithm 2.

    Args:
        plan: denoiser, process, grid, kernel, correction and conditions.
        shape: [B, ...] of the batch.
        generator: streams make sample k's random numbers a function of (seed, k, step) alone.
        start: X_{times[-1]}, states of `shape`; None draws it from the prior.
        callback: receives (k, X_{t_k}, prediction) for every time, k = T first.

    Returns:
        X_0, integer counts of `shape`; where times[0] > 0, the states X_{times[0]}.

    Raises:
        ValueError: times that do not increase from 0 or above, or a start of another shape.
        UserError: the network's output is not finite.

    Example:
        >>> from blackout.diffusion import CountPrediction, PureDeath, logit_times
        >>> def denoiser(xt, t):  # of data that are always 3
        ...     missing = (3 - xt.double()).clamp(min=1e-9)
        ...     return CountPrediction(missing, missing.log())
        >>> plan = SamplingPlan(denoiser, PureDeath(3), logit_times(9))
        >>> run_sampler(plan, (1, 4)).tolist()
        [[3, 3, 3, 3]]
    """
    process = plan.process
    times = plan.times.cpu()  # reading a time must not wait for the device
    device = torch.device(plan.device)
    check_times(times)
    num_steps = len(times) - 1

    # 1. States at the final time: from the prior, or as requested.
    if start is None:
        final_time = time_on(times[-1], device)
        source = source_at(generator, num_steps + 1)
        xt = process.prior(shape, final_time, source, data_mean=plan.data_mean)
    else:
        check_start(start, shape)
        xt = start.to(device, count_dtype(process.num_states - 1))

    # 2. Path of the known elements, and the kernel and the denoiser of this run.
    path = None
    if plan.known_elements is not None:
        path = KnownPath(plan.known_elements.expand_to(shape, device), process, generator)
        xt = path.advance(num_steps, times[-1], xt)
    kernel = plan.kernel
    if isinstance(kernel, StatefulKernel):
        kernel = kernel.start(plan.data_mean if start is None else None)
    denoiser = CountingDenoiser(plan.denoiser)
    if callback is not None:
        callback(num_steps, xt, None)

    for k in range(num_steps - 1, -1, -1):
        # 3. A reverse step from times[k + 1] to times[k].
        denoiser.last = None  # free its memory before the next: predictions of levels are large
        source = source_at(generator, k + 1)
        step = ReverseStep(denoiser, process, xt, times[k], times[k + 1], source)
        xt = kernel(step)

        # 4. Known elements follow their path.
        if path is not None:
            xt = path.advance(k, times[k], xt)

        # 5. Corrector steps act on known elements in place, which then return to their path
        #    (Lugmayr et al. 2022, Algorithm 1).
        for _ in range(plan.correction.steps_at(float(times[k]))):
            xt = plan.correction.corrector(kernel, replace(step, x=xt))
            if path is not None:
                xt = path.overwrite(xt)
        if callback is not None:
            callback(k, xt, denoiser.last)

    # 6. Data as the smallest integer type that holds them.
    denoiser.check()
    if times[0] > 0:
        return xt
    return xt.clamp(max=process.max_count).to(count_dtype(process.max_count))


def check_times(times: Tensor) -> None:
    """Raise ValueError unless times is a vector that increases from 0 or above."""
    if times.ndim != 1 or not len(times) or times[0] < 0 or not bool((times.diff() > 0).all()):
        raise ValueError("the times of a sampler must increase from 0 or above")


def check_start(start: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the start consists of integers of this shape."""
    if tuple(start.shape) != tuple(shape) or start.is_floating_point():
        raise ValueError(
            f"the start must be integers of shape {tuple(shape)}, "
            f"not {start.dtype} {tuple(start.shape)}"
        )


def source_at(generator: torch.Generator | SampleStreams | None, step: int) -> RandomSource:
    """Return the random numbers of one step; those of a torch generator simply continue."""
    return generator.step(step) if isinstance(generator, SampleStreams) else generator


class CountingDenoiser:
    """A denoiser that counts its evaluations, keeps the last one, and checks that all are finite.

    Args:
        denoiser: evaluated at every call but those that `reuse` announces.

    Attributes:
        evaluations: number of evaluations so far.
        last: the last prediction.
        last_input: the states and the time of the last prediction.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        self.evaluations = 0
        self.last: Prediction | None = None
        self.last_input = (torch.empty(0), torch.empty(0))
        self._reused: Prediction | None = None
        self._sum: Tensor | float = 0.0  # finite as long as all predictions are

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """Predict given states [B, ...] at times t, a scalar or [B]."""
        if self._reused is None:
            self.last = self._denoiser(xt, t)
            self.evaluations += 1
        else:
            self.last = self._reused
            self._reused = None
        self.last_input = (xt, t)
        parts = self.last.both if isinstance(self.last, GuidedPair) else (self.last,)
        self._sum = self._sum + sum(map(_finite_sum, parts))
        if xt.device.type == "cpu":
            self.check()
        return self.last

    def reuse(self, rows: Tensor, t: Tensor) -> None:
        """Reuse the last prediction for these rows if the next evaluation is at the same time t."""
        if self.last_input[1] is t and self.last is not None:
            self._reused = _select_rows(self.last, rows)

    def check(self) -> None:
        """Check all predictions so far, which waits for the device.

        Raises:
            UserError: a prediction was not finite.
        """
        if not math.isfinite(self._sum):
            raise UserError(
                "the network's output is not finite (NaN or infinity): "
                "use the weights of an earlier step"
            )


def _select_rows(part: Any, rows: Tensor) -> Any:
    """Return a prediction, or a part of one, with these rows of all its tensors [B, ...]."""
    if isinstance(part, Tensor):
        return part[rows]
    if not is_dataclass(part) or isinstance(part, type):
        return part
    values = {field.name: _select_rows(getattr(part, field.name), rows) for field in fields(part)}
    return replace(part, **values) if values else part


def _finite_sum(prediction: Prediction) -> Tensor:
    """Return a number that is finite if the prediction is."""
    if isinstance(prediction, CategoricalPrediction):
        return prediction.log_probs.amax(1).sum()  # others may be -inf
    return prediction.mean.sum()
