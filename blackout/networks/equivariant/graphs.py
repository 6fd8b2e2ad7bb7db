"""leSite on graphs: weights are shared by the distance of nodes, so that one network serves graphs of every size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blackout.networks.equivariant.base import GraphBatch, Hollow, TimeEmbedding, known


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
        sent = [nn.functional.silu(self.sender(view) + self.time(time)) for view in _views(x, adjacent)]
        received = [torch.where(x[..., None] > 0.5, adjacent @ sent[1], adjacent @ sent[0])]
        if self.reach > 1:  # scaled, as there are more of these
            far = graph.shells[:, 1 : self.reach].to(x.dtype) @ sent[0][:, None]
            received += list((far / 4).unbind(1))
        messages: Tensor = self.read(torch.cat(received, -1))
        return messages


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
        heard, without = (nn.functional.silu(self.first(view)) for view in views)
        lost = (heard - without).transpose(1, 2)
        common = (adjacent[:, None] * lost[:, :, None]) @ adjacent[:, None]  # [B, width, sender, node]
        selected = x[row, node][:, None]
        to_each = (adjacent @ heard)[row, sender] - heard[row, node] - selected * common[row, :, sender, node]
        own = [(self.sender(view) + self.time(time))[row, sender] for view in views]
        told = nn.functional.silu(torch.where(selected > 0.5, own[1], own[0]) + self.relay(to_each))
        received = torch.zeros_like(heard).flatten(0, 1).index_add(0, row * x.shape[1] + node, told)
        messages: Tensor = self.read(received.view_as(heard))
        return messages


def _views(x: Tensor, adjacent: Tensor) -> tuple[Tensor, Tensor]:
    """What every node is to a neighbour that is not selected, and to one that is and does not count: [B, d, 5] each."""
    selected, degree = adjacent @ x[..., None], adjacent.sum(-1, keepdim=True)

    def view(others: Tensor) -> Tensor:
        return torch.cat([x[..., None], others.clamp(max=1), others.clamp(max=2), others / 4, degree / 8], -1)

    return view(selected), view(selected - 1)


class GraphSitewiseBody(Hollow):
    """Sums over the nodes at every distance, then residual layers at every node, shifted by the time.

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

    def __init__(
        self, distances: int, channels: int, layers: int, messages: int = 0, reach: int = 1, relayed: int = 0
    ) -> None:
        super().__init__(channels, layers)
        if not 1 <= reach < distances:
            raise ValueError(f"reach must be between 1 and {distances - 1}, not {reach}")
        self.first = nn.Linear(2 * (distances - 1), channels)
        self.messages = GraphMessages(messages, channels, reach) if messages else None
        self.relayed = RelayedMessages(relayed, channels) if relayed else None
        self.conditional = nn.Linear(2, channels)
        self.time = TimeEmbedding(channels)
        self.modulation = nn.Linear(channels, channels * (layers + 2))
        self.layers = nn.ModuleList(nn.Linear(channels, channels) for _ in range(layers))

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, graph: GraphBatch | None = None) -> Tensor:
        graph = known(graph)
        time = nn.functional.silu(self.time(t.to(conditional.dtype)))[:, None]
        scale, *shifts = self.modulation(time).chunk(len(self.layers) + 2, -1)
        bits = x.to(conditional.dtype)
        selected = (graph.shells.to(bits.dtype) @ bits[:, None, :, None]).squeeze(-1).transpose(1, 2)
        hidden = self.first(torch.cat([selected / 4, graph.sizes.to(bits.dtype) / 8], -1))
        hidden = hidden + self.conditional(torch.tanh(conditional / 4) * 4)
        if self.messages is not None:
            hidden = hidden + self.messages(bits, time, graph)
        if self.relayed is not None:
            hidden = hidden + self.relayed(bits, time, graph)
        hidden = nn.functional.silu(torch.addcmul(shifts[0], hidden, 1 + scale))
        for layer, shift in zip(self.layers, shifts[1:], strict=True):
            hidden = hidden + nn.functional.silu(layer(hidden) + shift)
        return hidden
