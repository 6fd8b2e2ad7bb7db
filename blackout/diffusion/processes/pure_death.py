"""Pure death: every unit decays at rate 1, independently, until all is black (Santos et al. 2023, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.counts import binomial, poisson
from blackout.diffusion.processes.base import expand_time
from blackout.diffusion.schedules import step_fraction
from blackout.diffusion.streams import RandomSource


def count_dtype(max_count: int) -> torch.dtype:
    """The smallest integer type in use for counts up to max_count: uint8 to 255, int32 beyond."""
    return torch.uint8 if max_count <= 255 else torch.int32


@dataclass(frozen=True)
class PureDeath:
    """The linear death process on 0..max_count; a unit survives to time t with probability q = e^-t.

    Raises:
        ValueError: max_count is not a positive integer below 2^31.
    """

    max_count: int = 255

    def __post_init__(self) -> None:
        if not 1 <= self.max_count < 2**31:
            raise ValueError(f"max_count must be in 1..2147483647, not {self.max_count}")

    def sample(self, x0: Tensor, t: Tensor | float, generator: RandomSource = None) -> Tensor:
        """X_t | X_0 ~ Binomial(X_0, e^-t)  (eq. 10). Integers in, integers out, same shape and dtype."""
        t = expand_time(t, x0)
        return binomial(x0, torch.exp(-t), generator, complement=-torch.expm1(-t))

    def bridge(
        self, x0: Tensor, xt: Tensor, s: Tensor | float, t: Tensor | float, generator: RandomSource = None
    ) -> Tensor:
        """X_s | X_0, X_t = X_t + Binomial(X_0 - X_t, r)  (eq. 13).

        r = (e^-s - e^-t) / (1 - e^-t): the factor s printed there is an error.
        """
        s, t = expand_time(s, x0), expand_time(t, x0)
        r = step_fraction(s, t)
        stays = torch.expm1(-s) / torch.expm1(-t)
        return xt + binomial(x0 - xt, r, generator, complement=stays)

    def reverse_rate(self, x0: Tensor, xt: Tensor, t: Tensor | float) -> Tensor:
        """Birth rate given X_0, per unit of t: (X_0 - X_t) e^-t / (1 - e^-t)  (eq. 9). Float64, shape of x0."""
        t = expand_time(t, x0)
        return (x0 - xt).to(torch.float64) / torch.expm1(t)

    def prior(
        self,
        shape: tuple[int, ...],
        t: Tensor | float,
        generator: RandomSource = None,
        mean: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Tensor:
        """Where sampling starts: all black, or Poisson(e^-t E[X_0]) when the mean is given.

        At t = 15 one CIFAR-10 image in ten still has a unit left, which black ignores; the Poisson start has total
        variation O(e^-2t).

        Args:
            shape: [B, ...].
            mean: E[X_0], broadcastable to shape.
        """
        dtype = count_dtype(self.max_count)
        if mean is None:
            return torch.zeros(shape, dtype=dtype, device=device)
        t = torch.as_tensor(t, dtype=torch.float64, device=device)
        rate = torch.exp(-t) * mean.to(device, torch.float64)
        return poisson(rate.expand(shape), generator).clamp_(max=self.max_count).to(dtype)
