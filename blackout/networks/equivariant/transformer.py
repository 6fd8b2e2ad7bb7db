"""leTF: the locally equivariant transformer of Ou, Zhang and Li (NeurIPS 2025), section 4.3."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.equivariant.base import GraphBatch, Hollow, LocallyEquivariant, TimeEmbedding, known
from blackout.networks.precision import LayerNorm


class Attention(nn.Module):
    """Attention of queries [B, d, C] to a memory; `mask` is boolean or added to the logits; None is causal."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.memory = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        query = self._heads(self.query(x))
        key, value = (self._heads(part) for part in self.memory(memory).chunk(2, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        attended: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return attended

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList(LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, mask)
        mixed: Tensor = x + self.mlp(self.norms[1](x))
        return mixed


class TransformerBody(Hollow):
    """Two causal streams, one from either end, and a readout that attends to what precedes and what follows a site.

    Args:
        sites: number d of sites.
        levels: number of states of a site.
        channels: width.
        layers: blocks of each stream.
        heads: of every attention.
    """

    before_or_after: Tensor

    def __init__(self, sites: int, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(channels, layers)
        if channels % heads:
            raise ValueError(f"channels must be a multiple of heads, not {channels} and {heads}")
        self.embed, self.time = nn.Embedding(levels, channels), TimeEmbedding(channels)
        self.places = nn.ParameterList(0.02 * torch.randn(sites, channels) for _ in range(2))
        self.streams = nn.ModuleList(
            nn.Sequential(*[Block(channels, heads) for _ in range(layers)], LayerNorm(channels)) for _ in range(2)
        )
        self.readout = Attention(channels, heads)
        self.norms = nn.ModuleList(LayerNorm(channels) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        site = torch.arange(sites)
        mask = torch.cat([site[None] <= site[:, None], site[None] >= site[:, None]], 1)
        self.register_buffer("before_or_after", mask, persistent=False)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        time = self.time(t.to(conditional.dtype))[:, None]
        # slot i of a stream has seen the time and the sites before it: x_0 .. x_{i-1}, or x_{i+1} .. x_{d-1}
        tokens = self.embed(x.long())
        forward = self._stream(0, tokens, time)
        backward = self._stream(1, tokens.flip(1), time).flip(1)
        query = (forward + backward) / 2**0.5 + time
        memory = torch.cat([forward, backward], 1)
        hidden = query + self.readout(self.norms[0](query), memory, self.before_or_after)
        hidden = self.norms[1](hidden + self.mlp(hidden))
        features: Tensor = hidden + time
        return features

    def _stream(self, which: int, tokens: Tensor, time: Tensor) -> Tensor:
        shifted = torch.cat([time, tokens[:, :-1]], 1) + self.places[which]
        features: Tensor = self.streams[which](shifted)
        return features


@component("network")
class LETransformer(LocallyEquivariant):
    """leTF.

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


# --- leGF: the locally equivariant graph transformer of Ou, Zhang and Li (NeurIPS 2025), leTF with Graphormer's bias.

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


@component("network")
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
