"""leMLP and leAttn: the paper's networks with one hollow layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from blackout.networks.equivariant.base import Features, Hollow, LocallyEquivariant, TimeEmbedding
from blackout.networks.equivariant.sitewise import HollowLinear


class _MLPBody(Hollow):
    def __init__(self, sites: int, levels: int, channels: int) -> None:
        super().__init__(channels)
        self.states = Features(levels)
        self.first = HollowLinear(sites, self.states.channels, channels)
        self.bias = nn.Parameter(0.1 * torch.randn(sites, channels))
        self.time = TimeEmbedding(channels)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        shift = self.time(t.to(conditional.dtype))[:, None]
        return nn.functional.silu(self.first(self.states(x, conditional.dtype)) + self.bias + shift)


class LEMLP(LocallyEquivariant):
    """leMLP: H = sum_k act(W^k e + b^k(t)) with zero diagonals of W^k (section 4.2 of the paper).

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: number of terms k.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.
    """

    def __init__(
        self, sites: int, levels: int, channels: int = 64, heat_bath: bool = False, partition: bool = False
    ) -> None:
        super().__init__(_MLPBody(sites, levels, channels), levels, heat_bath, partition)


class _AttentionBody(Hollow):
    """H_i = sum_{s != i} exp(k_s . q_s) v_s / sum_{s != i} exp(k_s . q_s), query and key at the same site s."""

    def __init__(self, sites: int, levels: int, channels: int, heads: int) -> None:
        super().__init__(channels)
        if channels % heads:
            raise ValueError(f"channels must be a multiple of heads, not {channels} and {heads}")
        self.heads = heads
        self.states = Features(levels)
        self.embed = nn.Linear(self.states.channels, channels)
        self.place = nn.Parameter(0.5 * torch.randn(sites, channels))
        self.time = TimeEmbedding(channels)
        self.project = nn.Linear(channels, 3 * channels)
        self.output = nn.Sequential(nn.Linear(2 * channels, channels), nn.SiLU(), nn.Linear(channels, channels))

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        shift = self.time(t.to(conditional.dtype))[:, None]
        hidden = nn.functional.silu(self.embed(self.states(x, conditional.dtype)) + self.place + shift)
        query, key, value = self.project(hidden).unflatten(-1, (3, self.heads, -1)).unbind(2)
        logit = (query * key).sum(-1) / math.sqrt(key.shape[-1])
        # a matrix without diagonal rather than a total minus the own term, which would leak by rounding
        sites = x.shape[1]
        mask = torch.eye(sites, dtype=torch.bool, device=x.device)
        weights = logit.transpose(1, 2)[:, :, None, :].masked_fill(mask, -torch.inf).softmax(-1)
        mixed = (weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)
        here = (self.place + shift).expand(len(x), -1, -1)
        features: Tensor = self.output(torch.cat([mixed, here], -1))
        return features


class LEAttention(LocallyEquivariant):
    """leAttn: linear-attention weights of every site, normalised over the other sites (section 4.2 of the paper).

    Args:
        sites: number of sites, at least 2.
        levels: number of states of a site.
        channels: width.
        heads: of the attention.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.

    Raises:
        ValueError: one site, or a width that is no multiple of the heads.
    """

    def __init__(
        self,
        sites: int,
        levels: int,
        channels: int = 64,
        heads: int = 4,
        heat_bath: bool = False,
        partition: bool = False,
    ) -> None:
        if sites < 2:
            raise ValueError("attention to other sites needs at least 2 sites")
        super().__init__(_AttentionBody(sites, levels, channels, heads), levels, heat_bath, partition)
