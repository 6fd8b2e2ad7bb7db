"""What every forward process offers. A process knows only probability: no network, no configuration.

A reverse jump has one of R types [Santos 2023, appendix G]. Its rate given X_0 is linear in a statistic of X_0 and X_t:
so the rate of the time-reversed process, which averages over X_0 given X_t, is `rates(E[statistic | X_t], X_t, t)`, and
a network that predicts E[statistic | X_t] is all that training and sampling need (`blackout.diffusion.predictions`).

Below the protocols: what processes of counts share, and the path's part of the likelihood bound.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, Shape, Time, count_dtype, expand_time, per_row
from blackout.diffusion.predictions import TINY, Denoiser, Prediction
from blackout.diffusion.schedules import half_width, logit_survival, time_of_logit
from blackout.errors import ensure
from blackout.random import RandomSource, poisson

LIMIT = half_width(15.0)
"""Logit of survival at the earliest time of a likelihood bound: the paper's grid spans as much."""
Target = TypeVar("Target", covariant=True)
_LOG_TINY = -690.0
_WIDTH = 3.0
"""Of the logistic distribution of u that estimates of the continuous bound draw from.

Narrower ones leave out the tails, where a network errs most and one image in thousands then counts for hundreds."""


class Process(Protocol[Target]):
    """A Markov process on counts, independently in every element; data are counts 0..max_count.

    Counts are integer tensors of any shape [B, ...]. Times are float64: a scalar, or one per sample [B]. Types of
    jumps are an axis after the first, [B, R, ...]; distributions over X_0 likewise, [B, max_count + 1, ...].
    """

    @property
    def max_count(self) -> int:
        """The largest data level."""

    @property
    def num_states(self) -> int:
        """States are 0..num_states - 1, which may be more than there are data levels."""

    @property
    def prediction(self) -> type[Prediction]:
        """The kind of prediction its bound, its loss and its rates, if it has any, are made of."""

    def sample(self, x0: Tensor, t: Tensor, generator: RandomSource = None) -> Tensor:
        """X_t given X_0, of x0's shape."""

    def observe(self, x0: Tensor, t: Tensor, generator: RandomSource = None) -> tuple[Tensor, Target]:
        """X_t, and the target a loss compares the prediction with."""

    def pmf(self, x0: Tensor, t: Tensor) -> Tensor:
        """P(X_t = . | X_0), float64 [B, ..., num_states]."""

    def log_likelihood(self, xt: Tensor, t: Tensor) -> Tensor:
        """log P(X_t | X_0 = o) for every data level o, float64 [B, max_count + 1, ...], finite."""

    def bridge(self, x0: Tensor, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None) -> Tensor:
        """X_s given X_0 and X_t, for s < t."""

    def prior(self, shape: Shape, t: Tensor, generator: RandomSource = None, mean: Tensor | None = None) -> Tensor:
        """States of `shape` where sampling starts, the final time t, on its device; `mean` is E[X_0], if given."""

    def prior_divergence(self, x0: Tensor, t: Tensor) -> Tensor:
        """KL of X_t's distribution given X_0 from the prior's at the final time t, float64 of x0's shape."""

    def bound(self, denoiser: Denoiser, x0: Tensor, v: Tensor, generator: RandomSource, end: Tensor | None) -> Tensor:
        """One estimate per sample of a bound on -log p(X_0), float64 [B], nats; see `likelihood.likelihood_bound`.

        Args:
            end: where sampling starts from the prior, and the path ends; None for far out.
        """

    def check_final_time(self, t: Tensor) -> None:
        """Raise ValueError where sampling from the prior at the final time t cannot work."""


@runtime_checkable
class JumpProcess(Process[Target], Protocol[Target]):
    """A process in continuous time, homogeneous: X_t given X_s is as X_(t - s) given X_0."""

    @property
    def reach(self) -> tuple[float, float]:
        """Logit of survival at the earliest time of a bound, and half the width of where all times tell as much."""

    @property
    def ordered(self) -> bool:
        """Whether several jumps within one step add up (counts), or exclude each other (names)."""

    def rates(self, expected: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Rates of the reverse jumps per unit of t given E[statistic | X_t], float64 [B, R, ...]."""

    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """The same given X_0, nu_r(m') p_t(m' | o) / p_t(m | o), float64 [B, R, ...] [Santos 2023, eq. 71]."""

    def reverse_jumps(self, xt: Tensor) -> Tensor:
        """What every reverse type adds to X_t, int64, broadcastable to [B, R, ...]."""

    def forward_rates(self, xt: Tensor, t: Tensor) -> Tensor:
        """Rates of the forward jumps per unit of t, float64 [B, R, ...]."""

    def forward_jumps(self, xt: Tensor) -> Tensor:
        """What every forward type adds to X_t, int64, broadcastable to [B, R, ...]."""


@dataclass(frozen=True)
class Observation:
    """A target for losses that need more than one tensor.

    Args:
        process: what it was drawn from.
        x0, xt: counts [B, ...].
        statistic: further targets, integers [B, R, ...], where the process has them.
    """

    process: Any
    x0: Tensor
    xt: Tensor
    statistic: Tensor | None = None


class CountProcess(ABC):
    """What processes of counts share that are homogeneous in time and know their forward law in closed form."""

    max_count: int
    mean: float = 0.0
    """Of the stationary distribution, Poisson: newcomers per unit of time."""
    ordered: ClassVar[bool] = True
    reach: tuple[float, float] = LIMIT, 0.0
    jumps: ClassVar[tuple[int, ...]]
    """What every reverse type of jump adds; the forward ones take it away again."""

    @property
    @abstractmethod
    def num_states(self) -> int:
        """States are 0..num_states - 1."""

    @property
    def dtype(self) -> torch.dtype:
        """Of states."""
        return count_dtype(self.num_states - 1)

    @abstractmethod
    def _log_pmf(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """log P(X_t | X_0), float64 of the shape that the three broadcast to; -inf for what is impossible."""

    def pmf(self, x0: Tensor, t: Time) -> Tensor:
        """P(X_t = . | X_0), float64 [B, ..., num_states]."""
        states = torch.arange(self.num_states, device=x0.device)
        t = expand_time(t, x0)
        return torch.exp(self._log_pmf(x0[..., None], states, t[..., None] if t.ndim else t))

    def log_likelihood(self, xt: Tensor, t: Time) -> Tensor:
        """log P(X_t | X_0 = o), float64 [B, max_count + 1, ...], by `_log_pmf`; what is impossible is finite, -690."""
        levels = per_row(torch.arange(self.max_count + 1, device=xt.device), xt)
        t = expand_time(t, xt)
        return self._log_pmf(levels, xt[:, None], t[:, None] if t.ndim else t).clamp(min=_LOG_TINY)

    def reverse_jumps(self, xt: Tensor) -> Tensor:
        """What every reverse type adds, int64 [R, 1, ...]: filled in on the device, which nothing waits for."""
        return per_row(torch.cat([torch.full((1,), jump, device=xt.device) for jump in self.jumps]), xt)

    def forward_jumps(self, xt: Tensor) -> Tensor:
        """What every forward type adds, int64 [R, 1, ...]."""
        return -self.reverse_jumps(xt)

    def prior(self, shape: Shape, t: Time, generator: RandomSource = None, mean: Tensor | None = None) -> Tensor:
        """Where sampling starts: Poisson(q E[X_0] + a (1 - q)), a the stationary mean, which E[X_0] is unless given.

        So pure death starts all black [Santos 2023, Algorithm 2], or with Poisson(e^-t E[X_0]) when the mean is given.
        The latter is ours (tests/laws/test_end_laws.py). At t = 15 one CIFAR-10 image in ten still has a unit left,
        which black ignores. What Poisson counts miss is how elements go together: `blackout.diffusion.schedules` says
        how much that is, and when it is little.

        Args:
            shape: [B, ...].
            t: the final time, on the device of the counts.
            mean: E[X_0], broadcastable to shape; of every sample's class, where it has one.

        Returns:
            States of `shape`.
        """
        t = torch.as_tensor(t, dtype=torch.float64)
        if mean is None and self.mean == 0:
            return torch.zeros(shape, dtype=self.dtype, device=t.device)
        rate = torch.exp(-t) * (self.mean if mean is None else mean.to(t)) - self.mean * torch.expm1(-t)
        return poisson(rate.expand(shape), generator).clamp_(max=self.num_states - 1).to(self.dtype)

    def check_final_time(self, t: Time) -> None:
        """Nothing is refused: what is too short depends on the data (`blackout.diffusion.schedules`)."""
        return


def check_max_count(max_count: int) -> None:
    """Raises ValueError unless counts up to max_count fit the package's integer types."""
    good = 1 <= max_count <= LARGEST_COUNT and max_count % 1 == 0
    ensure(good, f"max_count must be a whole number in 1..{LARGEST_COUNT}, not {max_count}")


def rate_divergence(kappa: Tensor, rate: Tensor) -> Tensor:
    """kappa - lambda + lambda log(lambda / kappa) of rates [B, ...], float64 [B, ...], >= 0.

    [Campbell 2022, Proposition 2].
    """
    log_ratio = torch.log(rate.clamp(min=TINY)) - torch.log(kappa.clamp(min=TINY))
    return kappa - rate + rate * log_ratio


def per_sample(x: Tensor) -> Tensor:
    """The sum over the elements of every sample, [B, ...] -> [B]."""
    return x.flatten(1).sum(1)


def proposal(v: Tensor, last: float, limit: float, plateau: float) -> tuple[Tensor, Tensor]:
    """Logits u [B] of quantiles v [B] in (0, 1), and the density there: a logistic law cut to [last, limit].

    Ours (tests/laws/test_end_laws.py).

    With a plateau of half-width a, flat between -a and a and logistic beyond: of density

        [sigma((u + a) / w) - sigma((u - a) / w)] / 2a,

    because an element whose counts go up to M has something to tell at every logit between -log M and log M.
    """
    if plateau == 0:
        low, high = (1 / (1 + math.exp(-end / _WIDTH)) for end in (last, limit))
        u = _WIDTH * torch.logit(low + (high - low) * v)
        return u, torch.sigmoid(u / _WIDTH) * torch.sigmoid(-u / _WIDTH) / (_WIDTH * (high - low))
    a = plateau / _WIDTH
    ends, zero = torch.tensor([last, limit], dtype=torch.float64) / _WIDTH, torch.zeros(2, dtype=torch.float64)
    low, high = (torch.logaddexp(ends + a, zero) - torch.logaddexp(ends - a, zero)).tolist()
    reached = low + (high - low) * v
    # F = log(1 + e^(u/w + a)) - log(1 + e^(u/w - a)) is the distribution function times 2a; its inverse is
    # e^(u/w) = (e^F - 1) / (e^a - e^(F - a))
    u = _WIDTH * (torch.log(torch.expm1(reached)) - a - torch.log(-torch.expm1(reached - 2 * a)))
    return u, (torch.sigmoid(u / _WIDTH + a) - torch.sigmoid(u / _WIDTH - a)) / (_WIDTH * (high - low))


@torch.no_grad()
def bound_to_prior(
    denoiser: Denoiser, process: JumpProcess, x0: Tensor, v: Tensor, generator: RandomSource, end: Tensor | None
) -> Tensor:
    """One unbiased estimate per sample of the continuous-time bound of any jump process, and the prior's KL at its end.

    Over types r of jumps, int dt E sum_r [kappa_r - lambda_r + lambda_r log(lambda_r / kappa_r)], dt = (1 - q) du,
    between logits of survival u = `limit` and that of the end, else -limit [Santos 2023, eqs. 64 and 72, with
    their constants; Campbell 2022, Proposition 2]. For pure death what lies outside is below 4e-4 nats per element at
    the default limit for 8-bit data, and the integrand dies out like e^-|u| on both sides, so u is drawn from a (wider)
    logistic distribution; `limit` and the `plateau` of `proposal` are the process's `reach`. Float64 [B], nats.
    """
    limit, plateau = process.reach
    last = -limit if end is None else float(logit_survival(end))
    u, density = proposal(v, last, limit, plateau)
    t = time_of_logit(u)
    xt = process.sample(x0, t, generator)
    rates = process.rates(predicted(denoiser, process, xt, t).expected, xt, t)
    divergence = rate_divergence(rates, process.reverse_rates(x0, xt, t))
    path = torch.sigmoid(-u) / density * per_sample(divergence)
    return path + per_sample(process.prior_divergence(x0, path_ends(limit, end, x0.device)[1]))


def path_ends(limit: float, final_time: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """The earliest time, of logit survival `limit`, and the final one, else of -limit: float64 scalars."""
    ends = torch.tensor([limit, -limit], dtype=torch.float64, device=device)
    if final_time is not None:
        ends[1] = logit_survival(final_time)
    first, last = time_of_logit(ends)
    return first, last


def predicted(denoiser: Denoiser, process: Process, xt: Tensor, t: Tensor) -> Any:
    """The prediction given X_t, of the process's kind.

    Raises:
        ValueError: it is of another kind.
    """
    prediction, kind = denoiser(xt, t), process.prediction
    if isinstance(prediction, kind):
        return prediction
    which = f"{type(process).__name__} needs a {kind.__name__}"
    raise ValueError(f"the likelihood bound of the process {which}, not the head's {type(prediction).__name__}")
