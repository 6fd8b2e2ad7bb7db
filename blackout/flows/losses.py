"""Training losses: the squared residual of the Kolmogorov forward equation at single states."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.flows.path import forward_residual
from blackout.flows.replay import ReplayBatch
from blackout.networks import LocallyEquivariant
from blackout.representation import format_arguments


class EstimatedPartition:
    """(xi - d log Z_t / dt)^2 with d log Z_t / dt estimated from the newest rollout.

    It is zero for all states and times if and only if the rates carry p_t.

    References: Ou et al. 2025, eqs. 5 and 10, with clipped log-ratios (appendix E).

    Args:
        clip: largest log-ratio l_t that is exponentiated.

    Raises:
        ValueError: clip not positive.
    """

    # whether the network has a function of time whose derivative is d log Z_t / dt
    learns_partition = False

    __repr__ = format_arguments

    def __init__(self, clip: float = 5.0) -> None:
        ensure(clip > 0, f"clip must be positive, not {clip}")
        self.clip = clip

    def __call__(self, network: LocallyEquivariant, batch: ReplayBatch) -> tuple[Tensor, Tensor]:
        """Return the squared residuals, [b], and the fraction of clipped log-ratios, a scalar.

        References: Ou et al. 2025, eq. 10.
        """
        log_ratios = batch.t[:, None, None] * batch.log_ratios
        net_rates = network(batch.x, batch.t, batch.log_ratios, *batch.context)
        xi = forward_residual(batch.dlogp_dt, net_rates, log_ratios.clamp(max=self.clip))
        clipped_fraction = (log_ratios > self.clip).float().mean()
        return (xi - self.dlogz_dt(network, batch)).square(), clipped_fraction

    def dlogz_dt(self, network: LocallyEquivariant, batch: ReplayBatch) -> Tensor:
        """Return the estimate of d log Z_t / dt, [b], without gradients.

        References: Ou et al. 2025, Algorithm 1.
        """
        return batch.dlogz_dt


class LearnedPartition(EstimatedPartition):
    """(xi - d log Z_t / dt)^2 with d log Z_t / dt trained together with the rates, as in LEAPS.

    References: Ou et al. 2025, eq. 18.
    """

    learns_partition = True

    def dlogz_dt(self, network: LocallyEquivariant, batch: ReplayBatch) -> Tensor:
        """Return the derivative of the network's own function of time, [b]."""
        with torch.enable_grad():
            return network.log_partition_slope(batch.t)
