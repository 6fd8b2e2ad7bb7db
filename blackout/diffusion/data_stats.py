"""Where a grid may end: sampling of pure death starts from Poisson counts, which X_T is only if little is left of it.

Of X_T the Poisson start has the mean, and no correlations. With M = diag E[X_0] and the eigenvalues c of the excess
M^-1/2 (Cov X_0 - M) M^-1/2, those that it misses cost, for Gaussian counts and to second order for all,

    KL(X_T || Poisson(q_T E[X_0])) = 1/2 sum [q_T c - log(1 + q_T c)] = q_T^2 ||c||^2 / 4 - ...,

so that the final time follows from the data: from D = Var(sum X) / E(sum X), the dispersion of the total count, and
from the norm ||c|| (`blackout.data.count_data`). The first time after 0 follows from the largest count, because the
last step makes all births that are left at once.
"""

from __future__ import annotations

import functools
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from blackout.component import Stats
from blackout.counts import LARGEST_COUNT
from blackout.diffusion.processes.base import widening
from blackout.diffusion.schedules import logit_survival
from blackout.errors import UserError, refuse

DISPERSION = 0.05
"""q_T D of a start chosen from the data: the totals of samples are then right to a quarter of a per cent."""
_CHOSEN_NATS = 0.01
_LARGEST_DISPERSION, _LARGEST_NATS, _LARGEST_LENT = 0.25, 0.05, 0.3
"""What is refused: beyond it the totals of samples would lose more than 4 % of their variance. The last one is for
kernels whose first step lends the start what it lacks (`MultistepLeap`)."""
_FIRST, _FINAL_TIME = 5.0, 15.0
"""Ends that serve counts up to 255, whatever the data."""


@dataclass(frozen=True)
class DataEnds:
    """The ends of time that data ask for.

    Args:
        total_dispersion: D.
        covariance_excess: ||c||.
        max_count: the largest count.
    """

    total_dispersion: float
    covariance_excess: float
    max_count: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> DataEnds | None:
        """From the facts in a model's description; None where they do not say, as those of exactly known laws."""
        names = ("total_dispersion", "covariance_excess", "max_count")
        return cls(*(facts[name] for name in names)) if all(name in facts for name in names) else None

    @property
    def first(self) -> float:
        """Logit of survival of the first time after 0: 5 for counts up to 255; the same few units are left beyond."""
        return _FIRST + widening(self.max_count)

    @property
    def last(self) -> float:
        """Logit of survival of the final time: q_T D at most 0.05, and the start at most 0.01 nats off."""
        survival = min(
            DISPERSION / max(self.total_dispersion, 1e-30),
            2 * math.sqrt(_CHOSEN_NATS) / max(self.covariance_excess, 1e-30),
            0.5,
        )
        return math.log(survival) - math.log1p(-survival)

    @property
    def final_time(self) -> float:
        """The same as a time, at least the paper's 15, and long enough for a grid that is symmetric in the logit."""
        return max(_FINAL_TIME, math.log1p(math.exp(-self.last)), self.first)

    @property
    def facts(self) -> dict[str, float]:
        """What grids may ask for by name: first, last and final_time."""
        return {"first": self.first, "last": self.last, "final_time": self.final_time}

    def start_nats(self, t: Tensor | float) -> float:
        """At most how far the start at a scalar t is from X_t: q^2 ||c||^2 / 4. Ours (tests/laws/test_end_laws.py)."""
        return (math.exp(-float(t)) * self.covariance_excess) ** 2 / 4

    def fits(self, t: Tensor | float, lent: bool = False) -> bool:
        """Whether samples may start at time t: at most 0.05 nats off, 0.3 where `lent`, q_T D at most 0.25."""
        close = math.exp(-float(t)) * self.total_dispersion <= _LARGEST_DISPERSION
        return close and self.start_nats(t) <= (_LARGEST_LENT if lent else _LARGEST_NATS)

    def check(self, grid: Callable[[int], Tensor], t: Tensor, where: str | None, lent: bool = False) -> None:
        """Refuse a grid that ends too early for the data.

        Args:
            grid: num_steps -> times.
            t: its final time.
            where: the name of the setting that holds the grid, for the advice; None where it holds none yet.
            lent: whether the first step lends the start what it lacks.

        Raises:
            ValueError: sampling from there would miss how the counts of a sample go together.
        """
        if self.fits(t, lent):
            return
        nats, dispersion = self.start_nats(t), math.exp(-float(t)) * self.total_dispersion
        end = float(logit_survival(torch.as_tensor(t, dtype=torch.float64)))
        raise ValueError(
            f"the grid ends at logit {end:.4g}, too early for these data: there their total count has "
            f"{1 + dispersion:.3g} times the variance of the Poisson counts that samples start from, "
            f"up to {nats:.2g} nats off; {self._remedy(grid, where)}"
        )

    def _remedy(self, grid: Callable[[int], Tensor], where: str | None) -> str:
        """Which end would do, as a setting where there is one."""
        given = grid.keywords if isinstance(grid, functools.partial) else {}
        if where is not None and "final_time" in given:
            return f"{where}.grid.final_time={math.ceil(self.final_time * 10) / 10} would do"
        if where is not None and "last" in given:
            return f"{where}.grid.last={math.floor(self.last * 10) / 10} would do"
        return f"sampler/grid=logit_data, which ends at {self.last:.4g}, would do"


def with_ends(facts: Stats) -> dict[str, Any]:
    """Facts of the data, with the ends of time that follow from them as `data_ends`, where they do."""
    ends = DataEnds.of(facts)
    return {**facts} if ends is None else {**facts, "data_ends": ends.facts}


def _whole(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _each(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is a list of such."""
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _pair(value: Any) -> bool:
    if not isinstance(value, list) or len(value) not in (3, 4):
        return False
    return all(map(_count, value[:2])) and all(map(_number, value))


_NOT_NEGATIVE = (lambda v: _number(v) and v >= 0), "a number that is finite and not negative"
_WHOLE, _WORD = (_whole, "a whole number of at least 1"), (_word, "text")
_WHOLES, _WORDS = (_each(_whole), "a list of whole numbers"), (_each(_word), "a list of text")
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "shape": (lambda v: _WHOLES[0](v) and 1 <= len(v) <= 4, _WHOLES[1]),
    "max_count": _WHOLE,
    "mean": _NOT_NEGATIVE,
    "std": _NOT_NEGATIVE,
    "total_dispersion": _NOT_NEGATIVE,
    "covariance_excess": _NOT_NEGATIVE,
    "num_classes": _WHOLE,
    "covariates": (
        lambda v: type(v) is dict and all(v.values()) and all(_each(_number)(x) or _WORDS[0](x) for x in v.values()),
        "lists of finite numbers or of words by name",
    ),
    "covariate_levels": _WHOLES,
    "label_counts": (_each(_count), _WHOLES[1]),
    "sample_shape": _WHOLES,
    "features": _WORDS,
    "class_names": _WORDS,
    "class_values": (lambda v: isinstance(v, dict) and all(map(_each(_word), v.values())), "lists of text by name"),
    "units": (lambda v: _each(_count)(v) and len(v) == 2 and _whole(v[1]), "offset and gain, two whole numbers"),
    "equal_pairs": (_each(_pair), "lists of two elements, a share and perhaps a distance"),
    "name": _WORD,
    "layer": _WORD,
}


def checked_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that components of a model may ask for by name.

    Args:
        description: of a model, perhaps from a damaged file.

    Raises:
        UserError: a fact is missing, of another kind, or none of a diffusion model's.
    """
    data = description.get("data")
    if not isinstance(data, Mapping):
        raise UserError("there is no description of the data")
    for name in ("shape", "max_count", *data):
        fits, kind = _KINDS.get(name, (lambda _: False, "left out: there is no such fact"))
        refuse(not fits(data.get(name)), f"{name} of the data must be {kind}, not {reprlib.repr(data.get(name))}")
    if any(max(pair[:2]) >= math.prod(data["shape"]) for pair in data.get("equal_pairs", [])):
        raise UserError(f"equal_pairs of the data name elements that the shape {data['shape']} does not have")
    found = description.get("calibration")
    if found is not None and not _calibrates(found):
        raise UserError(f"the calibration must be rising logits with a positive factor each, not {reprlib.repr(found)}")
    return {name: fact for name, fact in data.items() if name != "name"}


def _calibrates(given: Any) -> bool:
    """Whether these are rising logits with a positive factor each."""
    if not isinstance(given, Mapping) or given.keys() != {"logits", "factors"}:
        return False
    logits, factors = given["logits"], given["factors"]
    if not (_each(_number)(logits) and _each(_number)(factors)):
        return False
    rising = all(a < b for a, b in pairwise(logits))
    return 0 < len(logits) == len(factors) and rising and min(factors) > 0
