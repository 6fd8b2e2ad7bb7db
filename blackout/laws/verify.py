"""The claims about every kernel, on every grid, of every toy: how wrong it is with a perfect network, and how fast that
vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from blackout.diffusion.grids import OptimalGrid, pilot_run
from blackout.diffusion.kernels import Kernel
from blackout.diffusion.samplers import count_evaluations
from blackout.diffusion.schedules import fisher_times, logit_times
from blackout.diffusion.streams import SampleStreams
from blackout.laws.draws import KERNELS, ExactDenoiser, loop_draws, p_value, step_draws
from blackout.laws.toys import Array, Toy, pixel_pair, rare_pixel, total_variation, two_bumps
from blackout.laws.transitions import BIRTHS, final_law, step_law, trapezoidal_law

Grid = Callable[[int], Tensor]
Step = Callable[[Toy, Array, float, float], Array]

LAWS: dict[str, Step] = {
    **{name: partial(step_law, births=births) for name, births in BIRTHS.items()},
    "trapezoidal": trapezoidal_law,
}
"""The exact law of one step of each kernel, independent of its code."""

EXACT = 2e-5
"""Total variation of a kernel that is exact: the start and rounding leave less."""
SURE = 1e-6
"""p-value below which draws do not follow a law; of a hundred right ones this says so once in 10,000 runs."""


@dataclass(frozen=True)
class Study:
    """One toy on one grid.

    Args:
        toy: the data.
        grid_name, grid: the grid's name and num_steps -> times.
        steps: numbers of steps, rising; a kernel that evaluates twice per step takes half as many.
        orders: the least order of convergence claimed of a kernel, inf for an exact one, None for no claim.
    """

    toy: Toy
    grid_name: str
    grid: Grid
    steps: Sequence[int]
    orders: dict[str, float | None]


@dataclass(frozen=True)
class Row:
    """What was found about one kernel, and whether it is what was claimed."""

    toy: str
    grid: str
    kernel: str
    evaluations: list[int]
    errors: list[float]
    claim: float | None

    @property
    def order(self) -> float:
        """p where the error last fell as evaluations^-p; inf for an exact kernel."""
        if max(self.errors) < EXACT:
            return math.inf
        return math.log(self.errors[-2] / self.errors[-1]) / math.log(self.evaluations[-1] / self.evaluations[-2])

    @property
    def holds(self) -> bool:
        return self.claim is None or self.order >= self.claim


@dataclass(frozen=True)
class Draws:
    """The least p-value of tests of a kernel's own draws, and how many there were."""

    toy: str
    kernel: str
    tests: int
    p: float

    @property
    def holds(self) -> bool:
        return self.p >= SURE


def studies() -> Iterator[Study]:
    """Everything that is claimed.

    Nothing is claimed of nearest rounding: it does not converge. On one pixel the posterior bridge is exact, on a
    black-and-white one so are stochastic rounding and the Panjer kernel, and the others are of the first order (Panjer
    better at these numbers of steps). Given correlated pixels, only the trapezoidal method is better than first order.
    """
    first = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "panjer": 0.9, "posterior": 0.9, "trapezoidal": 1.32}
    bumps = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "panjer": 1.5, "posterior": math.inf}
    rare = {"nearest": None, "stochastic": math.inf, "poisson": 0.9, "panjer": math.inf, "posterior": math.inf}
    yield Study(two_bumps(), "fisher", fisher_times, (10, 30, 100), bumps)
    truncated = partial(logit_times, first=7.0, last=-10.0)
    yield Study(rare_pixel(), "fisher", fisher_times, (16, 32, 64), rare)
    yield Study(rare_pixel(), "logit", truncated, (16, 32, 64), rare)
    pair = pixel_pair()
    grids: dict[str, Grid] = {"fisher": fisher_times, "logit": truncated, "optimal": OptimalGrid(pilot(pair))}
    for name, grid in grids.items():
        yield Study(pair, name, grid, (16, 32, 64), first)


def pilot(toy: Toy, num_samples: int = 2000) -> dict[str, list[float]]:
    """A pilot run with the toy's exact denoiser."""
    denoiser = ExactDenoiser(toy)
    streams = SampleStreams(0, torch.arange(num_samples))
    mean = torch.from_numpy(toy.mean)
    return pilot_run(denoiser, denoiser.process, (num_samples, toy.pixels), streams, mean=mean, num_steps=150)


def survivals(times: Tensor) -> Array:
    """e^-t at every level of a grid."""
    return np.exp(-times.numpy())


def rows(study: Study) -> Iterator[Row]:
    """The errors of every kernel of a study, from products of exact matrices."""
    for name, claim in study.orders.items():
        errors, evaluations = [], []
        for num_steps in study.steps:
            times = study.grid(num_steps // KERNELS[name].evaluations(0.5))
            law = final_law(study.toy, survivals(times), LAWS[name])
            errors.append(total_variation(law, study.toy.p0))
            evaluations.append(count_evaluations(times, KERNELS[name]))
        yield Row(study.toy.name, study.grid_name, name, evaluations, errors, claim)


def draws(toy: Toy, name: str, kernel: Kernel, n: int = 20_000) -> Draws:
    """Chi-square tests of the kernel's own draws against the exact law: single steps, and the whole loop."""
    p: list[float] = []
    likely = np.argsort(-toy.p0)
    for s, t in ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0)):
        marginal = toy.marginal(math.exp(-t))
        for state in {0, int(marginal.argmax()), int(likely[len(likely) // 8])}:
            start = np.eye(len(toy.p0))[state]
            law = LAWS[name](toy, start, math.exp(-s), math.exp(-t))
            p.append(p_value(step_draws(toy, kernel, state, s, t, n, seed=len(p)), law))
    times = logit_times(8, 4.0, -6.0)
    p.append(p_value(loop_draws(toy, kernel, times, 2 * n), final_law(toy, survivals(times), LAWS[name])))
    return Draws(toy.name, name, len(p), min(p))


def verify(show: Callable[[str], None] = print) -> bool:
    """Check every claim, showing one line for each. True when all hold."""
    good = True
    for study in studies():
        show(f"\n{study.toy.name} ({study.toy.entropy:.4f} nats), {study.grid_name} grid")
        show(f"  {'kernel':<12}{'total variation at network evaluations':<44}{'order':>7}  claimed")
        for row in rows(study):
            errors = "  ".join(f"{n:>4}: {e:.5f}" for n, e in zip(row.evaluations, row.errors, strict=True))
            show(f"  {row.kernel:<12}{errors:<44}{_order(row.order):>7}  {_claim(row.claim)}{_verdict(row.holds)}")
            good &= row.holds
    show("\ndraws of the kernels themselves against the exact laws (chi-square, one step and whole loop)")
    for toy in (rare_pixel(), pixel_pair()):
        for name, kernel in KERNELS.items():
            found = draws(toy, name, kernel)
            show(f"  {toy.name:<12}{name:<12}least p of {found.tests}: {found.p:.4f}{_verdict(found.holds)}")
            good &= found.holds
    return good


def _order(order: float) -> str:
    return "exact" if order == math.inf else f"{order:.2f}"


def _claim(claim: float | None) -> str:
    return "-" if claim is None else "exact" if claim == math.inf else f">= {claim}"


def _verdict(holds: bool) -> str:
    return "" if holds else "   FAILS"
