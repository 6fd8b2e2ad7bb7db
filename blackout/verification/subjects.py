"""Subjects of verification: a process of the package with data, and what its kernels should do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from blackout.diffusion.correctors import LevelCorrector
from blackout.diffusion.kernels import BirthDeathBridge, Kernel, LevelBridge, TauLeap
from blackout.diffusion.predictions import BirthDeathPrediction, Denoiser
from blackout.diffusion.processes import BirthDeath, Process
from blackout.diffusion.time_grids import logit_times, step_times
from blackout.verification.draws import (
    ExactDenoiser,
    ExactJumpDenoiser,
    KernelUnderTest,
    p_value,
)
from blackout.verification.exact_steps import (
    PURE_DEATH_STEPS,
    Step,
    birth_death_bridge,
    birth_death_start,
    corrector_move,
    elementwise_step,
    finite_start,
    joint_distribution,
    missing_and_immigrants,
    pure_death_start,
    tau_leap,
    tau_leap_of_rates,
)
from blackout.verification.process_pairs import CHAIN_LENGTH, ProcessPair
from blackout.verification.toys import (
    Array,
    JumpToy,
    Toy,
    birth_death_transitions,
    total_variation,
)

# num_steps -> times of the sampling loop, float64 [num_steps + 1]
Grid = Callable[[int], Tensor]

# Steps (s, t) whose draws are tested: to the data, in the middle, and from near the prior.
TESTED_STEPS = ((0.0, 0.1), (0.3, 0.9), (1.5, 4.0))
TESTED_CHAIN_STEPS = ((0.0, 1.0), (5.0, 6.0), (20.0, 41.0))
TESTED_CORRECTOR_STEPS = ((0.05, 0.15), (0.6, 1.0), (2.0, 2.5))
LOOP_GRID = logit_times(8, 4.0, -9.0)  # of the sampling loop whose samples are tested
PURE_DEATH_LOOP_GRID = logit_times(8, 4.0, -6.0)
CHAIN_LOOP_GRID = step_times(8, CHAIN_LENGTH)

# kernels that evaluate the network twice in every step but the last
TWO_STAGE_KERNELS = ("trapezoidal", "posterior_trapezoidal")

CORRECTOR_TIME = 0.6  # at which correctors move
CORRECTOR_DURATION = 0.5  # of all moves of a corrector together
CORRECTOR_SIZE = 0.5  # length of a tested move, as a share of the step before it


@dataclass(frozen=True)
class Subject:
    """Test case: a process on toy data, with the exact distributions of its kernels.

    Args:
        process_name: as in `process=`, and which one if that leaves a choice.
        toy: the data.
        process: the package's process.
        denoiser: what a perfect network would be.
        kernels: of the package, by name; their draws are tested.
        exact_steps: the exact distributions of the kernels' steps, by name.
        start: (toy, final time) -> the distribution that sampling starts from.
        tested_steps: steps (s, t) whose draws are tested.
        loop_grid: of the sampling loop whose samples are tested; None to test no loop.
        convert_time: time -> what toy, exact_steps and start take in its place.
    """

    process_name: str
    toy: Any
    process: Process
    denoiser: Denoiser
    kernels: Mapping[str, Kernel]
    exact_steps: Mapping[str, Step]
    start: Callable[[Any, float], Array]
    tested_steps: Sequence[tuple[float, float]]
    loop_grid: Tensor | None
    convert_time: Callable[[float], float] = float

    @property
    def name(self) -> str:
        """The name of the data."""
        return str(self.toy.name)

    def measure_error(self, kernel: str, grid: Grid, num_steps: int) -> tuple[int, float]:
        """Return the network evaluations of a run, and the total variation of its samples.

        The total variation is that of the exact distribution of the samples from the data.

        Args:
            kernel: by name.
            grid: of times.
            num_steps: of a kernel with one evaluation per step; two-stage kernels take half as
                many.
        """
        per_step = 2 if kernel in TWO_STAGE_KERNELS else 1
        times = grid(num_steps // per_step)
        evaluations = per_step * (len(times) - 2) + 1
        return evaluations, total_variation(self.final_distribution(kernel, times), self.toy.p0)

    def final_distribution(self, kernel: str, times: Tensor) -> Array:
        """Return the exact distribution of the loop's samples on a grid, [levels ** elements].

        States beyond the levels are clipped.
        """
        toy = self.toy
        converted = [self.convert_time(t) for t in times.tolist()]
        pmf = self.start(toy, converted[-1])
        for s, t in zip(converted[-2::-1], converted[:0:-1], strict=True):
            pmf = self.exact_steps[kernel](toy, pmf, s, t)
        clipped = np.minimum(toy.states, toy.levels - 1)
        data_numbers = np.ravel_multi_index(tuple(clipped.T), [toy.levels] * toy.elements)
        return np.bincount(data_numbers, weights=pmf, minlength=len(toy.p0))

    def step_distribution(self, kernel: str, state: int, s: float, t: float) -> Array:
        """Return the exact distribution after a step from a state, [states ** elements]."""
        start = np.eye(len(self.toy.states))[state]
        step = self.exact_steps[kernel]
        return step(self.toy, start, self.convert_time(s), self.convert_time(t))

    def start_states(self, s: float, t: float) -> list[int]:
        """Return the states from which a step is tested: the most probable one, and a rarer one."""
        by_probability = np.argsort(-self.toy.marginal(self.convert_time(t)))
        return by_probability[[0, len(by_probability) // 3 or 1]].tolist()

    def p_values(self, kernel: str, n: int) -> list[float]:
        """Return p-values of a kernel's draws against its exact distributions.

        There is one for each tested step and start state, with n draws, and one for the loop, with
        2 n samples.
        """
        under_test = KernelUnderTest(self.toy, self.denoiser, self.process, self.kernels[kernel])
        p_values: list[float] = []
        for s, t in self.tested_steps:
            for state in self.start_states(s, t):
                counts = under_test.step_counts(state, s, t, n, seed=len(p_values))
                p_values.append(p_value(counts, self.step_distribution(kernel, state, s, t)))
        if self.loop_grid is not None:
            counts = under_test.sample_counts(self.loop_grid, 2 * n)
            p_values.append(p_value(counts, self.final_distribution(kernel, self.loop_grid)))
        return p_values


class CorrectorSubject(Subject):
    """Test case of a corrector, whose moves at one time should leave the distribution invariant."""

    @property
    def name(self) -> str:
        """The name of the data, followed by a mark of correctors."""
        return f"{self.toy.name}, correctors"

    def measure_error(self, kernel: str, grid: Grid, num_steps: int) -> tuple[int, float]:
        """Return the number of moves, and the total variation that they cause.

        The duration of all moves together is the same for every number of moves.
        """
        marginal = self.toy.marginal(CORRECTOR_TIME)
        move = joint_distribution(
            corrector_move(self.toy, CORRECTOR_TIME, CORRECTOR_DURATION / num_steps)
        )
        moved = marginal @ np.linalg.matrix_power(move, num_steps)
        return num_steps, total_variation(moved, marginal)

    def start_states(self, s: float, t: float) -> list[int]:
        """Return the states from which a move is tested, by their probability at time s."""
        return super().start_states(t, s)


def pure_death_subject(toy: Toy, kernels: Mapping[str, Kernel]) -> Subject:
    """Return the test case of a toy under pure death, with the kernels whose draws are tested."""
    denoiser = ExactDenoiser(toy)
    return Subject(
        process_name="pure_death",
        toy=toy,
        process=denoiser.process,
        denoiser=denoiser,
        kernels=kernels,
        exact_steps=PURE_DEATH_STEPS,
        start=pure_death_start,
        tested_steps=TESTED_STEPS,
        loop_grid=PURE_DEATH_LOOP_GRID,
        convert_time=lambda t: math.exp(-t),
    )


def finite_subject(process_name: str, data_name: str, p0: Array, pair: ProcessPair) -> Subject:
    """Return the test case of a finite process, whose denoiser predicts P(X_0 | X_t).

    A chain in discrete time has no rates, and therefore no leaps.

    Args:
        process_name: see `Subject`.
        data_name: name of the data.
        p0: distribution of the data, with one axis per element.
        pair: the package's process and its exact transitions.
    """
    process, transitions = pair
    toy = JumpToy(data_name, p0, transitions)
    kernels: dict[str, Kernel] = {"level_bridge": LevelBridge()}
    exact_steps = {"level_bridge": elementwise_step(JumpToy.bridge_pmf)}
    tested_steps = TESTED_CHAIN_STEPS
    loop_grid = CHAIN_LOOP_GRID
    if transitions.generator is not None:
        kernels["tau_leap"] = TauLeap()
        exact_steps["tau_leap"] = elementwise_step(tau_leap)
        tested_steps = TESTED_STEPS
        loop_grid = LOOP_GRID
    return Subject(
        process_name=process_name,
        toy=toy,
        process=process,
        denoiser=ExactJumpDenoiser(toy, JumpToy.origin_pmf),
        kernels=kernels,
        exact_steps=exact_steps,
        start=finite_start,
        tested_steps=tested_steps,
        loop_grid=loop_grid,
    )


def birth_death_subject(p0: Array, mean: float) -> Subject:
    """Return the test case of immigration and death on one pixel.

    Args:
        p0: distribution of the pixel, [levels].
        mean: of the process's stationary distribution.
    """
    process = BirthDeath(len(p0) - 1, mean)
    toy = JumpToy("one pixel", p0, birth_death_transitions(mean, process.num_states))
    exact_mean = partial(missing_and_immigrants, mean=mean)
    return Subject(
        process_name="birth_death",
        toy=toy,
        process=process,
        denoiser=ExactJumpDenoiser(toy, exact_mean, BirthDeathPrediction),
        kernels={"birth_death_bridge": BirthDeathBridge(), "tau_leap": TauLeap()},
        exact_steps={
            "birth_death_bridge": elementwise_step(partial(birth_death_bridge, mean=mean)),
            "tau_leap": elementwise_step(tau_leap_of_rates),
        },
        start=partial(birth_death_start, mean=mean),
        tested_steps=TESTED_STEPS,
        loop_grid=LOOP_GRID,
    )


def corrector_subject(subject: Subject) -> CorrectorSubject:
    """Return the test case of a corrector on another subject's toy, with moves of half a step."""

    def move(toy: JumpToy, s: float, t: float) -> Array:
        """Return the exact distribution of every element after a move."""
        return corrector_move(toy, s, CORRECTOR_SIZE * (t - s))

    return CorrectorSubject(
        process_name=subject.process_name,
        toy=subject.toy,
        process=subject.process,
        denoiser=subject.denoiser,
        kernels={"level_corrector": partial(LevelCorrector(CORRECTOR_SIZE), TauLeap())},
        exact_steps={"level_corrector": elementwise_step(move)},
        start=subject.start,
        tested_steps=TESTED_CORRECTOR_STEPS,
        loop_grid=None,
    )
