"""leSite, on lattices and on graphs: a locally equivariant network that is deep at every site. Ours.

A hollow linear layer, or sums over the nodes at every distance, then a deep network at every site, which messages tell
what its neighbours see. On graphs weights are shared by the distance of nodes, so that one network serves graphs of
every size. The law: tests/networks/test_equivariant.py, on graphs tests/flows/graphs/test_problems.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.networks.equivariant import (
    Features,
    GraphBatch,
    Hollow,
    HollowLinear,
    LocallyEquivariant,
    TimeEmbedding,
)


def _perceptron(features: int, channels: int) -> nn.Sequential:
    """Two layers with SiLU between, [..., features] -> [..., channels]; ours, see above."""
    return nn.Sequential(nn.Linear(features, channels), nn.SiLU(), nn.Linear(channels, channels))


class _DeepAtSites(Hollow):
    """Residual layers at every site, shifted by the time, after what a subclass's first layer sees of the others.

    Ours (tests/networks/test_equivariant.py).
    """

    def _add_layers(self, layers: int) -> None:
        self.time = TimeEmbedding(self.width)
        self.modulation = nn.Linear(self.width, self.width * (layers + 2))
        self.layers = nn.ModuleList(nn.Linear(self.width, self.width) for _ in range(layers))

    def _through_layers(self, hidden: Tensor, modulation: Tensor) -> Tensor:
        """[B, d, C] and the time's scale and shifts, [B, 1, C (layers + 2)] -> [B, d, C]: h + SiLU(W h + shift), by
        layer.

        Ours, see the class; the first is modulated as in [Perez 2018].
        """
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
        """[B, d, F] -> [B, d, C], by the class's messages: ours (tests/networks/test_equivariant.py)."""
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
        """Features [B, d, width] of states [B, d], as in the class: see `Hollow.forward`."""
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
    for nodes that are farther. Ours (tests/flows/graphs/test_problems.py).

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
        """States [B, d], the time's features [B, 1, C] and graphs -> [B, d, C], by the class's messages."""
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
    (tests/flows/graphs/test_problems.py).

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
        """States [B, d], the time's features [B, 1, C] and graphs -> [B, d, C], as in the class."""
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
    """What every node is to a neighbour that is not selected, and to one that is and does not count: [B, d, 5] each.

    Of states [B, d] and edges [B, d, d]; ours, see `GraphMessages`.
    """
    selected, degree = adjacent @ x[..., None], adjacent.sum(-1, keepdim=True)

    def view(others: Tensor) -> Tensor:
        """State, number of selected neighbours on three scales, and degree, [B, d, 5] of others [B, d, 1]; ours, see
        `_views`.
        """
        return torch.cat([x[..., None], others.clamp(max=1), others.clamp(max=2), others / 4, degree / 8], -1)

    return view(selected), view(selected - 1)


class GraphSitewiseBody(_DeepAtSites):
    """Sums over the nodes at every distance, then residual layers: one network serves graphs of every size.

    [B, d, channels]. Ours (tests/flows/graphs/test_problems.py).

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
        """Features [B, d, width] of states [B, d], as in the class: see `Hollow.forward`."""
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
    """leSite: deep at every site, and told by messages what its neighbours see.

    Ours (tests/networks/test_equivariant.py).

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
