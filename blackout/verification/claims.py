"""What is claimed of the kernels of all built-in processes, and the check of these claims.

A kernel of order p has samples whose total variation from the data falls as evaluations^-p, given a
perfect network. `CLAIMS` has the smallest order claimed of every kernel, by process. `verify`
measures the orders from products of exact matrices, and tests that the kernels' own draws follow
the same distributions. `MultistepLeap`, `EulerStep` and `JointBridge` are checked in tests only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from blackout.diffusion.time_grids import fisher_times, logit_times, step_times
from blackout.verification import process_pairs
from blackout.verification.draws import MIN_P_VALUE, PURE_DEATH_KERNELS
from blackout.verification.process_pairs import CHAIN_LENGTH, MakePair
from blackout.verification.subjects import (
    Grid,
    Subject,
    birth_death_subject,
    corrector_subject,
    finite_subject,
    pure_death_subject,
)
from blackout.verification.toys import (
    exclusive_pair,
    five_bits,
    pixel_pair,
    rare_pixel,
    three_pixels,
    two_bumps,
)

EXACT_ERROR = 2e-5  # total variation of an exact kernel: the start and rounding leave less
NUM_DRAWS = 20_000  # of a tested step; the loop has twice as many

PIXEL = np.array([0.35, 0.05, 0.1, 0.3, 0.2])
PIXEL_PAIR = np.array([[0.4, 0.02, 0.03], [0.02, 0.1, 0.01], [0.01, 0.01, 0.4]])
COUNT_PIXEL = np.array([0.3, 0.1, 0.05, 0.05, 0.2, 0.05, 0.05, 0.2])
IMMIGRATION_MEAN = 3.0  # stationary mean of immigration and death

PURE_DEATH_GRID: Grid = partial(logit_times, first=7.0, last=-10.0)
GRIDS: Mapping[str, Grid] = {
    "logit grid": partial(logit_times, first=6.0, last=-12.0),
    "fisher grid": fisher_times,
}
CHAIN_GRIDS: Mapping[str, Grid] = {"steps grid": partial(step_times, length=CHAIN_LENGTH)}
CORRECTOR_GRIDS: Mapping[str, Grid] = {
    "moves of equal length": fisher_times
}  # the times are unused


@dataclass(frozen=True)
class Study:
    """Convergence study: the kernels of one subject on one family of time grids.

    Attributes:
        subject: process and data.
        grid_name: name of the grid.
        grid: num_steps -> times.
        num_steps: numbers of steps, rising; two-stage kernels take half as many.
        orders: smallest order claimed of each kernel; inf for an exact one, None for no claim.
    """

    subject: Subject
    grid_name: str
    grid: Grid
    num_steps: Sequence[int]
    orders: Mapping[str, float | None]


@dataclass(frozen=True)
class Result:
    """Errors of one kernel in a convergence study, with the claimed order.

    Attributes:
        kernel: by name.
        evaluations: network evaluations of each run.
        errors: total variation of each run.
        claim: smallest order claimed; inf for an exact kernel, None for no claim.
    """

    kernel: str
    evaluations: Sequence[int]
    errors: Sequence[float]
    claim: float | None

    @property
    def order(self) -> float:
        """Order of convergence from the last two runs; inf for an exact kernel."""
        if max(self.errors) < EXACT_ERROR:
            return math.inf
        error_ratio = self.errors[-2] / self.errors[-1]
        return math.log(error_ratio) / math.log(self.evaluations[-1] / self.evaluations[-2])

    @property
    def holds(self) -> bool:
        """Whether the measured order is at least the claimed one."""
        return self.claim is None or self.order >= self.claim


# --- the claims


def pure_death_studies() -> Iterator[Study]:
    """Yield the claims about pure death.

    On one pixel bridges from draws are exact; on a black-and-white pixel stochastic rounding is
    exact too. The other kernels are of the first order, except for nearest rounding, which does not
    converge. On correlated pixels only the trapezoidal kernels are better than the first order.
    Even they are not if a birth changes the rate of another pixel by much, as on the rough toys.
    """
    exact = math.inf
    bumps = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "posterior": exact}
    rare = {
        "nearest": None,
        "poisson": 0.9,
        "stochastic": exact,
        "posterior": exact,
        "posterior_trapezoidal": exact,
    }
    pair = {
        "nearest": None,
        "stochastic": 0.9,
        "poisson": 0.9,
        "posterior": 0.9,
        "trapezoidal": 1.32,
        "posterior_trapezoidal": 1.32,
    }
    rough = {"posterior": 0.85, "trapezoidal": 0.95, "posterior_trapezoidal": 0.95}
    fisher_grid = {"fisher grid": fisher_times}
    logit_grid = {"logit grid": PURE_DEATH_GRID}
    both_grids = {**fisher_grid, **logit_grid}

    # draws of 256 levels are left to the tests: a chi-square test of a loop would see little
    bumps_subject = pure_death_subject(two_bumps(), {})
    yield from _on_grids(bumps_subject, fisher_grid, (10, 30, 100), bumps)
    rare_subject = pure_death_subject(rare_pixel(), PURE_DEATH_KERNELS)
    yield from _on_grids(rare_subject, both_grids, (16, 32, 64), rare)
    pair_subject = pure_death_subject(pixel_pair(), PURE_DEATH_KERNELS)
    yield from _on_grids(pair_subject, both_grids, (16, 32, 64), pair)
    for toy in (exclusive_pair(), five_bits(), three_pixels()):
        yield from _on_grids(pure_death_subject(toy, {}), logit_grid, (16, 32, 64), rough)


def birth_death_studies() -> Iterator[Study]:
    """Yield the claims about immigration and death: bridges and leaps are of the first order."""
    subject = birth_death_subject(COUNT_PIXEL, IMMIGRATION_MEAN)
    orders = {"birth_death_bridge": 0.9, "tau_leap": 0.9}
    yield from _on_grids(subject, GRIDS, (32, 64, 128), orders)
    yield from _corrector_studies(subject)


def continuous_studies(
    process_name: str, make_pair: MakePair, leap_order: float = 0.9, with_pixel_pair: bool = True
) -> Iterator[Study]:
    """Yield the claims about a finite process in continuous time.

    Bridges from draws of X_0 are exact for one element and of the first order for two.

    Args:
        process_name: see `Subject`.
        make_pair: makes the process of a largest count.
        leap_order: smallest order claimed of leaps for one element.
        with_pixel_pair: whether two elements are studied too.
    """
    pixel = finite_subject(process_name, "one pixel", PIXEL, make_pair(len(PIXEL) - 1))
    orders = {"level_bridge": math.inf, "tau_leap": leap_order}
    yield from _on_grids(pixel, GRIDS, (32, 64, 128), orders)
    yield from _corrector_studies(pixel)
    if with_pixel_pair:
        pair = finite_subject(
            process_name, "two pixels", PIXEL_PAIR, make_pair(len(PIXEL_PAIR) - 1)
        )
        orders = {"level_bridge": 0.9, "tau_leap": 0.9}
        yield from _on_grids(pair, GRIDS, (32, 64, 128), orders)
        yield from _corrector_studies(pair)


def discrete_studies(process_name: str, make_pair: MakePair) -> Iterator[Study]:
    """Yield the claims about a chain in discrete time, with all of its steps or some of them.

    Bridges from draws of X_0 are exact for one element and of the first order for two.
    """
    pixel = finite_subject(process_name, "one pixel", PIXEL, make_pair(len(PIXEL) - 1))
    yield from _on_grids(pixel, CHAIN_GRIDS, (12, 24, 48), {"level_bridge": math.inf})
    pair = finite_subject(process_name, "two pixels", PIXEL_PAIR, make_pair(len(PIXEL_PAIR) - 1))
    yield from _on_grids(pair, CHAIN_GRIDS, (12, 24, 48), {"level_bridge": 0.9})


def _corrector_studies(subject: Subject) -> Iterator[Study]:
    """Yield the claim about the corrector: its error is of the first order in a move's length."""
    corrector = corrector_subject(subject)
    yield from _on_grids(corrector, CORRECTOR_GRIDS, (16, 32, 64), {"level_corrector": 0.9})


def _on_grids(
    subject: Subject,
    grids: Mapping[str, Grid],
    num_steps: Sequence[int],
    orders: Mapping[str, float | None],
) -> Iterator[Study]:
    """Yield a study of the subject on every grid."""
    for name, grid in grids.items():
        yield Study(subject, name, grid, num_steps, orders)


CLAIMS: Mapping[str, Sequence[Callable[[], Iterator[Study]]]] = {
    "pure_death": [pure_death_studies],
    "birth_death": [birth_death_studies],
    "uniform": [partial(continuous_studies, "uniform", process_pairs.uniform)],
    # a leap is exact for one absorbed element: what is unmasked stays, with the right distribution
    "absorbing": [
        partial(continuous_studies, "absorbing", process_pairs.absorbing, leap_order=math.inf)
    ],
    "ordinal": [
        partial(continuous_studies, "ordinal", process_pairs.ordinal),
        partial(
            continuous_studies,
            "ordinal, wide",
            partial(process_pairs.ordinal, width=2.0, spread=2.0),
            with_pixel_pair=False,
        ),
    ],
    "generator": [
        partial(continuous_studies, "generator, halving", process_pairs.halving),
        partial(
            continuous_studies,
            "generator, any",
            process_pairs.random_jumps,
            with_pixel_pair=False,
        ),
    ],
    "discrete_uniform": [
        partial(discrete_studies, "discrete_uniform", process_pairs.uniform_chain)
    ],
    "discrete_absorbing": [
        partial(discrete_studies, "discrete_absorbing", process_pairs.absorbing_chain)
    ],
    "discrete": [partial(discrete_studies, "discrete", process_pairs.observed_jumps)],
}


# --- the check


def studies(processes: Sequence[str] = ()) -> Iterator[Study]:
    """Yield the studies of some processes, by their names in `CLAIMS`; of all if none is named."""
    for process in processes or CLAIMS:
        for make_studies in CLAIMS[process]:
            yield from make_studies()


def measure_orders(study: Study) -> Iterator[Result]:
    """Yield the errors of every kernel of a study, from products of exact matrices."""
    for kernel, claim in study.orders.items():
        runs = [study.subject.measure_error(kernel, study.grid, n) for n in study.num_steps]
        evaluations = [run[0] for run in runs]
        errors = [run[1] for run in runs]
        yield Result(kernel, evaluations, errors, claim)


def check_draws(subject: Subject, kernel: str, n: int = NUM_DRAWS) -> tuple[str, float]:
    """Test a kernel's own draws against its exact distributions, single steps and the whole loop.

    Returns:
        What was tested, and the smallest p-value.
    """
    p_values = subject.p_values(kernel, n)
    label = f"{subject.process_name}, {subject.name}, {kernel}: smallest p of {len(p_values)}"
    return label, min(p_values)


def verify(show: Callable[[str], None] = print, processes: Sequence[str] = ()) -> bool:
    """Check the claims, show one line for each, and return whether all hold.

    Args:
        show: receives the lines.
        processes: names in `CLAIMS`; empty for all.
    """
    all_hold = True

    # 1. Orders of convergence.
    subjects: dict[tuple[str, str], Subject] = {}
    for study in studies(processes):
        subject = study.subject
        subjects.setdefault((subject.process_name, subject.name), subject)
        entropy = f"{subject.toy.entropy:.4f} nats"
        show(f"\n{subject.process_name}, {subject.name} ({entropy}), {study.grid_name}")
        show(f"  {'kernel':<18}{'total variation at network evaluations':<44}{'order':>7}  claimed")
        for result in measure_orders(study):
            runs = zip(result.evaluations, result.errors, strict=True)
            errors = "  ".join(f"{evaluations:>4}: {error:.5f}" for evaluations, error in runs)
            order = f"{_format_order(result.order):>7}  {_format_claim(result.claim)}"
            show(f"  {result.kernel:<18}{errors:<44}{order}{_format_verdict(result.holds)}")
            all_hold &= result.holds

    # 2. Draws of the kernels.
    show(
        "\ndraws of the kernels against their exact distributions "
        "(chi-square tests of single steps and of the whole loop)"
    )
    for subject in subjects.values():
        for kernel in subject.kernels:
            label, p = check_draws(subject, kernel)
            holds = p >= MIN_P_VALUE
            show(f"  {label:<76}{p:>9.2g}  >= {MIN_P_VALUE:g}{_format_verdict(holds)}")
            all_hold &= holds
    return all_hold


def _format_order(order: float) -> str:
    """Return an order with two decimals, or "exact"."""
    return "exact" if order == math.inf else f"{order:.2f}"


def _format_claim(claim: float | None) -> str:
    """Return the order claimed, "exact", or "-" for no claim."""
    if claim is None:
        return "-"
    return "exact" if claim == math.inf else f">= {claim}"


def _format_verdict(holds: bool) -> str:
    """Return a mark for a claim that fails."""
    return "" if holds else "   FAILS"
