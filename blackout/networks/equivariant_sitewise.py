"""leSite, on lattices and graphs: a locally equivariant network that is deep at every site.

A hollow linear layer, or sums over the nodes at every distance, is followed by a deep network at
every site. Messages add what the neighbours of a site see. On graphs, weights are shared by the
distance of nodes, so that one network serves graphs of different sizes.

References: this project; checked in tests/networks/test_equivariant.py and
tests/flows/graphs/test_problems.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.networks.equivariant import (
    HollowBody,
    HollowLinear,
    LocallyEquivariant,
    StateEncoding,
    UnitTimeEmbedding,
)
from blackout.networks.graph_batch import GraphBatch

NUM_NODE_FEATURES = 5  # see `_node_features`
MAX_CONDITIONAL = 4.0  # log-probabilities are bounded smoothly to ±4


def _bound(conditional: Tensor) -> Tensor:
    """Bound log-probabilities smoothly, as they can be very large."""
    return torch.tanh(conditional / MAX_CONDITIONAL) * MAX_CONDITIONAL


class _SitewiseBody(HollowBody):
    """Base class: residual layers at every site, modulated by the time, after a hollow layer."""

    def _add_layers(self, layers: int) -> None:
        self.time = UnitTimeEmbedding(self.width)
        self.modulation = nn.Linear(self.width, self.width * (layers + 2))
        self.layers = nn.ModuleList(nn.Linear(self.width, self.width) for _ in range(layers))

    def _apply_layers(self, hidden: Tensor, modulation: Tensor) -> Tensor:
        """Apply the residual layers, h + SiLU(W h + shift), to [B, d, C].

        Args:
            hidden: [B, d, C]; its scale and shift are those of FiLM.
            modulation: scale and shifts by the time, [B, 1, C (layers + 2)].

        Returns:
            [B, d, C].

        References: Perez et al. 2018.
        """
        scale, first_shift, *shifts = modulation.chunk(len(self.layers) + 2, -1)
        hidden = F.silu(torch.addcmul(first_shift, hidden, 1 + scale))
        for layer, shift in zip(self.layers, shifts, strict=True):
            hidden = hidden + F.silu(layer(hidden) + shift)
        return hidden


# --- Lattices


class Messages(nn.Module):
    """Messages of the neighbours of a site on a torus, without the site itself.

    Neighbour j of site i sends SiLU(a linear map of all states but x_i), as cavity methods do. One
    linear map of all other sites serves every neighbour; the contribution of x_i is subtracted.

    Args:
        lattice: [H, W] of the torus.
        features: F.
        width: of a message.
        channels: C.
    """

    def __init__(self, lattice: Sequence[int], features: int, width: int, channels: int) -> None:
        super().__init__()
        self.lattice = tuple(lattice)
        self.width = width
        height, columns = lattice
        steps = [(0, 1), (0, -1), (1, 0), (-1, 0)]
        # On a side of length 1 the neighbour would be the site itself.
        self.steps = [(i, j) for i, j in steps if (i % height, j % columns) != (0, 0)]
        self.others = HollowLinear(height * columns, features, width, lattice)
        self.sender = nn.Linear(features, width)
        self.read = nn.Linear(len(self.steps) * width, channels)

    def forward(self, features: Tensor) -> Tensor:
        """Map the features of states [B, d, F] to [B, d, C]."""
        height, columns = self.lattice
        totals = (self.others(features) + self.sender(features)).unflatten(1, self.lattice)
        weight = self.others.weight.view(-1, self.others.features, self.width)
        messages = []
        for down, right in self.steps:
            # The sender is at i + step, so the translation from i to the sender is the step.
            translation = down % height * columns + right % columns
            sender_totals = totals.roll((-down, -right), (1, 2)).flatten(1, 2)
            messages.append(F.silu(sender_totals - features @ weight[translation]))
        return self.read(torch.cat(messages, -1))


class LatticeSitewiseBody(_SitewiseBody):
    """Hollow features of leSite: a hollow linear layer, then residual layers, [B, d, channels].

    The conditional log-probabilities of a site are features too. They are hollow, and known
    anyway.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width of every layer.
        layers: number of residual layers after the first.
        lattice: [H, W] to share weights over translations; None for free weights.
        messages: width of the messages of neighbours, on a lattice; 0 for none.
        parameters: number of parameters of the target that the network is conditioned on.

    Raises:
        ValueError: messages without a lattice.
    """

    def __init__(
        self,
        sites: int,
        levels: int,
        channels: int,
        layers: int,
        lattice: Sequence[int] | None,
        messages: int,
        parameters: int = 0,
    ) -> None:
        super().__init__(channels, layers)
        if messages and lattice is None:
            raise ValueError(
                "messages need a target on a lattice, such as ising or potts: use messages: 0"
            )
        self.states = StateEncoding(levels)
        num_features = self.states.channels
        self.first = HollowLinear(sites, num_features, channels, lattice)
        self.messages: Messages | None = None
        if messages and lattice:
            self.messages = Messages(lattice, num_features, messages, channels)
        self.conditional = nn.Linear(levels, channels)
        self.place: nn.Parameter | None = None  # embedding of the site, with free weights
        if lattice is None:
            self.place = nn.Parameter(0.1 * torch.randn(sites, channels))
        self._add_layers(layers)
        self.parameters_mlp: nn.Sequential | None = None
        if parameters:
            self.parameters_mlp = nn.Sequential(
                nn.Linear(parameters, channels), nn.SiLU(), nn.Linear(channels, channels)
            )

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, *context: Tensor) -> Tensor:
        """Return the features of states [B, d], see `HollowBody.forward`.

        Args:
            x: states, integers [B, d].
            t: times in [0, 1], [B].
            conditional: log-probabilities, [B, d, S].
            context: the target's parameters, [1 or B, P], for a network with `parameters`.
        """
        time = self.time(t.to(conditional.dtype))
        if self.parameters_mlp is not None:
            time = time + self.parameters_mlp(context[0].to(time.dtype))
        states = self.states(x, conditional.dtype)
        hidden = self.first(states) + self.conditional(_bound(conditional))
        if self.place is not None:
            hidden = hidden + self.place
        if self.messages is not None:
            hidden = hidden + self.messages(states)
        return self._apply_layers(hidden, self.modulation(F.silu(time))[:, None])


# --- Graphs


def _node_features(x: Tensor, num_selected: Tensor, degree: Tensor) -> Tensor:
    """Return state, number of selected neighbours on three scales, and degree, [B, d, 5].

    Args:
        x: states, [B, d].
        num_selected: number of neighbours in state 1, [B, d, 1].
        degree: [B, d, 1].
    """
    counts = [num_selected.clamp(max=1), num_selected.clamp(max=2), num_selected / 4]
    return torch.cat([x[..., None], *counts, degree / 8], -1)


def _sender_features(x: Tensor, adjacency: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of every node as a sender to a neighbour, without that neighbour.

    A sender's number of selected neighbours without the receiver i is n_j - x_i, the same for all
    senders. So two versions suffice.

    Args:
        x: states, [B, d].
        adjacency: [B, d, d].

    Returns:
        Features [B, d, 5] for receivers in state 0, and for receivers in state 1.
    """
    num_selected = adjacency @ x[..., None]
    degree = adjacency.sum(-1, keepdim=True)
    return _node_features(x, num_selected, degree), _node_features(x, num_selected - 1, degree)


class GraphMessages(nn.Module):
    """Messages of the other nodes to node i, on the graph without i: [B, d, C].

    Node j sends SiLU of a linear map of x_j, its degree, and its number n_j of selected neighbours
    other than i. Node i sums the messages from every distance; those from neighbours are
    multiplied by the weight of the edge. For neighbours the number is n_j - x_i, for nodes farther
    away it is n_j.

    Args:
        width: of a message.
        channels: C.
        reach: largest distance class that sends messages: 1 for neighbours, one below the number
            of classes for all nodes.
    """

    def __init__(self, width: int, channels: int, reach: int = 1) -> None:
        super().__init__()
        self.sender = nn.Linear(NUM_NODE_FEATURES, width)
        self.time = nn.Linear(channels, width)
        self.read = nn.Linear(reach * width, channels)
        self.reach = reach

    def forward(self, x: Tensor, time: Tensor, graph: GraphBatch) -> Tensor:
        """Map states [B, d], time features [B, 1, C] and graphs to [B, d, C]."""
        weights = graph.weights.to(x.dtype)
        features, features_if_selected = _sender_features(x, graph.adjacency.to(x.dtype))
        messages = F.silu(self.sender(features) + self.time(time))
        messages_if_selected = F.silu(self.sender(features_if_selected) + self.time(time))
        is_selected = x[..., None] > 0.5
        received = [torch.where(is_selected, weights @ messages_if_selected, weights @ messages)]
        if self.reach > 1:
            # Divided by 4, as there are more of these nodes
            far = graph.shells[:, 1 : self.reach].to(x.dtype) @ messages[:, None]
            received += list((far / 4).unbind(1))
        return self.read(torch.cat(received, -1))


class RelayedMessages(nn.Module):
    """Messages that the neighbours of node j relay from theirs, on the graph without j: [B, d, C].

    Neighbour i of node j sends SiLU of the sum of two linear maps. One is of its own features, as
    in `GraphMessages`. The other is of what i receives from its neighbours k other than j: SiLU of
    a linear map of the features of k, summed over k. So j knows what constrains a neighbour: in an
    independent set, nodes without another selected neighbour.

    A node k that is a neighbour of both i and j has x_j in its number of selected neighbours, which
    is subtracted. These terms alone depend on the pair (i, j).

    Args:
        width: of a message.
        channels: C.
    """

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_NODE_FEATURES, width)
        self.sender = nn.Linear(NUM_NODE_FEATURES, width)
        self.relay = nn.Linear(width, width, bias=False)
        self.time = nn.Linear(channels, width)
        self.read = nn.Linear(width, channels)

    def forward(self, x: Tensor, time: Tensor, graph: GraphBatch) -> Tensor:
        """Map states [B, d], time features [B, 1, C] and graphs to [B, d, C]."""
        # Every directed edge has a sender i and a receiver j.
        row, sender, receiver = graph.edges
        adjacency = graph.adjacency.to(x.dtype)
        features, features_if_selected = _sender_features(x, adjacency)

        # 1. Messages of the nodes k, and their change if a selected neighbour is taken out.
        messages = F.silu(self.first(features))
        change = (messages - F.silu(self.first(features_if_selected))).transpose(1, 2)

        # 2. Their sum over the neighbours k of the sender other than the receiver, per edge.
        common = (adjacency[:, None] * change[:, :, None]) @ adjacency[:, None]  # [B, width, i, j]
        is_selected = x[row, receiver][:, None]
        total = (adjacency @ messages)[row, sender] - messages[row, receiver]
        relayed = total - is_selected * common[row, :, sender, receiver]

        # 3. Messages of the senders.
        direct = (self.sender(features) + self.time(time))[row, sender]
        direct_if_selected = (self.sender(features_if_selected) + self.time(time))[row, sender]
        direct = torch.where(is_selected > 0.5, direct_if_selected, direct)
        edge_messages = F.silu(direct + self.relay(relayed))

        # 4. Their sum at every receiver.
        received = torch.zeros_like(messages).flatten(0, 1)
        received = received.index_add(0, row * x.shape[1] + receiver, edge_messages)
        return self.read(received.view_as(messages))


class GraphSitewiseBody(_SitewiseBody):
    """Hollow features of leSite on graphs: sums over the nodes at every distance, residual layers.

    Args:
        distances: number of distance classes, see `GraphBatch`.
        channels: width of every layer.
        layers: number of residual layers after the first.
        messages: width of the messages of other nodes; 0 for none.
        reach: largest distance class that sends messages.
        relayed: width of relayed messages; 0 for none.

    Raises:
        ValueError: `reach` is out of range.
    """

    def __init__(
        self, distances: int, channels: int, layers: int, messages: int, reach: int, relayed: int
    ) -> None:
        super().__init__(channels, layers)
        ensure(1 <= reach < distances, f"reach must be between 1 and {distances - 1}, not {reach}")
        self.first = nn.Linear(2 * (distances - 1), channels)
        self.messages = GraphMessages(messages, channels, reach) if messages else None
        self.relayed = RelayedMessages(relayed, channels) if relayed else None
        self.conditional = nn.Linear(2, channels)
        self._add_layers(layers)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, *graphs: GraphBatch) -> Tensor:
        """Return the features of states [B, d] of one `GraphBatch`, see `HollowBody.forward`."""
        (graph,) = graphs
        time = F.silu(self.time(t.to(conditional.dtype)))[:, None]
        modulation = self.modulation(time)
        states = x.to(conditional.dtype)

        # 1. Numbers of selected nodes and of all nodes at every distance.
        shells = graph.shells.to(states.dtype)
        num_selected = (shells @ states[:, None, :, None]).squeeze(-1).transpose(1, 2)
        sizes = graph.shell_sizes.to(states.dtype)
        hidden = self.first(torch.cat([num_selected / 4, sizes / 8], -1))

        # 2. Conditional log-probabilities and messages.
        hidden = hidden + self.conditional(_bound(conditional))
        if self.messages is not None:
            hidden = hidden + self.messages(states, time, graph)
        if self.relayed is not None:
            hidden = hidden + self.relayed(states, time, graph)
        return self._apply_layers(hidden, modulation)


# --- Network


@component("network")
class LESite(LocallyEquivariant):
    """leSite: deep at every site, optionally with messages about what its neighbours see.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width of every layer.
        layers: number of residual layers after the hollow one.
        lattice: [H, W] to share weights over translations; None for free weights.
        messages: width of the messages of neighbours, on a lattice or graph; 0 for none.
        heat_bath: whether to add the heat-bath term.
        partition: whether to learn d log Z_t / dt.
        distances: number of distance classes of graphs, by which weights are shared, so that one
            network serves graphs of different sizes; None for no graphs.
        reach: largest distance class that sends messages, on graphs: 1 for neighbours, one below
            `distances` for all nodes.
        relayed: width of messages that neighbours relay from theirs, on graphs; 0 for none.
        parameters: number of parameters of the target that the network is conditioned on, on
            lattices; 0 for a single target.

    Raises:
        ValueError: messages without a lattice or graph, or `reach` or `relayed` without a graph.

    Example:
        >>> network = LESite(sites=4, levels=2, channels=8, lattice=[2, 2])
        >>> network(torch.tensor([[0, 1, 1, 0]]), torch.tensor([0.5]), torch.zeros(1, 4, 2)).shape
        torch.Size([1, 4, 2])

    References: this project; checked in tests/networks/test_equivariant.py.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
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
        body: HollowBody
        if distances is not None:
            body = GraphSitewiseBody(distances, channels, layers, messages, reach, relayed)
        elif reach != 1 or relayed:
            raise ValueError(
                f"reach={reach} and relayed={relayed} need a target on graphs: mis or maxcut"
            )
        else:
            body = LatticeSitewiseBody(
                sites, levels, channels, layers, lattice, messages, parameters
            )
        super().__init__(body, levels, heat_bath, partition)
