"""Levels as names or as neighbours: uniform, absorbing (masked) and ordinal jumps [Campbell 2022, section 4.1].

All are scaled so that what remains of the data decays as e^-t, like the units of pure death: one schedule fits all.
First exp(Q tau) for a generator Q and many tau; processes that forget what they were need no matrices at all.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from blackout.component import component
from blackout.counts import Time, per_row
from blackout.diffusion.predictions import TINY
from blackout.diffusion.processes.base import check_max_count
from blackout.diffusion.processes.finite import FiniteJumpProcess
from blackout.errors import ensure

_CACHED_FROM = 64
"""States from which matrices are worth keeping between calls."""
_CACHE_BYTES = 640 << 20
"""Enough for 1,000 times of 256 states in float64."""
_TERMS = 20
"""Taylor terms of exp(x), x <= 1, to 1 / 20! = 4e-19."""


class MatrixExponential:
    """tau -> exp(Q tau), for tau of any shape, by scaling and squaring.

    Uniformisation [Jensen 1953], e^(-x) exp(x (I + Q / rate)), x = rate tau: all terms are non-negative, so that small
    probabilities keep their relative accuracy. (The eigenvectors of a reversible Q take one product instead of log2(x),
    but are right to an absolute 1e-16 only.)

    Args:
        generator: float64 [S, S] on the CPU, rows summing to 0.
    """

    def __init__(self, generator: Tensor) -> None:
        self.generator = generator
        self.rate = float(-generator.diagonal().min())
        self._powers: dict[torch.device, Tensor] = {}
        self._kept = lru_cache(max(1, _CACHE_BYTES // (8 * generator.numel())))(self._of_one)

    def __call__(self, tau: Tensor) -> Tensor:
        """float64 [*tau.shape, S, S] on tau's device, rows summing to 1."""
        if len(self.generator) < _CACHED_FROM or not tau.numel():
            return self._compute(tau.reshape(-1)).view(*tau.shape, *self.generator.shape)
        found = [self._kept(tau.device, value) for value in tau.reshape(-1).tolist()]
        return torch.stack(found).view(*tau.shape, *self.generator.shape)

    def _of_one(self, device: torch.device, tau: float) -> Tensor:
        return self._compute(torch.tensor([tau], dtype=torch.float64, device=device))[0]

    def __reduce__(self) -> tuple[type[MatrixExponential], tuple[Tensor]]:
        """Copies, and what is sent to other processes, begin without matrices: a cache cannot be pickled."""
        return MatrixExponential, (self.generator,)

    def _compute(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""
        if tau.device not in self._powers:  # A^k / k!, k = 0..20, of A = I + Q / rate >= 0
            made = [torch.eye(len(self.generator), dtype=torch.float64)]
            jump = (made[0] + self.generator / self.rate).clamp_(min=0.0) if self.rate > 0 else made[0]
            for power in range(1, _TERMS + 1):
                made.append(made[-1] @ jump / power)
            self._powers[tau.device] = torch.stack(made).to(tau.device)
        x, powers = tau * self.rate, self._powers[tau.device]
        # every element is halved until x <= 1 / 4, those done drop out of the squaring; twice at least, so that what
        # takes more jumps than there are terms is there as well
        need = torch.ceil(torch.log2(x.clamp(min=1e-300))).clamp_(min=0).long() + 2
        y = x / 2.0**need
        k = torch.arange(_TERMS + 1, dtype=x.dtype, device=x.device)
        matrix = torch.einsum("bk,kij->bij", torch.exp(-y)[:, None] * y[:, None] ** k, powers)
        for done in range(int(need.max()) if len(need) else 0):
            go_on = (need > done).nonzero().squeeze(1)
            squared = matrix[go_on] @ matrix[go_on]
            matrix[go_on] = squared / squared.sum(-1, keepdim=True)
        return matrix / matrix.sum(-1, keepdim=True)


class _Forgetting(FiniteJumpProcess):
    """At rate 1 an element is replaced by a draw from pi: Q = 1 pi^T - I, exp(Q t) = e^-t I + (1 - e^-t) 1 pi^T.

    Rows, columns and products of such matrices need no matrix [S, S], so that levels may be thousands.

    Args:
        max_count: largest data level.
        stationary: pi, float64 [S].
    """

    tables = False

    def __init__(self, max_count: int, stationary: Tensor) -> None:
        super().__init__(max_count, len(stationary))
        self._stationary = stationary
        self._copies: dict[torch.device, Tensor] = {}

    def generator(self) -> Tensor:
        """Q, float64 [S, S]."""
        return self._stationary - torch.eye(self.num_states, dtype=torch.float64)

    def transition_after(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""
        tau, pi = tau[:, None, None], self._on(tau.device)
        return torch.exp(-tau) * torch.eye(len(pi), dtype=pi.dtype, device=pi.device) - torch.expm1(-tau) * pi

    def rows(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """P_st[x, .], [B, ..., S]."""
        kept, pi = self._kept(s, t, x)
        return ((1 - kept) * pi).expand(*x.shape, -1).scatter_add(-1, x[..., None], kept.expand(*x.shape, 1))

    def columns(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """P_st[., x], [B, ..., S]."""
        kept, pi = self._kept(s, t, x)
        spread = ((1 - kept) * pi[x][..., None]).expand(*x.shape, self.num_states)
        return spread.scatter_add(-1, x[..., None], kept.expand(*x.shape, 1))

    def propagate(self, weights: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """sum_i weights_i P_st[i, .], [B, ..., S]."""
        kept, pi = self._kept(s, t, weights[..., 0])
        return kept * weights + (1 - kept) * weights.sum(-1, keepdim=True) * pi

    def _draw_rows(self, x: Tensor, t: Tensor, u: Tensor) -> Tensor:
        kept, pi = self._kept(torch.zeros_like(t), t, x)
        kept = kept[..., 0].expand(u.shape)
        reached, spread = pi.cumsum(0), (1 - kept).clamp(min=TINY)
        below = torch.searchsorted(reached, (u / spread).contiguous(), right=True)
        above = torch.searchsorted(reached, ((u - kept) / spread).contiguous(), right=True)
        return torch.where(below < x, below, torch.maximum(above, x)).clamp(max=self.num_states - 1)

    def _rates_into(self, x: Tensor) -> Tensor:
        return self._on(x.device)[x][..., None].expand(*x.shape, self.num_states).scatter(-1, x[..., None], 0.0)

    def _rates_out(self, x: Tensor) -> Tensor:
        return self._on(x.device).expand(*x.shape, -1).scatter(-1, x[..., None], 0.0)

    def _against_prior(self, t: Time) -> tuple[Tensor, Tensor]:
        t = torch.as_tensor(t, dtype=torch.float64).reshape(1)
        kept, pi = torch.exp(-t), self._on(t.device)
        prior, others, own = self.prior_pmf(t), (1 - kept) * pi, (1 - kept) * pi + kept
        other_nats, own_nats = (torch.special.xlogy(p, p) - torch.special.xlogy(p, prior) for p in (others, own))
        off = (others - prior).abs()
        nats = (other_nats.sum() - other_nats + own_nats).clamp(min=0.0)
        distance = (off.sum() - off + (own - prior).abs()) / 2
        return nats[: self.max_count + 1], distance[: self.max_count + 1]

    def _kept(self, s: Tensor, t: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The probability of no replacement, [b, 1, ..., 1], with one axis more than x, and pi, [S]."""
        return per_row(torch.exp(s - t), x)[..., None], self._on(x.device)

    def _on(self, device: torch.device) -> Tensor:
        """pi on a device: copied once, since copies are waited for."""
        if device not in self._copies:
            self._copies[device] = self._stationary.to(device)
        return self._copies[device]


@component("process")
class Uniform(_Forgetting):
    """At rate 1 an element is replaced by a uniform draw from all S = max_count + 1 levels.

    exp(Q t) = e^-t I + (1 - e^-t) / S [Austin 2021, appendix A.2.1].

    Args:
        max_count: largest data level.
    """

    def __init__(self, max_count: int = 255) -> None:
        super().__init__(max_count, torch.ones(max_count + 1, dtype=torch.float64) / (max_count + 1))


@component("process")
class Absorbing(_Forgetting):
    """At rate 1 an element is replaced by the mask, for good: masked diffusion [Austin 2021, appendix A.2.2].

    Args:
        max_count: largest data level.
        mask: the absorbing level; None adds a state max_count + 1 that no data has. With mask = 0 an element goes
            black in one jump, and a black one may be data.

    Raises:
        ValueError: mask is not a level.
    """

    def __init__(self, max_count: int = 255, mask: int | None = None) -> None:
        if mask is not None and not (isinstance(mask, int) and 0 <= mask <= max_count):
            raise ValueError(f"mask must be a count in 0..{max_count}, or null for a state of its own, not {mask}")
        self.mask = max_count + 1 if mask is None else mask
        masked = torch.zeros(max_count + (2 if mask is None else 1), dtype=torch.float64)
        masked[self.mask] = 1.0
        super().__init__(max_count, masked)


class DenseGenerator(FiniteJumpProcess):
    """A generator of moderate size, Q [S, S] float64, rows summing to 0: tables of exp(Q t)."""

    def __init__(self, max_count: int, generator: Tensor, ordered: bool) -> None:
        super().__init__(max_count, len(generator), ordered)
        self._generator, self._exponential = generator, MatrixExponential(generator)

    def generator(self) -> Tensor:
        """Q, float64 [S, S]."""
        return self._generator

    def transition_after(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""
        return self._exponential(tau)


@component("process")
class Ordinal(DenseGenerator):
    """Jumps between near levels: reversible, time-scaled so that its slowest mode decays as e^-t.

    Q_ij = c w(|i - j|) sqrt(pi_j / pi_i), pi being the stationary distribution: detailed balance holds by construction
    [after Campbell 2022, appendix E].

    Args:
        max_count: largest data level.
        width: w(d) = exp(-d^2 / 2 width^2), the discretised Gaussian; None jumps to the nearest neighbours only.
        spread: standard deviation of a discretised Gaussian pi about the middle level; None for uniform pi.

    Raises:
        ValueError: width or spread is not positive.
    """

    def __init__(self, max_count: int = 255, width: float | None = None, spread: float | None = None) -> None:
        check_max_count(max_count)
        for name, value in (("width", width), ("spread", spread)):
            ensure(value is None or value > 0, f"{name} must be positive or null, not {value}")
        levels = torch.arange(max_count + 1, dtype=torch.float64)
        distance = (levels[:, None] - levels[None, :]).abs()
        weight = (distance == 1).double() if width is None else torch.exp(-((distance / width) ** 2) / 2)
        weight.fill_diagonal_(0.0)
        log_root = torch.zeros_like(levels) if spread is None else -(((levels - max_count / 2) / spread) ** 2) / 4
        self.stationary = torch.softmax(2 * log_root, 0)
        rate = weight * torch.exp(log_root[None, :] - log_root[:, None])
        generator = rate - torch.diag(rate.sum(1))
        gap = -float(torch.linalg.eigvalsh(weight - torch.diag(rate.sum(1)))[-2])
        ensure(1e-12 < gap < math.inf, f"levels 0..{max_count} hardly mix: widen width={width} or spread={spread}")
        super().__init__(max_count, generator / gap, ordered=True)
