"""leGF: the locally equivariant graph transformer of Ou, Zhang and Li (NeurIPS 2025), leTF with Graphormer's bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blackout.networks.equivariant.base import Hollow, LocallyEquivariant, TimeEmbedding
from blackout.networks.equivariant.graph_batch import GraphBatch, known
from blackout.networks.equivariant.transformer import Attention, Block
from blackout.networks.precision import LayerNorm

_DEGREES = 32
"""Degrees with an embedding of their own; larger ones share the last."""


class GraphTransformerBody(Hollow):
    """Two causal streams over the nodes in their order, and a readout, as in leTF.

    Attention logits are biased by the distance of the two nodes, with one bias a head for all layers. There are no
    positions: what a node is, its degree and distances say, so that graphs of any size are read.

    Args:
        distances: classes of pairs of nodes, the node itself included.
        levels: number of states of a node.
        channels: width.
        layers: blocks of each stream.
        heads: of every attention.
    """

    def __init__(self, distances: int, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(channels, layers)
        if channels % heads:
            raise ValueError(f"channels must be a multiple of heads, not {channels} and {heads}")
        self.embed, self.time = nn.Embedding(levels, channels), TimeEmbedding(channels)
        self.degree = nn.ModuleList(nn.Embedding(_DEGREES, channels) for _ in range(2))
        self.bias = nn.Embedding(distances, heads)
        nn.init.normal_(self.bias.weight, std=0.02)
        self.streams = nn.ModuleList(nn.ModuleList(Block(channels, heads) for _ in range(layers)) for _ in range(2))
        self.readout = Attention(channels, heads)
        self.norms = nn.ModuleList(LayerNorm(channels) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, graph: GraphBatch | None = None) -> Tensor:
        graph = known(graph)
        time = self.time(t.to(conditional.dtype))[:, None]
        degree = graph.adjacent.sum(-1).long().clamp(max=_DEGREES - 1)
        tokens, own = self.embed(x.long()) + self.degree[0](degree), self.degree[1](degree)
        classes, mask = graph.classes.long(), graph.mask
        node, row = torch.arange(x.shape[1], device=x.device), torch.arange(len(x), device=x.device)[:, None]
        # from the last node to the first, with nodes that are none still behind
        turn = torch.where(mask, mask.sum(1, keepdim=True) - 1 - node, node)
        bias, turned = self._bias(classes), self._bias(classes[row[..., None], turn[..., None], turn[:, None]])
        forward = self._stream(0, tokens, own, time, bias)
        backward = self._stream(1, tokens[row, turn], own[row, turn], time, turned)[row, turn]
        query = (forward + backward) / 2**0.5 + time
        memory = torch.cat([forward, backward], 1)
        seen = torch.cat([node[None] <= node[:, None], node[None] >= node[:, None]], 1)
        # a node that is none sees itself, so that no row is empty
        exists = torch.cat([mask, mask], 1)[:, None] | torch.eye(x.shape[1], device=x.device).bool().repeat(1, 2)
        logits = torch.cat([bias, bias], -1).masked_fill(~(seen & exists)[:, None], -torch.inf)
        hidden = query + self.readout(self.norms[0](query), memory, logits)
        hidden = self.norms[1](hidden + self.mlp(hidden))
        features: Tensor = hidden + time
        return features

    def _bias(self, classes: Tensor) -> Tensor:
        """Of attention logits, [B, heads, d, d]."""
        biases: Tensor = self.bias(classes).permute(0, 3, 1, 2)
        return biases

    def _stream(self, which: int, tokens: Tensor, own: Tensor, time: Tensor, bias: Tensor) -> Tensor:
        """Slot i knows the time, its own degree and the nodes before it; it holds the last of these, node i - 1."""
        hidden = torch.cat([time, tokens[:, :-1]], 1) + own
        later = torch.ones(bias.shape[2:], device=bias.device).triu(1).bool()
        logits = nn.functional.pad(bias[..., :-1], (1, 0)).masked_fill(later, -torch.inf)  # the prefix has no bias
        blocks = self.streams[which]
        assert isinstance(blocks, nn.ModuleList)
        for block in blocks:
            hidden = block(hidden, logits)
        features: Tensor = self.norms[2 + which](hidden)
        return features


class LEGraphTransformer(LocallyEquivariant):
    """leGF.

    Args:
        distances: classes of pairs of nodes, the node itself included.
        levels: number of states of a node.
        channels: width.
        layers: blocks of each of the two streams.
        heads: of every attention.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.

    Raises:
        ValueError: a width that is no multiple of the heads.
    """

    def __init__(
        self,
        distances: int,
        levels: int,
        channels: int = 64,
        layers: int = 3,
        heads: int = 4,
        heat_bath: bool = False,
        partition: bool = False,
    ) -> None:
        body = GraphTransformerBody(distances, levels, channels, layers, heads)
        super().__init__(body, levels, heat_bath, partition)
