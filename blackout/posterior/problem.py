"""Inverse problems: a pointwise likelihood, and what more it may offer.

`Measured` is the one of the package: y = G(x) with noise. A likelihood of your own needs `Problem` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from blackout.posterior.noise import Binomial, Exact, Noise
from blackout.posterior.operators import Operator, Separable, Shape
from blackout.random import RandomSource, categorical, uniform


@runtime_checkable
class Problem(Protocol):
    """All that a posterior sampler must have."""

    def log_likelihood(self, x: Tensor) -> Tensor:
        """log p(y | x), float64 [n], for data [n, *shape], float64, whole or not; -inf is legal."""
        ...


@runtime_checkable
class LocalProblem(Problem, Protocol):
    """A likelihood that is a product of terms, each of few elements: its states can be drawn in blocks."""

    real: bool
    """Whether the likelihood has an extension to real x."""

    def terms(self, x: Tensor) -> Tensor:
        """Their logarithms, float64 [n, K]."""
        ...

    def incidence(self, shape: Shape) -> Tensor | None:
        """Pairs (term, element that it depends on), int64 [2, P]; None if that is not known."""
        ...

    def select(self, rows: Tensor, shape: Shape) -> LocalProblem:
        """The problem of some rows of x."""
        ...


def repeated(rows: Tensor, n: int) -> Tensor:
    """n rows [n, ...], row r being row r modulo their number; a single row stays alone, and broadcasts."""
    return rows if len(rows) in (1, n) else rows.repeat(n // len(rows), *[1] * (rows.ndim - 1))


@dataclass(frozen=True)
class Measured:
    """y = operator(x), with noise.

    Args:
        operator: G.
        noise: log p(y | G(x)); None for the operator's own.
        measurement: y, of the operator's measured shape, or one for every row of x: float64 [n, *measured]. With fewer
            rows than x, row r of x is of y's row r modulo their number.
    """

    operator: Operator
    noise: Noise
    measurement: Tensor

    @property
    def real(self) -> bool:
        """Whether it has an extension to real x."""
        return self.noise.real

    def log_likelihood(self, x: Tensor) -> Tensor:
        """log p(y | x), float64 [n]."""
        return self.terms(x).sum(1)

    def terms(self, x: Tensor) -> Tensor:
        """log p(y_k | x) for every element of the measurement, 0 where it is hidden: float64 [n, K]."""
        m = self.operator(x)
        values = self.noise.log_prob(self.rows(m), m)
        seen = self.operator.seen(tuple(x.shape[1:]))
        return (values if seen is None else torch.where(seen.to(x.device), values, 0.0)).flatten(1)

    def incidence(self, shape: Shape) -> Tensor | None:
        """See `Operator.incidence`."""
        return self.operator.incidence(shape)

    def select(self, rows: Tensor, shape: Shape) -> Measured:
        """The problem of some rows of x."""
        y = self.y(shape)
        return self if len(y) == 1 else replace(self, measurement=y[rows.to(y.device) % len(y)])

    def estimate(self, n: int, shape: Shape) -> Tensor | None:
        """Data near the measurement, float64 [n, *shape], not whole; None where none are known."""
        near = self.operator.back_project(self.noise.estimate(self.y(shape)), shape)
        return None if near is None else repeated(near, n).expand(n, *shape)

    def repaired(self, x: Tensor) -> Tensor:
        """x [n, *shape] with its impossible elements put where the measurement allows them.

        Known elements are what they are known to be, and no unit was seen that is not there.
        """
        if not isinstance(self.operator, Separable) or not isinstance(self.noise, Exact | Binomial):
            return x
        impossible = torch.isneginf(self.noise.log_prob(y := self.rows(x), x.double()))
        seen = self.operator.seen(tuple(x.shape[1:]))
        impossible = impossible if seen is None else impossible & seen.to(x.device)
        return torch.where(impossible, y.to(x.dtype), x)

    def known(self, shape: Shape) -> tuple[Tensor, Tensor] | None:
        """What is known of x exactly: y [n or 1, *shape], and where, bool [*shape]; None of any other noise."""
        if type(self.noise) is not Exact or not isinstance(self.operator, Separable):
            return None
        seen = self.operator.seen(shape)
        return self.y(shape), torch.ones(shape, dtype=torch.bool) if seen is None else seen

    def y(self, shape: Shape) -> Tensor:
        """The measurement with a first axis, [n or 1, *measured]."""
        return self._checked(self.operator.measured(shape))

    def rows(self, m: Tensor) -> Tensor:
        """The measurement of every row of m [n, *measured], [n or 1, *measured], where m is."""
        return repeated(self._checked(tuple(m.shape[1:])).to(m.device), len(m))

    def _checked(self, wanted: Shape) -> Tensor:
        y = self.measurement if self.measurement.ndim > len(wanted) else self.measurement[None]
        if tuple(y.shape[1:]) != wanted:
            raise ValueError(f"y must have shape {wanted}, not {tuple(self.measurement.shape)}")
        return y

    def thinned(self, survival: float, shape: Shape, max_count: int) -> Measured | None:
        """The problem of z whose likelihood averages to this one's over z ~ Binomial(x, survival); None if unknown."""
        if not self.operator.counting:
            return None
        full = self.operator(torch.full((1, *shape), max_count, dtype=torch.float64))
        noise = self.noise.thinned(survival, self.measurement, int(full.max()))
        return None if noise is None else replace(self, noise=noise)

    def check(self, shape: Shape, max_count: int) -> None:
        """Raise ValueError where no data of this shape, 0..max_count, could have given the measurement."""
        check_fit(self.operator, self.noise, shape, max_count)
        self.noise.check(y := self.y(shape))
        if self.operator.incidence(shape) is None:
            return
        possible = torch.zeros(len(y), y[0].numel(), dtype=torch.bool)
        for level in torch.linspace(0, max_count, min(max_count, 4096) + 1).round().unique().tolist():
            possible |= ~torch.isneginf(self.terms(torch.full((len(y), *shape), level, dtype=torch.float64)))
        if impossible := (~possible).nonzero().tolist():
            row, number = impossible[0]
            value = float(y[row].flatten()[number])
            raise ValueError(
                f"y = {value:g}, element {number} of measurement {row}, is impossible whatever the data are"
            )


_GRID = 65
"""Values of an unknown number, evenly spaced in its logarithm."""


@dataclass(frozen=True)
class Unknown:
    """A number of operator or noise that is not known, uniform in its logarithm a priori.

    Args:
        of: "operator" or "noise".
        name: of the setting.
        low, high: its ends.

    Raises:
        ValueError: they are not two positive numbers in order.
    """

    of: str
    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(f"{self.name}=unknown:{self.low:g}-{self.high:g} must be two positive numbers in order")

    @property
    def middle(self) -> float:
        """Of its logarithm."""
        return math.sqrt(self.low * self.high)

    def at(self, share: Tensor) -> Tensor:
        """Its value where `share` of the prior lies below."""
        return self.low * (self.high / self.low) ** share


@dataclass(frozen=True)
class Blind(Measured):
    """A measurement some of whose numbers are unknown: p(y | x) is the mean over their prior, by a grid of midpoints.

    So x is drawn from its own posterior, whatever draws it, and then the numbers given x: a joint draw. As a function
    of x it is a black box.

    Args:
        operator, noise: with the unknown numbers in the middle of their priors.
        unknown: one or two of them.
    """

    unknown: tuple[Unknown, ...] = ()

    def _grid(self) -> Tensor:
        """Shares of the priors, float64 [G, unknown]."""
        each = _GRID if len(self.unknown) == 1 else _GRID // 4
        shares = (torch.arange(each, dtype=torch.float64) + 0.5) / each
        return torch.cartesian_prod(*[shares] * len(self.unknown)).view(-1, len(self.unknown))

    def with_values(self, values: Sequence[float]) -> Measured:
        """The problem if these were the numbers."""
        parts = {"operator": self.operator, "noise": self.noise}
        for one, value in zip(self.unknown, values, strict=True):
            parts[one.of] = replace(parts[one.of], **{one.name: value})  # type: ignore[type-var]
        return Measured(parts["operator"], parts["noise"], self.measurement)  # type: ignore[arg-type]

    def _of_grid(self, x: Tensor) -> Tensor:
        """log p(y | x, numbers), float64 [G, n]."""
        values = torch.stack([one.at(self._grid()[:, k]) for k, one in enumerate(self.unknown)], 1)
        return torch.stack([self.with_values(row).log_likelihood(x) for row in values.tolist()])

    def terms(self, x: Tensor) -> Tensor:
        """log p(y | x), [n, 1]."""
        of_grid = self._of_grid(x)
        return (torch.logsumexp(of_grid, 0) - math.log(len(of_grid)))[:, None]

    def incidence(self, shape: Shape) -> Tensor | None:
        """All numbers depend on all elements."""
        return None

    def known(self, shape: Shape) -> None:
        """Nothing is known exactly."""

    def repaired(self, x: Tensor) -> Tensor:
        """x as it is."""
        return x

    def numbers(self, x: Tensor, source: RandomSource = None) -> dict[str, Tensor]:
        """The unknown numbers given x and y, by name, float64 [n] each: of the grid's cells, uniform within them."""
        grid = self._grid().to(x.device)
        cell = categorical(torch.softmax(self._of_grid(x.double()).T, 1), source)
        width = 1 / round(len(grid) ** (1 / len(self.unknown)))
        u = uniform((len(x), len(self.unknown)), source, x.device)
        shares = grid[cell] + (u - 0.5) * width
        return {one.name: one.at(shares[:, k]) for k, one in enumerate(self.unknown)}


def check_fit(operator: Operator, noise: Noise, shape: Shape, max_count: int) -> None:
    """Raise ValueError for an operator and a noise that do not go together, or not with such data."""
    name = type(operator).__name__
    if operator.binary and max_count != 1:
        raise ValueError(f"operator: {name} is for data of 0 and 1, not for counts up to {max_count}")
    operator.measured(shape)
    operator.seen(shape)
    if type(noise) is Exact and not isinstance(operator, Separable):
        raise ValueError(f"noise=exact leaves a chain no way to move under operator {name}: use noise=flips or poisson")
