"""Interfaces of forward processes: draws, bridges, rates, and the prior that sampling starts from.

A process knows only probability: no network, no configuration.

A reverse jump has one of R types. Its rate given X_0 is linear in a statistic of X_0 and X_t. The
rate of the time-reversed process, which averages over X_0 given X_t, is therefore
`rates(E[statistic | X_t], X_t, t)`. So a network that predicts E[statistic | X_t] suffices for
training and sampling (`blackout.diffusion.predictions`) and for bounds
(`blackout.diffusion.likelihood`).

    Process         any Markov process on counts, in continuous or discrete time
    JumpProcess     with rates, in continuous time
    CountProcess    what pure death and immigration and death share

References: Santos et al. 2023, appendix G.
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
from blackout.representation import format_arguments, format_fields

MIN_LOG_LIKELIHOOD = -690.0  # of impossible data levels: finite, just above the log of `TINY`


class Process(ABC):
    """A Markov process on counts, independent in every element; data are counts 0..max_count.

    Counts are integer tensors of any shape [B, ...]. Times are float64: a scalar, or one per sample
    [B]. Types of jumps are an axis after the first, [B, R, ...]; distributions over X_0 likewise,
    [B, max_count + 1, ...].
    """

    max_count: int  # the largest data level
    num_states: int  # states are 0..num_states - 1; there may be more than there are data levels
    prediction: ClassVar[type[Prediction]]  # kind of prediction that its bound, loss and rates take

    __repr__ = format_arguments

    @property
    def dtype(self) -> torch.dtype:
        """Type of states."""
        return count_dtype(self.num_states - 1)

    @abstractmethod
    def sample(self, x0: Tensor, t: Time, generator: RandomSource = None) -> Tensor:
        """Draw X_t given X_0, of x0's shape."""

    @abstractmethod
    def observe(self, x0: Tensor, t: Time, generator: RandomSource = None) -> tuple[Tensor, Any]:
        """Draw X_t given X_0, and return it with the target of the loss."""

    @abstractmethod
    def pmf(self, x0: Tensor, t: Time) -> Tensor:
        """Return P(X_t = . | X_0), float64 [B, ..., num_states]."""

    @abstractmethod
    def log_likelihood(self, xt: Tensor, t: Time) -> Tensor:
        """Return finite log P(X_t | X_0 = o) of all levels, float64 [B, max_count + 1, ...]."""

    @abstractmethod
    def bridge(
        self, x0: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None
    ) -> Tensor:
        """Draw X_s given X_0 and X_t, for s < t."""

    @abstractmethod
    def prior(
        self, shape: Shape, t: Time, generator: RandomSource = None, data_mean: Tensor | None = None
    ) -> Tensor:
        """Draw the states that sampling starts from.

        Args:
            shape: [B, ...] of the states.
            t: the final time, on their device.
            generator: source of random numbers.
            data_mean: E[X_0], for processes whose prior uses it; None starts without it.
        """

    @abstractmethod
    def prior_divergence(self, x0: Tensor, t: Time) -> Tensor:
        """Return KL(X_t given X_0 || prior) at the final time t, float64 of x0's shape."""

    def check_final_time(self, t: Time) -> None:
        """Raise ValueError if sampling from the prior at the final time t cannot work.

        No time of counts is refused here: that depends on the data
        (`blackout.diffusion.grid_ends`).
        """
        return


class JumpProcess(Process):
    """A homogeneous process in continuous time: X_t given X_s is as X_(t - s) given X_0."""

    ordered: bool  # whether jumps within a step add up (counts) or exclude each other (categories)

    @abstractmethod
    def rates(self, expected: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Return rates of the reverse jumps per unit of t, float64 [B, R, ...].

        Args:
            expected: E[statistic | X_t].
            xt: states [B, ...].
            t: times.
        """

    @abstractmethod
    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Return rates of the reverse jumps given X_0, float64 [B, R, ...].

        They are nu_r(m') p_t(m' | o) / p_t(m | o): nu_r is the forward rate of type r, which leads
        from m' to m = X_t, and o = X_0.

        References: Santos et al. 2023, eq. 71.
        """

    @abstractmethod
    def reverse_jumps(self, xt: Tensor) -> Tensor:
        """Return what every reverse type adds to X_t, int64, broadcastable to [B, R, ...]."""

    @abstractmethod
    def forward_rates(self, xt: Tensor, t: Time) -> Tensor:
        """Return rates of the forward jumps per unit of t, float64 [B, R, ...]."""

    @abstractmethod
    def forward_jumps(self, xt: Tensor) -> Tensor:
        """Return what every forward type adds to X_t, int64, broadcastable to [B, R, ...]."""


@dataclass(frozen=True)
class Observation:
    """A target for losses that need more than one tensor.

    Args:
        process: that X_t was drawn from.
        x0: counts [B, ...].
        xt: counts [B, ...].
        statistic: further targets, integers [B, R, ...], of processes that have them.
    """

    process: Any
    x0: Tensor
    xt: Tensor
    statistic: Tensor | None = None

    __repr__ = format_fields


class CountProcess(JumpProcess):
    """A process of counts whose forward distribution is known in closed form."""

    mean: float = 0.0  # of the stationary Poisson distribution: immigrants per unit of time
    ordered: bool = True
    jumps: ClassVar[tuple[int, ...]]  # change of every reverse type, minus that of its forward type

    @abstractmethod
    def _log_pmf(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Return log P(X_t | X_0), float64 of the shape that all arguments broadcast to.

        It is -inf for what is impossible.
        """

    def pmf(self, x0: Tensor, t: Time) -> Tensor:
        """Return P(X_t = . | X_0), float64 [B, ..., num_states]."""
        states = torch.arange(self.num_states, device=x0.device)
        t = expand_time(t, x0)
        return torch.exp(self._log_pmf(x0[..., None], states, t[..., None] if t.ndim else t))

    def log_likelihood(self, xt: Tensor, t: Time) -> Tensor:
        """Return log P(X_t | X_0 = o), float64 [B, max_count + 1, ...]; -690 if impossible."""
        levels = per_row(torch.arange(self.max_count + 1, device=xt.device), xt)
        t = expand_time(t, xt)
        log_pmf = self._log_pmf(levels, xt[:, None], t[:, None] if t.ndim else t)
        return log_pmf.clamp(min=MIN_LOG_LIKELIHOOD)

    def reverse_jumps(self, xt: Tensor) -> Tensor:
        """Return what every reverse type adds, int64 [R, 1, ...]."""
        # filled on the device: a copy from the CPU would wait for it
        jumps = [torch.full((1,), jump, device=xt.device) for jump in self.jumps]
        return per_row(torch.cat(jumps), xt)

    def forward_jumps(self, xt: Tensor) -> Tensor:
        """Return what every forward type adds, int64 [R, 1, ...]."""
        return -self.reverse_jumps(xt)

    def prior(
        self, shape: Shape, t: Time, generator: RandomSource = None, data_mean: Tensor | None = None
    ) -> Tensor:
        """Draw Poisson(q E[X_0] + a (1 - q)), where a is the stationary mean.

        Without `data_mean`, E[X_0] = a is assumed. Pure death, a = 0, thus starts all black, or
        with Poisson(e^-t E[X_0]) if the mean is given. At
        t = 15 one CIFAR-10 image in ten still has a unit left, which black ignores. Poisson counts
        lack the correlations of elements: `blackout.diffusion.grid_ends` has their size, and the
        times at which they are small.

        References: Santos et al. 2023, Algorithm 2, for black; the Poisson start is this project's,
            checked in tests/verification/test_time_grid_ends.py.

        Args:
            shape: [B, ...].
            t: the final time, on the device of the counts.
            generator: source of random numbers.
            data_mean: E[X_0], broadcastable to shape; that of every sample's class, if samples have
                classes.

        Returns:
            States of `shape`.
        """
        t = torch.as_tensor(t, dtype=torch.float64)
        if data_mean is None and self.mean == 0:
            return torch.zeros(shape, dtype=self.dtype, device=t.device)
        initial_mean = self.mean if data_mean is None else data_mean.to(t)
        rate = torch.exp(-t) * initial_mean - self.mean * torch.expm1(-t)
        counts = poisson(rate.expand(shape), generator)
        return counts.clamp_(max=self.num_states - 1).to(self.dtype)


def check_max_count(max_count: int) -> None:
    """Raise ValueError unless counts up to max_count fit the package's integer types."""
    ensure(
        1 <= max_count <= LARGEST_COUNT and max_count % 1 == 0,
        f"max_count must be a whole number in 1..{LARGEST_COUNT}, not {max_count}",
    )
