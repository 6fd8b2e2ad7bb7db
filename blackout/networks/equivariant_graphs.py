"""leSite and leTF, on lattices and on graphs: locally equivariant networks that know who is whose neighbour.

leSite is ours: a hollow linear layer, or sums over the nodes at every distance, then a deep network at every site,
which messages tell what its neighbours see. leTF has Graphormer's bias on graphs: leGF [Ou 2025, appendix D.4].
On graphs weights are shared by the distance of nodes, so that one network serves graphs of every size. The law:
test_equivariant.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.networks.equivariant import (
    Block,
    Features,
    Hollow,
    HollowLinear,
    LocallyEquivariant,
    TimeEmbedding,
    TransformerBody,
    TwoStreams,
)

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
        weights: what couples two nodes, [B, d, d]: `adjacent` where nothing has a weight.
        fields: what each node gains alone, [B, d].
    """

    adjacent: Tensor
    classes: Tensor
    mask: Tensor
    weights: Tensor
    fields: Tensor

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
        parts = self.adjacent, self.classes, self.mask, self.weights, self.fields
        return GraphBatch(*(part[which] for part in parts))


def distance_classes(adjacent: Tensor) -> Tensor:
    """Classes of pairs of nodes by shortest paths.

    Args:
        adjacent: of undirected graphs, 0 or 1 of any type, [G, d, d].

    Returns:
        uint8 [G, d, d].
    """
    from scipy.sparse.csgraph import shortest_path  # only here: importing it takes a second

    hops = np.stack([shortest_path(one, unweighted=True) for one in adjacent.cpu().numpy()])
    classes = np.where(np.isinf(hops), CLASSES - 1, np.minimum(hops, _EXACT + 1))
    return torch.from_numpy(classes.astype(np.uint8)).to(adjacent.device)


def _perceptron(features: int, channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, channels), nn.SiLU(), nn.Linear(channels, channels))


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
    other sites serves every neighbour; the part of x_i is subtracted from it. Ours
    (tests/networks/test_equivariant.py).

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
        """[B, d, F] -> [B, d, C]."""
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
    """A hollow linear layer, then residual layers: [B, d, channels]. Ours (tests/networks/test_equivariant.py).

    The conditional log-probabilities of a site are features too: they are hollow, and needed anyway.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width of every layer.
        layers: residual layers after the first.
        lattice: [H, W] to share weights over translations; None for free weights.
        messages: width of the messages of neighbours, on a lattice; 0 for none.
        parameters: numbers that tell which law of many it is; 0 for one law.
    """

    def __init__(
        self, sites: int, levels: int, channels: int, layers: int, lattice: Sequence[int] | None, messages: int,
        parameters: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(channels, layers)
        if messages and lattice is None:
            raise ValueError("messages need a target on a lattice, such as ising or potts: use messages: 0")
        self.states = Features(levels)
        self.first = HollowLinear(sites, self.states.channels, channels, lattice)
        self.messages = Messages(lattice, self.states.channels, messages, channels) if messages and lattice else None
        self.conditional = nn.Linear(levels, channels)
        self.place = None if lattice is not None else nn.Parameter(0.1 * torch.randn(sites, channels))
        self._add_layers(layers)
        self.law = _perceptron(parameters, channels) if parameters else None

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, *law: Tensor) -> Tensor:
        """Features [B, d, width] of states [B, d]: see `Hollow.forward`."""
        time = self.time(t.to(conditional.dtype))
        time = F.silu(time if self.law is None else time + self.law(law[0].to(time.dtype)))
        states = self.states(x, conditional.dtype)
        hidden = self.first(states) + self.conditional(torch.tanh(conditional / 4) * 4)
        hidden = hidden if self.place is None else hidden + self.place
        hidden = hidden if self.messages is None else hidden + self.messages(states)
        return self._through_layers(hidden, self.modulation(time)[:, None])


class GraphMessages(nn.Module):
    """What the other nodes see of a graph without node i itself: [B, d, C].

    Node j sends silu of a linear map of x_j, its degree, and its number n_j of selected neighbours other than i, and
    node i adds up what comes from every distance, from neighbours times the weight of the edge. That number is
    n_j - x_i for every neighbour j, so that messages of neighbours are needed for x_i = 0 and 1 only, and n_j itself
    for nodes that are farther. Ours (tests/networks/test_equivariant.py).

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
        """States [B, d], the time's features [B, 1, C] and graphs -> [B, d, C]."""
        weights = graph.weights.to(x.dtype)
        sent = [F.silu(self.sender(view) + self.time(time)) for view in _views(x, graph.adjacent.to(x.dtype))]
        received = [torch.where(x[..., None] > 0.5, weights @ sent[1], weights @ sent[0])]
        if self.reach > 1:  # scaled, as there are more of these
            far = graph.shells[:, 1 : self.reach].to(x.dtype) @ sent[0][:, None]
            received += list((far / 4).unbind(1))
        return self.read(torch.cat(received, -1))


class RelayedMessages(nn.Module):
    """What the neighbours of a node hear from theirs, on the graph without the node: [B, d, C].

    Neighbour i of node j sends silu of a linear map of what it is, as in `GraphMessages`, and of the sum over its own
    neighbours k but j of silu of a linear map of what k is. So a node knows what a neighbour holds back: in an
    independent set, nodes that have no other selected neighbour. A k that j has in common with i loses x_j from the
    number of its selected neighbours; these are the only terms that depend on the pair. Ours
    (tests/networks/test_equivariant.py).

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
        """States [B, d], the time's features [B, 1, C] and graphs -> [B, d, C]."""
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

    [B, d, channels]. Ours (tests/networks/test_equivariant.py).

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
        ensure(1 <= reach < distances, f"reach must be between 1 and {distances - 1}, not {reach}")
        self.first = nn.Linear(2 * (distances - 1), channels)
        self.messages = GraphMessages(messages, channels, reach) if messages else None
        self.relayed = RelayedMessages(relayed, channels) if relayed else None
        self.conditional = nn.Linear(2, channels)
        self._add_layers(layers)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, *graphs: GraphBatch) -> Tensor:
        """Features [B, d, width] of states [B, d]: see `Hollow.forward`."""
        (graph,) = graphs
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
        parameters: numbers that tell which law of many it is, on lattices; 0 for one law.

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
        parameters: int = 0,
    ) -> None:
        body: Hollow
        if distances is not None:
            body = GraphSitewiseBody(distances, channels, layers, messages, reach, relayed)
        elif reach != 1 or relayed:
            raise ValueError(f"reach={reach} and relayed={relayed} need a target on graphs: mis or maxcut")
        else:
            body = SitewiseBody(sites, levels, channels, layers, lattice, messages, parameters)
        super().__init__(body, levels, heat_bath, partition)


_DEGREES = 32
"""Degrees with an embedding of their own; larger ones share the last."""


class GraphTransformerBody(TwoStreams):
    """Streams over the nodes in their order, with attention logits biased by the distance of the two nodes.

    There is one bias a head for all layers, as in Graphormer [Ying 2021]. There are no positions: what a node is, its
    degree and distances say, so that graphs of any size are read.

    Args:
        distances: classes of pairs of nodes, the node itself included.
        levels: number of states of a node.
        channels: width.
        layers: blocks of each stream.
        heads: of every attention.
    """

    def __init__(self, distances: int, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(levels, channels, layers, heads)
        self.degree = nn.ModuleList(nn.Embedding(_DEGREES, channels) for _ in range(2))
        self.bias = nn.Embedding(distances, heads)
        nn.init.normal_(self.bias.weight, std=0.02)
        self.streams = nn.ModuleList(nn.ModuleList(Block(channels, heads) for _ in range(layers)) for _ in range(2))
        self.add_readout(heads, norms=4)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, *graphs: GraphBatch) -> Tensor:
        """Features [B, d, width] of states [B, d]: see `Hollow.forward`."""
        (graph,) = graphs
        time = self.time(t.to(conditional.dtype))[:, None]
        degree = graph.adjacent.sum(-1).long().clamp(max=_DEGREES - 1)
        tokens, own = self.embed(x.long()) + self.degree[0](degree), self.degree[1](degree)
        classes, mask = graph.classes.long(), graph.mask
        node, row = torch.arange(x.shape[1], device=x.device), torch.arange(len(x), device=x.device)[:, None]
        # from the last node to the first, with nodes that are none still behind
        turn = torch.where(mask, mask.sum(1, keepdim=True) - 1 - node, node)
        turned_classes = classes[row[..., None], turn[..., None], turn[:, None]]
        bias, turned = (self.bias(pairs).permute(0, 3, 1, 2) for pairs in (classes, turned_classes))
        forward = self._stream(0, tokens, own, time, bias)
        backward = self._stream(1, tokens[row, turn], own[row, turn], time, turned)[row, turn]
        seen = torch.cat([node[None] <= node[:, None], node[None] >= node[:, None]], 1)
        # a node that is none sees itself, so that no row is empty
        exists = torch.cat([mask, mask], 1)[:, None] | torch.eye(x.shape[1], device=x.device).bool().repeat(1, 2)
        logits = torch.cat([bias, bias], -1).masked_fill(~(seen & exists)[:, None], -torch.inf)
        return self.read(forward, backward, time, logits)

    def _stream(self, which: int, tokens: Tensor, own: Tensor, time: Tensor, bias: Tensor) -> Tensor:
        """Slot i knows the time, its own degree and the nodes before it; it holds the last of these, node i - 1."""
        hidden = torch.cat([time, tokens[:, :-1]], 1) + own
        later = torch.ones(bias.shape[2:], device=bias.device).triu(1).bool()
        logits = F.pad(bias[..., :-1], (1, 0)).masked_fill(later, -torch.inf)  # the prefix has no bias
        for block in self.streams[which].children():
            hidden = block(hidden, logits)
        return self.norms[2 + which](hidden)


@component("network")
class LETransformer(LocallyEquivariant):
    """leTF: the locally equivariant transformer [Ou 2025, section 3.3 and appendix B.3]; on graphs leGF.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width.
        layers: blocks of each of the two streams.
        heads: of every attention.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.
        distances: classes of pairs of nodes of graphs, the node itself included: leTF with Graphormer's bias
            [Ou 2025, appendix D.4].

    Raises:
        ValueError: a width that is no multiple of the heads.
    """

    def __init__(
        self,
        sites: int,
        levels: int,
        channels: int = 64,
        layers: int = 3,
        heads: int = 4,
        heat_bath: bool = False,
        partition: bool = False,
        distances: int | None = None,
    ) -> None:
        body: Hollow
        if distances is not None:
            body = GraphTransformerBody(distances, levels, channels, layers, heads)
        else:
            body = TransformerBody(sites, levels, channels, layers, heads)
        super().__init__(body, levels, heat_bath, partition)
