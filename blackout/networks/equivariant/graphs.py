"""leSite on graphs: weights are shared by the distance of nodes, so that one network serves graphs of every size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blackout.networks.equivariant.base import Hollow, TimeEmbedding
from blackout.networks.equivariant.graph_batch import GraphBatch, known


class NeighbourMessages(nn.Module):
    """What the neighbours of a node see without it: [B, d, C].

    Neighbour j of node i sends silu of a linear map of x_j, its degree, and its number of selected neighbours other
    than i. That number is n_j - x_i for every neighbour j, so that messages are needed for x_i = 0 and 1 only.

    Args:
        width: of a message.
        channels: C.
    """

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.sender, self.time = nn.Linear(5, width), nn.Linear(channels, width)
        self.read = nn.Linear(width, channels)

    def forward(self, x: Tensor, time: Tensor, graph: GraphBatch) -> Tensor:
        adjacent = graph.adjacent.to(x.dtype)
        selected, degree = adjacent @ x[..., None], adjacent.sum(-1, keepdim=True)
        received = [adjacent @ self._sent(x, selected - own, degree, time) for own in (0.0, 1.0)]
        messages: Tensor = self.read(torch.where(x[..., None] > 0.5, received[1], received[0]))
        return messages

    def _sent(self, x: Tensor, selected: Tensor, degree: Tensor, time: Tensor) -> Tensor:
        parts = x[..., None], selected.clamp(max=1), selected.clamp(max=2), selected / 4, degree / 8
        return nn.functional.silu(self.sender(torch.cat(parts, -1)) + self.time(time))


class GraphSitewiseBody(Hollow):
    """Sums over the nodes at every distance, then residual layers at every node, shifted by the time.

    Args:
        distances: classes of pairs of nodes, the node itself included.
        channels: width of every layer.
        layers: residual layers after the first.
        messages: width of the messages of neighbours; 0 for none.
    """

    def __init__(self, distances: int, channels: int, layers: int, messages: int = 0) -> None:
        super().__init__(channels)
        self.first = nn.Linear(2 * (distances - 1), channels)
        self.messages = NeighbourMessages(messages, channels) if messages else None
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
        hidden = nn.functional.silu(torch.addcmul(shifts[0], hidden, 1 + scale))
        for layer, shift in zip(self.layers, shifts[1:], strict=True):
            hidden = hidden + nn.functional.silu(layer(hidden) + shift)
        return hidden
