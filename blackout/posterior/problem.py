"""Inverse problems: a likelihood p(y | x) of measurements y.

`InverseProblem` is y = G(x) with noise. A custom likelihood only needs the protocol `Problem`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from blackout.counts import Shape
from blackout.posterior.noise import Binomial, Exact, Noise
from blackout.posterior.operators import Operator, Separable
from blackout.representation import format_fields

MAX_TESTED_LEVELS = 4096  # uniform data sets at which a measurement is tested for possibility
NUM_TESTED_EXTREMES = 32  # random data sets of 0 and max_count for the same test


@runtime_checkable
class Problem(Protocol):
    """A likelihood, all that a posterior sampler needs."""

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return log p(y | x), float64 [n], of data [n, *shape], float64 and perhaps not integers.

        It may be -inf.
        """
        ...


def repeat_rows(rows: Tensor, n: int) -> Tensor:
    """Return n rows [n, ...], row r being row r modulo their number.

    A single row is returned as it is, and broadcasts.
    """
    if len(rows) in (1, n):
        return rows
    return rows[torch.arange(n, device=rows.device) % len(rows)]


@dataclass(frozen=True)
class InverseProblem:
    """An inverse problem y = operator(x) with noise.

    Args:
        operator: G.
        noise: p(y | G(x)).
        measurement: y, float64 [*measurement] or [M, *measurement]. Row r of x belongs to row r
            modulo M of y.

    Example:
        >>> from blackout.posterior import Gaussian, Pool
        >>> problem = InverseProblem(Pool(2), Gaussian(1.0), torch.tensor([3.0, 5.0]))
        >>> problem.log_likelihood(torch.tensor([[1.0, 2.0, 5.0, 0.0]])).shape
        torch.Size([1])
    """

    operator: Operator
    noise: Noise
    measurement: Tensor

    __repr__ = format_fields

    @property
    def smooth(self) -> bool:
        """Whether the likelihood extends to real x."""
        return self.noise.smooth

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return log p(y | x), float64 [n], of data [n, *shape]: the sum of `terms`."""
        return self.terms(x).sum(1)

    def terms(self, x: Tensor) -> Tensor:
        """Return log p(y_k | x) for every element of the measurement, 0 where it is hidden.

        Args:
            x: data [n, *shape].

        Returns:
            float64 [n, K], by `Noise.log_prob`.
        """
        return self.terms_at(self.operator(x), tuple(x.shape[1:]))

    def terms_at(self, m: Tensor, shape: Shape) -> Tensor:
        """Return `terms`, float64 [n, K], from m = G(x) [n, *measurement] of data of a shape."""
        log_p = self.noise.log_prob(self.measurement_rows(m), m)
        mask = self.operator.observed_mask(shape)
        if mask is not None:
            log_p = torch.where(mask.to(m.device), log_p, 0.0)
        return log_p.flatten(1)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return which elements of x each term depends on; see `Operator.incidence`."""
        return self.operator.incidence(shape)

    def select(self, rows: Tensor, shape: Shape) -> InverseProblem:
        """Return the problem of some rows of x, int64 [m]."""
        y = self.measurements(shape)
        if len(y) == 1:
            return self
        index = rows.to(y.device) % len(y)
        return replace(self, measurement=y[index], noise=self.noise.select(index))

    def estimate(self, n: int, shape: Shape) -> Tensor | None:
        """Return real data near the measurement, float64 [n, *shape]; None where none are known."""
        m = self.noise.estimate(self.measurements(shape))
        x = self.operator.back_project(m, shape)
        return None if x is None else repeat_rows(x, n).expand(n, *shape)

    def repair(self, x: Tensor) -> Tensor:
        """Replace the elements of x [n, *shape] that contradict the measurement by its values.

        Exactly known elements get their value, and thinned ones at least what was detected.

        References: this project; checked in tests/posterior/test_problem.py.
        """
        has_values = isinstance(self.noise, Exact | Binomial)
        if not isinstance(self.operator, Separable) or not has_values:
            return x
        y = self.measurement_rows(x)
        impossible = torch.isneginf(self.noise.log_prob(y, x.double()))
        mask = self.operator.observed_mask(tuple(x.shape[1:]))
        if mask is not None:
            impossible = impossible & mask.to(x.device)
        return torch.where(impossible, y.to(x.dtype), x)

    def known_elements(self, shape: Shape) -> tuple[Tensor, Tensor] | None:
        """Return elements of x that the measurement determines exactly.

        Returns:
            y [M, *shape] and a mask, bool [*shape]; None for other operators and noises.
        """
        if type(self.noise) is not Exact or not isinstance(self.operator, Separable):
            return None
        mask = self.operator.observed_mask(shape)
        if mask is None:
            mask = torch.ones(shape, dtype=torch.bool)
        return self.measurements(shape), mask

    def measurements(self, shape: Shape) -> Tensor:
        """Return y with a batch axis, [M, *measurement], for data of a shape."""
        return self._add_batch_axis(self.operator.measurement_shape(shape))

    def measurement_rows(self, m: Tensor) -> Tensor:
        """Return y for every row of m [n, *measurement], [n or 1, *measurement], on m's device."""
        return repeat_rows(self._add_batch_axis(tuple(m.shape[1:])).to(m.device), len(m))

    def _add_batch_axis(self, measurement_shape: Shape) -> Tensor:
        y = self.measurement
        if y.ndim <= len(measurement_shape):
            y = y[None]
        if tuple(y.shape[1:]) != measurement_shape:
            shape = tuple(self.measurement.shape)
            raise ValueError(f"y must have shape {measurement_shape}, not {shape}")
        return y

    def thin(self, survival: float, shape: Shape, max_count: int) -> InverseProblem | None:
        """Return a problem of z ~ Binomial(x, survival) whose mean likelihood is this one.

        Returns:
            The problem, or None where none is known; see `Noise.thin`.

        References: this project; checked in tests/verification/posterior_claims.py.
        """
        if not self.operator.sums_elements:
            return None
        max_m = self.operator(torch.full((1, *shape), max_count, dtype=torch.float64)).max()
        noise = self.noise.thin(survival, self.measurement, int(max_m))
        return None if noise is None else replace(self, noise=noise)

    def check(self, shape: Shape, max_count: int) -> None:
        """Check that data of a shape, counts 0..max_count, could have given the measurement.

        Only uniform data and random data of 0 and `max_count` are tried.

        Raises:
            ValueError: an impossible measurement, with its first impossible element.
        """
        check_compatible(self.operator, self.noise, shape, max_count)
        y = self.measurements(shape)
        self.noise.check(y)
        if self.operator.incidence(shape) is None:
            return

        num_levels = min(max_count, MAX_TESTED_LEVELS) + 1
        levels = torch.linspace(0, max_count, num_levels).round().unique()
        uniform_data = levels.double().view(-1, *[1] * len(shape))
        # operators that measure differences of elements give 0 for uniform data
        generator = torch.Generator().manual_seed(0)
        bits = torch.randint(2, (NUM_TESTED_EXTREMES, *shape), generator=generator)
        extreme_data = max_count * bits.double()

        possible = torch.zeros(len(y), y[0].numel(), dtype=torch.bool)
        for x in (*uniform_data, *extreme_data):
            possible |= ~torch.isneginf(self.terms(x.expand(len(y), *shape)))
        impossible = (~possible).nonzero().tolist()
        if impossible:
            row, element = impossible[0]
            value = float(y[row].flatten()[element])
            raise ValueError(
                f"y = {value:g}, element {element} of measurement {row}, is impossible for all "
                f"data from 0 to {max_count}: check the operator, the noise and the units of y"
            )


def check_compatible(operator: Operator, noise: Noise, shape: Shape, max_count: int) -> None:
    """Check that an operator, a noise and data of a shape, counts 0..max_count, fit together.

    Raises:
        ValueError: they do not.
    """
    name = type(operator).__name__
    if operator.binary and max_count != 1:
        raise ValueError(f"operator: {name} needs data of 0 and 1, not counts up to {max_count}")
    operator.measurement_shape(shape)
    operator.observed_mask(shape)
    if type(noise) is Exact and not isinstance(operator, Separable):
        raise ValueError(
            f"noise=exact does not work with operator {name}, because chains cannot move: "
            "use noise=flips or noise=poisson"
        )
