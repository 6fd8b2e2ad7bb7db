"""The claims about every process, kernel and grid: how wrong it is with a perfect network, how fast that vanishes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from blackout.laws.claims import CLAIMS
from blackout.laws.subjects import Grid, Subject

EXACT = 2e-5
"""Total variation of a kernel that is exact: the start and rounding leave less."""
SURE = 1e-6
"""p-value below which draws are not as they should be; of a hundred right ones it says so once in 10,000 runs."""


@dataclass(frozen=True)
class Study:
    """One subject on one grid.

    Args:
        subject: process and data.
        grid_name, grid: the grid's name and num_steps -> times.
        steps: numbers of steps, rising; a kernel that evaluates twice per step takes half as many.
        orders: the least order of convergence claimed of a kernel, inf for an exact one, None for no claim.
    """

    subject: Subject
    grid_name: str
    grid: Grid
    steps: Sequence[int]
    orders: Mapping[str, float | None]


@dataclass(frozen=True)
class Row:
    """What was found about one kernel, and whether it is what was claimed."""

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
        """Whether the order is at least the one claimed."""
        return self.claim is None or self.order >= self.claim


@dataclass(frozen=True)
class Draws:
    """The least p-value of tests of a kernel's own draws, and how many there were."""

    tests: int
    p: float

    @property
    def holds(self) -> bool:
        """Whether the draws may come from the exact distributions."""
        return self.p >= SURE


def studies(processes: Sequence[str] = ()) -> Iterator[Study]:
    """Everything that is claimed, of all processes or those named."""
    for process, claimed in CLAIMS.items():
        if not processes or process in processes:
            for subject, grids, steps, orders in claimed():
                yield from (Study(subject, name, grid, steps, orders) for name, grid in grids.items())


def rows(study: Study) -> Iterator[Row]:
    """The errors of every kernel of a study, from products of exact matrices."""
    for name, claim in study.orders.items():
        found = [study.subject.error(name, study.grid, num_steps) for num_steps in study.steps]
        yield Row(name, [n for n, _ in found], [error for _, error in found], claim)


def draws(subject: Subject, kernel: str, n: int = 20_000) -> Draws:
    """Chi-square tests of the kernel's own draws against the exact distribution: single steps, and the whole loop."""
    p = subject.p_values(kernel, n)
    return Draws(len(p), min(p))


def verify(show: Callable[[str], None] = print, processes: Sequence[str] = ()) -> bool:
    """Check every claim, of all processes or those named, showing one line for each. True when all hold."""
    good, subjects = True, dict[tuple[str, str], Subject]()
    for study in studies(processes):
        subject = study.subject
        subjects.setdefault((subject.process, subject.name), subject)
        show(f"\n{subject.process}, {subject.name} ({subject.entropy:.4f} nats), {study.grid_name}")
        show(f"  {'kernel':<18}{'total variation at network evaluations':<44}{'order':>7}  claimed")
        for row in rows(study):
            errors = "  ".join(f"{n:>4}: {e:.5f}" for n, e in zip(row.evaluations, row.errors, strict=True))
            show(f"  {row.kernel:<18}{errors:<44}{_order(row.order):>7}  {_claim(row.claim)}{_verdict(row.holds)}")
            good &= row.holds
    show("\ndraws of the kernels themselves against the exact laws (chi-square, one step and whole loop)")
    for (process, name), subject in subjects.items():
        for kernel in subject.kernels:
            found = draws(subject, kernel)
            which = f"{process}, {name}"
            show(f"  {which:<44}{kernel:<20}least p of {found.tests}: {found.p:.4f}{_verdict(found.holds)}")
            good &= found.holds
    return good


def _order(order: float) -> str:
    return "exact" if order == math.inf else f"{order:.2f}"


def _claim(claim: float | None) -> str:
    return "-" if claim is None else "exact" if claim == math.inf else f">= {claim}"


def _verdict(holds: bool) -> str:
    return "" if holds else "   FAILS"
