"""Bits back along the chain of the Poisson sampler with T steps (Townsend, Bird and Barber 2019; Kingma, Abbeel and
Ho 2019).

To encode X_0, the forward process's X_t1 is popped from the stack as if drawn, the births between them are pushed with
the sampler's probabilities, and so on to X_T, which is pushed with the Poisson start's. The stack grows by

    -log p(X_T) - sum_k log p(X_k-1 | X_k) + sum_k log q(X_k | X_k-1),

in the mean the finite-time bound: all that the forward process drew comes back when it is decoded. Births are coded
within what max_count leaves, and every one keeps at least 2^-24, so that nothing is impossible.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from blackout.compress.coder import PRECISION, Coder, Integers
from blackout.diffusion import BlackoutDiffusion
from blackout.diffusion.processes.base import predicted
from blackout.diffusion.schedules import step_fraction

Floats = NDArray[np.float64]
_TOTAL = 1 << PRECISION
LARGEST = 1023
"""Largest max_count: the forward process is coded from tables of its distributions for every count."""


def encoded(model: BlackoutDiffusion, counts: Tensor, steps: int, coder: Coder, batch_size: int = 64) -> None:
    """Push counts [n, *shape] onto the coder, whose sampler takes `steps` steps; the last batch ends on top."""
    for first, end in _batches(len(counts), batch_size):
        batch = counts[first:end]
        x = _flat(batch)
        for k in range(1, steps + 1):
            before = x
            x = _deaths(model, steps, k).pop(coder, before)
            _births(model, batch.shape, x, steps, k).push(coder, before - x)
        _start(model, batch.shape, steps).push(coder, x)


def decoded(model: BlackoutDiffusion, n: int, steps: int, coder: Coder, batch_size: int = 64) -> Tensor:
    """Pop what `encoded` pushed, by the same model, steps and batch size: counts [n, *shape]."""
    found: list[Tensor] = []
    for first, end in reversed(_batches(n, batch_size)):
        shape = torch.Size((end - first, *model.shape))
        x = _start(model, shape, steps).pop(coder)
        for k in range(steps, 0, -1):
            before = x + _births(model, shape, x, steps, k).pop(coder)
            _deaths(model, steps, k).push(coder, before, x)
            x = before
        found.insert(0, torch.from_numpy(x.reshape(shape)))
    return torch.cat(found)


def _batches(n: int, batch_size: int) -> list[tuple[int, int]]:
    """(first, end) of batches of 1, 2, 4, ... up to `batch_size`: what the first ones draw has to be borrowed."""
    edges = [0]
    while edges[-1] < n:
        edges.append(min(n, edges[-1] + min(batch_size, edges[-1] + 1)))
    return list(pairwise(edges))


def _flat(counts: Tensor) -> Integers:
    return counts.reshape(-1).long().cpu().numpy()


def _chunks(size: int, lanes: int, backwards: bool = False) -> list[slice]:
    parts = [slice(first, min(size, first + lanes)) for first in range(0, size, lanes)]
    return parts[::-1] if backwards else parts


class _Births:
    """Poisson births of rates [n] in 0..headroom [n], what lies beyond is the last one's."""

    def __init__(self, rate: Floats, headroom: Integers) -> None:
        self._rate, self._headroom = rate, headroom

    def push(self, coder: Coder, births: Integers) -> None:
        start, stop = (self._start(slice(None), births + by) for by in (0, 1))
        for part in _chunks(len(births), coder.lanes):
            coder.push(start[part], stop[part] - start[part])

    def pop(self, coder: Coder) -> Integers:
        births = np.zeros(len(self._rate), dtype=np.int64)
        one = self._start(slice(None), births + 1)
        for part in _chunks(len(births), coder.lanes, backwards=True):
            births[part] = coder.pop(len(self._rate[part]), lambda bar, part=part: self._find(part, bar, one[part]))  # type: ignore[misc]
        return births

    def _find(self, part: slice, bar: Integers, one: Integers) -> tuple[Integers, Integers, Integers]:
        """The last number of births whose interval starts at or before `bar`, by bisection where it is not 0."""
        births, start, stop = np.zeros_like(bar), np.zeros_like(bar), one.copy()
        if len(some := np.flatnonzero(bar >= one)):
            where, wanted = part.start + some, bar[some]
            low, high = np.ones_like(wanted), self._headroom[where]
            while (low < high).any():
                middle = (low + high + 1) // 2
                inside = self._start(where, middle) <= wanted
                low, high = np.where(inside, middle, low), np.where(inside, high, middle - 1)
            births[some], start[some], stop[some] = low, self._start(where, low), self._start(where, low + 1)
        return births, start, stop - start

    def _start(self, part: slice | Integers, births: Integers) -> Integers:
        """2^24 P(fewer births), with 1 for each of them, and all of it beyond the headroom."""
        rate, headroom = self._rate[part], self._headroom[part]
        below = np.where(births > 0, special.pdtr(np.maximum(births, 1) - 1, rate), 0.0)
        scaled = np.floor(below * (_TOTAL - headroom - 1)).astype(np.int64) + births
        return np.where(births > headroom, _TOTAL, scaled)


def _births(model: BlackoutDiffusion, shape: torch.Size, x: Integers, steps: int, k: int) -> _Births:
    """Of the sampler's step from time k to k - 1."""
    times = model.schedule.grid(steps)
    states = torch.from_numpy(x.reshape(shape)).to(model.device)
    with torch.no_grad():
        prediction = predicted(model.denoiser(), model.process, states, times[k])
    rate = np.exp(prediction.log_mean.double().cpu().numpy().reshape(-1)) * float(step_fraction(times[k - 1], times[k]))
    return _Births(rate, model.process.max_count - x)


def _start(model: BlackoutDiffusion, shape: torch.Size, steps: int) -> _Births:
    """Poisson(q_T E[X_0]), where sampling starts."""
    mean = model.mean.double().cpu().expand(shape).numpy().reshape(-1)
    rate = float(torch.exp(-model.schedule.grid(steps)[-1])) * mean
    return _Births(rate, np.full(len(rate), model.process.max_count, dtype=np.int64))


def _deaths(model: BlackoutDiffusion, steps: int, k: int) -> _Deaths:
    """Of the forward process's step from time k - 1 to k, which is as a step of that length from time 0."""
    times, levels = model.schedule.grid(steps), torch.arange(model.process.max_count + 1)
    return _Deaths(model.process.pmf(levels, times[k] - times[k - 1]).numpy())


class _Deaths:
    """Survivors of counts 0..max_count over one step.

    Args:
        pmf: their distributions, float64 [max_count + 1, max_count + 1], one row for each count.
    """

    def __init__(self, pmf: Floats) -> None:
        n, k = np.arange(len(pmf))[:, None], np.arange(len(pmf))
        below = np.cumsum(pmf, axis=1).clip(max=1.0)
        self._starts = np.zeros((len(pmf), len(pmf) + 1), dtype=np.int64)
        self._starts[:, 1:] = np.floor(below * (_TOTAL - n - 1)).astype(np.int64) + k + 1
        self._starts[np.arange(len(pmf) + 1) > n] = _TOTAL

    def push(self, coder: Coder, before: Integers, survivors: Integers) -> None:
        # in the opposite order of `pop`, which undoes it
        start, stop = (self._starts[before, survivors + by] for by in (0, 1))
        for part in _chunks(len(before), coder.lanes):
            coder.push(start[part], stop[part] - start[part])

    def pop(self, coder: Coder, before: Integers) -> Integers:
        survivors = np.zeros_like(before)
        for part in _chunks(len(before), coder.lanes, backwards=True):
            survivors[part] = coder.pop(len(before[part]), lambda bar, part=part: self._find(before[part], bar))  # type: ignore[misc]
        return survivors

    def _find(self, before: Integers, bar: Integers) -> tuple[Integers, Integers, Integers]:
        rows = self._starts[before]
        found = (rows <= bar[:, None]).sum(1) - 1
        found = np.minimum(found, before)
        start = np.take_along_axis(rows, found[:, None], 1)[:, 0]
        return found, start, np.take_along_axis(rows, found[:, None] + 1, 1)[:, 0] - start
