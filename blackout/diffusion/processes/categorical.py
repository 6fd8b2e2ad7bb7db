"""Levels as names or as neighbours: uniform, absorbing (masked) and ordinal jump processes.

All are scaled so that what remains of the data decays as e^-t, like the units of pure death: one schedule fits all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blackout.diffusion.processes.clocks import Clock
from blackout.diffusion.processes.finite import FiniteJumpProcess
from blackout.diffusion.processes.matrix_exponential import MatrixExponential


class Uniform(FiniteJumpProcess):
    """At rate 1 an element is replaced by a uniform draw from all S = max_count + 1 levels (D3PM's uniform family).

    exp(Q t) = e^-t I + (1 - e^-t) / S.

    Args:
        max_count: largest data level.
        clock: time change.
    """

    def __init__(self, max_count: int = 255, clock: Clock | None = None) -> None:
        super().__init__(max_count, max_count + 1, clock)

    def generator(self) -> Tensor:
        """Q, float64 [S, S]."""
        identity = torch.eye(self.num_states, dtype=torch.float64)
        return torch.full_like(identity, 1 / self.num_states) - identity

    def transition_after(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""
        return _mixture(tau, torch.full((self.num_states,), 1 / self.num_states, dtype=tau.dtype, device=tau.device))


class Absorbing(FiniteJumpProcess):
    """At rate 1 an element is replaced by the mask, for good (D3PM's absorbing family, masked diffusion).

    Args:
        max_count: largest data level.
        mask: the absorbing level; None adds a state max_count + 1 that no data has. With mask = 0 an element goes
            black in one jump, and a black one may be data.
        clock: time change.

    Raises:
        ValueError: mask is not a level.
    """

    def __init__(self, max_count: int = 255, mask: int | None = None, clock: Clock | None = None) -> None:
        if mask is not None and not (isinstance(mask, int) and 0 <= mask <= max_count):
            raise ValueError(f"mask must be a count in 0..{max_count}, or null for a state of its own, not {mask}")
        super().__init__(max_count, max_count + (2 if mask is None else 1), clock)
        self.mask = max_count + 1 if mask is None else mask

    def generator(self) -> Tensor:
        """Q, float64 [S, S]."""
        generator = -torch.eye(self.num_states, dtype=torch.float64)
        generator[:, self.mask] += 1.0
        return generator

    def transition_after(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""
        masked = torch.zeros(self.num_states, dtype=tau.dtype, device=tau.device)
        masked[self.mask] = 1.0
        return _mixture(tau, masked)


def _mixture(tau: Tensor, pi: Tensor) -> Tensor:
    """e^-tau I + (1 - e^-tau) 1 pi^T, [b, S, S]."""
    tau = tau[:, None, None]
    return torch.exp(-tau) * torch.eye(len(pi), dtype=pi.dtype, device=pi.device) - torch.expm1(-tau) * pi


class Ordinal(FiniteJumpProcess):
    """Jumps between near levels: reversible, time-scaled so that its slowest mode decays as e^-t (tauLDR's family).

    Q_ij = c w(|i - j|) sqrt(pi_j / pi_i), pi being the stationary distribution: detailed balance holds by construction.

    Args:
        max_count: largest data level.
        width: w(d) = exp(-d^2 / 2 width^2), the discretised Gaussian; None jumps to the nearest neighbours only.
        spread: standard deviation of a discretised Gaussian pi about the middle level; None for uniform pi.
        clock: time change.

    Raises:
        ValueError: width or spread is not positive.
    """

    def __init__(
        self, max_count: int = 255, width: float | None = None, spread: float | None = None, clock: Clock | None = None
    ) -> None:
        for name, value in (("width", width), ("spread", spread)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive or null, not {value}")
        super().__init__(max_count, max_count + 1, clock, ordered=True)
        levels = torch.arange(self.num_states, dtype=torch.float64)
        distance = (levels[:, None] - levels[None, :]).abs()
        weight = (distance == 1).double() if width is None else torch.exp(-((distance / width) ** 2) / 2)
        weight.fill_diagonal_(0.0)
        log_root = torch.zeros_like(levels) if spread is None else -(((levels - max_count / 2) / spread) ** 2) / 4
        self.stationary = torch.softmax(2 * log_root, 0)
        rate = weight * torch.exp(log_root[None, :] - log_root[:, None])
        generator = rate - torch.diag(rate.sum(1))
        symmetric = weight - torch.diag(rate.sum(1))
        gap = -float(torch.linalg.eigvalsh(symmetric)[-2])
        if not (math.isfinite(gap) and gap > 1e-12):
            raise ValueError(f"levels 0..{max_count} hardly mix with width {width} and spread {spread}: widen one")
        self._generator = generator / gap
        self._exponential = MatrixExponential(self._generator)

    def generator(self) -> Tensor:
        """Q, float64 [S, S]."""
        return self._generator

    def transition_after(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""
        return self._exponential(tau)
