"""What is claimed of the kernels of every other process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from blackout.diffusion.kernels import BirthDeathBridge, Kernel, LevelBridge, LevelCorrector, TauLeap
from blackout.diffusion.processes import (
    Absorbing,
    AbsorbingChain,
    BirthDeath,
    DiscreteTimeChain,
    Ordinal,
    PiecewiseClock,
    Uniform,
    UniformChain,
    from_generator,
)
from blackout.diffusion.schedules import fisher_times, logit_times, step_times
from blackout.laws import chains, jump_transitions
from blackout.laws.draws import ExactJumpDenoiser, Expected, corrector_draws, loop_draws, p_value, step_draws
from blackout.laws.markov_toys import JumpToy, Matrices, of_birth_death, of_generator, of_steps
from blackout.laws.steps import JumpStep
from blackout.laws.toys import Array, total_variation

_PIXEL = np.array([0.35, 0.05, 0.1, 0.3, 0.2])
_PAIR = np.array([[0.4, 0.02, 0.03], [0.02, 0.1, 0.01], [0.01, 0.01, 0.4]])
_COUNTS = np.array([0.3, 0.1, 0.05, 0.05, 0.2, 0.05, 0.05, 0.2])
_ARRIVALS = 3.0
_CHAIN = 48

Claims = Callable[[], Iterator[tuple]]
Grids = Mapping[str, Callable[[int], Tensor]]


@dataclass(frozen=True)
class JumpSubject:
    """A toy and the package's process that its matrices are of.

    Args:
        process: its name in `process=`, and which one where that leaves a choice.
        toy: data and matrices.
        law: the package's process.
        kernels: of the package, by name.
        steps: the exact laws of their steps, by name.
        expected: the exact denoiser.
        start: (toy, final time) -> the law sampling starts from.
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
    def name(self) -> str:
        return self.toy.name

    @property
    def entropy(self) -> float:
        return self.toy.entropy

    def final_law(self, kernel: str, times: Tensor) -> Array:
        """What the sampling loop returns on a grid, [levels ** elements]."""
        start = self.start(self.toy, float(times[-1]))
        return jump_transitions.sampled(self.toy, start, self.steps[kernel], times.tolist())

    def error(self, kernel: str, grid: Callable[[int], Tensor], num_steps: int) -> tuple[int, float]:
        return num_steps, total_variation(self.final_law(kernel, grid(num_steps)), self.toy.p0)

    def p_values(self, kernel: str, n: int) -> list[float]:
        p: list[float] = []
        denoiser = ExactJumpDenoiser(self.toy, self.expected)
        for s, t in self.tested:
            law = jump_transitions.independent(self.steps[kernel](self.toy, s, t))
            for state in _probable(self.toy.marginal(t)):
                drawn = step_draws(self.toy, denoiser, self.law, self.kernels[kernel], state, s, t, n, seed=len(p))
                p.append(p_value(drawn, law[state]))
        drawn = loop_draws(self.toy, denoiser, self.law, self.kernels[kernel], self.grid, 2 * n)
        return [*p, p_value(drawn, self.final_law(kernel, self.grid))]


@dataclass(frozen=True)
class StaySubject:
    """The corrector on a toy: a stay of a given length at one level, cut into steps, should leave the level's law.

    Args:
        subject: process, toy and denoiser.
        level: the time of the level.
        length: of the whole stay, in units of t.
    """

    subject: JumpSubject
    level: float = 0.6
    length: float = 0.5
    kernels: tuple[str, ...] = ("level_corrector",)

    @property
    def process(self) -> str:
        return self.subject.process

    @property
    def name(self) -> str:
        return f"{self.subject.name}, correctors"

    @property
    def entropy(self) -> float:
        return self.subject.entropy

    def error(self, kernel: str, grid: Callable[[int], Tensor], num_steps: int) -> tuple[int, float]:
        toy = self.subject.toy
        law = toy.marginal(self.level)
        step = jump_transitions.independent(jump_transitions.stay(toy, self.level, self.length / num_steps))
        return num_steps, total_variation(law @ np.linalg.matrix_power(step, num_steps), law)

    def p_values(self, kernel: str, n: int) -> list[float]:
        p: list[float] = []
        toy, fraction = self.subject.toy, 0.5
        denoiser, corrector = ExactJumpDenoiser(toy, self.subject.expected), LevelCorrector(fraction)
        for s, t in ((0.05, 0.15), (0.6, 1.0), (2.0, 2.5)):
            law = jump_transitions.independent(jump_transitions.stay(toy, s, fraction * (t - s)))
            for state in _probable(toy.marginal(s)):
                drawn = corrector_draws(toy, denoiser, self.subject.law, corrector, state, s, t, n, seed=len(p))
                p.append(p_value(drawn, law[state]))
        return p


def _probable(law: Array) -> list[int]:
    """The most probable state, and one that is so only now and then."""
    order = np.argsort(-law)
    return [int(order[0]), int(order[len(order) // 3])]


def finite(process: str, name: str, cube: Array, law: Any, matrices: Matrices) -> JumpSubject:
    """A finite process, which predicts X_0's law and has no rates in discrete time."""
    kernels: dict[str, tuple[Kernel, JumpStep]] = {"level_bridge": (LevelBridge(), jump_transitions.level_bridge)}
    discrete = matrices.generator is None
    if not discrete:
        kernels["tau_leap"] = (TauLeap(), jump_transitions.tau_leap)
    return JumpSubject(
        process,
        JumpToy(name, cube, matrices),
        law,
        {key: kernel for key, (kernel, _) in kernels.items()},
        {key: step for key, (_, step) in kernels.items()},
        JumpToy.origins,
        jump_transitions.start,
        ((0.0, 1.0), (5.0, 6.0), (20.0, 41.0)) if discrete else ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0)),
        step_times(8, _CHAIN) if discrete else logit_times(8, 4.0, -9.0),
    )


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
    return Uniform(top), of_generator(np.full((top + 1, top + 1), 1 / (top + 1)) - np.eye(top + 1))


def _absorbing(top: int, mask: int | None) -> tuple[Any, Matrices]:
    into = top + 1 if mask is None else mask
    size = max(top, into) + 1
    return Absorbing(top, mask), of_generator(np.eye(size)[[into] * size] - np.eye(size))


def _ordinal(top: int, width: float | None = None, spread: float | None = None) -> tuple[Any, Matrices]:
    levels = np.arange(top + 1.0)
    apart = np.abs(levels[:, None] - levels[None, :])
    weight = (apart == 1) * 1.0 if width is None else (apart > 0) * np.exp(-((apart / width) ** 2) / 2)
    root = np.ones(top + 1) if spread is None else np.exp(-(((levels - top / 2) / spread) ** 2) / 4)
    rates = weight * root[None, :] / root[:, None]
    generator = _scaled(rates - np.diag(rates.sum(1)))
    return Ordinal(top, width, spread), of_generator(generator, ordered=True)


def _halving(top: int) -> tuple[Any, Matrices]:
    """The documentation's example: x to x // 2 at rate 3."""
    generator = 3.0 * (np.eye(top + 1)[np.arange(top + 1) // 2] - np.eye(top + 1))
    return from_generator(top, generator), of_generator(generator)


def _any(top: int) -> tuple[Any, Matrices]:
    """Random rates, two states more than levels, and a speed that changes twice."""
    generator, changes, speeds = _random(top + 3), (0.5, 2.0), (0.8, 1.3, 1.0)
    process = from_generator(top, generator, clock=PiecewiseClock(changes, speeds))
    return process, of_generator(generator, False, speeds, changes)


def _chain(top: int, size: int, law: Array, make: Callable[[int, int], Any]) -> tuple[Any, Matrices]:
    replaced = 1 / (_CHAIN - np.arange(_CHAIN))[:, None, None]
    return make(top, _CHAIN), of_steps((1 - replaced) * np.eye(size) + replaced * law)


def _uniform_chain(top: int) -> tuple[Any, Matrices]:
    return _chain(top, top + 1, np.full((top + 1, top + 1), 1 / (top + 1)), UniformChain)


def _absorbing_chain(top: int) -> tuple[Any, Matrices]:
    return _chain(top, top + 2, np.eye(top + 2)[[top + 1] * (top + 2)], AbsorbingChain)


def _observed(top: int) -> tuple[Any, Matrices]:
    """A jump process with random rates, looked at now and then: every step has a matrix of its own."""
    generator, times = _random(top + 2), logit_times(_CHAIN, 6.0, -12.0).numpy()
    steps = np.stack([chains.expm(generator * d) for d in np.diff(times)])
    return DiscreteTimeChain(top, _CHAIN, steps), of_steps(steps)


def _random(size: int) -> Array:
    """Random rates, scaled so that the slowest mode decays as e^-t."""
    return _scaled(chains.random_generator(np.random.default_rng(3), size))


def _scaled(generator: Array) -> Array:
    return generator / np.sort(-np.linalg.eigvals(generator).real)[1]


def _birth_death() -> Iterator[tuple]:
    """Rounded numbers and leaps, both of the first order."""
    law = BirthDeath(len(_COUNTS) - 1, _ARRIVALS)
    toy = JumpToy("one pixel", _COUNTS, of_birth_death(_ARRIVALS, law.num_states))
    kernels: dict[str, Kernel] = {"birth_death_bridge": BirthDeathBridge(), "tau_leap": TauLeap()}
    steps: dict[str, JumpStep] = {
        "birth_death_bridge": partial(jump_transitions.birth_death_bridge, mean=_ARRIVALS),
        "tau_leap": jump_transitions.tau_leap_counts,
    }
    expected = partial(jump_transitions.missing_and_immigrants, mean=_ARRIVALS)
    start = partial(jump_transitions.start_poisson, mean=_ARRIVALS)
    tested, grid = ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0)), logit_times(8, 4.0, -9.0)
    subject = JumpSubject("birth_death", toy, law, kernels, steps, expected, start, tested, grid)
    yield subject, _GRIDS, (32, 64, 128), {"birth_death_bridge": 0.9, "tau_leap": 0.9}
    yield StaySubject(subject), _STAY, (16, 32, 64), {"level_corrector": 0.9}


def _absorbing_ones() -> Iterator[tuple]:
    # what is unmasked stays, and was drawn from the law it should have: one element only waits for the wrong time
    yield from _continuous("absorbing", partial(_absorbing, mask=None), leap=math.inf)
    yield from _continuous("absorbing at 0", partial(_absorbing, mask=0))


def _ordinal_ones() -> Iterator[tuple]:
    yield from _continuous("ordinal", _ordinal)
    yield from _continuous("ordinal, wide", partial(_ordinal, width=2.0, spread=2.0), pair=False)


def _generators() -> Iterator[tuple]:
    yield from _continuous("generator, halving", _halving)
    yield from _continuous("generator, any", _any, pair=False)


CLAIMS: dict[str, Claims] = {
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
