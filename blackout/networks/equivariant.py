"""Locally equivariant networks: one evaluation gives the rates out of a state and into it.

G(tau, i | x) = -G(x_i, i | Swap(x, i, tau)) holds by construction [Ou 2025, Prop. 2]: row i of the hollow features H(x)
does not depend on x_i, and G(tau, i | x) = (omega_tau - omega_{x_i}) . H_i. What makes H hollow, for each network:

    LEMLP               linear maps with zero diagonals [Ou 2025, appendix B.2]
    LEAttention         attention of a site to all others [Ou 2025, appendix B.2]
    LEConvolution       windows with a hole, layer after layer [Holderrieth 2025]
    LESite              a hollow linear layer, then a deep network at every site; ours

and, in `blackout.networks.equivariant_transformer`, causal attention from both ends (leTF, leGF).

That no site sees itself, and sees every other one, is tested for all of them (tests/networks/test_equivariant.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component

_EXACT = 3
"""Distances that have a class of their own."""
CLASSES = _EXACT + 3
"""Classes of pairs: a node itself, distance 1, 2, 3, farther, and not connected."""


@dataclass(frozen=True)
class GraphBatch:
    """What networks are told of the graphs of a batch, padded to one size, one for every row.

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


def distance_classes(adjacent: Tensor) -> Tensor:
    """Classes of pairs of nodes by shortest paths.

    Args:
        adjacent: of undirected graphs, 0 or 1 of any type, [G, d, d].

    Returns:
        uint8 [G, d, d].
    """
    d = adjacent.shape[-1]
    step = adjacent.float()
    reached = torch.eye(d, device=adjacent.device).expand_as(step)
    classes = torch.full(step.shape, CLASSES - 1, dtype=torch.uint8, device=adjacent.device)
    classes[reached > 0] = 0
    for distance in range(1, d):
        further = (reached + reached @ step > 0).float()
        fresh = further > reached
        if not bool(fresh.any()):
            break
        classes[fresh] = min(distance, _EXACT + 1)
        reached = further
    return classes


def known(graph: GraphBatch | None) -> GraphBatch:
    """The graphs that a network needs; raises TypeError where there are none."""
    if graph is None:
        raise TypeError("this network needs graphs: target=mis or target=maxcut")
    return graph


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
        return self.layers(torch.cat([t[:, None], angle.sin(), angle.cos()], 1))


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
        return F.one_hot(x.long(), self.levels).to(dtype)


class Hollow(nn.Module):
    """A body whose features of site i do not depend on x_i [Ou 2025, Definition 3].

    Args:
        width: number of features of a site.
        layers: that the body has besides.
        heads: of its attention.

    Raises:
        ValueError: no width, fewer than no layers, or a width that is no multiple of the heads.
    """

    def __init__(self, width: int, layers: int = 0, heads: int = 1) -> None:
        super().__init__()
        if width < 1 or layers < 0:
            raise ValueError(f"channels must be at least 1 and layers 0, not {width} and {layers}")
        if width % heads:
            raise ValueError(f"channels must be a multiple of heads, not {width} and {heads}")
        self.width = width

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        """Features [B, d, width].

        Args:
            x: states, integers [B, d].
            t: times [B].
            conditional: log p(tau | x without i) up to a constant, [B, d, S]: hollow itself.
        """
        raise NotImplementedError


_SMALL = 0.1
"""Scale of the readout at the start: with rates of order 1, importance weights would degenerate and training stall."""


class LocallyEquivariant(nn.Module):
    """Reads G off a hollow body [Ou 2025, Prop. 2], optionally with the heat-bath term, which is ours.

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
        scores = potential - potential.gather(-1, own)
        if self.gate is None:
            return scores
        law = torch.softmax(t[:, None, None] * ratios, -1)
        return scores + torch.sigmoid(self.gate(hollow)) * ratios * torch.maximum(law, law.gather(-1, own))

    def log_partition_slope(self, t: Tensor) -> Tensor:
        """The learned d log Z_t / dt at times [B], [B] [Holderrieth 2025]."""
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
        offset = torch.zeros(0, dtype=torch.int64)
        if lattice is not None:  # number of the translation from site j to site i of the torus, [j, i]
            height, width = lattice
            row, column = torch.arange(sites) // width, torch.arange(sites) % width
            offset = (row[None] - row[:, None]) % height * width + (column[None] - column[:, None]) % width
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        kernel = self.weight[self.offset.flatten()] if self.tied else self.weight
        kernel = kernel.view(self.sites, self.sites, self.features, self.channels)
        other = 1 - torch.eye(self.sites, dtype=kernel.dtype, device=kernel.device)
        matrix = (kernel * other[..., None, None]).permute(0, 2, 1, 3).reshape(self.sites * self.features, -1)
        return (features.flatten(1) @ matrix).view(-1, self.sites, self.channels)


class _MLPBody(Hollow):
    def __init__(self, sites: int, levels: int, channels: int) -> None:
        super().__init__(channels)
        self.states = Features(levels)
        self.first = HollowLinear(sites, self.states.channels, channels)
        self.bias = nn.Parameter(0.1 * torch.randn(sites, channels))
        self.time = TimeEmbedding(channels)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        shift = self.time(t.to(conditional.dtype))[:, None]
        return F.silu(self.first(self.states(x, conditional.dtype)) + self.bias + shift)


@component("network")
class LEMLP(LocallyEquivariant):
    """leMLP: H = sum_k act(W^k e + b^k(t)) with zero diagonals of W^k [Ou 2025, appendix B.2].

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
        super().__init__(channels, heads=heads)
        self.heads = heads
        self.states = Features(levels)
        self.embed = nn.Linear(self.states.channels, channels)
        self.place = nn.Parameter(0.5 * torch.randn(sites, channels))
        self.time = TimeEmbedding(channels)
        self.project = nn.Linear(channels, 3 * channels)
        self.output = nn.Sequential(nn.Linear(2 * channels, channels), nn.SiLU(), nn.Linear(channels, channels))

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        shift = self.time(t.to(conditional.dtype))[:, None]
        hidden = F.silu(self.embed(self.states(x, conditional.dtype)) + self.place + shift)
        query, key, value = self.project(hidden).unflatten(-1, (3, self.heads, -1)).unbind(2)
        logit = (query * key).sum(-1) / math.sqrt(key.shape[-1])
        # a matrix without diagonal rather than a total minus the own term, which would leak by rounding
        mask = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        weights = logit.transpose(1, 2)[:, :, None, :].masked_fill(mask, -torch.inf).softmax(-1)
        mixed = (weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)
        here = (self.place + shift).expand(len(x), -1, -1)
        return self.output(torch.cat([mixed, here], -1))


@component("network")
class LEAttention(LocallyEquivariant):
    """leAttn: linear-attention weights of every site, normalised over the other sites [Ou 2025, appendix B.2].

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
        time = F.silu(self.time(t.to(conditional.dtype)))
        raw = self.embed(self.states(x, conditional.dtype))
        others = self._around(raw, self.kernels[0])
        hidden = ((self.first + self.drift[0](time)[:, None, None]) * others).sum(-1)
        hidden = self.mix[0](F.silu(hidden))
        for number, size in enumerate(self.kernels[1:]):
            gate = F.silu(self.slopes[number] * F.silu(hidden)[..., None] + self.inner[number])
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
    """leConv, for lattices: convolutions with a hole whose weights depend on the state [Holderrieth 2025].

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


class _DeepAtSites(Hollow):
    """Residual layers at every site, shifted by the time, after what a subclass's first layer sees of the others."""

    def _add_layers(self, layers: int) -> None:
        self.time = TimeEmbedding(self.width)
        self.modulation = nn.Linear(self.width, self.width * (layers + 2))
        self.layers = nn.ModuleList(nn.Linear(self.width, self.width) for _ in range(layers))

    def _through_layers(self, hidden: Tensor, modulation: Tensor) -> Tensor:
        """[B, d, C] and the time's scale and shifts, [B, 1, C (layers + 2)] -> [B, d, C]."""
        scale, *shifts = modulation.chunk(len(self.layers) + 2, -1)
        hidden = F.silu(torch.addcmul(shifts[0], hidden, 1 + scale))
        for layer, shift in zip(self.layers, shifts[1:], strict=True):
            hidden = hidden + F.silu(layer(hidden) + shift)
        return hidden


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
            sent.append(F.silu(there - features @ weight[number]))
        return self.read(torch.cat(sent, -1))


class SitewiseBody(_DeepAtSites):
    """A hollow linear layer, then residual layers.

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
        self, sites: int, levels: int, channels: int, layers: int, lattice: Sequence[int] | None, messages: int
    ) -> None:
        super().__init__(channels, layers)
        if messages and lattice is None:
            raise ValueError("messages need a target on a lattice, such as ising or potts: use messages: 0")
        self.states = Features(levels)
        self.first = HollowLinear(sites, self.states.channels, channels, lattice)
        self.messages = Messages(lattice, self.states.channels, messages, channels) if messages and lattice else None
        self.conditional = nn.Linear(levels, channels)
        self.place = None if lattice is not None else nn.Parameter(0.1 * torch.randn(sites, channels))
        self._add_layers(layers)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        time = F.silu(self.time(t.to(conditional.dtype)))
        states = self.states(x, conditional.dtype)
        hidden = self.first(states) + self.conditional(torch.tanh(conditional / 4) * 4)
        hidden = hidden if self.place is None else hidden + self.place
        hidden = hidden if self.messages is None else hidden + self.messages(states)
        return self._through_layers(hidden, self.modulation(time)[:, None])


class GraphMessages(nn.Module):
    """What the other nodes see of a graph without node i itself: [B, d, C].

    Node j sends silu of a linear map of x_j, its degree, and its number n_j of selected neighbours other than i, and
    node i adds up what comes from every distance. That number is n_j - x_i for every neighbour j, so that messages of
    neighbours are needed for x_i = 0 and 1 only, and n_j itself for nodes that are farther.

    Args:
        width: of a message.
        channels: C.
        reach: classes of distance that are heard: 1 is the neighbours, one below `CLASSES` is all nodes.
    """

    def __init__(self, width: int, channels: int, reach: int = 1) -> None:
        super().__init__()
        self.sender, self.time = nn.Linear(5, width), nn.Linear(channels, width)
        self.read, self.reach = nn.Linear(reach * width, channels), reach

    def forward(self, x: Tensor, time: Tensor, graph: GraphBatch) -> Tensor:
        adjacent = graph.adjacent.to(x.dtype)
        sent = [F.silu(self.sender(view) + self.time(time)) for view in _views(x, adjacent)]
        received = [torch.where(x[..., None] > 0.5, adjacent @ sent[1], adjacent @ sent[0])]
        if self.reach > 1:  # scaled, as there are more of these
            far = graph.shells[:, 1 : self.reach].to(x.dtype) @ sent[0][:, None]
            received += list((far / 4).unbind(1))
        return self.read(torch.cat(received, -1))


class RelayedMessages(nn.Module):
    """What the neighbours of a node hear from theirs, on the graph without the node: [B, d, C].

    Neighbour i of node j sends silu of a linear map of what it is, as in `GraphMessages`, and of the sum over its own
    neighbours k but j of silu of a linear map of what k is. So a node knows what a neighbour holds back: in an
    independent set, nodes that have no other selected neighbour. A k that j has in common with i loses x_j from the
    number of its selected neighbours; these are the only terms that depend on the pair.

    Args:
        width: of a message.
        channels: C.
    """

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.first, self.sender = nn.Linear(5, width), nn.Linear(5, width)
        self.relay, self.time = nn.Linear(width, width, bias=False), nn.Linear(channels, width)
        self.read = nn.Linear(width, channels)

    def forward(self, x: Tensor, time: Tensor, graph: GraphBatch) -> Tensor:
        adjacent, (row, sender, node) = graph.adjacent.to(x.dtype), graph.edges
        views = _views(x, adjacent)
        heard, without = (F.silu(self.first(view)) for view in views)
        lost = (heard - without).transpose(1, 2)
        common = (adjacent[:, None] * lost[:, :, None]) @ adjacent[:, None]  # [B, width, sender, node]
        selected = x[row, node][:, None]
        to_each = (adjacent @ heard)[row, sender] - heard[row, node] - selected * common[row, :, sender, node]
        own = [(self.sender(view) + self.time(time))[row, sender] for view in views]
        told = F.silu(torch.where(selected > 0.5, own[1], own[0]) + self.relay(to_each))
        received = torch.zeros_like(heard).flatten(0, 1).index_add(0, row * x.shape[1] + node, told)
        return self.read(received.view_as(heard))


def _views(x: Tensor, adjacent: Tensor) -> tuple[Tensor, Tensor]:
    """What every node is to a neighbour that is not selected, and to one that is and does not count: [B, d, 5] each."""
    selected, degree = adjacent @ x[..., None], adjacent.sum(-1, keepdim=True)

    def view(others: Tensor) -> Tensor:
        return torch.cat([x[..., None], others.clamp(max=1), others.clamp(max=2), others / 4, degree / 8], -1)

    return view(selected), view(selected - 1)


class GraphSitewiseBody(_DeepAtSites):
    """Sums over the nodes at every distance, then residual layers: one network serves graphs of every size.

    Args:
        distances: classes of pairs of nodes, the node itself included.
        channels: width of every layer.
        layers: residual layers after the first.
        messages: width of the messages of other nodes; 0 for none.
        reach: classes of distance from which they come.
        relayed: width of what neighbours relay; 0 for none.

    Raises:
        ValueError: a reach that there is not.
    """

    def __init__(self, distances: int, channels: int, layers: int, messages: int, reach: int, relayed: int) -> None:
        super().__init__(channels, layers)
        if not 1 <= reach < distances:
            raise ValueError(f"reach must be between 1 and {distances - 1}, not {reach}")
        self.first = nn.Linear(2 * (distances - 1), channels)
        self.messages = GraphMessages(messages, channels, reach) if messages else None
        self.relayed = RelayedMessages(relayed, channels) if relayed else None
        self.conditional = nn.Linear(2, channels)
        self._add_layers(layers)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, graph: GraphBatch | None = None) -> Tensor:
        graph = known(graph)
        time = F.silu(self.time(t.to(conditional.dtype)))[:, None]
        modulation = self.modulation(time)
        bits = x.to(conditional.dtype)
        selected = (graph.shells.to(bits.dtype) @ bits[:, None, :, None]).squeeze(-1).transpose(1, 2)
        hidden = self.first(torch.cat([selected / 4, graph.sizes.to(bits.dtype) / 8], -1))
        hidden = hidden + self.conditional(torch.tanh(conditional / 4) * 4)
        for part in (self.messages, self.relayed):
            hidden = hidden if part is None else hidden + part(bits, time, graph)
        return self._through_layers(hidden, modulation)


@component("network")
class LESite(LocallyEquivariant):
    """leSite: deep at every site, and told by messages what its neighbours see. Ours.

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
