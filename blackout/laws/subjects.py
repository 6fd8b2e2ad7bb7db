"""Subjects of claims: a process and data, the exact distributions of its kernels, and the package's own draws."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from blackout.diffusion.correctors import LevelCorrector
from blackout.diffusion.heads import LogisticMixtureHead, SoftplusHead, VarianceHead
from blackout.diffusion.kernels import Kernel
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.samplers import count_evaluations
from blackout.diffusion.schedules import logit_times
from blackout.laws import steps
from blackout.laws.births import BIRTHS, final_law, independent, posterior_trapezoidal_law, step_law, trapezoidal_law
from blackout.laws.draws import (
    KERNELS,
    ExactDenoiser,
    ExactJumpDenoiser,
    Expected,
    corrector_draws,
    loop_draws,
    p_value,
    step_draws,
)
from blackout.laws.markov_toys import JumpToy
from blackout.laws.steps import JumpStep
from blackout.laws.toys import Array, Data, Toy, total_variation

Grid = Callable[[int], Tensor]
Step = Callable[[Toy, Array, float, float], Array]

LAWS: dict[str, Step] = {
    **{name: partial(step_law, births=births) for name, births in BIRTHS.items()},
    "trapezoidal": trapezoidal_law,
    "posterior_trapezoidal": posterior_trapezoidal_law,
}
"""The exact distribution of one step of each kernel of pure death, independent of its code."""


class Subject(ABC):
    """A process and data, with the exact distributions of some kernels and the package's own draws from them."""

    process: str
    kernels: Iterable[str]
    toy: Data

    @property
    def name(self) -> str:
        """Of the data."""
        return self.toy.name

    @property
    def entropy(self) -> float:
        """Of the data, in nats."""
        return self.toy.entropy

    @abstractmethod
    def error(self, kernel: str, grid: Grid, num_steps: int) -> tuple[int, float]:
        """NFE, and the total variation of the exact distribution sampled from the one aimed at."""

    @abstractmethod
    def p_values(self, kernel: str, n: int) -> list[float]:
        """Chi-square tests of the package's own draws, n per step, against the exact distributions."""


@dataclass(frozen=True)
class PureDeathSubject(Subject):
    """A toy under pure death.

    Args:
        toy: the data.
        kernels: what is checked.
    """

    toy: Toy
    kernels: Mapping[str, Kernel]
    process: str = "pure_death"

    def error(self, kernel: str, grid: Grid, num_steps: int) -> tuple[int, float]:
        per_step = evaluations(kernel, logit_times(2)) - evaluations(kernel, logit_times(1))  # of any but the last
        times = grid(num_steps // per_step)
        law = final_law(self.toy, survivals(times), LAWS[kernel])
        return evaluations(kernel, times), total_variation(law, self.toy.p0)

    def p_values(self, kernel: str, n: int) -> list[float]:
        p: list[float] = []
        denoiser, likely = ExactDenoiser(self.toy), np.argsort(-self.toy.p0)
        for s, t in ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0)):
            marginal = self.toy.marginal(math.exp(-t))
            for state in {0, int(marginal.argmax()), int(likely[len(likely) // 8])}:
                law = LAWS[kernel](self.toy, np.eye(len(self.toy.p0))[state], math.exp(-s), math.exp(-t))
                drawn = step_draws(self.toy, denoiser, denoiser.process, self.kernels[kernel], state, s, t, n, len(p))
                p.append(p_value(drawn, law))
        times = logit_times(8, 4.0, -6.0)
        drawn = loop_draws(self.toy, denoiser, denoiser.process, self.kernels[kernel], times, 2 * n)
        return [*p, p_value(drawn, final_law(self.toy, survivals(times), LAWS[kernel]))]


def evaluations(kernel: str, times: Tensor) -> int:
    """NFE of a kernel of pure death on a grid."""
    head = LogisticMixtureHead(VarianceHead(SoftplusHead()), max_count=1, mean=1.0, std=1.0, components=1)
    return count_evaluations(times, PureDeath(1), head, KERNELS[kernel])


def survivals(times: Tensor) -> Array:
    """e^-t at every time of a grid."""
    return np.exp(-times.numpy())


@dataclass(frozen=True)
class JumpSubject(Subject):
    """A toy and the package's process that its matrices are of.

    Args:
        process: its name in `process=`, and which one where that leaves a choice.
        toy: data and matrices.
        law: the package's process.
        kernels: of the package, by name.
        steps: the exact distributions of their steps, by name.
        expected: the exact denoiser.
        start: (toy, final time) -> the distribution sampling starts from.
        tested: steps (s, t) at which draws are tested.
        grid: on which the loop's draws are.
    """

    process: str
    toy: JumpToy
    law: Any
    kernels: Mapping[str, Kernel]
    steps: Mapping[str, JumpStep]
    expected: Expected
    start: Callable[[JumpToy, float], Array]
    tested: tuple[tuple[float, float], ...]
    grid: Tensor

    @property
    def denoiser(self) -> ExactJumpDenoiser:
        """What a perfect network would be."""
        return ExactJumpDenoiser(self.toy, self.expected, self.law.prediction)

    def final_law(self, kernel: str, times: Tensor) -> Array:
        """What the sampling loop returns on a grid, [levels ** elements]."""
        start = self.start(self.toy, float(times[-1]))
        return steps.sampled(self.toy, start, self.steps[kernel], times.tolist())

    def error(self, kernel: str, grid: Grid, num_steps: int) -> tuple[int, float]:
        return num_steps, total_variation(self.final_law(kernel, grid(num_steps)), self.toy.p0)

    def p_values(self, kernel: str, n: int) -> list[float]:
        p: list[float] = []
        denoiser = self.denoiser
        for s, t in self.tested:
            law = independent(self.steps[kernel](self.toy, s, t))
            for state in _probable(self.toy.marginal(t)):
                drawn = step_draws(self.toy, denoiser, self.law, self.kernels[kernel], state, s, t, n, seed=len(p))
                p.append(p_value(drawn, law[state]))
        drawn = loop_draws(self.toy, denoiser, self.law, self.kernels[kernel], self.grid, 2 * n)
        return [*p, p_value(drawn, self.final_law(kernel, self.grid))]


@dataclass(frozen=True)
class StaySubject(Subject):
    """The corrector on a toy: a stay at one time, cut into steps, should leave the distribution there as it is.

    Args:
        subject: process, toy and denoiser.
        time: where the stay is.
        length: of the whole stay, in units of t.
    """

    subject: JumpSubject
    time: float = 0.6
    length: float = 0.5
    kernels: tuple[str, ...] = ("level_corrector",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "process", self.subject.process)
        object.__setattr__(self, "toy", self.subject.toy)

    @property
    def name(self) -> str:
        """Of the data, and that this is about correctors."""
        return f"{self.toy.name}, correctors"

    def error(self, kernel: str, grid: Grid, num_steps: int) -> tuple[int, float]:
        toy = self.subject.toy
        law = toy.marginal(self.time)
        step = independent(steps.stay(toy, self.time, self.length / num_steps))
        return num_steps, total_variation(law @ np.linalg.matrix_power(step, num_steps), law)

    def p_values(self, kernel: str, n: int) -> list[float]:
        p: list[float] = []
        toy, fraction, denoiser = self.subject.toy, 0.5, self.subject.denoiser
        corrector = LevelCorrector(fraction)
        for s, t in ((0.05, 0.15), (0.6, 1.0), (2.0, 2.5)):
            law = independent(steps.stay(toy, s, fraction * (t - s)))
            for state in _probable(toy.marginal(s)):
                drawn = corrector_draws(toy, denoiser, self.subject.law, corrector, state, s, t, n, seed=len(p))
                p.append(p_value(drawn, law[state]))
        return p


def _probable(law: Array) -> list[int]:
    """The most probable state, and one that is so only now and then."""
    order = np.argsort(-law)
    return [int(order[0]), int(order[len(order) // 3])]
