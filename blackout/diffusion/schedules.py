"""Observation times and sampling grids, and how dark the last time has to be for given data.

All in float64 and built from the logit u = log(q / (1 - q)) of the survival probability q = e^-t, because q and 1 - q
are both needed to full relative precision: t = softplus(-u). A grid is a tensor `times` [T + 1], increasing from
times[0] = 0.

Where a grid may end, data say. Sampling of pure death starts from Poisson counts, which have the mean of X_T and no
correlations. With M = diag E[X_0] and the eigenvalues c of the excess M^-1/2 (Cov X_0 - M) M^-1/2, those that they
miss cost, for Gaussian counts and to second order for all,

    KL(X_T || Poisson(q_T E[X_0])) = 1/2 sum [q_T c - log(1 + q_T c)] = q_T^2 ||c||^2 / 4 - ...,

so that the final time follows from D = Var(sum X) / E(sum X), the dispersion of the total count, and from the norm
||c|| (`blackout.data.count_statistics`). The first time after 0 follows from the largest count, because the last step
makes all births that are left at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.component import Stats, component
from blackout.errors import ensure

DISPERSION = 0.05
"""q_T D of a start chosen from the data: the totals of samples are then right to a quarter of a per cent."""
_CHOSEN_NATS = 0.01
MAX_DISPERSION = 0.25  # of q_T D; beyond, totals of samples lose more than 4 % of their variance
MAX_START_NATS = 0.05  # error of a Poisson start that no step corrects
_FIRST, _FINAL_TIME = 5.0, 15.0
"""Ends that serve counts up to 255, whatever the data."""
_NEARLY_NOTHING = -7.0
"""Logit of survival at which every process has forgotten nearly everything."""


def logit_survival(t: Tensor) -> Tensor:
    """u = logit(e^-t) = -log(e^t - 1), of t's shape and dtype; +inf at t = 0 [Santos 2023, eq. 59]."""
    return -(t + torch.log(-torch.expm1(-t)))


def time_of_logit(u: Tensor) -> Tensor:
    """t = softplus(-u) = log(1 + e^-u), of u's shape, the inverse of `logit_survival` [Santos 2023, eq. 60]."""
    return torch.logaddexp(-u, torch.zeros_like(u))


def step_fraction(s: Tensor, t: Tensor) -> Tensor:
    """The probability that a unit missing at t was still there at s < t; exactly 1 at s = 0.

    r = (e^-s - e^-t) / (1 - e^-t), of the shape that s and t broadcast to [Santos 2023, appendix D, below eq. 54].
    """
    return torch.exp(-s) * torch.expm1(s - t) / torch.expm1(-t)


def missing_fraction(s: Tensor, t: Tensor) -> Tensor:
    """Return the probability that a unit missing at t was missing at s < t already; 0 at s = 0.

    It is 1 - `step_fraction` to full relative precision, (1 - e^-s) / (1 - e^-t), of the shape that s
    and t broadcast to.

    References: Santos et al. 2023, eq. 12.
    """
    return torch.expm1(-s) / torch.expm1(-t)


def reverse_clock(t: Tensor) -> Tensor:
    """tau = -log(1 - e^-t), in which every missing unit comes back at rate 1; +inf at t = 0. Its own inverse.

    Of t's shape; it integrates the rate of one missing unit over time [Santos 2023, eq. 9].
    """
    return -torch.where(t < math.log(2), torch.log(-torch.expm1(-t)), torch.log1p(-torch.exp(-t)))


def half_width(final_time: float) -> float:
    """L = logit(1 - e^-final_time) = log(e^final_time - 1): the grid spans u in [-L, L] [Santos 2023, eq. 60]."""
    return final_time + math.log(-math.expm1(-final_time))


def check_range(between: Sequence[float] | None, name: str) -> None:
    """Raises ValueError unless `between` is None or two numbers in order."""
    if between is not None and not (len(between) == 2 and between[0] < between[1]):
        raise ValueError(f"{name} must be two logits of survival, the lower one first, not {list(between)}")


def in_range(between: Sequence[float] | None, t: float) -> bool:
    """Whether the logit of survival at time t, a number, lies in the range; None is everything.

    See `logit_survival`.
    """
    return between is None or between[0] <= float(logit_survival(torch.tensor(t, dtype=torch.float64))) <= between[1]


def widening(max_count: int) -> float:
    """By how much the ends of time move out for counts beyond 255: log(max_count / 255), or 0, a number.

    Ours (tests/verification/test_end_laws.py).
    """
    return max(0.0, math.log(max_count / 255))


@dataclass(frozen=True)
class DataEnds:
    """The ends of time that data ask for. Ours (tests/verification/test_end_laws.py). The ends are floats.

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
        """Logit of survival of the first time after 0: 5 for counts up to 255; the same few units are left beyond.

        A float; ours, see the class.
        """
        return _FIRST + widening(self.max_count)

    @property
    def last(self) -> float:
        """Logit of survival of the final time: q_T D at most 0.05, and the start at most 0.01 nats off.

        A float; ours, see the class.
        """
        survival = min(
            DISPERSION / max(self.total_dispersion, 1e-30),
            2 * math.sqrt(_CHOSEN_NATS) / max(self.covariance_excess, 1e-30),
            0.5,
        )
        return math.log(survival) - math.log1p(-survival)

    @property
    def final_time(self) -> float:
        """`last` as a time, at least the paper's 15, and long enough for a grid that is symmetric in the logit.

        A float; ours, see the class.
        """
        return max(_FINAL_TIME, math.log1p(math.exp(-self.last)), self.first)

    def start_nats(self, t: Tensor | float) -> float:
        """At most how far the start at a scalar t is from X_t: q^2 ||c||^2 / 4.

        Ours (tests/verification/test_end_laws.py).
        """
        return (math.exp(-float(t)) * self.covariance_excess) ** 2 / 4

    def earliest_time(self, max_nats: float = MAX_START_NATS) -> float:
        """Return the earliest final time at which a Poisson start is accurate enough.

        There q_T D is at most 0.25, and the start at most `max_nats` off.

        References: this project; checked in tests/verification/test_end_laws.py.
        """
        largest_survival = min(
            MAX_DISPERSION / max(self.total_dispersion, 1e-30),
            2 * math.sqrt(max_nats) / max(self.covariance_excess, 1e-30),
            1.0,
        )
        return -math.log(largest_survival)

    def check(self, t: Tensor, earliest: float | None = None) -> None:
        """Refuse a final time that is too early for the data.

        Args:
            t: final time of a grid.
            earliest: the earliest time that is accurate enough; None for `earliest_time()`.

        Raises:
            ValueError: samples that start there would lack correlations within a sample.
        """
        if float(t) >= (self.earliest_time() if earliest is None else earliest):
            return
        nats, dispersion = self.start_nats(t), math.exp(-float(t)) * self.total_dispersion
        end = float(logit_survival(torch.as_tensor(t, dtype=torch.float64)))
        raise ValueError(
            f"the grid ends at logit {end:.4g}, too early for these data: there their total count has "
            f"{1 + dispersion:.3g} times the variance of the Poisson counts that samples start from, "
            f"up to {nats:.2g} nats off; last={math.floor(self.last * 10) / 10} of the grid, or "
            f"final_time={math.ceil(self.final_time * 10) / 10}, or sampler/grid=logit_data would do"
        )


def with_ends(facts: Stats) -> dict[str, Any]:
    """Facts of the data, with the ends of time that follow from them as `data_ends`, where they do."""
    ends = DataEnds.of(facts)
    if ends is None:
        return {**facts}
    return {**facts, "data_ends": {"first": ends.first, "last": ends.last, "final_time": ends.final_time}}


def ends_of_data(given: Mapping[str, Any], stats: Stats) -> dict[str, float]:
    """`first`, `last` and `final_time` where they are null: the data's, see `DataEnds`."""
    known = stats.get("data_ends", {})
    return {name: end for name, end in known.items() if name in given and given[name] is None}


def times_of_data(given: Mapping[str, Any], stats: Stats) -> dict[str, float]:
    """What is null of `logistic_times`: where counts of this size take shape.

    Ours (tests/diffusion/test_schedules.py).

    From survival of about one unit, q E[X^2] / E[X] = 1, to nearly all.
    """
    known = stats.get("data_ends")
    if known is None or not stats["mean"] > 0:
        return ends_of_data(given, stats)
    biased = math.log1p(stats["mean"] + stats["std"] ** 2 / stats["mean"])
    chosen = {
        "first": known["first"] + 1,
        "last": min(known["last"], _NEARLY_NOTHING),
        "location": -biased / 2,
        "scale": 1 + biased / 5,
    }
    return {name: value for name, value in chosen.items() if name in given and given[name] is None}


@component(passed=("grid",), called=("num_steps",), from_stats=ends_of_data)
def fisher_times(num_steps: int = 1000, final_time: float = 15.0) -> Tensor:
    """The paper's grid, uniform in u and so in Fisher information: u_k = L (1 - 2 (k - 1) / (T - 1)).

    [Santos 2023, eqs. 56 to 60.]

    Args:
        num_steps: T.
        final_time: times[T].

    Returns:
        float64 [T + 1], times[0] = 0, times[T] = final_time.

    Raises:
        ValueError: num_steps < 1, or final_time <= log 2 (the grid would not be increasing).
    """
    good = math.log(2) < final_time < math.inf
    ensure(good, f"final_time must be finite and above log 2 = 0.693 for the Fisher grid, not {final_time}")
    limit = half_width(final_time)
    return logit_times(num_steps, limit, -limit)


@component(passed=("grid",), called=("num_steps",), from_stats=ends_of_data)
def logit_times(num_steps: int, first: float = 5.0, last: float = -8.0) -> Tensor:
    """Uniform in u from `first` (the first time after 0) down to `last` (the final time). float64 [T + 1].

    [Santos 2023, eq. 60] between any two ends.
    """
    _check(num_steps)
    ensure(first > last, f"the logit must fall along the grid: first = {first} is not above last = {last}")
    u = torch.linspace(first, last, num_steps, dtype=torch.float64)
    u[-1] = last  # of a single step, too
    return torch.cat([torch.zeros(1, dtype=torch.float64), time_of_logit(u)])


@component(passed=("grid",), called=("num_steps",), from_stats=times_of_data)
def logistic_times(
    num_steps: int = 1000,
    first: float = 6.0,
    last: float = -7.0,
    location: float = -1.0,
    scale: float = 1.3,
    floor: float = 0.1,
) -> Tensor:
    """Denser where images take shape: u follows a truncated logistic distribution, mixed with a uniform floor.

    Ours (tests/diffusion/test_schedules.py).

    As a training schedule this is importance sampling: the weights of its short steps shrink as its density grows.

    Args:
        num_steps: T.
        first, last: u of the first time after 0 and of the final time.
        location, scale: centre and width of the logistic distribution of u.
        floor: share of the uniform distribution in the mixture.

    Returns:
        float64 [T + 1].

    Raises:
        ValueError: first <= last, scale not positive, or floor outside (0, 1].
    """
    _check(num_steps)
    if not first > last or not scale > 0 or not 0 < floor <= 1:
        raise ValueError(f"need first > last, scale > 0 and floor in (0, 1], not {first}, {last}, {scale}, {floor}")
    fine = torch.linspace(last, first, 20_001, dtype=torch.float64)
    logistic = torch.sigmoid((fine - location) / scale)
    logistic = (logistic - logistic[0]) / (logistic[-1] - logistic[0])
    mixture = (1 - floor) * logistic + floor * (fine - last) / (first - last)
    share = torch.linspace(1.0, 0.0, num_steps, dtype=torch.float64) if num_steps > 1 else torch.zeros(1).double()
    u = torch.from_numpy(np.interp(share.numpy(), mixture.numpy(), fine.numpy()))
    return torch.cat([torch.zeros(1, dtype=torch.float64), time_of_logit(u)])


@component(passed=("grid",), called=("num_steps",))
def step_times(num_steps: int, length: int) -> Tensor:
    """The steps 0..length of a chain in discrete time, or as evenly spaced ones of them as there are num_steps.

    Ours (tests/diffusion/test_schedules.py).

    Returns:
        float64 [T + 1], whole numbers.

    Raises:
        ValueError: more steps than the chain has.
    """
    _check(num_steps)
    ensure(num_steps <= length, f"the chain has {length} steps, so num_steps can be at most that, not {num_steps}")
    return torch.linspace(0, length, num_steps + 1, dtype=torch.float64).round()


def _check(num_steps: int) -> None:
    ensure(num_steps >= 1, f"num_steps must be at least 1, not {num_steps}")


@component("schedule")
@dataclass(frozen=True)
class Schedule:
    """How training times are drawn, and which grid a sampler follows unless it has its own.

    Args:
        grid: num_steps -> times [num_steps + 1].
        num_steps: T of the training grid.
        continuous: draw times between the grid's points too, uniformly along it, linear in u between neighbours.

    Raises:
        ValueError: a grid that does not increase from 0, or continuous times of a single step.
    """

    grid: Callable[[int], Tensor] = fisher_times
    num_steps: int = 1000
    continuous: bool = False
    _copies: dict[torch.device, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.continuous and self.num_steps < 2:
            raise ValueError(f"continuous times need num_steps of at least 2, not {self.num_steps}")
        ensure(self.times[0] == 0 and (self.times.diff() > 0).all(), "a grid of times must start at 0 and increase")

    @cached_property
    def times(self) -> Tensor:
        """The grid, float64 [T + 1]."""
        return self.grid(self.num_steps)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The grid, and logits of its times after 0: copied once, since copies are waited for."""
        if device not in self._copies:
            times = self.times.to(device)
            self._copies[device] = times, logit_survival(times[1:])
        return self._copies[device]

    def intervals(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Map uniforms v in [0, 1) to intervals (s, t): t is where to observe, s one grid step earlier.

        On the grid, k = 1 + floor(T v) and (s, t) = (t_{k-1}, t_k). Between its points, t sits at position 1 + (T - 1)
        v along the grid and s one position before, so the same loss weights apply. On the grid it is
        [Santos 2023, Algorithm 1], between its points ours (tests/diffusion/test_schedules.py).

        Args:
            v: float64 [B].

        Returns:
            s, t: float64 [B] on v's device.
        """
        times, u = self._on(v.device)
        if not self.continuous:
            k = 1 + (v * self.num_steps).long().clamp_(max=self.num_steps - 1)
            return times[k - 1], times[k]
        position = v * (self.num_steps - 1)
        return time_of_logit(_along(u, position - 1)), time_of_logit(_along(u, position))


def _along(u: Tensor, position: Tensor) -> Tensor:
    """Linear interpolation of u [T] at positions [B], extrapolated below 0 with the first spacing: [B].

    Ours, as in `Schedule.intervals`.
    """
    lower = position.floor().long().clamp_(0, len(u) - 2)
    return u[lower] + (position - lower) * (u[lower + 1] - u[lower])


def stratified(position: Tensor, batch_size: int, offset: Tensor) -> Tensor:
    """v_b = (b + U) / B: one uniform number per batch spreads its samples evenly over the times.

    As in [Kingma 2021, appendix I.1]. It spreads them and does not change their distribution.

    Args:
        position: int64 [b], index of each sample in the global batch, so that ranks share one stratification.
        batch_size: B, of the global batch.
        offset: float64 scalar U in (0, 1).

    Returns:
        float64 [b] in [0, 1).
    """
    return (position + offset) / batch_size
