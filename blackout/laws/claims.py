"""What is claimed of the kernels of every process: how wrong each is with a perfect network, how fast that vanishes.

A `Subject` is a process and data, with the exact distributions of its kernels and the package's own draws from them.
`CLAIMS` says of each on which grids its errors, by whole matrices, fall with which order (`Study`, `Row`), and that
the draws of the kernels follow those distributions (`Draws`). Ours. The families' claims (`Claim`) are simpler.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from blackout.diffusion import processes
from blackout.diffusion.correctors import LevelCorrector
from blackout.diffusion.heads import LogisticMixtureHead, SoftplusHead
from blackout.diffusion.kernels import BirthDeathBridge, Kernel, LevelBridge, TauLeap
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.samplers import count_evaluations
from blackout.diffusion.schedules import fisher_times, logit_times, step_times
from blackout.laws import kernels as steps
from blackout.laws import toys as chains
from blackout.laws.kernels import (
    BIRTHS,
    KERNELS,
    ExactDenoiser,
    ExactJumpDenoiser,
    Expected,
    JumpStep,
    final_law,
    independent,
    loop_draws,
    p_value,
    posterior_trapezoidal_law,
    step_draws,
    step_law,
    trapezoidal_law,
)
from blackout.laws.toys import (
    Array,
    Data,
    JumpToy,
    Matrices,
    Toy,
    exclusive_pair,
    five_bits,
    of_birth_death,
    of_generator,
    of_steps,
    pixel_pair,
    rare_pixel,
    three_pixels,
    total_variation,
    two_bumps,
)

EXACT = 2e-5
"""Total variation of a kernel that is exact: the start and rounding leave less."""
SURE = 1e-6
"""p-value below which draws are not as they should be; of a hundred right ones it says so once in 10,000 runs."""
_TESTED = ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0))
"""Steps (s, t) at which draws are tested."""

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
        for s, t in _TESTED:
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
    head = LogisticMixtureHead(SoftplusHead(), max_count=1, mean=1.0, std=1.0, components=1)
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
    tested: tuple[tuple[float, float], ...] = _TESTED
    grid: Tensor = field(default_factory=lambda: logit_times(8, 4.0, -9.0))

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
        corrector = partial(LevelCorrector(fraction), TauLeap())
        for s, t in ((0.05, 0.15), (0.6, 1.0), (2.0, 2.5)):
            law = independent(steps.stay(toy, s, fraction * (t - s)))
            for state in _probable(toy.marginal(s)):
                drawn = step_draws(toy, denoiser, self.subject.law, corrector, state, s, t, n, seed=len(p))
                p.append(p_value(drawn, law[state]))
        return p


def _probable(law: Array) -> list[int]:
    """The most probable state, and one that is so only now and then."""
    order = np.argsort(-law)
    return [int(order[0]), int(order[len(order) // 3])]


_PIXEL = np.array([0.35, 0.05, 0.1, 0.3, 0.2])
_PAIR = np.array([[0.4, 0.02, 0.03], [0.02, 0.1, 0.01], [0.01, 0.01, 0.4]])
_COUNTS = np.array([0.3, 0.1, 0.05, 0.05, 0.2, 0.05, 0.05, 0.2])
_ARRIVALS = 3.0
_CHAIN = 48

Claims = Callable[[], Iterator[tuple]]
Grids = Mapping[str, Callable[[int], Tensor]]


def _pure_death() -> Iterator[tuple]:
    """Nothing is claimed of nearest rounding, which does not converge.

    On one pixel the bridges from draws are exact, on a black-and-white one so is stochastic
    rounding, and the others are of the first order. Given correlated pixels,
    only the trapezoidal methods are better than first order, and only where no birth changes another pixel's rate by
    much: the rough toys leave them at the first.
    """
    first = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "posterior": 0.9}
    second = {"trapezoidal": 1.32, "posterior_trapezoidal": 1.32}
    bumps = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "posterior": math.inf}
    exact = ("stochastic", "posterior", "posterior_trapezoidal")
    rare = {"nearest": None, "poisson": 0.9, **dict.fromkeys(exact, math.inf)}
    rough = {"posterior": 0.85, "trapezoidal": 0.95, "posterior_trapezoidal": 0.95}
    pair, truncated = pixel_pair(), partial(logit_times, first=7.0, last=-10.0)
    grids = {"fisher grid": fisher_times, "logit grid": truncated}
    # of 256 levels, draws are checked by the tests at chosen states alone: the chi-square of a loop would see little
    yield PureDeathSubject(two_bumps(), {}), {"fisher grid": fisher_times}, (10, 30, 100), bumps
    yield PureDeathSubject(rare_pixel(), KERNELS), grids, (16, 32, 64), rare
    yield PureDeathSubject(pair, KERNELS), grids, (16, 32, 64), {**first, **second}
    for toy in (exclusive_pair(), five_bits(), three_pixels()):
        yield PureDeathSubject(toy, {}), {"logit grid": truncated}, (16, 32, 64), rough


def finite(process: str, name: str, cube: Array, law: Any, matrices: Matrices) -> JumpSubject:
    """A finite process, of which X_0's distribution is predicted and which has no rates in discrete time."""
    kernels: dict[str, Kernel] = {"level_bridge": LevelBridge(), "tau_leap": TauLeap()}
    exact: dict[str, JumpStep] = {"level_bridge": steps.level_bridge, "tau_leap": steps.tau_leap}
    what = process, JumpToy(name, cube, matrices), law, kernels, exact, JumpToy.origins, steps.start
    if matrices.generator is not None:
        return JumpSubject(*what)
    del kernels["tau_leap"]
    return JumpSubject(*what, ((0.0, 1.0), (5.0, 6.0), (20.0, 41.0)), step_times(8, _CHAIN))


def _continuous(
    process: str, make: Callable[[int], tuple[Any, Matrices]], leap: float = 0.9, pair: bool = True
) -> Iterator[tuple]:
    """Bridges from draws of X_0 are exact for one element and of the first order for two; leaps of the order given."""
    subjects = [(finite(process, "one pixel", _PIXEL, *make(len(_PIXEL) - 1)), math.inf, leap)]
    if pair:
        subjects.append((finite(process, "two pixels", _PAIR, *make(len(_PAIR) - 1)), 0.9, 0.9))
    for subject, bridge, order in subjects:
        yield subject, _GRIDS, (32, 64, 128), {"level_bridge": bridge, "tau_leap": order}
        yield StaySubject(subject), _STAY, (16, 32, 64), {"level_corrector": 0.9}


def _discrete(process: str, make: Callable[[int], tuple[Any, Matrices]]) -> Iterator[tuple]:
    """With all the chain's steps or some of them."""
    grids = {"steps grid": partial(step_times, length=_CHAIN)}
    for name, cube, order in (("one pixel", _PIXEL, math.inf), ("two pixels", _PAIR, 0.9)):
        yield finite(process, name, cube, *make(len(cube) - 1)), grids, (12, 24, 48), {"level_bridge": order}


_GRIDS: Grids = {"logit grid": partial(logit_times, first=6.0, last=-12.0), "fisher grid": fisher_times}
_STAY: Grids = {"stay in so many parts": fisher_times}  # the grid itself is not used


def _uniform(top: int) -> tuple[Any, Matrices]:
    return processes.Uniform(top), of_generator(np.full((top + 1, top + 1), 1 / (top + 1)) - np.eye(top + 1))


def _absorbing(top: int, mask: int | None) -> tuple[Any, Matrices]:
    into = top + 1 if mask is None else mask
    size = max(top, into) + 1
    return processes.Absorbing(top, mask), of_generator(np.eye(size)[[into] * size] - np.eye(size))


def _ordinal(top: int, width: float | None = None, spread: float | None = None) -> tuple[Any, Matrices]:
    levels = np.arange(top + 1.0)
    apart = np.abs(levels[:, None] - levels[None, :])
    weight = (apart == 1) * 1.0 if width is None else (apart > 0) * np.exp(-((apart / width) ** 2) / 2)
    root = np.ones(top + 1) if spread is None else np.exp(-(((levels - top / 2) / spread) ** 2) / 4)
    rates = weight * root[None, :] / root[:, None]
    generator = _scaled(rates - np.diag(rates.sum(1)))
    return processes.Ordinal(top, width, spread), of_generator(generator, ordered=True)


def _halving(top: int) -> tuple[Any, Matrices]:
    """The documentation's example: x to x // 2 at rate 3."""
    generator = 3.0 * (np.eye(top + 1)[np.arange(top + 1) // 2] - np.eye(top + 1))
    return processes.from_generator(top, generator), of_generator(generator)


def _any(top: int) -> tuple[Any, Matrices]:
    """Random rates, two states more than levels, and a speed that grows."""
    generator = _random(top + 3)
    return processes.from_generator(top, generator), of_generator(generator)


def _chain(top: int, size: int, law: Array, make: Callable[[int, int], Any]) -> tuple[Any, Matrices]:
    replaced = 1 / (_CHAIN - np.arange(_CHAIN))[:, None, None]
    return make(top, _CHAIN), of_steps((1 - replaced) * np.eye(size) + replaced * law)


def _uniform_chain(top: int) -> tuple[Any, Matrices]:
    return _chain(top, top + 1, np.full((top + 1, top + 1), 1 / (top + 1)), processes.UniformChain)


def _absorbing_chain(top: int) -> tuple[Any, Matrices]:
    return _chain(top, top + 2, np.eye(top + 2)[[top + 1] * (top + 2)], processes.AbsorbingChain)


def _observed(top: int) -> tuple[Any, Matrices]:
    """A jump process with random rates, looked at now and then: every step has a matrix of its own."""
    generator, times = _random(top + 2), logit_times(_CHAIN, 6.0, -12.0).numpy()
    steps = np.stack([chains.expm(generator * d) for d in np.diff(times)])
    return processes.DiscreteTimeChain(top, _CHAIN, steps), of_steps(steps)


def _random(size: int) -> Array:
    """Random rates, scaled so that the slowest mode decays as e^-t."""
    return _scaled(chains.random_generator(np.random.default_rng(3), size))


def _scaled(generator: Array) -> Array:
    return generator / np.sort(-np.linalg.eigvals(generator).real)[1]


def _birth_death() -> Iterator[tuple]:
    """Rounded numbers and leaps, both of the first order."""
    law = processes.BirthDeath(len(_COUNTS) - 1, _ARRIVALS)
    toy = JumpToy("one pixel", _COUNTS, of_birth_death(_ARRIVALS, law.num_states))
    kernels: dict[str, Kernel] = {"birth_death_bridge": BirthDeathBridge(), "tau_leap": TauLeap()}
    exact: dict[str, JumpStep] = {
        "birth_death_bridge": partial(steps.birth_death_bridge, mean=_ARRIVALS),
        "tau_leap": steps.tau_leap_counts,
    }
    expected = partial(steps.missing_and_immigrants, mean=_ARRIVALS)
    start = partial(steps.start_poisson, mean=_ARRIVALS)
    subject = JumpSubject("birth_death", toy, law, kernels, exact, expected, start)
    yield subject, _GRIDS, (32, 64, 128), {"birth_death_bridge": 0.9, "tau_leap": 0.9}
    yield StaySubject(subject), _STAY, (16, 32, 64), {"level_corrector": 0.9}


def _absorbing_ones() -> Iterator[tuple]:
    # what is unmasked stays, and was drawn from the right distribution: one element only waits for the wrong time
    yield from _continuous("absorbing", partial(_absorbing, mask=None), leap=math.inf)
    yield from _continuous("absorbing at 0", partial(_absorbing, mask=0))


def _ordinal_ones() -> Iterator[tuple]:
    yield from _continuous("ordinal", _ordinal)
    yield from _continuous("ordinal, wide", partial(_ordinal, width=2.0, spread=2.0), pair=False)


def _generators() -> Iterator[tuple]:
    yield from _continuous("generator, halving", _halving)
    yield from _continuous("generator, any", _any, pair=False)


CLAIMS: dict[str, Claims] = {
    "pure_death": _pure_death,
    "birth_death": _birth_death,
    "uniform": partial(_continuous, "uniform", _uniform),
    "absorbing": _absorbing_ones,
    "ordinal": _ordinal_ones,
    "generator": _generators,
    "discrete_uniform": partial(_discrete, "discrete_uniform", _uniform_chain),
    "discrete_absorbing": partial(_discrete, "discrete_absorbing", _absorbing_chain),
    "discrete": partial(_discrete, "discrete", _observed),
}
"""By name in `process=`: (subject, grids, numbers of steps, orders) of everything that is claimed."""


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
class Claim:
    """What is claimed, how far from it the package is, and how far it may be.

    Args:
        name: of the claim.
        error: the largest deviation, or a p-value.
        allowed: the most it may be; None: `error` is a p-value and must be at least `SURE`.
    """

    name: str
    error: float
    allowed: float | None

    @property
    def holds(self) -> bool:
        return self.error >= SURE if self.allowed is None else self.error <= self.allowed


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


def draws(subject: Subject, kernel: str, n: int = 20_000) -> Claim:
    """Chi-square tests of the kernel's own draws against the exact distribution: single steps, and the whole loop."""
    p = subject.p_values(kernel, n)
    return Claim(f"{subject.process}, {subject.name}, {kernel}: least p of {len(p)}", min(p), None)


def verify(show: Callable[[str], None] = print, processes: Sequence[str] = ()) -> bool:
    """Check every claim, of all processes or those named, showing one line for each. True when all hold."""
    good, subjects = True, dict[tuple[str, str], Subject]()
    for study in studies(processes):
        subject = study.subject
        subjects.setdefault((subject.process, subject.name), subject)
        show(f"\n{subject.process}, {subject.name} ({subject.toy.entropy:.4f} nats), {study.grid_name}")
        show(f"  {'kernel':<18}{'total variation at network evaluations':<44}{'order':>7}  claimed")
        for row in rows(study):
            errors = "  ".join(f"{n:>4}: {e:.5f}" for n, e in zip(row.evaluations, row.errors, strict=True))
            show(f"  {row.kernel:<18}{errors:<44}{_order(row.order):>7}  {_claim(row.claim)}{_verdict(row.holds)}")
            good &= row.holds
    show("\ndraws of the kernels themselves against the exact laws (chi-square, one step and whole loop)")
    for claim in (draws(subject, kernel) for subject in subjects.values() for kernel in subject.kernels):
        allowed = f">= {SURE:g}" if claim.allowed is None else f"<= {claim.allowed:g}"
        show(f"  {claim.name:<76}{claim.error:>9.2g}  {allowed}{_verdict(claim.holds)}")
        good &= claim.holds
    return good


def _order(order: float) -> str:
    return "exact" if order == math.inf else f"{order:.2f}"


def _claim(claim: float | None) -> str:
    return "-" if claim is None else "exact" if claim == math.inf else f">= {claim}"


def _verdict(holds: bool) -> str:
    return "" if holds else "   FAILS"
