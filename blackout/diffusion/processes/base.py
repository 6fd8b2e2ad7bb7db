"""What every forward process offers: forward draws, bridges, rates, and the law from which sampling starts. A process
knows only probability: no network, no configuration.

A reverse jump has one of R types [Santos 2023, appendix G]. Its rate given X_0 is linear in a statistic of X_0 and X_t:
so the rate of the time-reversed process, which averages over X_0 given X_t, is `rates(E[statistic | X_t], X_t, t)`, and
a network that predicts E[statistic | X_t] is all that training and sampling need (`blackout.diffusion.predictions`),
and bounds too (`blackout.diffusion.likelihood`).

Below: what processes of counts share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, Shape, Time, count_dtype, expand_time, per_row
from blackout.diffusion.predictions import Prediction
from blackout.errors import ensure
from blackout.random import RandomSource, poisson

_LOG_TINY = -690.0


class Process(ABC):
    """A Markov process on counts, independently in every element; data are counts 0..max_count.

    Counts are integer tensors of any shape [B, ...]. Times are float64: a scalar, or one per sample [B]. Types of
    jumps are an axis after the first, [B, R, ...]; distributions over X_0 likewise, [B, max_count + 1, ...].
    """

    max_count: int
    """The largest data level."""
    num_states: int
    """States are 0..num_states - 1, which may be more than there are data levels."""
    prediction: ClassVar[type[Prediction]]
    """The kind of prediction its bound, its loss and its rates, if it has any, are made of."""

    @property
    def dtype(self) -> torch.dtype:
        """Of states."""
        return count_dtype(self.num_states - 1)

    @abstractmethod
    def sample(self, x0: Tensor, t: Time, generator: RandomSource = None) -> Tensor:
        """X_t given X_0, of x0's shape."""

    @abstractmethod
    def observe(self, x0: Tensor, t: Time, generator: RandomSource = None) -> tuple[Tensor, Any]:
        """X_t, and the target a loss compares the prediction with."""

    @abstractmethod
    def pmf(self, x0: Tensor, t: Time) -> Tensor:
        """P(X_t = . | X_0), float64 [B, ..., num_states]."""

    @abstractmethod
    def log_likelihood(self, xt: Tensor, t: Time) -> Tensor:
        """log P(X_t | X_0 = o) for every data level o, float64 [B, max_count + 1, ...], finite."""

    @abstractmethod
    def bridge(self, x0: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None) -> Tensor:
        """X_s given X_0 and X_t, for s < t."""

    @abstractmethod
    def prior(self, shape: Shape, t: Time, generator: RandomSource = None, mean: Tensor | None = None) -> Tensor:
        """States of `shape` where sampling starts, the final time t, on its device; `mean` is E[X_0], if given."""

    @abstractmethod
    def prior_divergence(self, x0: Tensor, t: Time) -> Tensor:
        """KL of X_t's distribution given X_0 from the prior's at the final time t, float64 of x0's shape."""

    def check_final_time(self, t: Time) -> None:
        """Raise ValueError where sampling from the prior at the final time t cannot work.

        Of counts nothing is refused here: what is too short depends on the data (`blackout.diffusion.schedules`).
        """
        return


class JumpProcess(Process):
    """A process in continuous time, homogeneous: X_t given X_s is as X_(t - s) given X_0."""

    ordered: bool
    """Whether several jumps within one step add up (counts), or exclude each other (names)."""

    @abstractmethod
    def rates(self, expected: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Rates of the reverse jumps per unit of t given E[statistic | X_t], float64 [B, R, ...]."""

    @abstractmethod
    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Time) -> Tensor:
        """The same given X_0, nu_r(m') p_t(m' | o) / p_t(m | o), float64 [B, R, ...] [Santos 2023, eq. 71]."""

    @abstractmethod
    def reverse_jumps(self, xt: Tensor) -> Tensor:
        """What every reverse type adds to X_t, int64, broadcastable to [B, R, ...]."""

    @abstractmethod
    def forward_rates(self, xt: Tensor, t: Time) -> Tensor:
        """Rates of the forward jumps per unit of t, float64 [B, R, ...]."""

    @abstractmethod
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


class CountProcess(JumpProcess):
    """What processes of counts share that are homogeneous in time and know their forward law in closed form."""

    mean: float = 0.0
    """Of the stationary distribution, Poisson: newcomers per unit of time."""
    ordered: bool = True
    jumps: ClassVar[tuple[int, ...]]
    """What every reverse type of jump adds; the forward ones take it away again."""

    @abstractmethod
    def _log_pmf(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """log P(X_t | X_0), float64 of the shape that the three broadcast to; -inf for what is impossible."""

    def pmf(self, x0: Tensor, t: Time) -> Tensor:
        """P(X_t = . | X_0), float64 [B, ..., num_states], of `_log_pmf`, which says where it is from."""
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
        The latter is ours (tests/verification/test_end_laws.py). At t = 15 one CIFAR-10 image in ten still has a unit
        left, which black ignores. What Poisson counts miss is how elements go together: `blackout.diffusion.schedules`
        says how much that is, and when it is little.

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


def check_max_count(max_count: int) -> None:
    """Raises ValueError unless counts up to max_count fit the package's integer types."""
    good = 1 <= max_count <= LARGEST_COUNT and max_count % 1 == 0
    ensure(good, f"max_count must be a whole number in 1..{LARGEST_COUNT}, not {max_count}")
