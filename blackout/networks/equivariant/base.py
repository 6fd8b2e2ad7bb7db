"""Locally equivariant networks: one evaluation gives the rates out of a state and into it.

G(tau, i | x) = -G(x_i, i | Swap(x, i, tau)) holds by construction (Prop. 2 of Ou, Zhang and Li, NeurIPS 2025): row i of
the hollow features H(x) does not depend on x_i, and G(tau, i | x) = (omega_tau - omega_{x_i}) . H_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

# --- What networks are told of graphs: a batch of them, padded to one size, one for every row.

_EXACT = 3
"""Distances that have a class of their own."""
CLASSES = _EXACT + 3
"""Classes of pairs: a node itself, distance 1, 2, 3, farther, and not connected."""


@dataclass(frozen=True)
class GraphBatch:
    """Graphs of the rows of a batch.

    Args:
        adjacent: 0 or 1, float32 [B, d, d]; nodes that are none have no edges.
        classes: of pairs of nodes by their distance, uint8 [B, d, d]: see `CLASSES`.
        mask: which nodes there are, bool [B, d].
    """

    adjacent: Tensor
    classes: Tensor
    mask: Tensor

    @cached_property
    def shells(self) -> Tensor:
        """1 where node j is in class k + 1 of node i, float32 [B, CLASSES - 1, d, d]; 0 for nodes that are none."""
        numbers = torch.arange(1, CLASSES, device=self.classes.device, dtype=torch.uint8)
        pairs = (self.mask[:, :, None] & self.mask[:, None, :])[:, None]
        return ((self.classes[:, None] == numbers[:, None, None]) & pairs).float()

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row, one end and the other end of every edge, in both directions: int64 [E] each. A device is waited for."""
        row, one, other = self.adjacent.nonzero(as_tuple=True)
        return row, one, other

    @cached_property
    def sizes(self) -> Tensor:
        """Numbers of nodes in every class, float32 [B, d, CLASSES - 1]."""
        return self.shells.sum(-1).transpose(1, 2)

    def rows(self, which: Tensor) -> GraphBatch:
        """Some of them, by number or mask."""
        return GraphBatch(self.adjacent[which], self.classes[which], self.mask[which])


def known(graph: GraphBatch | None) -> GraphBatch:
    """The graphs that a network needs.

    Raises:
        TypeError: there are none.
    """
    if graph is None:
        raise TypeError("this network needs graphs: target=mis or target=maxcut")
    return graph


def distance_classes(adjacent: Tensor) -> Tensor:
    """Classes of pairs of nodes by shortest paths.

    Args:
        adjacent: of undirected graphs, 0 or 1 of any type, [G, d, d].

    Returns:
        uint8 [G, d, d].
    """
    d = adjacent.shape[-1]
    step = adjacent.float()
    within = torch.eye(d, device=adjacent.device).expand_as(step)
    classes = torch.full(step.shape, CLASSES - 1, dtype=torch.uint8, device=adjacent.device)
    classes[within > 0] = 0
    reached = within
    for distance in range(1, d):
        further = (reached + reached @ step > 0).float()
        fresh = further > reached
        if not bool(fresh.any()):
            break
        classes[fresh] = min(distance, _EXACT + 1)
        reached = further
    return classes


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
