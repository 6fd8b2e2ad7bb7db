"""leTF, the locally equivariant transformer, and leGF, the same on graphs.

Two causal streams read the sites, one from either end. A readout at site i attends to the forward
stream before i and the backward stream after i, so that its features do not depend on x_i. On
graphs, attention is biased by the distance of nodes as in Graphormer.

References: Ou et al. 2025, section 3.3, appendices B.3 and D.4; Ying et al. 2021.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.equivariant import HollowBody, LocallyEquivariant, UnitTimeEmbedding
from blackout.networks.graph_batch import GraphBatch
from blackout.networks.layers import LayerNorm

FORWARD = 0  # number of the stream from the first site to the last
BACKWARD = 1
NUM_DEGREES = 32  # node degrees with an embedding; larger ones share the last


class Attention(nn.Module):
    """Multi-head attention of queries [B, d, C] to a memory [B, k, C].

    References: Vaswani et al. 2017, eq. 1 and section 3.2.2.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)  # keys and values
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend; returns [B, d, C].

        Args:
            x: [B, d, C].
            memory: [B, k, C].
            mask: [..., d, k], boolean or added to the logits; None for a causal mask.
        """
        key, value = self.memory(memory).chunk(2, -1)
        h = F.scaled_dot_product_attention(
            self._split_heads(self.query(x)),
            self._split_heads(key),
            self._split_heads(value),
            attn_mask=mask,
            is_causal=mask is None,
        )
        return self.output(h.transpose(1, 2).flatten(2))

    def _split_heads(self, x: Tensor) -> Tensor:
        """Return [B, n, C] as [B, heads, n, C / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Pre-norm transformer block, [B, n, width] -> the same.

    References: Vaswani et al. 2017, section 3.1.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList(LayerNorm(width) for _ in range(2))
        self.mlp = _mlp(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform tokens [B, n, width]; `mask` as for `Attention`."""
        h = self.norms[0](x)
        x = x + self.attention(h, h, mask)
        return x + self.mlp(self.norms[1](x))


def _mlp(width: int) -> nn.Sequential:
    """Make the two-layer MLP of a block, [..., width] -> [..., width]."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class TwoStreamBody(HollowBody):
    """Base class of bodies with two causal streams and a readout.

    References: Ou et al. 2025, section 3.3 and appendix B.3.
    """

    def __init__(self, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(channels, layers, heads)
        self.embed = nn.Embedding(levels, channels)
        self.time = UnitTimeEmbedding(channels)

    def _add_readout(self, heads: int, num_norms: int) -> None:
        self.readout = Attention(self.width, heads)
        self.norms = nn.ModuleList(LayerNorm(self.width) for _ in range(num_norms))
        self.mlp = _mlp(self.width)

    def _read_out(self, forward: Tensor, backward: Tensor, time: Tensor, mask: Tensor) -> Tensor:
        """Return the features of all sites.

        Args:
            forward: stream, [B, d, C].
            backward: stream, [B, d, C].
            time: embedding, [B, 1, C].
            mask: as for `Attention`, [..., d, 2 d].

        Returns:
            [B, d, C].
        """
        query = (forward + backward) / 2**0.5 + time
        memory = torch.cat([forward, backward], 1)
        hidden = query + self.readout(self.norms[0](query), memory, mask)
        return self.norms[1](hidden + self.mlp(hidden)) + time


def readout_mask(sites: int, device: torch.device | None = None) -> Tensor:
    """Return which slots of the two streams a site may attend to, bool [d, 2 d].

    Slot j of the forward stream has seen the sites before j, and slot j of the backward stream
    those after j. So site i may attend to forward slots j <= i and to backward slots j >= i.
    """
    site = torch.arange(sites, device=device)
    return torch.cat([site[None] <= site[:, None], site[None] >= site[:, None]], 1)


class TransformerBody(TwoStreamBody):
    """Hollow features of leTF: streams over the sites in their order, with learned positions.

    Args:
        sites: number d of sites.
        levels: number of states of a site.
        channels: width.
        layers: number of blocks of each stream.
        heads: of every attention.

    References: Ou et al. 2025, appendix B.3.
    """

    mask: Tensor

    def __init__(self, sites: int, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(levels, channels, layers, heads)
        self.places = nn.ParameterList(0.02 * torch.randn(sites, channels) for _ in range(2))
        self.streams = nn.ModuleList(
            nn.Sequential(*[Block(channels, heads) for _ in range(layers)], LayerNorm(channels))
            for _ in range(2)
        )
        self._add_readout(heads, num_norms=2)
        self.register_buffer("mask", readout_mask(sites), persistent=False)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        """Return the features of states [B, d], see `HollowBody.forward`."""
        time = self.time(t.to(conditional.dtype))[:, None]
        tokens = self.embed(x.long())
        forward = self._apply_stream(FORWARD, tokens, time)
        backward = self._apply_stream(BACKWARD, tokens.flip(1), time).flip(1)
        return self._read_out(forward, backward, time, self.mask)

    def _apply_stream(self, stream: int, tokens: Tensor, time: Tensor) -> Tensor:
        """Apply a causal stream to the time [B, 1, C] and all tokens [B, d, C] but the last.

        Slot i of the result [B, d, C] has seen the time and the tokens before i.
        """
        prefixed = torch.cat([time, tokens[:, :-1]], 1)
        return self.streams[stream](prefixed + self.places[stream])


class GraphTransformerBody(TwoStreamBody):
    """Hollow features of leGF: streams over the nodes, with attention biased by their distance.

    There is one bias per head for all layers, as in Graphormer, and no positions: nodes are
    described by degrees and distances, so one network reads graphs of different sizes.

    Args:
        distances: number of distance classes, see `GraphBatch`.
        levels: number of states of a node.
        channels: width.
        layers: number of blocks of each stream.
        heads: of every attention.

    References: Ou et al. 2025, appendix D.4; Ying et al. 2021.
    """

    def __init__(self, distances: int, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(levels, channels, layers, heads)
        # Degree embeddings of the node that a slot holds, and of the slot's own node
        self.degree = nn.ModuleList(nn.Embedding(NUM_DEGREES, channels) for _ in range(2))
        self.bias = nn.Embedding(distances, heads)
        nn.init.normal_(self.bias.weight, std=0.02)
        self.streams = nn.ModuleList(
            nn.ModuleList(Block(channels, heads) for _ in range(layers)) for _ in range(2)
        )
        self._add_readout(heads, num_norms=4)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor, *graphs: GraphBatch) -> Tensor:
        """Return the features of states [B, d] of one `GraphBatch`, see `HollowBody.forward`."""
        # 1. Tokens of nodes, and embeddings of the degree of each slot's node.
        (graph,) = graphs
        time = self.time(t.to(conditional.dtype))[:, None]
        degree = graph.adjacency.sum(-1).long().clamp(max=NUM_DEGREES - 1)
        tokens = self.embed(x.long()) + self.degree[0](degree)
        slots = self.degree[1](degree)

        # 2. Order from the last node to the first, with padding still at the end.
        num_nodes = x.shape[1]
        node = torch.arange(num_nodes, device=x.device)
        row = torch.arange(len(x), device=x.device)[:, None]
        num_real = graph.mask.sum(1, keepdim=True)
        reverse = torch.where(graph.mask, num_real - 1 - node, node)

        # 3. Biases of the attention logits, [B, heads, d, d].
        classes = graph.distance_classes.long()
        reverse_classes = classes[row[..., None], reverse[..., None], reverse[:, None]]
        bias = self.bias(classes).permute(0, 3, 1, 2)
        reverse_bias = self.bias(reverse_classes).permute(0, 3, 1, 2)

        # 4. Streams.
        forward = self._apply_stream(FORWARD, tokens, slots, time, bias)
        backward = self._apply_stream(
            BACKWARD, tokens[row, reverse], slots[row, reverse], time, reverse_bias
        )
        backward = backward[row, reverse]

        # 5. Readout. A padding node attends to itself, so that no row of logits is all -inf.
        is_self = torch.eye(num_nodes, device=x.device).bool().repeat(1, 2)
        is_real = torch.cat([graph.mask, graph.mask], 1)[:, None]
        mask = readout_mask(num_nodes, x.device) & (is_real | is_self)
        logits = torch.cat([bias, bias], -1).masked_fill(~mask[:, None], -torch.inf)
        return self._read_out(forward, backward, time, logits)

    def _apply_stream(
        self, stream: int, tokens: Tensor, slots: Tensor, time: Tensor, bias: Tensor
    ) -> Tensor:
        """Apply a causal stream; slot i sees the time, its own degree and the nodes before i.

        Args:
            stream: FORWARD or BACKWARD.
            tokens: of nodes, [B, d, C].
            slots: embeddings of the degree of each slot's own node, [B, d, C].
            time: embedding, [B, 1, C].
            bias: of attention logits between nodes, [B, heads, d, d].

        Returns:
            [B, d, C].
        """
        hidden = torch.cat([time, tokens[:, :-1]], 1) + slots
        is_later = torch.ones(bias.shape[2:], device=bias.device).triu(1).bool()
        # Slot i holds node i - 1; slot 0 holds the time, which has no bias.
        logits = F.pad(bias[..., :-1], (1, 0)).masked_fill(is_later, -torch.inf)
        for block in self.streams[stream].children():
            hidden = block(hidden, logits)
        return self.norms[2 + stream](hidden)


@component("network")
class LETransformer(LocallyEquivariant):
    """leTF, the locally equivariant transformer; on graphs leGF.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: width.
        layers: number of blocks of each of the two streams.
        heads: of every attention.
        heat_bath: whether to add the heat-bath term.
        partition: whether to learn d log Z_t / dt.
        distances: number of distance classes of graphs, for leGF; None for leTF.

    Raises:
        ValueError: `channels` is no multiple of `heads`.

    References: Ou et al. 2025, section 3.3, appendices B.3 and D.4.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
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
        body: HollowBody
        if distances is not None:
            body = GraphTransformerBody(distances, levels, channels, layers, heads)
        else:
            body = TransformerBody(sites, levels, channels, layers, heads)
        super().__init__(body, levels, heat_bath, partition)
