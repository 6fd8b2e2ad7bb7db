"""leMLP and leAttn: the paper's networks with one hollow layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.equivariant.base import Features, Hollow, LocallyEquivariant, TimeEmbedding
from blackout.networks.equivariant.graphs import GraphSitewiseBody

# --- leConv: convolutions with a hole whose weights depend on the state (Holderrieth et al., LEAPS, 2025).


class _ConvolutionBody(Hollow):
    """out_i[c] = sum_{o != 0} {SiLU(A[c, o] SiLU(prev_i) + b_1) + b_2 + mlp_o(t)} x_{i + o}[c], layer after layer.

    Every layer multiplies the raw input at the other sites, so that no layer sees x_i.
    """

    def __init__(self, lattice: Sequence[int], levels: int, channels: int, kernels: Sequence[int]) -> None:
        super().__init__(channels)
        self.lattice, self.kernels = list(lattice), list(kernels)
        self.states = Features(levels)
        self.embed = nn.Linear(self.states.channels, channels)
        self.time = TimeEmbedding(channels)
        holes = [size * size - 1 for size in kernels]
        self.first = nn.Parameter(torch.randn(channels, holes[0]) / holes[0] ** 0.5)
        self.slopes = nn.ParameterList(torch.randn(channels, hole) / hole**0.5 for hole in holes[1:])
        self.inner = nn.ParameterList(torch.zeros(channels, hole) for hole in holes[1:])
        self.outer = nn.ParameterList(torch.randn(channels, hole) / hole**0.5 for hole in holes[1:])
        self.drift = nn.ModuleList(nn.Linear(channels, hole) for hole in holes)
        self.mix = nn.ModuleList(nn.Linear(channels, channels) for _ in kernels)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        time = nn.functional.silu(self.time(t.to(conditional.dtype)))
        raw = self.embed(self.states(x, conditional.dtype))
        others = self._around(raw, self.kernels[0])
        hidden = ((self.first + self.drift[0](time)[:, None, None]) * others).sum(-1)
        hidden = self.mix[0](nn.functional.silu(hidden))
        for number, size in enumerate(self.kernels[1:]):
            gate = nn.functional.silu(self.slopes[number] * nn.functional.silu(hidden)[..., None] + self.inner[number])
            weight = gate + self.outer[number] + self.drift[number + 1](time)[:, None, None]
            hidden = hidden + self.mix[number + 1]((weight * self._around(raw, size)).sum(-1))
        return hidden

    def _around(self, raw: Tensor, size: int) -> Tensor:
        """The states in the window around every site without its middle: [B, d, C] -> [B, d, C, size^2 - 1]."""
        image = raw.unflatten(1, self.lattice)
        reach = range(-(size // 2), size // 2 + 1)
        window = [image.roll((-i, -j), (1, 2)) for i in reach for j in reach if (i, j) != (0, 0)]
        return torch.stack(window, -1).flatten(1, 2)


@component("network")
class LEConvolution(LocallyEquivariant):
    """leConv, for lattices.

    Args:
        lattice: [H, W] of the torus.
        levels: number of states of a site.
        channels: width.
        kernels: sides of the windows, odd; larger than the lattice they would wrap around and see the site itself.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.

    Raises:
        ValueError: an even window, or one larger than the lattice, or none.
    """

    def __init__(
        self,
        levels: int,
        lattice: Sequence[int] | None = None,
        channels: int = 20,
        kernels: Sequence[int] = (3, 3, 3),
        heat_bath: bool = False,
        partition: bool = False,
    ) -> None:
        if lattice is None:
            raise ValueError("leConv needs a target on a lattice, such as ising or potts: choose another network")
        for size in kernels:
            if size % 2 == 0 or not 3 <= size <= min(lattice):
                raise ValueError(
                    f"kernels must be odd, from 3 to the side of the lattice ({min(lattice)}), not {size}: "
                    "a wider one wraps around and sees the site itself"
                )
        if not kernels:
            raise ValueError("kernels must name at least one window")
        super().__init__(_ConvolutionBody(lattice, levels, channels, kernels), levels, heat_bath, partition)


# --- leSite: one hollow layer over all other sites, then a deep network at every site.


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


class Messages(nn.Module):
    """What the neighbours of a site see of the others, with the site itself taken out: [B, d, F] -> [B, d, C].

    Neighbour j of site i sends silu(a linear map of all states but x_i), as cavity methods do. One linear map of all
    other sites serves every neighbour; the part of x_i is subtracted from it.

    Args:
        lattice: [H, W] of the torus.
        features: F.
        width: of a message.
        channels: C.
    """

    def __init__(self, lattice: Sequence[int], features: int, width: int, channels: int) -> None:
        super().__init__()
        self.lattice, self.width = tuple(lattice), width
        height, across = lattice
        steps = [(0, 1), (0, -1), (1, 0), (-1, 0)]
        self.steps = [(i, j) for i, j in steps if (i % height, j % across) != (0, 0)]
        self.others = HollowLinear(height * across, features, width, lattice)
        self.sender = nn.Linear(features, width)
        self.read = nn.Linear(len(self.steps) * width, channels)

    def forward(self, features: Tensor) -> Tensor:
        seen = (self.others(features) + self.sender(features)).unflatten(1, self.lattice)
        weight = self.others.weight.view(-1, self.others.features, self.width)
        sent = []
        for down, across in self.steps:
            # the sender is at i + step, so that the way from i to the sender is the step itself
            number = down % self.lattice[0] * self.lattice[1] + across % self.lattice[1]
            there = seen.roll((-down, -across), (1, 2)).flatten(1, 2)
            sent.append(nn.functional.silu(there - features @ weight[number]))
        received: Tensor = self.read(torch.cat(sent, -1))
        return received


class SitewiseBody(Hollow):
    """Hollow linear layer, then residual layers at every site, shifted by the time.

    The conditional log-probabilities of a site are features too: they are hollow, and needed anyway.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width of every layer.
        layers: residual layers after the first.
        lattice: [H, W] to share weights over translations; None for free weights.
        messages: width of the messages of neighbours, on a lattice; 0 for none.
    """

    def __init__(
        self,
        sites: int,
        levels: int,
        channels: int,
        layers: int,
        lattice: Sequence[int] | None = None,
        messages: int = 0,
    ) -> None:
        super().__init__(channels, layers)
        if messages and lattice is None:
            raise ValueError("messages need a target on a lattice, such as ising or potts: use messages: 0")
        self.states = Features(levels)
        self.first = HollowLinear(sites, self.states.channels, channels, lattice)
        self.messages = None
        if messages and lattice is not None:
            self.messages = Messages(lattice, self.states.channels, messages, channels)
        self.conditional = nn.Linear(levels, channels)
        self.place = None if lattice is not None else nn.Parameter(0.1 * torch.randn(sites, channels))
        self.time = TimeEmbedding(channels)
        self.modulation = nn.Linear(channels, channels * (layers + 2))
        self.layers = nn.ModuleList(nn.Linear(channels, channels) for _ in range(layers))

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        time = nn.functional.silu(self.time(t.to(conditional.dtype)))
        scale, *shifts = self.modulation(time)[:, None].chunk(len(self.layers) + 2, -1)
        states = self.states(x, conditional.dtype)
        hidden = self.first(states) + self.conditional(torch.tanh(conditional / 4) * 4)
        hidden = hidden if self.place is None else hidden + self.place
        hidden = hidden if self.messages is None else hidden + self.messages(states)
        hidden = nn.functional.silu(torch.addcmul(shifts[0], hidden, 1 + scale))
        for layer, shift in zip(self.layers, shifts[1:], strict=True):
            hidden = hidden + nn.functional.silu(layer(hidden) + shift)
        return hidden


@component("network")
class LESite(LocallyEquivariant):
    """Locally equivariant network that is deep at every site.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width of every layer.
        layers: residual layers after the hollow one.
        lattice: [H, W] to share weights over translations; None for free weights.
        messages: width of the messages of neighbours, on a lattice or graph; 0 for none.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.
        distances: classes of pairs of nodes of graphs, to share weights by them (and over graphs of any size).
        reach: of messages, on graphs: 1 for those of neighbours, one below `distances` for those of all nodes.
        relayed: width of what neighbours relay of theirs, on graphs; 0 for none.

    Raises:
        ValueError: messages without a lattice, or farther ones without a graph.
    """

    def __init__(
        self,
        sites: int,
        levels: int,
        channels: int = 32,
        layers: int = 3,
        lattice: Sequence[int] | None = None,
        messages: int = 0,
        heat_bath: bool = False,
        partition: bool = False,
        distances: int | None = None,
        reach: int = 1,
        relayed: int = 0,
    ) -> None:
        body: Hollow
        if distances is not None:
            body = GraphSitewiseBody(distances, channels, layers, messages, reach, relayed)
        elif reach != 1 or relayed:
            raise ValueError(f"reach={reach} and relayed={relayed} need a target on graphs: mis or maxcut")
        else:
            body = SitewiseBody(sites, levels, channels, layers, lattice, messages)
        super().__init__(body, levels, heat_bath, partition)


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


@component("network")
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


@component("network")
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
