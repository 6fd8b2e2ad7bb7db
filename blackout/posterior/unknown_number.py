"""A measurement one of whose numbers, of operator or noise, is unknown: averaged over, or drawn with the data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.posterior.noise import Noise
from blackout.posterior.operators import Shape
from blackout.posterior.problem import Measured, repeated
from blackout.random import RandomSource, categorical, uniform

_UNKNOWN = re.compile(r"unknown(?::([^-]+)-(.+))?")
_CELLS, _ZOOMS, _NEGLIGIBLE = 72, 3, 12.0
"""Of a grid over an unknown number; how often it is laid over what is not negligible, in nats, of the one before."""


@dataclass(frozen=True)
class Unknown:
    """A number of operator or noise that is not known, uniform in its logarithm a priori.

    Ours (tests/posterior/test_parts.py).

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
        """The middle of its logarithm, a number: sqrt(low high). Ours, see the class."""
        return math.sqrt(self.low * self.high)

    def at(self, share: Tensor) -> Tensor:
        """Its value where `share` of the prior lies below, of share's shape: low (high / low)^share.

        Ours, see the class.
        """
        return self.low * (self.high / self.low) ** share


@dataclass(frozen=True)
class Blind(Measured):
    """A measurement one of whose numbers is unknown: p(y | x) is the mean over its prior, by a grid of midpoints.

    So x is drawn from its own posterior, whatever draws it, and then the number given x: a joint draw. As a function of
    x it is a black box. Of numbers of the noise the grid is as fine as each x needs. Ours
    (tests/posterior/test_parts.py).

    Args:
        operator, noise: with the unknown number in the middle of its prior.
        unknown: which it is.
    """

    unknown: Unknown

    def at(self, value: float | Tensor) -> Measured:
        """The problem if this were the number; of noise it may be another one for every row, float64 [n, 1, ...]."""
        y = self.measurement
        if isinstance(value, Tensor):
            y = y if y.ndim == value.ndim else y[None]
            y = repeated(y, len(value)).expand(len(value), *y.shape[1:])
        parts = {"operator": self.operator, "noise": self.noise, "measurement": y}
        changed = replace(getattr(self, self.unknown.of), **{self.unknown.name: value})
        return Measured(**{**parts, self.unknown.of: changed})

    def _cells(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Midpoints of the grid as shares of the prior, log p(y | x, number), float64 [G, n]; a cell's width [n].

        Of data x [n, *shape]; the midpoint rule on a grid that closes in on what is not negligible. Ours, see the
        class.
        """
        of_noise = self.unknown.of == "noise"
        cells, zooms = _CELLS, _ZOOMS if of_noise else 1
        middle = torch.arange(cells, dtype=torch.float64, device=x.device)[:, None] + 0.5
        ones = [1] * len(self.operator.measured(tuple(x.shape[1:])))
        low = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        width = torch.full_like(low, 1 / cells)
        while True:
            shares, zooms = low + middle * width, zooms - 1
            values = self.unknown.at(shares)
            each = (self.at(row.view(-1, *ones) if of_noise else float(row[0])) for row in values)
            log_l = torch.stack([one.log_likelihood(x) for one in each])
            if not zooms:
                return shares, log_l, width
            near = (log_l >= log_l.amax(0) - _NEGLIGIBLE).long()
            first, end = (near.argmax(0) - 1).clamp(min=0), cells - (near.flip(0).argmax(0) - 1).clamp(min=0)
            low, width = low + first * width, (end - first) * width / cells

    def settled(self, x: Tensor | None = None, source: RandomSource = None) -> Measured:
        """The problem with a draw of the number given x for every row; without x, with its middle.

        With an unknown number of the operator, of which no row can have its own, the problem itself.
        """
        if self.unknown.of != "noise":
            return self
        ones = [1] * len(self.operator.measured(tuple(x.shape[1:]))) if x is not None else []
        return self.at(self.unknown.middle if x is None else self.number(x, source).view(-1, *ones))

    def terms(self, x: Tensor) -> Tensor:
        """log p(y | x) = log sum_g width p(y | x, number_g), float64 [n, 1] of data x [n, *shape].

        Ours, see the class.
        """
        _, log_l, width = self._cells(x)
        return (torch.logsumexp(log_l, 0) + width.log())[:, None]

    def incidence(self, shape: Shape) -> Tensor | None:
        """The number depends on all elements."""
        return None

    def known(self, shape: Shape) -> None:
        """Nothing is known exactly."""

    def with_numbers(self, x: Tensor, numbers: Tensor) -> tuple[Noise, Tensor]:
        """Noise and noiseless values [n, *measured], where every row of x has a number of its own, float64 [n]."""
        if self.unknown.of == "noise":
            m = self.operator(x)
            return self.at(numbers.view(-1, *[1] * (m.ndim - 1))).noise, m
        each = zip(x.split(1), numbers.tolist(), strict=True)
        return self.noise, torch.cat([self.at(number).operator(row) for row, number in each])

    def number(self, x: Tensor, source: RandomSource = None) -> Tensor:
        """The unknown number given x [n, *shape] and y, float64 [n]: of the grid's cells, uniform within them.

        Ours, see the class.
        """
        shares, log_l, width = self._cells(x.double())
        cell = categorical(torch.softmax(log_l.T, 1), source)
        u = uniform((len(x),), source, x.device)
        return self.unknown.at(shares.T.gather(1, cell[:, None])[:, 0] + (u - 0.5) * width)


def unknown_of(request: Mapping[str, Any]) -> tuple[dict[str, Any], Unknown | None]:
    """Operator and noise with the middle of its prior for the number that is `unknown:low-high`, and that number."""
    parts: dict[str, Any] = {}
    found: list[Unknown] = []
    for of in ("operator", "noise"):
        parts[of] = dict(request.get(of) or {})
        for name, value in parts[of].items():
            if match := _UNKNOWN.fullmatch(str(value)):
                try:
                    found.append(Unknown(of, name, *map(float, match.groups())))
                except (TypeError, ValueError):
                    raise UserError(f"{of}.{name}={value}: unknown:0.5-4 has two positive ends in order") from None
                parts[of][name] = found[-1].middle
    if len(found) > 1:
        raise UserError(f"{found[1].of}.{found[1].name}: {found[0].of}.{found[0].name} is unknown; only one may be")
    return parts, found[0] if found else None
