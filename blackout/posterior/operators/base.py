"""Interface of forward operators: what is measured, m = G(x), before noise.

A custom operator derives from `Operator`. If it only defines values, samplers treat it as a black
box and take Metropolis steps. With `incidence`, elements that share no term of the likelihood are
drawn together. With `sums_elements`, likelihoods of thinned counts can be used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from blackout.counts import Shape
from blackout.diffusion.model import BlackoutDiffusion
from blackout.posterior.noise import Exact, Noise
from blackout.representation import format_arguments


class SampleSet(NamedTuple):
    """Posterior samples to be scored by an operator or by a model whose distribution is known.

    Attributes:
        x: counts [n, *shape].
        measurement_index: measurement that each sample belongs to, int64 [n].
        problem: all measurements, an `InverseProblem` (a module that imports this one).
        truths: counts [M, *shape], or None where they are unknown.
        seed: seed of the samples.
    """

    x: Tensor
    measurement_index: Tensor
    problem: Any
    truths: Tensor | None
    seed: int


class Operator(ABC):
    """A forward operator G for data x [n, *shape], integers or real numbers.

    By default it is a black box that returns one number.

    References: this project.
    """

    # whether data must be 0 and 1
    binary: ClassVar[bool] = False
    # whether every element of m is a sum of elements of x, so that thinning x thins m
    sums_elements: bool = False
    # whether G(a x + b z) = a G(x) + b G(z); all levels of an element then cost one evaluation
    linear: ClassVar[bool] = False
    # noise unless the user chooses another
    noise: Noise = Exact()

    __repr__ = format_arguments

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Return G(x), float64 [n, *measurement_shape(shape)]."""

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the shape of a measurement of data of a shape.

        Raises:
            ValueError: data that the operator cannot measure.
        """
        return (1,)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return which elements of x each element of m depends on.

        Returns:
            Pairs (index in m, index in x), int64 [2, P]; None if they are unknown.
        """
        return None

    def observed_mask(self, shape: Shape) -> Tensor | None:
        """Return which elements of m are observed, bool [*measurement_shape]; None for all."""
        return None

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Return data [n, *shape] from which m could come, to start from; or None."""
        return None

    def prepare(self, model: BlackoutDiffusion) -> None:
        """Take what the operator needs from a model or its data, before anything is measured."""
        return

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """Return entries of metrics.json about samples, with numbers in `values`.

        Pictures may be written to `directory`.
        """
        return {}
