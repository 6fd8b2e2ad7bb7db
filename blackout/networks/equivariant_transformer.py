"""leTF and leGF: locally equivariant transformers, of sites in a row and of the nodes of graphs.

Two causal streams, one from either end, know at site i what precedes and what follows it; a readout attends to both
[Ou 2025, section 3.3 and appendix B.3]. On graphs attention is biased by distances [Ou 2025, appendix D.4].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.equivariant import GraphBatch, Hollow, LocallyEquivariant, TimeEmbedding, known
from blackout.networks.precision import LayerNorm


class Attention(nn.Module):
    """Attention of queries [B, d, C] to a memory; `mask` is boolean or added to the logits; None is causal."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.memory = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), *self.memory(memory).chunk(2, -1))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList(LayerNorm(width) for _ in range(2))
        self.mlp = _perceptron(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, mask)
        return x + self.mlp(self.norms[1](x))


def _perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class _TwoStreams(Hollow):
    """Two causal streams, one from either end, and a readout that attends to what precedes and what follows a site."""

    def __init__(self, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(channels, layers, heads)
        self.embed, self.time = nn.Embedding(levels, channels), TimeEmbedding(channels)

    def _add_readout(self, heads: int, norms: int) -> None:
        self.readout = Attention(self.width, heads)
        self.norms = nn.ModuleList(LayerNorm(self.width) for _ in range(norms))
        self.mlp = _perceptron(self.width)

    def _read(self, forward: Tensor, backward: Tensor, time: Tensor, mask: Tensor) -> Tensor:
        """Features [B, d, C] from the two streams, [B, d, C] each; `mask` as for `Attention`, [.., d, 2 d]."""
        query = (forward + backward) / 2**0.5 + time
        hidden = query + self.readout(self.norms[0](query), torch.cat([forward, backward], 1), mask)
        return self.norms[1](hidden + self.mlp(hidden)) + time


class TransformerBody(_TwoStreams):
    """Streams over the sites in their order, with a learned position for every one.

    Args:
        sites: number d of sites.
        levels: number of states of a site.
        channels: width.
        layers: blocks of each stream.
        heads: of every attention.
    """

    before_or_after: Tensor

    def __init__(self, sites: int, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(levels, channels, layers, heads)
        self.places = nn.ParameterList(0.02 * torch.randn(sites, channels) for _ in range(2))
        self.streams = nn.ModuleList(
            nn.Sequential(*[Block(channels, heads) for _ in range(layers)], LayerNorm(channels)) for _ in range(2)
        )
        self._add_readout(heads, norms=2)
        site = torch.arange(sites)
        mask = torch.cat([site[None] <= site[:, None], site[None] >= site[:, None]], 1)
        self.register_buffer("before_or_after", mask, persistent=False)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        time = self.time(t.to(conditional.dtype))[:, None]
        # slot i of a stream has seen the time and the sites before it: x_0 .. x_{i-1}, or x_{i+1} .. x_{d-1}
        tokens = self.embed(x.long())
        forward = self._stream(0, tokens, time)
        backward = self._stream(1, tokens.flip(1), time).flip(1)
        return self._read(forward, backward, time, self.before_or_after)

    def _stream(self, which: int, tokens: Tensor, time: Tensor) -> Tensor:
        return self.streams[which](torch.cat([time, tokens[:, :-1]], 1) + self.places[which])


@component("network")
class LETransformer(LocallyEquivariant):
    """leTF: the locally equivariant transformer [Ou 2025, section 3.3 and appendix B.3].

    Args:
        sites: number of sites.
        levels: number of states of a site.
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
        sites: int,
        levels: int,
        channels: int = 64,
        layers: int = 3,
        heads: int = 4,
        heat_bath: bool = False,
        partition: bool = False,
    ) -> None:
        super().__init__(TransformerBody(sites, levels, channels, layers, heads), levels, heat_bath, partition)


_DEGREES = 32
"""Degrees with an embedding of their own; larger ones share the last."""


class GraphTransformerBody(_TwoStreams):
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
        self._add_readout(heads, norms=4)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, graph: GraphBatch | None = None) -> Tensor:
        graph = known(graph)
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
        return self._read(forward, backward, time, logits)

    def _stream(self, which: int, tokens: Tensor, own: Tensor, time: Tensor, bias: Tensor) -> Tensor:
        """Slot i knows the time, its own degree and the nodes before it; it holds the last of these, node i - 1."""
        hidden = torch.cat([time, tokens[:, :-1]], 1) + own
        later = torch.ones(bias.shape[2:], device=bias.device).triu(1).bool()
        logits = F.pad(bias[..., :-1], (1, 0)).masked_fill(later, -torch.inf)  # the prefix has no bias
        for block in self.streams[which].children():
            hidden = block(hidden, logits)
        return self.norms[2 + which](hidden)


@component("network")
class LEGraphTransformer(LocallyEquivariant):
    """leGF: leTF with Graphormer's bias [Ou 2025, appendix D.4].

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
