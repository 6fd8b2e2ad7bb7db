"""What is claimed of the kernels of every process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.diffusion import processes
from blackout.diffusion.grids import OptimalGrid, pilot_run
from blackout.diffusion.kernels import BirthDeathBridge, Kernel, LevelBridge, TauLeap
from blackout.diffusion.schedules import fisher_times, logit_times, step_times
from blackout.laws import chains, steps
from blackout.laws.draws import KERNELS, ExactDenoiser
from blackout.laws.markov_toys import JumpToy, Matrices, of_birth_death, of_generator, of_steps
from blackout.laws.steps import JumpStep
from blackout.laws.subjects import JumpSubject, PureDeathSubject, StaySubject
from blackout.laws.toys import (
    Array,
    Toy,
    exclusive_pair,
    five_bits,
    pixel_pair,
    rare_pixel,
    three_pixels,
    two_bumps,
)
from blackout.random import SampleStreams

_PIXEL = np.array([0.35, 0.05, 0.1, 0.3, 0.2])
_PAIR = np.array([[0.4, 0.02, 0.03], [0.02, 0.1, 0.01], [0.01, 0.01, 0.4]])
_COUNTS = np.array([0.3, 0.1, 0.05, 0.05, 0.2, 0.05, 0.05, 0.2])
_ARRIVALS = 3.0
_CHAIN = 48

Claims = Callable[[], Iterator[tuple]]
Grids = Mapping[str, Callable[[int], Tensor]]


def _pure_death() -> Iterator[tuple]:
    """Nothing is claimed of nearest rounding, which does not converge.

    On one pixel the bridges from draws are exact, on a black-and-white one so are stochastic rounding and the Panjer
    kernel, and the others are of the first order (Panjer better at these numbers of steps). Given correlated pixels,
    only the trapezoidal methods are better than first order, and only where no birth changes another pixel's rate by
    much: the rough toys leave them at the first.
    """
    first = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "panjer": 0.9, "posterior": 0.9}
    second = {"trapezoidal": 1.32, "posterior_trapezoidal": 1.32}
    bumps = {"nearest": None, "stochastic": 0.9, "poisson": 0.9, "panjer": 1.5, "posterior": math.inf}
    exact = ("stochastic", "panjer", "posterior", "posterior_trapezoidal")
    rare = {"nearest": None, "poisson": 0.9, **dict.fromkeys(exact, math.inf)}
    rough = {"posterior": 0.85, "trapezoidal": 0.95, "posterior_trapezoidal": 0.95}
    pair, truncated = pixel_pair(), partial(logit_times, first=7.0, last=-10.0)
    grids = {"fisher grid": fisher_times, "logit grid": truncated}
    # of 256 levels, draws are checked by the tests at chosen states alone: the chi-square of a loop would see little
    yield PureDeathSubject(two_bumps(), {}), {"fisher grid": fisher_times}, (10, 30, 100), bumps
    yield PureDeathSubject(rare_pixel(), KERNELS), grids, (16, 32, 64), rare
    yield (
        PureDeathSubject(pair, KERNELS),
        {**grids, "optimal grid": OptimalGrid(pilot(pair))},
        (16, 32, 64),
        {**first, **second},
    )
    for toy in (exclusive_pair(), five_bits(), three_pixels()):
        yield PureDeathSubject(toy, {}), {"logit grid": truncated}, (16, 32, 64), rough


def pilot(toy: Toy, num_samples: int = 2000) -> dict[str, list[float]]:
    """A pilot run with the toy's exact denoiser."""
    denoiser = ExactDenoiser(toy)
    streams = SampleStreams(0, torch.arange(num_samples))
    mean = torch.from_numpy(toy.mean)
    return pilot_run(denoiser, denoiser.process, (num_samples, toy.pixels), streams, mean=mean, num_steps=150)


def finite(process: str, name: str, cube: Array, law: Any, matrices: Matrices) -> JumpSubject:
    """A finite process, of which X_0's distribution is predicted and which has no rates in discrete time."""
    kernels: dict[str, tuple[Kernel, JumpStep]] = {"level_bridge": (LevelBridge(), steps.level_bridge)}
    discrete = matrices.generator is None
    if not discrete:
        kernels["tau_leap"] = (TauLeap(), steps.tau_leap)
    return JumpSubject(
        process,
        JumpToy(name, cube, matrices),
        law,
        {key: kernel for key, (kernel, _) in kernels.items()},
        {key: step for key, (_, step) in kernels.items()},
        JumpToy.origins,
        steps.start,
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
    """Random rates, two states more than levels, and a speed that changes twice."""
    generator, changes, speeds = _random(top + 3), (0.5, 2.0), (0.8, 1.3, 1.0)
    process = processes.from_generator(top, generator, clock=processes.PiecewiseClock(changes, speeds))
    return process, of_generator(generator, False, speeds, changes)


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
    tested, grid = ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0)), logit_times(8, 4.0, -9.0)
    subject = JumpSubject("birth_death", toy, law, kernels, exact, expected, start, tested, grid)
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
