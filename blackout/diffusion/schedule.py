"""Training times: intervals (s, t) of a time grid, drawn for every batch.

References: Santos et al. 2023, Algorithm 1; Kingma et al. 2021, appendix I.1, for the
    stratification of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.survival import logit_survival, time_of_logit
from blackout.diffusion.time_grids import fisher_times
from blackout.errors import ensure
from blackout.representation import format_fields


@component("schedule")
@dataclass(frozen=True)
class Schedule:
    """Distribution of training times, and the default grid of samplers.

    Args:
        grid: num_steps -> times [num_steps + 1], such as `fisher_times`.
        num_steps: T of the training grid.
        continuous: whether training times also lie between the points of the grid. They are then
            interpolated linearly in u between neighbouring points.

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
            checked in tests/diffusion/test_schedule.py.

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
    """Return stratified uniforms v_b = (b + U) / B for the samples of a batch, float64 [b].

    One uniform number U per batch spreads its samples evenly over [0, 1). Over a whole batch, the
    v_b have the same mean of any function as independent uniforms.

    References: Kingma et al. 2021, appendix I.1.

    Args:
        position: int64 [b], index of each sample in the global batch, so that ranks share one
            stratification.
        batch_size: B, of the global batch.
        offset: float64 scalar U in (0, 1).
    """
    return (position + offset) / batch_size
