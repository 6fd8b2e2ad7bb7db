"""The package's own kernels, run with the exact denoiser of a toy, and chi-square tests of what they draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.correctors import Corrector
from blackout.diffusion.kernels import (
    BinomialBridge,
    Kernel,
    PanjerLeap,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    TauLeap,
    Trapezoidal,
    nearest_rounding,
    stochastic_rounding,
)
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    Denoiser,
    Prediction,
)
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.samplers import sample
from blackout.laws.markov_toys import JumpToy
from blackout.laws.toys import Array, Toy
from blackout.random import RandomSource, SampleStreams, uniform

KERNELS: dict[str, Kernel] = {
    "nearest": BinomialBridge(nearest_rounding),
    "stochastic": BinomialBridge(stochastic_rounding),
    "poisson": PoissonLeap(),
    "panjer": PanjerLeap(),
    "posterior": PosteriorBridge(),
    "trapezoidal": Trapezoidal(),
    "posterior_trapezoidal": PosteriorTrapezoidal(),
}
"""Of pure death."""

Expected: TypeAlias = Callable[[JumpToy, float], Array]
"""(toy, t) -> E[statistic | X_t], [states ** elements, elements, K]."""


@dataclass(frozen=True)
class TableOfCounts:
    """Any distribution of the missing count, given as P(N = n) [..., levels] float64."""

    pmf: Tensor

    def log_prob(self, missing: Tensor) -> Tensor:
        """log P(N = missing): float32, shape of the integers `missing`."""
        return torch.log(self.pmf.gather(-1, missing.long().unsqueeze(-1)).squeeze(-1)).float()

    def sample(self, generator: RandomSource = None) -> Tensor:
        """A draw of N by inversion, int64 [...]."""
        u = uniform(tuple(self.pmf.shape[:-1]), generator, self.pmf.device)
        below = self.pmf.cumsum(-1) < u.unsqueeze(-1)
        last = (self.pmf > 0).long().cumsum(-1).argmax(-1)  # rounding must not lead past the support
        return torch.minimum(below.sum(-1), last)


class ExactDenoiser:
    """The denoiser a perfect network would be, for pure death.

    Args:
        toy: the data.
    """

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.process = PureDeath(toy.max_count)
        self._tables: dict[float, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, xt: Tensor, t: Tensor) -> CountPrediction:
        mean, variance, missing = (table[torch.from_numpy(number(self.toy, xt))] for table in self._table(float(t)))
        return CountPrediction(mean, torch.log(mean.clamp(min=1e-30)), variance, TableOfCounts(missing))

    def _table(self, t: float) -> tuple[Tensor, Tensor, Tensor]:
        if t not in self._tables:
            beliefs, shape = self.toy.beliefs(math.exp(-t)), (-1, self.toy.pixels)
            # float64, where a network gives float32: the distributions compared with have it too
            self._tables[t] = (
                torch.from_numpy(beliefs.mean.reshape(shape)),
                torch.from_numpy(beliefs.variance.reshape(shape)),
                torch.from_numpy(beliefs.missing.reshape(*shape, self.toy.max_count + 1)),
            )
        return self._tables[t]


class ExactJumpDenoiser:
    """The denoiser a perfect network would be, for any process, with a table for every time it is asked about.

    Args:
        toy: data and process.
        expected: the exact mean of the process's statistic.
        kind: of prediction that the process needs.
    """

    def __init__(self, toy: JumpToy, expected: Expected, kind: type[Prediction] = CategoricalPrediction) -> None:
        self.toy, self.expected, self.kind = toy, expected, kind
        self._tables: dict[float, Tensor] = {}

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        time = float(t)
        if time not in self._tables:
            self._tables[time] = torch.from_numpy(self.expected(self.toy, time))
        # float64, where a network gives float32: the distributions compared with have it too
        mean = self._tables[time][torch.from_numpy(number(self.toy, xt))].movedim(-1, 1)
        log_mean = torch.log(mean.clamp(min=1e-300))
        if self.kind is CategoricalPrediction:
            return CategoricalPrediction(log_mean)
        return BirthDeathPrediction(mean, log_mean)


def step_draws(
    toy: Toy | JumpToy, denoiser: Denoiser, process: Process, kernel: Kernel, state: int, s: float, t: float, n: int,
    seed: int = 0,
) -> Array:  # fmt: skip
    """How often the kernel led from a state at t to each state at s in n draws, [states ** elements]."""
    s_, t_ = torch.tensor([s, t], dtype=torch.float64)
    xt = copies(toy, state, n)
    return count(toy, kernel(denoiser, process, xt, s_, t_, SampleStreams(seed, torch.arange(n)).at(1)))


def corrector_draws(
    toy: Toy | JumpToy, denoiser: Denoiser, process: Process, corrector: Corrector, state: int, s: float, t: float,
    n: int, seed: int = 0,
) -> Array:  # fmt: skip
    """The same for one step of a corrector at s, after a step from t."""
    s_, t_ = torch.tensor([s, t], dtype=torch.float64)
    source = SampleStreams(seed, torch.arange(n)).at(1)
    return count(toy, corrector(TauLeap(), denoiser, process, copies(toy, state, n), s_, t_, source))


def loop_draws(
    toy: Toy | JumpToy, denoiser: Denoiser, process: Process, kernel: Kernel, times: Tensor, n: int, seed: int = 0
) -> Array:
    """How often the sampling loop returned each state of the data in n samples, [levels ** elements]."""
    streams, mean = SampleStreams(seed, torch.arange(n)), torch.from_numpy(toy.mean)
    x0 = sample(denoiser, process, times, (n, toy.elements), streams, kernel=kernel, mean=mean)
    where = np.ravel_multi_index(tuple(x0.long().numpy().T), [toy.levels] * toy.elements)
    return np.bincount(where, minlength=toy.levels**toy.elements)


def copies(toy: Toy | JumpToy, state: int, n: int) -> Tensor:
    """n copies of a state, uint8 [n, elements]."""
    return torch.from_numpy(toy.states[state]).expand(n, -1).to(torch.uint8).contiguous()


def number(toy: Toy | JumpToy, x: Tensor) -> Array:
    """The numbers of states [n, elements], [n]."""
    return np.ravel_multi_index(tuple(x.long().numpy().T), [toy.size] * toy.elements)


def count(toy: Toy | JumpToy, x: Tensor) -> Array:
    """How often each state is among x [n, elements], [states ** elements]."""
    return np.bincount(number(toy, x), minlength=toy.size**toy.elements)


def p_value(observed: Array, law: Array) -> float:
    """Chi-square test of counts [S] against a distribution [S], cells expected less than 5 times put together.

    0 when a state of probability 0 was drawn.
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
