"""Potentials, which weight particles, and the record of a step that they are computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from blackout.diffusion.predictions import Prediction
from blackout.diffusion.survival import reverse_clock, step_fraction


@dataclass(frozen=True)
class Stage:
    """The part of a step that uses one network evaluation.

    Attributes:
        prediction: given X_t = before, as the kernel had it.
        before: states [rows, ...] at t.
        after: states [rows, ...] at s.
        s: time of the stage's end, a float64 scalar.
        t: time of its start, a float64 scalar.
        previous: the stage before it in the same step, if any.
    """

    prediction: Prediction
    before: Tensor
    after: Tensor
    s: Tensor
    t: Tensor
    previous: Stage | None = None

    @property
    def fraction(self) -> Tensor:
        """The step fraction r, a scalar."""
        return step_fraction(self.s, self.t)

    def extrapolate(self, count: Callable[[Stage], Tensor]) -> Tensor:
        """Extrapolate a predicted count of pure death over the stages, as `Trapezoidal` does.

        Held constant over each stage it would integrate to first order only.

        Args:
            count: of a stage, [rows, ...].
        """
        current = count(self)
        if self.previous is None or float(self.s) == 0:
            return current
        start = reverse_clock(self.previous.t)
        middle = reverse_clock(self.t)
        end = reverse_clock(self.s)
        theta = (middle - start) / (end - start)
        weight = 1 / (2 * theta * (1 - theta))
        remaining = (1 - self.previous.fraction) * count(self.previous)
        return weight * current - (weight - 1) * remaining


@dataclass
class Step:
    """Record of one step of a kernel: its times, evaluations and result.

    Attributes:
        number: k of the time times[k] it led to.
        s: time of the step's end, a float64 scalar.
        t: time of its start, a float64 scalar.
        after: X_s, states [rows, ...].
        evaluations: (X, time, prediction) of every network evaluation, in order, the first at t.
    """

    number: int
    s: Tensor
    t: Tensor
    after: Tensor
    evaluations: list[tuple[Tensor, Tensor, Prediction]] = field(default_factory=list)

    def stages(self) -> Iterator[Stage]:
        """Yield the stages from one evaluation to the next, and from the last to X_s."""
        ends = [(x, time) for x, time, _ in self.evaluations[1:]]
        ends.append((self.after, self.s))
        previous: Stage | None = None
        for (before, t, prediction), (after, s) in zip(self.evaluations, ends, strict=True):
            if s < t:
                previous = Stage(prediction, before, after, s, t, previous)
                yield previous


class Potential(Protocol):
    """Log weights of particles, a step at a time.

    A potential that keeps something for every particle has a method `select(rows)`, called when
    resampling replaces the particles by these rows.
    """

    def __call__(self, step: Step) -> Tensor:
        """Return what the step adds to the log weight of every particle, float64 [rows].

        -inf is a weight of 0.
        """
