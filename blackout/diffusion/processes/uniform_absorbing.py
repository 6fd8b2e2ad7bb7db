"""Levels without order: uniform and absorbing (masked) jumps, which forget where they come from.

The data decay as e^-t, like the units of pure death, so that one schedule fits all. No matrices are
needed.

References: Campbell et al. 2022, section 4.1; Austin et al. 2021, appendices A.2.1 and A.2.2, in
    discrete time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.component import component
from blackout.counts import Time, per_row
from blackout.diffusion.predictions import TINY
from blackout.diffusion.processes.finite_states import FiniteJumpProcess


class _ReplacementProcess(FiniteJumpProcess):
    """At rate 1 an element is replaced by a draw from pi: Q = 1 pi^T - I.

    exp(Q t) = e^-t I + (1 - e^-t) 1 pi^T. Rows, columns and products of such matrices need no
    matrix [S, S], so that there may be thousands of levels. With k = e^-(t - s), the probability of
    no replacement, P_st[i, j] = k [i = j] + (1 - k) pi_j.

    References: Austin et al. 2021, appendices A.2.1 and A.2.2, of which this is the continuous-time
        form; products without matrices are this project's, checked in
        tests/diffusion/processes/test_closed_forms.py.

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
        """Return Q = 1 pi^T - I, float64 [S, S]."""
        return self._stationary - torch.eye(self.num_states, dtype=torch.float64)

    def transition_after(self, tau: Tensor) -> Tensor:
        """Return exp(Q tau) for tau [b], float64 [b, S, S]."""
        tau = tau[:, None, None]
        pi = self._stationary_on(tau.device)
        identity = torch.eye(len(pi), dtype=pi.dtype, device=pi.device)
        return torch.exp(-tau) * identity - torch.expm1(-tau) * pi

    def rows(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """Return P_st[x, .], float64 [B, ..., S]: (1 - k) pi, and k more at x [B, ...]."""
        k = self._survival(s, t, x)
        pi = self._stationary_on(x.device)
        spread = ((1 - k) * pi).expand(*x.shape, -1)
        return spread.scatter_add(-1, x[..., None], k.expand(*x.shape, 1))

    def columns(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """Return P_st[., x], float64 [B, ..., S]: (1 - k) pi_x, and k more at x [B, ...]."""
        k = self._survival(s, t, x)
        pi = self._stationary_on(x.device)
        spread = ((1 - k) * pi[x][..., None]).expand(*x.shape, self.num_states)
        return spread.scatter_add(-1, x[..., None], k.expand(*x.shape, 1))

    def propagate(self, weights: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """Return sum_i weights_i P_st[i, .], float64 [B, ..., S] as weights; times as for `rows`.

        It is k weights + (1 - k) (sum of weights) pi.
        """
        k = self._survival(s, t, weights[..., 0])
        pi = self._stationary_on(weights.device)
        return k * weights + (1 - k) * weights.sum(-1, keepdim=True) * pi

    def _draw_rows(self, x: Tensor, t: Tensor, u: Tensor) -> Tensor:
        """Return the levels at which cumulative sums of P_0t[x, .] exceed u, int64 [B, ...].

        The sums are (1 - k) times those of pi, and k more from x on.

        Args:
            x: states, int64 [B, ...].
            t: times, [1] or [B].
            u: uniforms of x's shape.
        """
        k = self._survival(torch.zeros_like(t), t, x)[..., 0].expand(u.shape)
        sums = self._stationary_on(x.device).cumsum(0)
        scale = (1 - k).clamp(min=TINY)
        before_x = torch.searchsorted(sums, (u / scale).contiguous(), right=True)
        from_x = torch.searchsorted(sums, ((u - k) / scale).contiguous(), right=True)
        level = torch.where(before_x < x, before_x, torch.maximum(from_x, x))
        return level.clamp(max=self.num_states - 1)

    def _rates_into(self, x: Tensor) -> Tensor:
        """Return Q[., x] without the diagonal: pi_x but at x, float64 [B, ..., S]."""
        pi = self._stationary_on(x.device)
        rates = pi[x][..., None].expand(*x.shape, self.num_states)
        return rates.scatter(-1, x[..., None], 0.0)

    def _rates_out(self, x: Tensor) -> Tensor:
        """Return Q[x, .] without the diagonal: pi but at x, float64 [B, ..., S]."""
        rates = self._stationary_on(x.device).expand(*x.shape, -1)
        return rates.scatter(-1, x[..., None], 0.0)

    def _prior_distances(self, t: Time) -> tuple[Tensor, Tensor]:
        """Return KL and total variation between P_0t[o, .] of every level o and the prior.

        Float64 [max_count + 1] each, at a scalar time t. The total variation is k M / (M + 1),
        M = max_count.
        """
        t = torch.as_tensor(t, dtype=torch.float64).reshape(1)
        k = torch.exp(-t)
        pi = self._stationary_on(t.device)
        prior = self.prior_pmf(t)
        p_elsewhere = (1 - k) * pi
        p_at_level = (1 - k) * pi + k
        nats_elsewhere = _elementwise_divergence(p_elsewhere, prior)
        nats_at_level = _elementwise_divergence(p_at_level, prior)
        nats = (nats_elsewhere.sum() - nats_elsewhere + nats_at_level).clamp(min=0.0)
        nats = nats[: self.max_count + 1]
        distance = k * self.max_count / (self.max_count + 1)
        return nats, distance.expand(len(nats))

    def _survival(self, s: Tensor, t: Tensor, x: Tensor) -> Tensor:
        """Return k = e^-(t - s), [b, 1, ..., 1], with one axis more than x."""
        return per_row(torch.exp(s - t), x)[..., None]

    def _stationary_on(self, device: torch.device) -> Tensor:
        """Return pi, [S], on a device, to which it is copied once."""
        if device not in self._copies:
            self._copies[device] = self._stationary.to(device)
        return self._copies[device]


def _elementwise_divergence(p: Tensor, prior: Tensor) -> Tensor:
    """Return p log(p / prior), elementwise."""
    return torch.special.xlogy(p, p) - torch.special.xlogy(p, prior)


@component("process")
class Uniform(_ReplacementProcess):
    """Uniform process: at rate 1, an element is replaced by a uniform draw from all S levels.

    exp(Q t) = e^-t I + (1 - e^-t) / S, [S, S].

    References: Austin et al. 2021, appendix A.2.1.

    Args:
        max_count: largest data level.
    """

    def __init__(self, max_count: int = 255) -> None:
        num_levels = max_count + 1
        super().__init__(max_count, torch.ones(num_levels, dtype=torch.float64) / num_levels)


@component("process")
class Absorbing(_ReplacementProcess):
    """Absorbing process: at rate 1, an element becomes the mask, the state max_count + 1, forever.

    exp(Q t) = e^-t I + (1 - e^-t) 1 pi^T, [S, S], with all of pi at the mask.

    References: Austin et al. 2021, appendix A.2.2.

    Args:
        max_count: largest data level.
    """

    def __init__(self, max_count: int = 255) -> None:
        self.mask = max_count + 1
        stationary = torch.zeros(max_count + 2, dtype=torch.float64)
        stationary[self.mask] = 1.0
        super().__init__(max_count, stationary)
