"""What training minimises: the squared residual of the forward equation, at single states."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.flows.path import residual
from blackout.flows.replay import ReplayBatch
from blackout.networks import LocallyEquivariant


class EstimatedPartition:
    """(xi - d log Z_t / dt)^2, zero for all states and times if and only if the rates carry p_t.

    [Ou 2025, eqs. 5 and 10], with log-ratios that are clipped.

    Args:
        clip: largest log-ratio l_t that is exponentiated.

    Raises:
        ValueError: clip not positive.
    """

    learns_partition = False
    """Whether the network has a function whose derivative is d log Z_t / dt."""

    def __init__(self, clip: float = 5.0) -> None:
        ensure(clip > 0, f"clip must be positive, not {clip}")
        self.clip = clip

    def __call__(self, network: LocallyEquivariant, batch: ReplayBatch) -> tuple[Tensor, Tensor]:
        """(squared residuals [b] [Ou 2025, eq. 10], the share of clipped log-ratios, a scalar) of b states."""
        log_ratios = batch.t[:, None, None] * batch.ratios
        scores = network(batch.x, batch.t, batch.ratios, *batch.context)
        xi = residual(batch.dlogp_dt, scores, log_ratios.clamp(max=self.clip))
        clipped = (log_ratios > self.clip).float().mean()
        return (xi - self.partition_slope(network, batch)).square(), clipped

    def partition_slope(self, network: LocallyEquivariant, batch: ReplayBatch) -> Tensor:
        """d log Z_t / dt, [b]: the estimate from the newest rollout, held fixed [Ou 2025, Algorithm 1]."""
        return batch.partition_slope


class LearnedPartition(EstimatedPartition):
    """The derivative of a function of time that is trained with the rates, as in LEAPS [Ou 2025, eq. 18]."""

    learns_partition = True

    def partition_slope(self, network: LocallyEquivariant, batch: ReplayBatch) -> Tensor:
        """By the network's own function of time, [b]."""
        with torch.enable_grad():
            return network.log_partition_slope(batch.t)
