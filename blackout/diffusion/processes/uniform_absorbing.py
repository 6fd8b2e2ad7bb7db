"""Levels as names: uniform and absorbing (masked) jumps [Campbell 2022, section 4.1], which forget what they were.

What remains of the data decays as e^-t, like the units of pure death: one schedule fits all. No matrices are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.component import component
from blackout.counts import Time, per_row
from blackout.diffusion.predictions import TINY
from blackout.diffusion.processes.finite_states import FiniteJumpProcess


class _Forgetting(FiniteJumpProcess):
    """At rate 1 an element is replaced by a draw from pi: Q = 1 pi^T - I, exp(Q t) = e^-t I + (1 - e^-t) 1 pi^T.

    [Austin 2021, appendices A.2.1 and A.2.2] in continuous time. Rows, columns and products of such matrices need no
    matrix [S, S], so that levels may be thousands: ours (tests/diffusion/processes/test_forgetting.py).

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
        """Q = 1 pi^T - I, float64 [S, S], see the class."""
        return self._stationary - torch.eye(self.num_states, dtype=torch.float64)

    def transition_after(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b], float64 [b, S, S], see the class."""
        tau, pi = tau[:, None, None], self._on(tau.device)
        return torch.exp(-tau) * torch.eye(len(pi), dtype=pi.dtype, device=pi.device) - torch.expm1(-tau) * pi

    def rows(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """P_st[x, .], float64 [B, ..., S], of the class's closed form: (1 - kept) pi, with kept more at x [B, ...]."""
        kept, pi = self._kept(s, t, x)
        return ((1 - kept) * pi).expand(*x.shape, -1).scatter_add(-1, x[..., None], kept.expand(*x.shape, 1))

    def columns(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """P_st[., x], float64 [B, ..., S], by the class: (1 - kept) pi_x, with kept more at x [B, ...]."""
        kept, pi = self._kept(s, t, x)
        spread = ((1 - kept) * pi[x][..., None]).expand(*x.shape, self.num_states)
        return spread.scatter_add(-1, x[..., None], kept.expand(*x.shape, 1))

    def propagate(self, weights: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """sum_i weights_i P_st[i, .] = kept weights + (1 - kept) (sum of weights) pi, float64 [B, ..., S] as weights.

        Ours (tests/diffusion/processes/test_forgetting.py), see the class; times as for `rows`.
        """
        kept, pi = self._kept(s, t, weights[..., 0])
        return kept * weights + (1 - kept) * weights.sum(-1, keepdim=True) * pi

    def _draw_rows(self, x: Tensor, t: Tensor, u: Tensor) -> Tensor:
        """The levels at which the sums of rows P_0t[x, .] exceed u, int64 [B, ...], for x, u [B, ...] and t [1] or [B].

        The sums are (1 - kept) times those of pi, with kept more from x on. Ours, see the class.
        """
        kept, pi = self._kept(torch.zeros_like(t), t, x)
        kept = kept[..., 0].expand(u.shape)
        reached, spread = pi.cumsum(0), (1 - kept).clamp(min=TINY)
        below = torch.searchsorted(reached, (u / spread).contiguous(), right=True)
        above = torch.searchsorted(reached, ((u - kept) / spread).contiguous(), right=True)
        return torch.where(below < x, below, torch.maximum(above, x)).clamp(max=self.num_states - 1)

    def _rates_into(self, x: Tensor) -> Tensor:
        """Q[., x] without the diagonal: pi_x but at x, float64 [B, ..., S] for x [B, ...]; as in the class."""
        return self._on(x.device)[x][..., None].expand(*x.shape, self.num_states).scatter(-1, x[..., None], 0.0)

    def _rates_out(self, x: Tensor) -> Tensor:
        """Q[x, .] without the diagonal: pi everywhere but at x, float64 [B, ..., S] for x [B, ...]; as in the class."""
        return self._on(x.device).expand(*x.shape, -1).scatter(-1, x[..., None], 0.0)

    def _against_prior(self, t: Time) -> tuple[Tensor, Tensor]:
        """KL and total variation between P_0t[o, .] of every level o and the prior, float64 [max_count + 1] each.

        As in `FiniteProcess`, of the class's closed form, at a scalar time t; the total variation is kept M / (M + 1),
        M = max_count.
        """
        t = torch.as_tensor(t, dtype=torch.float64).reshape(1)
        kept, pi = torch.exp(-t), self._on(t.device)
        prior, others, own = self.prior_pmf(t), (1 - kept) * pi, (1 - kept) * pi + kept
        other_nats, own_nats = (torch.special.xlogy(p, p) - torch.special.xlogy(p, prior) for p in (others, own))
        nats = (other_nats.sum() - other_nats + own_nats).clamp(min=0.0)[: self.max_count + 1]
        return nats, (kept * self.max_count / (self.max_count + 1)).expand(len(nats))

    def _kept(self, s: Tensor, t: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The probability e^-(t - s) of no replacement, [b, 1, ..., 1], with one axis more than x, and pi, [S]; see the
        class.
        """
        return per_row(torch.exp(s - t), x)[..., None], self._on(x.device)

    def _on(self, device: torch.device) -> Tensor:
        """pi on a device: copied once, since copies are waited for."""
        if device not in self._copies:
            self._copies[device] = self._stationary.to(device)
        return self._copies[device]


@component("process")
class Uniform(_Forgetting):
    """At rate 1 an element is replaced by a uniform draw from all S = max_count + 1 levels.

    exp(Q t) = e^-t I + (1 - e^-t) / S, [S, S] [Austin 2021, appendix A.2.1].

    Args:
        max_count: largest data level.
    """

    def __init__(self, max_count: int = 255) -> None:
        super().__init__(max_count, torch.ones(max_count + 1, dtype=torch.float64) / (max_count + 1))


@component("process")
class Absorbing(_Forgetting):
    """At rate 1 an element is replaced by the mask, the state max_count + 1, for good [Austin 2021, appendix A.2.2].

    exp(Q t) = e^-t I + (1 - e^-t) 1 pi^T, [S, S], with all of pi at the mask.

    Args:
        max_count: largest data level.
    """

    def __init__(self, max_count: int = 255) -> None:
        self.mask = max_count + 1
        masked = torch.zeros(max_count + 2, dtype=torch.float64)
        masked[self.mask] = 1.0
        super().__init__(max_count, masked)
