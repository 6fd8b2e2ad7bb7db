"""Locally equivariant networks: one evaluation gives the rates out of a state and into it.

G(tau, i | x) = -G(x_i, i | Swap(x, i, tau)) holds by construction (Prop. 2 of Ou, Zhang and Li, NeurIPS 2025): row i of
the hollow features H(x) does not depend on x_i, and G(tau, i | x) = (omega_tau - omega_{x_i}) . H_i.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from blackout.networks.equivariant.graph_batch import GraphBatch

_SMALL = 0.1
"""Scale of the readout at the start: with rates of order 1, importance weights would degenerate and training stall."""


class TimeEmbedding(nn.Module):
    """Times [B] in [0, 1] -> features [B, width], by sines and cosines and two layers.

    Args:
        width: number of features.
        frequencies: number of sines, with periods from 4 down to 4 / 2^(frequencies - 1).
    """

    def __init__(self, width: int, frequencies: int = 6) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.layers = nn.Sequential(nn.Linear(2 * frequencies + 1, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        period = 2.0 ** torch.arange(self.frequencies, device=t.device, dtype=t.dtype)
        angle = t[:, None] * period * (math.pi / 2)
        features: Tensor = self.layers(torch.cat([t[:, None], angle.sin(), angle.cos()], 1))
        return features


class Hollow(nn.Module):
    """A body whose features of site i do not depend on x_i.

    Args:
        width: number of features of a site.
        layers: that the body has besides.

    Raises:
        ValueError: no width, or fewer than no layers.
    """

    def __init__(self, width: int, layers: int = 0) -> None:
        super().__init__()
        if width < 1 or layers < 0:
            raise ValueError(f"channels must be at least 1 and layers 0, not {width} and {layers}")
        self.width = width

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        """Features [B, d, width].

        Args:
            x: states, integers [B, d].
            t: times [B].
            conditional: log p(tau | x without i) up to a constant, [B, d, S]: hollow itself.
        """
        raise NotImplementedError


class LocallyEquivariant(nn.Module):
    """Reads G off a hollow body, optionally with the heat-bath term.

    The heat-bath term is a(t, H_i) Delta max(pi_t(tau), pi_t(x_i)), where Delta are the target's log-ratios, pi_t the
    conditional law of site i at time t and a a learned gate that starts at 1/2. It solves every product target.

    Args:
        body: the hollow features.
        levels: number S of states of a site.
        heat_bath: add that term.
        partition: also learn a function of time, whose derivative is d log Z_t / dt (the objective of LEAPS).
    """

    def __init__(self, body: Hollow, levels: int, heat_bath: bool = False, partition: bool = False) -> None:
        super().__init__()
        self.body, self.levels = body, levels
        self.omega = nn.Parameter(_SMALL * torch.randn(levels, body.width) / math.sqrt(body.width))
        self.gate = nn.Linear(body.width, 1) if heat_bath else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)
        self.partition = _Scalar() if partition else None

    def forward(self, x: Tensor, t: Tensor, ratios: Tensor, graph: GraphBatch | None = None) -> Tensor:
        """G(tau, i | x), 0 at tau = x_i and at sites that are none.

        Args:
            x: states, integers [B, d].
            t: times [B].
            ratios: the target's log-ratios at t = 1, [B, d, S].
            graph: whose nodes the sites are, for bodies that know graphs.

        Returns:
            [B, d, S].
        """
        ratios = ratios.to(self.omega.dtype)
        given = () if graph is None else (graph,)
        hollow = self.body(x, t, ratios - ratios.mean(-1, keepdim=True), *given)
        if graph is not None:
            hollow = hollow * graph.mask[..., None]
        potential = hollow @ self.omega.T
        own = x.long()[..., None]
        scores: Tensor = potential - potential.gather(-1, own)
        if self.gate is None:
            return scores
        law = torch.softmax(t[:, None, None] * ratios, -1)
        return scores + torch.sigmoid(self.gate(hollow)) * ratios * torch.maximum(law, law.gather(-1, own))

    def log_partition_slope(self, t: Tensor) -> Tensor:
        """The learned d log Z_t / dt at times [B]."""
        assert self.partition is not None
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.partition(t[:, None]).sum(), t, create_graph=True)
        return slope


class _Scalar(nn.Sequential):
    """A smooth function of one number."""

    def __init__(self, width: int = 200) -> None:
        super().__init__(
            nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 1),
        )  # fmt: skip


class Features(nn.Module):
    """States as numbers, integers [B, d] -> [B, d, channels]: +-1 for two levels, else one of S.

    Args:
        levels: number S of states.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels, self.channels = levels, 1 if levels == 2 else levels

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if self.levels == 2:
            return (2 * x.to(dtype) - 1)[..., None]
        return nn.functional.one_hot(x.long(), self.levels).to(dtype)
