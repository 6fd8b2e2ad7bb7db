"""What is claimed of the kernels of pure death."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from blackout.diffusion.grids import OptimalGrid, pilot_run
from blackout.diffusion.kernels import Kernel
from blackout.diffusion.samplers import count_evaluations
from blackout.diffusion.schedules import fisher_times, logit_times
from blackout.laws.births import BIRTHS, final_law, step_law, trapezoidal_law
from blackout.laws.draws import KERNELS, ExactDenoiser, loop_draws, p_value, step_draws
from blackout.laws.toys import Array, Toy, pixel_pair, rare_pixel, total_variation, two_bumps
from blackout.random import SampleStreams

Step = Callable[[Toy, Array, float, float], Array]

LAWS: dict[str, Step] = {
    **{name: partial(step_law, births=births) for name, births in BIRTHS.items()},
    "trapezoidal": trapezoidal_law,
}
"""The exact law of one step of each kernel, independent of its code."""


@dataclass(frozen=True)
class PureDeathSubject:
    """A toy under pure death.

    Args:
        toy: the data.
        kernels: what is checked.
    """

    toy: Toy
    kernels: Mapping[str, Kernel]
    process: str = "pure_death"

    @property
    def name(self) -> str:
        return self.toy.name

    @property
    def entropy(self) -> float:
        return self.toy.entropy

    def error(self, kernel: str, grid: Callable[[int], Tensor], num_steps: int) -> tuple[int, float]:
        times = grid(num_steps // KERNELS[kernel].evaluations(0.5))
        law = final_law(self.toy, survivals(times), LAWS[kernel])
        return count_evaluations(times, KERNELS[kernel]), total_variation(law, self.toy.p0)

    def p_values(self, kernel: str, n: int) -> list[float]:
        p: list[float] = []
        likely = np.argsort(-self.toy.p0)
        for s, t in ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0)):
            marginal = self.toy.marginal(math.exp(-t))
            for state in {0, int(marginal.argmax()), int(likely[len(likely) // 8])}:
                law = LAWS[kernel](self.toy, np.eye(len(self.toy.p0))[state], math.exp(-s), math.exp(-t))
                drawn = step_draws(self.toy, self.kernels[kernel], state, s, t, n, seed=len(p))
                p.append(p_value(drawn, law))
        times = logit_times(8, 4.0, -6.0)
        drawn = loop_draws(self.toy, self.kernels[kernel], times, 2 * n)
        return [*p, p_value(drawn, final_law(self.toy, survivals(times), LAWS[kernel]))]


def claims() -> Iterator[tuple]:
    """Everything that is claimed: (subject, grids, numbers of steps, orders).

    Nothing is claimed of nearest rounding: it does not converge. On one pixel the posterior bridge is exact, on a
    black-and-white one so are stochastic rounding and the Panjer kernel, and the others are of the first order (Panjer
    better at these numbers of steps). Given correlated pixels, only the trapezoidal method is better than first order.
    """
    first = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "panjer": 0.9, "posterior": 0.9, "trapezoidal": 1.32}
    bumps = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "panjer": 1.5, "posterior": math.inf}
    rare = {"nearest": None, "stochastic": math.inf, "poisson": 0.9, "panjer": math.inf, "posterior": math.inf}
    pair, truncated = pixel_pair(), partial(logit_times, first=7.0, last=-10.0)
    grids = {"fisher grid": fisher_times, "logit grid": truncated}
    # of 256 levels, draws are checked by the tests at chosen states alone: the chi-square of a loop would see little
    yield PureDeathSubject(two_bumps(), {}), {"fisher grid": fisher_times}, (10, 30, 100), bumps
    yield PureDeathSubject(rare_pixel(), KERNELS), grids, (16, 32, 64), rare
    yield PureDeathSubject(pair, KERNELS), {**grids, "optimal grid": OptimalGrid(pilot(pair))}, (16, 32, 64), first


def pilot(toy: Toy, num_samples: int = 2000) -> dict[str, list[float]]:
    """A pilot run with the toy's exact denoiser."""
    denoiser = ExactDenoiser(toy)
    streams = SampleStreams(0, torch.arange(num_samples))
    mean = torch.from_numpy(toy.mean)
    return pilot_run(denoiser, denoiser.process, (num_samples, toy.pixels), streams, mean=mean, num_steps=150)


def survivals(times: Tensor) -> Array:
    """e^-t at every level of a grid."""
    return np.exp(-times.numpy())
