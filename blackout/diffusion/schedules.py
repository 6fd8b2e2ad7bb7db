"""Observation times and sampling grids, and the final time that data need.

All are float64 and built from the logit u = log(q / (1 - q)) of the survival probability q = e^-t,
because q and 1 - q are both needed to full relative precision: t = softplus(-u). A grid is a tensor
`times` [T + 1], increasing from times[0] = 0.

    fisher_times      uniform in u between symmetric ends: the paper's grid
    logit_times       uniform in u between any ends
    logistic_times    denser in u where images take shape
    step_times        steps of a chain in discrete time
    Schedule          draws training times from a grid
    DataEnds          first and final time by the data

Where a grid may end depends on the data. Sampling of pure death starts from Poisson counts, which
have the mean of X_T and no correlations. With M = diag E[X_0] and the eigenvalues c of the excess
M^-1/2 (Cov X_0 - M) M^-1/2, the error of this start is, for Gaussian counts and to second order for
all,

    KL(X_T || Poisson(q_T E[X_0])) = 1/2 sum [q_T c - log(1 + q_T c)] = q_T^2 ||c||^2 / 4 - ...,

so that the final time follows from D = Var(sum X) / E(sum X), the dispersion of the total count,
and from the norm ||c|| (`blackout.data.count_statistics`). The first time after 0 follows from the
largest count, because the last step makes all births that are left at once.

References: Santos et al. 2023, eqs. 56 to 60, for the logit and the paper's grid; the ends by the
    data are this project's, checked in tests/verification/test_time_grid_ends.py.
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
from blackout.representation import format_fields

DISPERSION = 0.05  # q_T D of a chosen final time; totals are then right to a quarter of a per cent
START_NATS = 0.01  # error of a Poisson start at a chosen final time
MAX_DISPERSION = 0.25  # of q_T D; beyond, totals of samples lose more than 4 % of their variance
MAX_START_NATS = 0.05  # error of a Poisson start that no step corrects
FIRST_LOGIT = 5.0  # of the first time after 0, for counts up to 255
FINAL_TIME = 15.0  # of the paper, for counts up to 255 whatever the data
FORGOTTEN_LOGIT = -7.0  # of survival, at which every process has forgotten nearly everything
INTERPOLATION_POINTS = 20_001  # of the distribution function that `logistic_times` inverts


def logit_survival(t: Tensor) -> Tensor:
    """Return u = logit(e^-t) = -log(e^t - 1), of t's shape and dtype; +inf at t = 0.

    References: Santos et al. 2023, eq. 59.
    """
    return -(t + torch.log(-torch.expm1(-t)))


def time_of_logit(u: Tensor) -> Tensor:
    """Return t = softplus(-u) = log(1 + e^-u), of u's shape: the inverse of `logit_survival`.

    References: Santos et al. 2023, eq. 60.
    """
    return torch.logaddexp(-u, torch.zeros_like(u))


def step_fraction(s: Tensor, t: Tensor) -> Tensor:
    """Return the probability that a unit missing at t was still there at s < t; exactly 1 at s = 0.

    r = (e^-s - e^-t) / (1 - e^-t), of the shape that s and t broadcast to.

    References: Santos et al. 2023, eq. 12 and appendix D, below eq. 54.
    """
    return torch.exp(-s) * torch.expm1(s - t) / torch.expm1(-t)


def missing_fraction(s: Tensor, t: Tensor) -> Tensor:
    """Return the probability that a unit missing at t was missing at s < t already; 0 at s = 0.

    It is 1 - `step_fraction` to full relative precision, (1 - e^-s) / (1 - e^-t), of the shape that
    s and t broadcast to.

    References: Santos et al. 2023, eq. 12.
    """
    return torch.expm1(-s) / torch.expm1(-t)


def reverse_clock(t: Tensor) -> Tensor:
    """Return tau = -log(1 - e^-t), in which every missing unit comes back at rate 1.

    It is +inf at t = 0, of t's shape, and its own inverse: the integral of one missing unit's rate.

    References: Santos et al. 2023, eq. 9.
    """
    log_decay = torch.where(
        t < math.log(2), torch.log(-torch.expm1(-t)), torch.log1p(-torch.exp(-t))
    )
    return -log_decay


def half_width(final_time: float) -> float:
    """Return L = logit(1 - e^-final_time) = log(e^final_time - 1): a grid spans u in [-L, L].

    References: Santos et al. 2023, eq. 60.
    """
    return final_time + math.log(-math.expm1(-final_time))


def check_range(between: Sequence[float] | None, name: str) -> None:
    """Raise ValueError unless `between` is None or two numbers in order."""
    if between is not None and not (len(between) == 2 and between[0] < between[1]):
        raise ValueError(
            f"{name} must be two logits of survival, the lower one first, not {list(between)}"
        )


def in_range(between: Sequence[float] | None, t: float) -> bool:
    """Return whether the logit of survival at time t lies in a range; None is everything."""
    if between is None:
        return True
    logit = float(logit_survival(torch.tensor(t, dtype=torch.float64)))
    return between[0] <= logit <= between[1]


# --- ends of a grid by the data


def extra_logits(max_count: int) -> float:
    """Return how far both ends of a grid move out for counts beyond 255, in logits of survival.

    It is log(max_count / 255), and 0 up to 255.

    References: this project; checked in tests/verification/test_time_grid_ends.py.
    """
    return max(0.0, math.log(max_count / 255))


@dataclass(frozen=True)
class DataEnds:
    """First and final time of a grid, by statistics of the data.

    References: this project; checked in tests/verification/test_time_grid_ends.py.

    Args:
        total_dispersion: D.
        covariance_excess: ||c||.
        max_count: the largest count.
    """

    total_dispersion: float
    covariance_excess: float
    max_count: int

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> DataEnds | None:
        """Return the ends from facts in a model's description; None if one is missing."""
        names = ("total_dispersion", "covariance_excess", "max_count")
        if any(name not in facts for name in names):
            return None
        return cls(*(facts[name] for name in names))

    @property
    def first(self) -> float:
        """Logit of survival of the first time after 0: 5 for counts up to 255.

        Beyond, as few units are left there.
        """
        return FIRST_LOGIT + extra_logits(self.max_count)

    @property
    def last(self) -> float:
        """Logit of survival of the final time: q_T D <= 0.05, and a start at most 0.01 nats off."""
        survival = min(
            DISPERSION / max(self.total_dispersion, 1e-30),
            2 * math.sqrt(START_NATS) / max(self.covariance_excess, 1e-30),
            0.5,
        )
        return math.log(survival) - math.log1p(-survival)

    @property
    def final_time(self) -> float:
        """`last` as a time, at least 15, and late enough for a grid symmetric in the logit."""
        return max(FINAL_TIME, math.log1p(math.exp(-self.last)), self.first)

    def start_nats(self, t: Tensor | float) -> float:
        """Return a bound on the error of a Poisson start at a scalar t, q^2 ||c||^2 / 4 nats."""
        return (math.exp(-float(t)) * self.covariance_excess) ** 2 / 4

    def earliest_time(self, max_nats: float = MAX_START_NATS) -> float:
        """Return the earliest final time at which a Poisson start is accurate enough.

        There q_T D is at most 0.25, and the start at most `max_nats` off.
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
        earliest = self.earliest_time() if earliest is None else earliest
        if float(t) >= earliest:
            return
        nats = self.start_nats(t)
        dispersion = math.exp(-float(t)) * self.total_dispersion
        end = float(logit_survival(torch.as_tensor(t, dtype=torch.float64)))
        raise ValueError(
            f"the grid ends at logit {end:.4g}, too early for these data: there their total count "
            f"has {1 + dispersion:.3g} times the variance of the Poisson counts that samples start "
            f"from, up to {nats:.2g} nats off: use last={math.floor(self.last * 10) / 10} of the "
            f"grid, final_time={math.ceil(self.final_time * 10) / 10}, or sampler/grid=logit_data"
        )


def add_data_ends(facts: Stats) -> dict[str, Any]:
    """Return facts of the data with `data_ends`, the ends of time that follow from them, if any."""
    ends = DataEnds.from_facts(facts)
    if ends is None:
        return {**facts}
    data_ends = {"first": ends.first, "last": ends.last, "final_time": ends.final_time}
    return {**facts, "data_ends": data_ends}


def choose_ends(settings: Mapping[str, Any], stats: Stats) -> dict[str, float]:
    """Return `first`, `last` and `final_time` where the settings leave them to the data."""
    ends = stats.get("data_ends", {})
    return _choices_for_null(settings, ends)


def choose_logistic_times(settings: Mapping[str, Any], stats: Stats) -> dict[str, float]:
    """Return arguments of `logistic_times` where the settings leave them to the data.

    The grid is dense where counts of this size take shape: from survival of about one unit,
    q E[X^2] / E[X] = 1, to nearly all. That is from u = -log(1 + E[X^2] / E[X]) to u = 0, of which
    `location` is the middle. `scale` is 1, as survival of a unit is a logistic function of u, and a
    fifth of that range. Both are settings of the schedule.

    References: this project; checked in tests/diffusion/test_schedules.py.
    """
    ends = stats.get("data_ends")
    if ends is None or not stats["mean"] > 0:
        return choose_ends(settings, stats)
    log_size = math.log1p(stats["mean"] + stats["std"] ** 2 / stats["mean"])
    choices = {
        "first": ends["first"] + 1,
        "last": min(ends["last"], FORGOTTEN_LOGIT),
        "location": -log_size / 2,
        "scale": 1 + log_size / 5,
    }
    return _choices_for_null(settings, choices)


def _choices_for_null(
    settings: Mapping[str, Any], choices: Mapping[str, float]
) -> dict[str, float]:
    """Return the choices for those settings that are there and null."""
    return {
        name: value
        for name, value in choices.items()
        if name in settings and settings[name] is None
    }


# --- grids


@component(passed=("grid",), called=("num_steps",), from_stats=choose_ends)
def fisher_times(num_steps: int = 1000, final_time: float = 15.0) -> Tensor:
    """Return the paper's grid, uniform in u and so in Fisher information.

    u_k = L (1 - 2 (k - 1) / (T - 1)).

    References: Santos et al. 2023, eqs. 56 to 60.

    Args:
        num_steps: T.
        final_time: times[T].

    Returns:
        float64 [T + 1], times[0] = 0, times[T] = final_time.

    Raises:
        ValueError: num_steps < 1, or final_time <= log 2 (the grid would not increase).

    Example:
        >>> [round(t, 3) for t in fisher_times(4).tolist()]
        [0.0, 0.0, 0.007, 5.007, 15.0]
    """
    ensure(
        math.log(2) < final_time < math.inf,
        f"final_time must be finite and above log 2 = 0.693 for the Fisher grid, not {final_time}",
    )
    limit = half_width(final_time)
    return logit_times(num_steps, limit, -limit)


@component(passed=("grid",), called=("num_steps",), from_stats=choose_ends)
def logit_times(num_steps: int, first: float = 5.0, last: float = -8.0) -> Tensor:
    """Return times that are uniform in u.

    References: Santos et al. 2023, eq. 60, between any two ends.

    Args:
        num_steps: T.
        first: u of the first time after 0.
        last: u of the final time.

    Returns:
        float64 [T + 1].

    Raises:
        ValueError: num_steps < 1, or first <= last.
    """
    _check_num_steps(num_steps)
    ensure(
        first > last,
        f"the logit must fall along the grid: first = {first} is not above last = {last}",
    )
    u = torch.linspace(first, last, num_steps, dtype=torch.float64)
    u[-1] = last  # a single step ends there, too
    return torch.cat([torch.zeros(1, dtype=torch.float64), time_of_logit(u)])


@component(passed=("grid",), called=("num_steps",), from_stats=choose_logistic_times)
def logistic_times(
    num_steps: int = 1000,
    first: float = 6.0,
    last: float = -7.0,
    location: float = -1.0,
    scale: float = 1.3,
    floor: float = 0.1,
) -> Tensor:
    """Return times that are denser where images take shape.

    u follows a truncated logistic distribution, mixed with a uniform floor. As a training schedule
    this is importance sampling: the weights of its short steps shrink as its density grows.

    References: this project; checked in tests/diffusion/test_schedules.py.

    Args:
        num_steps: T.
        first: u of the first time after 0.
        last: u of the final time.
        location: centre of the logistic distribution of u.
        scale: width of the logistic distribution of u.
        floor: share of the uniform distribution in the mixture.

    Returns:
        float64 [T + 1].

    Raises:
        ValueError: first <= last, scale not positive, or floor outside (0, 1].
    """
    _check_num_steps(num_steps)
    if not first > last or not scale > 0 or not 0 < floor <= 1:
        raise ValueError(
            "need first > last, scale > 0 and floor in (0, 1], "
            f"not {first}, {last}, {scale}, {floor}"
        )

    # 1. Distribution function of u on a fine grid.
    u = torch.linspace(last, first, INTERPOLATION_POINTS, dtype=torch.float64)
    logistic = torch.sigmoid((u - location) / scale)
    logistic = (logistic - logistic[0]) / (logistic[-1] - logistic[0])
    uniform = (u - last) / (first - last)
    mixture = (1 - floor) * logistic + floor * uniform

    # 2. Its quantiles.
    if num_steps > 1:
        share = torch.linspace(1.0, 0.0, num_steps, dtype=torch.float64)
    else:
        share = torch.zeros(1, dtype=torch.float64)
    quantiles = torch.from_numpy(np.interp(share.numpy(), mixture.numpy(), u.numpy()))
    return torch.cat([torch.zeros(1, dtype=torch.float64), time_of_logit(quantiles)])


@component(passed=("grid",), called=("num_steps",))
def step_times(num_steps: int, length: int) -> Tensor:
    """Return num_steps of the steps 0..length of a chain in discrete time, evenly spaced.

    References: this project; checked in tests/diffusion/test_schedules.py.

    Args:
        num_steps: T.
        length: number of steps of the chain.

    Returns:
        float64 [T + 1], whole numbers.

    Raises:
        ValueError: more steps than the chain has.
    """
    _check_num_steps(num_steps)
    ensure(
        num_steps <= length,
        f"num_steps must be at most {length}, the steps of the chain, not {num_steps}",
    )
    return torch.linspace(0, length, num_steps + 1, dtype=torch.float64).round()


def _check_num_steps(num_steps: int) -> None:
    """Raise ValueError unless a grid has a step."""
    ensure(num_steps >= 1, f"num_steps must be at least 1, not {num_steps}")


# --- training times


@component("schedule")
@dataclass(frozen=True)
class Schedule:
    """Training times, and the grid of samplers without a grid of their own.

    Args:
        grid: num_steps -> times [num_steps + 1].
        num_steps: T of the training grid.
        continuous: draw times between the grid's points too, uniformly along it, linear in u
            between neighbours.

    Raises:
        ValueError: a grid that does not increase from 0, or continuous times of a single step.
    """

    grid: Callable[[int], Tensor] = fisher_times
    num_steps: int = 1000
    continuous: bool = False
    _copies: dict[torch.device, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    __repr__ = format_fields

    def __post_init__(self) -> None:
        if self.continuous and self.num_steps < 2:
            raise ValueError(f"continuous times need num_steps of at least 2, not {self.num_steps}")
        ensure(
            self.times[0] == 0 and (self.times.diff() > 0).all(),
            "a grid of times must start at 0 and increase",
        )

    @cached_property
    def times(self) -> Tensor:
        """The grid, float64 [T + 1]."""
        return self.grid(self.num_steps)

    def intervals(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Map uniforms v in [0, 1) to intervals (s, t): observe at t; s is one grid step earlier.

        On the grid, k = 1 + floor(T v) and (s, t) = (t_{k-1}, t_k). Between its points, t sits at
        position 1 + (T - 1) v along the grid and s one position before, so the same loss weights
        apply.

        References: Santos et al. 2023, Algorithm 1, on the grid; between its points this project,
            checked in tests/diffusion/test_schedules.py.

        Args:
            v: float64 [B].

        Returns:
            s, t: float64 [B] on v's device.
        """
        times, u = self._grid_on(v.device)
        if not self.continuous:
            k = 1 + (v * self.num_steps).long().clamp_(max=self.num_steps - 1)
            return times[k - 1], times[k]
        position = v * (self.num_steps - 1)
        s = time_of_logit(_interpolate(u, position - 1))
        t = time_of_logit(_interpolate(u, position))
        return s, t

    def _grid_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the grid, and logits of its times after 0, on a device, to which they go once."""
        if device not in self._copies:
            times = self.times.to(device)
            self._copies[device] = (times, logit_survival(times[1:]))
        return self._copies[device]


def _interpolate(u: Tensor, position: Tensor) -> Tensor:
    """Interpolate u [T] linearly at positions [B]; extrapolate below 0 by the first spacing."""
    lower = position.floor().long().clamp_(0, len(u) - 2)
    return u[lower] + (position - lower) * (u[lower + 1] - u[lower])


def stratified(position: Tensor, batch_size: int, offset: Tensor) -> Tensor:
    """Return v_b = (b + U) / B, float64 [b] in [0, 1).

    One uniform number per batch spreads its samples evenly over the times, without changing the
    distribution of each.

    References: Kingma et al. 2021, appendix I.1.

    Args:
        position: int64 [b], index of each sample in the global batch, so that ranks share one
            stratification.
        batch_size: B, of the global batch.
        offset: float64 scalar U in (0, 1).
    """
    return (position + offset) / batch_size
