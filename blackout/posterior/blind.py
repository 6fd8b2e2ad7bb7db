"""Blind inverse problems: one parameter of the operator or the noise is unknown.

It is integrated out of the likelihood, or drawn together with the data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blackout.counts import Shape
from blackout.errors import UserError
from blackout.posterior.noise import Noise
from blackout.posterior.problem import InverseProblem, repeat_rows
from blackout.random import RandomSource, categorical, uniform
from blackout.representation import format_fields

UNKNOWN_SETTING = re.compile(r"unknown(?::([^-]+)-(.+))?")
NUM_CELLS = 72  # of the grid over the unknown parameter
NUM_GRIDS = 3  # for parameters of the noise, each over the relevant part of the one before
RELEVANT_NATS = 12.0  # values within this distance of the maximum of log p(y | x) are relevant


@dataclass(frozen=True)
class UnknownParameter:
    """An unknown parameter, log-uniform between two values a priori.

    Args:
        component: "operator" or "noise".
        name: of the parameter.
        low: smallest value, positive.
        high: largest value.

    Raises:
        ValueError: values that are not 0 < low < high.

    References: this project; checked in tests/posterior/test_blind.py.
    """

    component: str
    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(
                f"{self.name}=unknown:{self.low:g}-{self.high:g} must have two positive numbers, "
                "the smaller one first"
            )

    @property
    def median(self) -> float:
        """The median of the prior, sqrt(low high); see the class."""
        return math.sqrt(self.low * self.high)

    def quantile(self, probability: Tensor) -> Tensor:
        """Return quantiles of the prior, low (high / low)^probability, of the shape of its input.

        See the class.
        """
        return self.low * (self.high / self.low) ** probability


@dataclass(frozen=True)
class BlindProblem(InverseProblem):
    """An inverse problem with an unknown parameter, integrated out: p(y | x) = E[p(y | x, value)].

    The expectation over the prior is a sum over midpoints of a grid. Any sampler can draw x from
    its own posterior, and `draw_value` then draws the parameter given x, so that both together are
    a joint draw. As a function of x the likelihood is a black box. For parameters of the noise the
    grid is refined for each x.

    Args:
        operator: with the median of an unknown parameter.
        noise: with the median of an unknown parameter.
        measurement: see `InverseProblem`.
        unknown: the parameter.

    References: this project; checked in tests/posterior/test_blind.py.
    """

    unknown: UnknownParameter

    __repr__ = format_fields

    def with_value(self, value: float | Tensor) -> InverseProblem:
        """Return the problem for a known value of the parameter.

        Args:
            value: one number, or, for a parameter of the noise, one for every row of x,
                float64 [n, 1, ...].
        """
        y = self.measurement
        if isinstance(value, Tensor):
            if y.ndim != value.ndim:
                y = y[None]
            y = repeat_rows(y, len(value)).expand(len(value), *y.shape[1:])
        operator = self.operator
        noise = self.noise
        change = {self.unknown.name: value}
        if self.unknown.component == "operator":
            operator = replace(operator, **change)  # type: ignore[type-var]
        else:
            noise = replace(noise, **change)  # type: ignore[type-var]
        return InverseProblem(operator, noise, y)

    def _row_shape(self, x: Tensor) -> tuple[int, ...]:
        """Return the shape in which one value per row of x broadcasts with measurements."""
        return (-1, *[1] * len(self.operator.measurement_shape(tuple(x.shape[1:]))))

    def _grid(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate the likelihood of data x [n, *shape] on a grid over the prior of the parameter.

        Returns:
            Midpoints as probabilities of the prior, float64 [G, n]; log p(y | x, value),
            float64 [G, n]; width of the cells, float64 [n].

        References: midpoint rule; see the class.
        """
        is_noise = self.unknown.component == "noise"
        midpoints = torch.arange(NUM_CELLS, dtype=torch.float64, device=x.device)[:, None] + 0.5
        low = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        width = torch.full_like(low, 1 / NUM_CELLS)
        num_grids_left = NUM_GRIDS if is_noise else 1
        while True:
            # 1. Evaluate all cells.
            probability = low + midpoints * width
            log_likelihoods = []
            for values in self.unknown.quantile(probability):
                value = values.view(self._row_shape(x)) if is_noise else float(values[0])
                log_likelihoods.append(self.with_value(value).log_likelihood(x))
            log_likelihood = torch.stack(log_likelihoods)
            num_grids_left -= 1
            if not num_grids_left:
                return probability, log_likelihood, width

            # 2. Lay the next grid over the relevant cells and one cell on each side.
            relevant = (log_likelihood >= log_likelihood.amax(0) - RELEVANT_NATS).long()
            first = (relevant.argmax(0) - 1).clamp(min=0)
            end = NUM_CELLS - (relevant.flip(0).argmax(0) - 1).clamp(min=0)
            low = low + first * width
            width = (end - first) * width / NUM_CELLS

    def with_prior_median(self) -> InverseProblem:
        """Return the problem with the prior median of a parameter of the noise.

        For a parameter of the operator, return the blind problem itself.
        """
        if self.unknown.component != "noise":
            return self
        return self.with_value(self.unknown.median)

    def with_posterior_draw(self, x: Tensor, source: RandomSource = None) -> InverseProblem:
        """Return the problem with a draw of a parameter of the noise given every row of x.

        For a parameter of the operator, which cannot differ between rows, return the blind problem
        itself.
        """
        if self.unknown.component != "noise":
            return self
        return self.with_value(self.draw_value(x, source).view(self._row_shape(x)))

    def terms(self, x: Tensor) -> Tensor:
        """Return log p(y | x) = log sum_g width p(y | x, value_g), float64 [n, 1].

        See the class.
        """
        _, log_likelihood, width = self._grid(x)
        return (torch.logsumexp(log_likelihood, 0) + width.log())[:, None]

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return None: integrating the parameter out couples all elements."""
        return None

    def known_elements(self, shape: Shape) -> None:
        """Return None: no element is known exactly."""

    def with_row_values(self, x: Tensor, values: Tensor) -> tuple[Noise, Tensor]:
        """Return noise and noiseless values for one value of the parameter per row of x.

        Args:
            x: data [n, *shape].
            values: float64 [n].

        Returns:
            The noise, and m [n, *measurement].
        """
        if self.unknown.component == "noise":
            m = self.operator(x)
            return self.with_value(values.view(-1, *[1] * (m.ndim - 1))).noise, m
        rows = zip(x.split(1), values.tolist(), strict=True)
        return self.noise, torch.cat([self.with_value(value).operator(row) for row, value in rows])

    def draw_value(self, x: Tensor, source: RandomSource = None) -> Tensor:
        """Draw the parameter given x [n, *shape] and y, float64 [n].

        A cell of the grid is drawn by its likelihood, then a point in it uniformly; see the class.
        """
        probability, log_likelihood, width = self._grid(x.double())
        cell = categorical(torch.softmax(log_likelihood.T, 1), source)
        u = uniform((len(x),), source, x.device)
        midpoint = probability.T.gather(1, cell[:, None])[:, 0]
        return self.unknown.quantile(midpoint + (u - 0.5) * width)


def parse_unknown(
    request: Mapping[str, Any],
) -> tuple[dict[str, dict[str, Any]], UnknownParameter | None]:
    """Replace `unknown:low-high` in the settings of operator and noise by the prior median.

    Args:
        request: settings with `operator` and `noise`.

    Returns:
        Settings of `operator` and `noise`, and the unknown parameter or None.

    Raises:
        UserError: more than one unknown parameter, or a range that is not two positive numbers.
    """
    settings: dict[str, dict[str, Any]] = {}
    unknown: UnknownParameter | None = None
    for component in ("operator", "noise"):
        settings[component] = dict(request.get(component) or {})
        for name, value in settings[component].items():
            match = UNKNOWN_SETTING.fullmatch(str(value))
            if match is None:
                continue
            try:
                parameter = UnknownParameter(component, name, *map(float, match.groups()))
            except (TypeError, ValueError):  # no range, no numbers, or not in order
                raise UserError(
                    f"{component}.{name}={value}: unknown must be followed by two positive "
                    "numbers, the smaller one first, such as unknown:0.5-4"
                ) from None
            if unknown is not None:
                raise UserError(
                    f"{component}.{name} and {unknown.component}.{unknown.name} are both unknown; "
                    "only one parameter may be"
                )
            settings[component][name] = parameter.median
            unknown = parameter
    return settings, unknown
