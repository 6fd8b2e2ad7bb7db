"""The package's own posterior samplers on tiny spaces, with reverse runs from whole matrices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.predictions import CategoricalPrediction, Prediction
from blackout.diffusion.processes import Absorbing, Process, PureDeath, Uniform
from blackout.laws.posterior_toys import (
    Element,
    SplitToy,
    absorbing_element,
    death_element,
    uniform_element,
)
from blackout.laws.toys import Array
from blackout.posterior.noise import Poisson
from blackout.posterior.operators import Identity, Matrix
from blackout.posterior.prior import Prior, Streams
from blackout.posterior.problem import Measured
from blackout.random import SampleStreams, categorical

_Y, _EXPOSURE, _BACKGROUND = 3.0, 0.5, 0.3


@dataclass(frozen=True)
class ExactPrior(Prior):
    """A prior whose reverse runs are draws from Bayes' rule.

    Args:
        toy: prior and process.
    """

    toy: SplitToy = field(kw_only=True)

    def reverse(self, z: Tensor, t: float, source: Streams = None, steps: int | None = None) -> Tensor:
        states = round(len(self.toy.of_states(t)) ** (1 / self.toy.elements))
        rows = torch.from_numpy(self.toy.denoise(t))[_number(z, states)]
        return self._states(categorical(rows, source.at(0) if isinstance(source, SampleStreams) else source))

    def draw(self, number: int, source: Streams = None) -> Tensor:
        rows = torch.from_numpy(self.toy.p).expand(number, -1)
        return self._states(categorical(rows, source.at(0) if isinstance(source, SampleStreams) else source))

    def _states(self, number: Tensor) -> Tensor:
        shape = (self.toy.levels,) * self.toy.elements
        return torch.stack([torch.from_numpy(a) for a in np.unravel_index(number.numpy(), shape)], 1).to(torch.uint8)


@dataclass(frozen=True)
class BlackBoxed:
    """A problem of which only the likelihood is shown.

    Args:
        problem: the whole of it.
    """

    problem: Measured

    def log_likelihood(self, x: Tensor) -> Tensor:
        """The problem's."""
        return self.problem.log_likelihood(x)


@dataclass(frozen=True)
class Case:
    """A process with a measurement that matrices and package know.

    Args:
        name: of the process.
        process: the package's.
        toy: the same in matrices.
        problem: likewise the measurement.
    """

    name: str
    process: Process[Any]
    toy: SplitToy
    problem: Measured

    @property
    def prior(self) -> ExactPrior:
        """With exact reverse runs."""
        return ExactPrior(_no_denoiser, self.process, (self.toy.elements,), toy=self.toy)


def cases(separable: bool, levels: int = 4) -> list[Case]:
    """A noisy count of two elements of `levels` levels, each by itself or summed with weights 1 and 2."""
    operator = Identity() if separable else Matrix(torch.tensor([[1.0, 2.0]]))
    y = torch.tensor([_Y, 1.0] if separable else [_Y])
    problem = Measured(operator, Poisson(_EXPOSURE, _BACKGROUND), y)
    p = np.random.default_rng(0).dirichlet(np.ones(levels**2))
    made = []
    for name, process, element in (
        ("uniform", Uniform(levels - 1), uniform_element(levels)),
        ("pure death", PureDeath(levels - 1), death_element(levels)),
        ("absorbing", Absorbing(levels - 1), absorbing_element(levels)),
    ):
        made.append(Case(name, process, _toy(name, p, element, levels, separable), problem))
    return made


def _toy(name: str, p: Array, element: Element, levels: int, separable: bool) -> SplitToy:
    def likelihood(a: Array, b: Array) -> Array:
        rates = [_EXPOSURE * m + _BACKGROUND for m in ((a, b) if separable else (a + 2 * b,))]
        return np.prod([stats.poisson.pmf(y, rate) for y, rate in zip((_Y, 1.0), rates, strict=False)], 0)

    def grid(states: int) -> tuple[Array, Array]:
        a, b = np.meshgrid(np.arange(states), np.arange(states), indexing="ij")
        return a.ravel() * 1.0, b.ravel() * 1.0

    def relaxed(t: float) -> Array:
        if name == "uniform":
            return likelihood(*grid(levels))
        if name == "pure death":  # of counts read as e^t z
            return likelihood(*(np.minimum(np.exp(t) * axis, levels - 1) for axis in grid(levels)))
        a, b = grid(levels + 1)  # masked ones take all levels in turn
        tried = [likelihood(np.where(a == levels, v, a), np.where(b == levels, v, b)) for v in range(levels)]
        return np.exp(np.mean(np.log(tried), 0))

    return SplitToy(p, likelihood(*grid(levels)), levels, 2, element, relaxed)


def law_of(x: Tensor, levels: int) -> Array:
    """How often each state is among x [n, elements], int64 [levels ** elements]."""
    return np.bincount(_number(x, levels).numpy(), minlength=levels ** x.shape[1])


def _number(x: Tensor, states: int) -> Tensor:
    number = torch.zeros(len(x), dtype=torch.int64)
    for column in x.long().unbind(1):
        number = number * states + column
    return number


def _no_denoiser(xt: Tensor, t: Tensor) -> Prediction:
    """Never evaluated."""
    return CategoricalPrediction(torch.zeros(0))
