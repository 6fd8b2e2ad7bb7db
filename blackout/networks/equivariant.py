"""Locally equivariant networks (perceptron, convolutions, transformer, on graphs too): one evaluation gives the rates
out of a state and into it, the heat bath added.

G(tau, i | x) = -G(x_i, i | Swap(x, i, tau)) holds by construction [Ou 2025, Prop. 2]: row i of the hollow features H(x)
does not depend on x_i, and G(tau, i | x) = (omega_tau - omega_{x_i}) . H_i. What makes H hollow, for each network:

    LEMLP          linear maps with zero diagonals [Ou 2025, appendix B.2]
    LEConvolution  windows with a hole, layer after layer [Holderrieth 2025]
    LETransformer  two causal streams, one from either end, and a readout [Ou 2025, section 3.3 and appendix B.3]

leSite is in `blackout.networks.equivariant_sitewise`. It and the transformer serve graphs of any size (`GraphBatch`),
the transformer with Graphormer's bias: leGF [Ou 2025, appendix D.4]. The paper's leAttn is in
`benchmarks/flow_tables.py`. That no site sees itself, and sees every other one, is tested for all of them
(tests/networks/test_equivariant.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.networks.layers import LayerNorm


class TimeEmbedding(nn.Module):
    """Times [B] in [0, 1] -> features [B, width], by sines and cosines [Vaswani 2017, section 3.5] and two layers.

    Args:
        width: number of features.
        frequencies: number of sines, with periods from 4 down to 4 / 2^(frequencies - 1).
    """

    def __init__(self, width: int, frequencies: int = 6) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.layers = nn.Sequential(nn.Linear(2 * frequencies + 1, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        """Times [B] -> [B, width], as in the class [Vaswani 2017, section 3.5]."""
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
        """States [B, d] -> [B, d, channels]: 2 x - 1, or one-hot; ours (tests/networks/test_equivariant.py)."""
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
        ensure(width >= 1 and layers >= 0, f"channels must be at least 1 and layers 0, not {width} and {layers}")
        ensure(width % heads == 0, f"channels must be a multiple of heads, not {width} and {heads}")
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
    conditional law of site i at time t and a a learned gate that starts at 1/2. It solves every product target
    (tests/verification/flow_claims.py).

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
        self.partition = _smooth() if partition else None

    def forward(self, x: Tensor, t: Tensor, ratios: Tensor, law: Any = None) -> Tensor:
        """G(tau, i | x), 0 at tau = x_i and at sites that are none [Ou 2025, Prop. 2]; the heat-bath term as in the
        class.

        Args:
            x: states, integers [B, d].
            t: times [B].
            ratios: the target's log-ratios at t = 1, [B, d, S].
            law: for bodies that serve many laws: numbers that tell which, [1 or B, P], or the graphs whose nodes the
                sites are, `GraphBatch`.

        Returns:
            [B, d, S].
        """
        ratios = ratios.to(self.omega.dtype)
        given = () if law is None else (law,)
        hollow = self.body(x, t, ratios - ratios.mean(-1, keepdim=True), *given)
        if (mask := getattr(law, "mask", None)) is not None:
            hollow = hollow * mask[..., None]
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


def _smooth(width: int = 200) -> nn.Sequential:
    """A smooth function of one number."""
    hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.SiLU())]
    return nn.Sequential(nn.Linear(1, width), nn.SiLU(), *hidden, nn.Linear(width, 1))


class HollowLinear(nn.Module):
    """A linear map of the states of all other sites, [B, d, F] -> [B, d, C], with zero diagonal.

    [Ou 2025, appendix B.2]; that weights are shared over translations is ours (tests/networks/test_equivariant.py).

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
            ensure(height * width == sites, f"a lattice of {height} x {width} sites has not {sites}")
            row, column = torch.arange(sites) // width, torch.arange(sites) % width
            offset = (row[None] - row[:, None]) % height * width + (column[None] - column[:, None]) % width
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """sum over j != i of W_ij f_j, [B, d, F] -> [B, d, C] [Ou 2025, appendix B.2]."""
        kernel = self.weight[self.offset.flatten()] if self.tied else self.weight
        kernel = kernel.view(self.sites, self.sites, self.features, self.channels)
        other = 1 - torch.eye(self.sites, dtype=kernel.dtype, device=kernel.device)
        matrix = (kernel * other[..., None, None]).permute(0, 2, 1, 3).reshape(self.sites * self.features, -1)
        return (features.flatten(1) @ matrix).view(-1, self.sites, self.channels)


class _MLPBody(Hollow):
    """The hollow features of `LEMLP`, [B, d, channels] [Ou 2025, appendix B.2]."""

    def __init__(self, sites: int, levels: int, channels: int) -> None:
        super().__init__(channels)
        self.states = Features(levels)
        self.first = HollowLinear(sites, self.states.channels, channels)
        self.bias = nn.Parameter(0.1 * torch.randn(sites, channels))
        self.time = TimeEmbedding(channels)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        """SiLU of `HollowLinear` of the states [B, d] plus b(t): [B, d, channels] [Ou 2025, appendix B.2]."""
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


class _ConvolutionBody(Hollow):
    """out_i[c] = sum_{o != 0} {SiLU(A[c, o] SiLU(prev_i) + b_1) + b_2 + mlp_o(t)} x_{i + o}[c], layer after layer
    [Holderrieth 2025].

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
        """Features [B, d, width] of states [B, d] at times [B], by the class's formula [Holderrieth 2025]."""
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
        """The states in the window around every site without its middle: [B, d, C] -> [B, d, C, size^2 - 1].

        As in the class; the lattice is a torus.
        """
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
        ensure(kernels, "kernels must name at least one window")
        super().__init__(_ConvolutionBody(lattice, levels, channels, kernels), levels, heat_bath, partition)


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
    def edges(self) -> tuple[Tensor, ...]:
        """Row, one end and the other end of every edge, in both directions: int64 [E] each. A device is waited for."""
        return self.adjacent.nonzero(as_tuple=True)

    @cached_property
    def sizes(self) -> Tensor:
        """Numbers of nodes in every class, float32 [B, d, CLASSES - 1], of `shells`."""
        return self.shells.sum(-1).transpose(1, 2)

    def rows(self, which: Tensor) -> GraphBatch:
        """Some of them, by number or mask."""
        return GraphBatch(*(getattr(self, part.name)[which] for part in fields(self)))


def distance_classes(adjacent: Tensor) -> Tensor:
    """Classes of pairs of nodes by shortest paths, as in Graphormer [Ying 2021]; which ones, see `CLASSES`.

    Args:
        adjacent: of undirected graphs, 0 or 1 of any type, [G, d, d].

    Returns:
        uint8 [G, d, d].
    """
    from scipy.sparse.csgraph import shortest_path  # only here: importing it takes a second

    hops = np.stack([shortest_path(one, unweighted=True) for one in adjacent.cpu().numpy()])
    classes = np.where(np.isinf(hops), CLASSES - 1, np.minimum(hops, _EXACT + 1))
    return torch.from_numpy(classes.astype(np.uint8)).to(adjacent.device)


class Attention(nn.Module):
    """Attention of queries [B, d, C] to a memory; `mask` is boolean or added to the logits; None is causal.

    [Vaswani 2017, eq. 1 and section 3.2.2].
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.memory = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Queries [B, d, C] and a memory [B, k, C] -> [B, d, C] [Vaswani 2017, eq. 1]."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), *self.memory(memory).chunk(2, -1))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer block, [B, n, width] -> the same, that normalises first [Vaswani 2017, section 3.1]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList(LayerNorm(width) for _ in range(2))
        self.mlp = _perceptron(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x + attention, plus the perceptron of that, each of what is normalised: [B, n, width] -> the same; see the
        class.
        """
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, mask)
        return x + self.mlp(self.norms[1](x))


def _perceptron(width: int) -> nn.Sequential:
    """Two layers with GELU between, [..., width] -> [..., width] [Vaswani 2017, section 3.3]."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class TwoStreams(Hollow):
    """Two causal streams, one from either end, and a readout that attends to what precedes and what follows a site.

    [Ou 2025, section 3.3 and appendix B.3].
    """

    def __init__(self, levels: int, channels: int, layers: int, heads: int) -> None:
        super().__init__(channels, layers, heads)
        self.embed, self.time = nn.Embedding(levels, channels), TimeEmbedding(channels)

    def add_readout(self, heads: int, norms: int) -> None:
        self.readout = Attention(self.width, heads)
        self.norms = nn.ModuleList(LayerNorm(self.width) for _ in range(norms))
        self.mlp = _perceptron(self.width)

    def read(self, forward: Tensor, backward: Tensor, time: Tensor, mask: Tensor) -> Tensor:
        """Features [B, d, C] from the two streams, [B, d, C] each [Ou 2025, appendix B.3]; `mask` as for `Attention`,
        [.., d, 2 d].
        """
        query = (forward + backward) / 2**0.5 + time
        hidden = query + self.readout(self.norms[0](query), torch.cat([forward, backward], 1), mask)
        return self.norms[1](hidden + self.mlp(hidden)) + time


class TransformerBody(TwoStreams):
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
        self.add_readout(heads, norms=2)
        site = torch.arange(sites)
        mask = torch.cat([site[None] <= site[:, None], site[None] >= site[:, None]], 1)
        self.register_buffer("before_or_after", mask, persistent=False)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        """Features [B, d, width] of states [B, d] [Ou 2025, appendix B.3]: see `Hollow.forward`."""
        time = self.time(t.to(conditional.dtype))[:, None]
        # slot i of a stream has seen the time and the sites before it: x_0 .. x_{i-1}, or x_{i+1} .. x_{d-1}
        tokens = self.embed(x.long())
        forward = self._stream(0, tokens, time)
        backward = self._stream(1, tokens.flip(1), time).flip(1)
        return self.read(forward, backward, time, self.before_or_after)

    def _stream(self, which: int, tokens: Tensor, time: Tensor) -> Tensor:
        """One causal stream over tokens [B, d, C] behind the time [B, 1, C]: [B, d, C]; see `TwoStreams`."""
        return self.streams[which](torch.cat([time, tokens[:, :-1]], 1) + self.places[which])


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
        """Features [B, d, width] of states [B, d] [Ou 2025, appendix D.4]: see `Hollow.forward`."""
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
        """One causal stream over tokens and degrees [B, d, C], with bias [B, heads, d, d]: [B, d, C]; see the class.

        Slot i knows the time, its own degree and the nodes before it; it holds the last of these, node i - 1.
        """
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
