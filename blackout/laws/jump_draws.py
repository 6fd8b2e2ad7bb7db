"""The package's own kernels for any process, run with the exact denoiser of a toy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from blackout.diffusion.correctors import Corrector
from blackout.diffusion.heads import Prediction
from blackout.diffusion.jump_kernels import TauLeap
from blackout.diffusion.kernels import Kernel
from blackout.diffusion.processes import Process
from blackout.diffusion.samplers import sample
from blackout.diffusion.streams import SampleStreams
from blackout.laws.jump_toys import JumpToy
from blackout.laws.toys import Array

Expected = Callable[[JumpToy, float], Array]
"""(toy, t) -> E[target | X_t], [states ** elements, elements, K]."""


class ExactJumpDenoiser:
    """The denoiser a perfect network would be, with a table for every time it is asked about."""

    def __init__(self, toy: JumpToy, expected: Expected) -> None:
        self.toy, self.expected = toy, expected
        self._tables: dict[float, Tensor] = {}

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        at = float(t)
        if at not in self._tables:
            self._tables[at] = torch.from_numpy(self.expected(self.toy, at))
        # float64, where a network gives float32: the laws compared with have it too
        mean = self._tables[at][torch.from_numpy(number(self.toy, xt))].movedim(-1, 1)
        return Prediction(mean, torch.log(mean.clamp(min=1e-300)))


def step_draws(
    toy: JumpToy, denoiser: ExactJumpDenoiser, process: Process, kernel: Kernel, state: int, s: float, t: float, n: int,
    seed: int = 0,
) -> Array:  # fmt: skip
    """How often the kernel led from a state at t to each state at s in n draws, [states ** elements]."""
    s_, t_ = torch.tensor([s, t], dtype=torch.float64)
    return count(toy, kernel(denoiser, process, at(toy, state, n), s_, t_, SampleStreams(seed, torch.arange(n)).at(1)))


def corrector_draws(
    toy: JumpToy, denoiser: ExactJumpDenoiser, process: Process, corrector: Corrector, state: int, s: float, t: float,
    n: int, seed: int = 0,
) -> Array:  # fmt: skip
    """The same for one step of a corrector at s, after a step from t."""
    s_, t_ = torch.tensor([s, t], dtype=torch.float64)
    source = SampleStreams(seed, torch.arange(n)).at(1)
    return count(toy, corrector(TauLeap(), denoiser, process, at(toy, state, n), s_, t_, source))


def loop_draws(
    toy: JumpToy, denoiser: ExactJumpDenoiser, process: Process, kernel: Kernel, times: Tensor, n: int, seed: int = 0
) -> Array:
    """How often the sampling loop returned each state in n samples, [levels ** elements]."""
    streams, mean = SampleStreams(seed, torch.arange(n)), torch.from_numpy(toy.mean)
    x0 = sample(denoiser, process, times, (n, toy.elements), streams, kernel=kernel, mean=mean)
    where = np.ravel_multi_index(tuple(x0.long().numpy().T), [toy.levels] * toy.elements)
    return np.bincount(where, minlength=len(toy.p0))


def at(toy: JumpToy, state: int, n: int) -> Tensor:
    """n copies of a state, uint8 [n, elements]."""
    return torch.from_numpy(toy.states[state]).expand(n, -1).to(torch.uint8).contiguous()


def number(toy: JumpToy, x: Tensor) -> Array:
    """The numbers of states [n, elements], [n]."""
    return np.ravel_multi_index(tuple(x.long().numpy().T), [toy.size] * toy.elements)


def count(toy: JumpToy, x: Tensor) -> Array:
    """How often each state is among x [n, elements], [states ** elements]."""
    return np.bincount(number(toy, x), minlength=toy.size**toy.elements)
