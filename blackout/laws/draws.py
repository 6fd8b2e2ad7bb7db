"""The package's own kernels, run with the exact denoiser of a toy, and chi-square tests of what they draw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.heads import Prediction
from blackout.diffusion.kernels import (
    BinomialBridge,
    Kernel,
    PanjerLeap,
    PoissonLeap,
    PosteriorBridge,
    Trapezoidal,
    nearest_rounding,
    stochastic_rounding,
)
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.samplers import sample
from blackout.diffusion.streams import RandomSource, SampleStreams, StepStreams
from blackout.laws.toys import Array, Toy

KERNELS: dict[str, Kernel] = {
    "nearest": BinomialBridge(nearest_rounding),
    "stochastic": BinomialBridge(stochastic_rounding),
    "poisson": PoissonLeap(),
    "panjer": PanjerLeap(),
    "posterior": PosteriorBridge(),
    "trapezoidal": Trapezoidal(),
}


@dataclass(frozen=True)
class TableOfCounts:
    """Any law of the missing count, given as P(N = n) [..., levels] float64."""

    pmf: Tensor

    def log_prob(self, missing: Tensor) -> Tensor:
        return torch.log(self.pmf.gather(-1, missing.long().unsqueeze(-1)).squeeze(-1)).float()

    def sample(self, generator: RandomSource = None) -> Tensor:
        shape = tuple(self.pmf.shape[:-1])
        if isinstance(generator, StepStreams):
            u = generator.next_draw().uniform(shape)
        else:
            u = torch.rand(shape, generator=generator, dtype=torch.float64)
        below = self.pmf.cumsum(-1) < u.unsqueeze(-1)
        last = (self.pmf > 0).long().cumsum(-1).argmax(-1)  # rounding must not lead past the support
        return torch.minimum(below.sum(-1), last)


class ExactDenoiser:
    """The denoiser a perfect network would be."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.process = PureDeath(toy.max_count)
        self._tables: dict[float, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        mean, variance, missing = self._table(float(t))
        state = torch.zeros(len(xt), dtype=torch.int64)
        for pixel in range(self.toy.pixels):
            state = state * (self.toy.max_count + 1) + xt[:, pixel].long()
        return Prediction(
            mean[state], torch.log(mean[state].clamp(min=1e-30)), variance[state], TableOfCounts(missing[state])
        )

    def _table(self, t: float) -> tuple[Tensor, Tensor, Tensor]:
        if t not in self._tables:
            beliefs, shape = self.toy.beliefs(math.exp(-t)), (-1, self.toy.pixels)
            # float64, where a network gives float32: the laws compared with have it too
            self._tables[t] = (
                torch.from_numpy(beliefs.mean.reshape(shape)),
                torch.from_numpy(beliefs.variance.reshape(shape)),
                torch.from_numpy(beliefs.missing.reshape(*shape, self.toy.max_count + 1)),
            )
        return self._tables[t]


def step_draws(toy: Toy, kernel: Kernel, state: int, s: float, t: float, n: int, seed: int = 0) -> Array:
    """How often the kernel led from a state at t to each state at s in n draws, [S]."""
    xt = torch.from_numpy(toy.states[state]).expand(n, -1).to(torch.uint8).contiguous()
    times = torch.tensor([s, t], dtype=torch.float64)
    source = SampleStreams(seed, torch.arange(n)).at(1)
    xs = kernel(ExactDenoiser(toy), PureDeath(toy.max_count), xt, times[0], times[1], source)
    return _count(toy, xs)


def loop_draws(toy: Toy, kernel: Kernel, times: Tensor, n: int, seed: int = 0) -> Array:
    """How often the sampling loop returned each state in n samples, [S]."""
    streams = SampleStreams(seed, torch.arange(n))
    mean = torch.from_numpy(toy.mean)
    denoiser = ExactDenoiser(toy)
    x0 = sample(denoiser, denoiser.process, times, (n, toy.pixels), streams, kernel=kernel, mean=mean)
    return _count(toy, x0)


def p_value(observed: Array, law: Array) -> float:
    """Chi-square test of counts [S] against a law [S], cells expected less than 5 times put together; 0 when a state
    of probability 0 was drawn.
    """
    expected = law * observed.sum()
    if observed[law <= 0].any():
        return 0.0
    rare = expected < 5
    cells = np.append(expected[~rare], expected[rare].sum())
    drawn = np.append(observed[~rare], observed[rare].sum())
    drawn, cells = drawn[cells > 1e-9], cells[cells > 1e-9]
    if len(cells) < 2:
        return 1.0
    return float(stats.chisquare(drawn, cells * drawn.sum() / cells.sum()).pvalue)


def _count(toy: Toy, x: Tensor) -> Array:
    shape = (toy.max_count + 1,) * toy.pixels
    return np.bincount(np.ravel_multi_index(tuple(x.long().numpy().T), shape), minlength=len(toy.p0))
