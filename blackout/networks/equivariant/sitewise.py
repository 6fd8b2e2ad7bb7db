"""leSite: one hollow layer over all other sites, then a deep network at every site."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from blackout.networks.equivariant.base import Features, Hollow, LocallyEquivariant, TimeEmbedding


class HollowLinear(nn.Module):
    """A linear map of the states of all other sites, [B, d, F] -> [B, d, C].

    Args:
        sites: number d of sites.
        features: F.
        channels: C.
        lattice: [H, W] to share weights over translations of the torus; None for free weights.
    """

    weight: nn.Parameter
    offset: Tensor

    def __init__(self, sites: int, features: int, channels: int, lattice: Sequence[int] | None = None) -> None:
        super().__init__()
        self.sites, self.features, self.channels, self.tied = sites, features, channels, lattice is not None
        scale = 1 / math.sqrt(features * max(1, sites - 1))
        rows = sites if lattice is not None else sites * sites
        self.weight = nn.Parameter(scale * torch.randn(rows, features * channels))
        self.register_buffer("offset", _offsets(sites, lattice), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        kernel = self.weight[self.offset.flatten()] if self.tied else self.weight
        kernel = kernel.view(self.sites, self.sites, self.features, self.channels)
        other = 1 - torch.eye(self.sites, dtype=kernel.dtype, device=kernel.device)
        matrix = (kernel * other[..., None, None]).permute(0, 2, 1, 3).reshape(self.sites * self.features, -1)
        return (features.flatten(1) @ matrix).view(-1, self.sites, self.channels)


def _offsets(sites: int, lattice: Sequence[int] | None) -> Tensor:
    """Number of the translation from site j to site i of a torus: int64 [j, i]."""
    if lattice is None:
        return torch.zeros(0, dtype=torch.int64)
    height, width = lattice
    row, column = torch.arange(sites) // width, torch.arange(sites) % width
    down = (row[None] - row[:, None]) % height
    return down * width + (column[None] - column[:, None]) % width


class SitewiseBody(Hollow):
    """Hollow linear layer, then residual layers at every site, scaled and shifted by the time.

    The conditional log-probabilities of a site are features too: they are hollow, and needed anyway.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width of every layer.
        layers: residual layers after the first.
        lattice: [H, W] to share weights over translations; None for free weights.
    """

    def __init__(
        self, sites: int, levels: int, channels: int, layers: int, lattice: Sequence[int] | None = None
    ) -> None:
        super().__init__(channels)
        self.states = Features(levels)
        self.first = HollowLinear(sites, self.states.channels, channels, lattice)
        self.conditional = nn.Linear(levels, channels)
        self.place = None if lattice is not None else nn.Parameter(0.1 * torch.randn(sites, channels))
        self.time = TimeEmbedding(channels)
        self.modulation = nn.Linear(channels, 2 * channels * (layers + 1))
        self.layers = nn.ModuleList(nn.Linear(channels, channels) for _ in range(layers))

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        t = t.to(conditional.dtype)
        scales = self.modulation(nn.functional.silu(self.time(t)))[:, None].chunk(2 * (len(self.layers) + 1), -1)
        hidden = self.first(self.states(x, conditional.dtype)) + self.conditional(torch.tanh(conditional / 4) * 4)
        hidden = hidden if self.place is None else hidden + self.place
        hidden = nn.functional.silu(hidden * (1 + scales[0]) + scales[1])
        for number, layer in enumerate(self.layers, 1):
            shifted = layer(hidden) * (1 + scales[2 * number]) + scales[2 * number + 1]
            hidden = hidden + nn.functional.silu(shifted)
        return hidden


class LESite(LocallyEquivariant):
    """Locally equivariant network that is deep at every site.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width of every layer.
        layers: residual layers after the hollow one.
        lattice: [H, W] to share weights over translations; None for free weights.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.
    """

    def __init__(
        self,
        sites: int,
        levels: int,
        channels: int = 32,
        layers: int = 3,
        lattice: Sequence[int] | None = None,
        heat_bath: bool = False,
        partition: bool = False,
    ) -> None:
        super().__init__(SitewiseBody(sites, levels, channels, layers, lattice), levels, heat_bath, partition)
