"""Problems on graphs as laws: maximum independent set and maximum cut, rho = exp(-E / T) on the nodes of each graph.

[Ou 2025, section 4.3 and appendix D.3]; ratios of the paper's equations 47 and 50 have other signs and factors, those
here are checked by brute force. Graphs are the user's, or random. Other problems become one of the two on another
graph, with the way back.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blackout.component import component
from blackout.errors import UserError
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import Graph, random_graphs
from blackout.flows.targets.base import Target, of_flips
from blackout.flows.targets.lattice import coloured
from blackout.networks.equivariant_graphs import CLASSES, GraphBatch, distance_classes
from blackout.random import SampleStreams, fold_seed

_RELABELLING = 23
"""Key of the relabelling of nodes among the uses of a seed."""
MOST_NODES = 1024
"""Of a graph that a flow learns: distances of all pairs are kept."""
_HELD_OUT, _SHARE = 100, 10
"""Of random graphs; of a user's, one of so many."""


class GraphTarget(Target):
    """One law on the nodes of each of some graphs; `of` gives those of a batch, which are a target.

    The numbers of graphs are 0 .. G - 1, the last of which are held out. A law's number is that of its graph plus G
    times a key, by which its nodes are relabelled at random; key 0 leaves them as they are.

    Args:
        graphs: how many; their edges are loaded, or given by `with_graphs`.
        nodes: of the largest.
        held_out: how many are not trained on.
        inverse_temperature: 1 / T.

    Raises:
        ValueError: numbers out of range.
    """

    adjacent: Tensor
    nodes: Tensor
    problem = ""
    many = True

    def __init__(self, graphs: int, nodes: int, held_out: int = 0, inverse_temperature: float = 5.0) -> None:
        super().__init__(2, [nodes])
        if not 0 <= held_out < graphs or not 0 < inverse_temperature < math.inf:
            raise ValueError(
                f"of {graphs} graphs {held_out} are held out, at 1 / T = {inverse_temperature}: "
                "one must be trained on, and 1 / T be positive"
            )
        if nodes > MOST_NODES:
            raise ValueError(
                f"a flow is of graphs of at most {MOST_NODES} nodes, not {nodes}; "
                "python -m blackout.flows.solve takes larger ones"
            )
        self.held_out, self.inverse_temperature = held_out, inverse_temperature
        self.register_buffer("adjacent", torch.zeros(graphs, nodes, nodes, dtype=torch.uint8))
        self.register_buffer("nodes", torch.zeros(graphs, dtype=torch.int64))
        self.names = [str(k) for k in range(graphs)]
        self._known: tuple[Tensor, Tensor] | None = None

    def with_graphs(self, graphs: Sequence[Graph], held_out: int = 0) -> GraphTarget:
        """The same problem on these graphs.

        Raises:
            UserError: one has weights.
        """
        if weighted := [graph.name for graph in graphs if not graph.plain]:
            raise UserError(
                f"{weighted[0]} has weights, which flows do not learn; python -m blackout.flows.solve takes them"
            )
        most = max(graph.nodes for graph in graphs)
        other = type(self)(**self.arguments() | {"graphs": len(graphs), "nodes": most, "held_out": held_out})
        other.adjacent = torch.stack([graph.adjacency(most) for graph in graphs])
        other.nodes = torch.tensor([graph.nodes for graph in graphs])
        other.names = [graph.name for graph in graphs]
        return other

    def graph(self, number: int) -> Graph:
        """One of the graphs, as a list of edges."""
        edges = torch.nonzero(self.adjacent[number].cpu().triu(1)).numpy()
        return Graph(self.names[number], int(self.nodes[number]), edges)

    def arguments(self) -> dict[str, Any]:
        """From which one of the same sizes is made."""
        sizes = {"graphs": len(self.nodes), "nodes": self.sites, "held_out": self.held_out}
        return sizes | {"inverse_temperature": self.inverse_temperature}

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"_target_": f"blackout.flows.{type(self).__name__}", **self.arguments()}

    @property
    def facts(self) -> dict[str, Any]:
        """Also `distances`, the number of classes of pairs of nodes."""
        return super().facts | {"distances": CLASSES}

    def summary(self) -> str:
        graphs, least = len(self.nodes), int(self.nodes.min())
        sizes = f"{least} to {self.sites} nodes" if least < self.sites else f"{least} nodes"
        return f"{self.problem}: {graphs} graphs of {sizes}, {self.held_out} of them held out"

    @property
    def numbers(self) -> Tensor:
        """Of the graphs that are held out, or else of all: int64."""
        return torch.arange(len(self.nodes))[-self.held_out :]

    def drawn(self, laws: int, chains: int, seed: int, relabel: bool) -> Tensor:
        """Numbers of laws to train on, int64 [laws * chains]: each of `laws` graphs `chains` times in a row."""
        generator = torch.Generator().manual_seed(fold_seed(seed, _RELABELLING))
        training = len(self.nodes) - self.held_out
        order = torch.cat([torch.randperm(training, generator=generator) for _ in range(-(-laws // training))])
        key = torch.randint(1, 1 << 32, (laws,), generator=generator) * int(relabel)
        return (order[:laws] + len(self.nodes) * key).repeat_interleave(chains)

    def of(self, law: Tensor) -> OnGraphs:
        """The laws with these numbers, int64 [B], one for each row."""
        classes, colours = self._pairs()
        graph, key = law % len(self.nodes), law // len(self.nodes)
        adjacent, classes, colours = self.adjacent[graph].float(), classes[graph], colours[graph]
        mask = torch.arange(self.sites, device=law.device) < self.nodes[graph][:, None]
        if bool(key.any()):
            order = SampleStreams(_RELABELLING, law).at(0).next_draw().uniform((len(law), self.sites))
            order = torch.where(mask & (key > 0)[:, None], order, torch.arange(self.sites, device=law.device) + 1.0)
            order = order.argsort(1)
            row = torch.arange(len(law), device=law.device)[:, None]
            pairs = row[..., None], order[..., None], order[:, None]
            adjacent, classes, colours = adjacent[pairs], classes[pairs], colours[row, order]
        return OnGraphs(self, GraphBatch(adjacent, classes, mask), colours, self.nodes[graph])

    def context(self) -> tuple[Any, ...]:
        """Of the first graph."""
        return self.of(torch.zeros(1, dtype=torch.int64, device=self.adjacent.device)).context()

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Classes of pairs of nodes, and colours of nodes; found once."""
        if self._known is None or self._known[0].device != self.adjacent.device:
            colours = torch.zeros(self.nodes.shape[0], self.sites, dtype=torch.uint8)
            for k, adjacent in enumerate(self.adjacent.cpu() > 0):
                for colour, group in enumerate(coloured(adjacent)):
                    colours[k, group] = colour
            self._known = distance_classes(self.adjacent), colours.to(self.adjacent.device)
        return self._known

    @abstractmethod
    def log_density_on(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """log rho of states [B, d], float64 [B]."""

    @abstractmethod
    def flips_on(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """log rho of the state with site i flipped, relative to that of x: float64 [B, d]."""

    @abstractmethod
    def repaired(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """Feasible solutions made of states [B, d], in memory of their own: samples are stored beside them."""

    @abstractmethod
    def value(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """What is to be maximised, of feasible solutions [B, d]: int64 [B]."""


class OnGraphs(Target):
    """The laws of the rows of a batch, each on a graph of its own. Nodes that are none stay 0 and count nothing.

    Args:
        family: the problem.
        graph: graphs of the rows.
        colours: of their nodes, uint8 [B, d]: nodes of one colour have no edges.
        nodes: numbers of nodes, int64 [B].
    """

    family: GraphTarget

    def __init__(self, family: GraphTarget, graph: GraphBatch, colours: Tensor, nodes: Tensor) -> None:
        super().__init__(2, [graph.mask.shape[1]])
        vars(self)["family"] = family  # not a submodule: its graphs are not this target's state
        self.graph, self.colours, self.nodes, self.frozen = graph, colours, nodes, ~graph.mask

    @property
    def device(self) -> torch.device:
        return self.nodes.device

    @property
    def log_volume(self) -> Tensor:
        return self.nodes * math.log(2)

    def uniform(self, uniforms: Tensor) -> Tensor:
        return super().uniform(uniforms) * self.graph.mask

    def rows(self, which: Tensor) -> OnGraphs:
        return OnGraphs(self.family, self.graph.rows(which), self.colours[which], self.nodes[which])

    def context(self) -> tuple[Any, ...]:
        return (self.graph,)

    def log_density(self, x: Tensor) -> Tensor:
        return self.family.log_density_on(x, self.graph)

    def log_ratios(self, x: Tensor) -> Tensor:
        """[B, d, 2]; 0 at nodes that are none."""
        return of_flips(self.family.flips_on(x, self.graph) * self.graph.mask, x)

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """A Gibbs sweep [Geman and Geman 1984], all nodes of one colour together: [B, d]."""
        x = x.clone()
        for colour in range(int(self.colours.max()) + 1):
            to_one = self.family.flips_on(x, self.graph) * (1 - 2 * x.double())
            drawn = (uniforms < torch.sigmoid(t * to_one)).to(x.dtype)  # every node given all others
            x = torch.where((self.colours == colour) & self.graph.mask, drawn, x)
        return x

    def solutions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Feasible solutions [B, d] and their values, int64 [B]."""
        feasible = self.family.repaired(x, self.graph)
        return feasible, self.family.value(feasible, self.graph)


@component("target")
class MIS(GraphTarget):
    """Maximum independent set: log rho = (1'x - lambda x'Ax / 2) / T, lambda just above 1 [Ou 2025, eqs. 14 and 46].

    Args:
        graphs, nodes, held_out, inverse_temperature: as for `GraphTarget`.
    """

    problem = "mis"
    penalty = 1.0001
    """lambda, of an edge between selected nodes."""

    def log_density_on(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """(1'x - lambda x'Ax / 2) / T, [B] [Ou 2025, eq. 46]."""
        selected, neighbours = x.double(), _sums(x.float(), graph)
        energy = selected.sum(-1) - self.penalty * (selected * neighbours).sum(-1) / 2
        return self.inverse_temperature * energy

    def flips_on(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """(1 - 2x)(1 - lambda A x) / T, [B, d] [Ou 2025, eq. 47, put right]."""
        return self.inverse_temperature * (1 - 2 * x.double()) * (1 - self.penalty * _sums(x.float(), graph))

    def repaired(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """Node by node: a selected one drops its selected neighbours, [B, d] [Ou 2025, appendix D.3]."""
        x = x.clone()
        for node in range(x.shape[1]):
            dropped = (graph.adjacent[:, node] > 0) & (x[:, node : node + 1] > 0)
            x[dropped] = 0
        return x

    def value(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """Number of selected nodes, [B]."""
        return x.long().sum(-1)


@component("target")
class MaxCut(GraphTarget):
    """Maximum cut: log rho = -s'As / (4 T), s = 2x - 1, the cut minus half the number of edges [Ou 2025, eq. 49]."""

    problem = "maxcut"

    def log_density_on(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """-s'As / (4 T), [B] [Ou 2025, eq. 49]."""
        return -self.inverse_temperature * _agreement(x, graph).sum(-1) / 4

    def flips_on(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """s_i (A s)_i / T, [B, d] [Ou 2025, eq. 50, put right]."""
        return self.inverse_temperature * _agreement(x, graph)

    def repaired(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """A copy, [B, d]: every cut is feasible."""
        return x.clone()

    def value(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """Edges between the sides: |E| / 2 - s'As / 4, [B] [Ou 2025, eq. 48]."""
        cut = graph.adjacent.sum((-1, -2)).double() / 4 - _agreement(x, graph).sum(-1) / 4
        return cut.round().long()


def _agreement(x: Tensor, graph: GraphBatch) -> Tensor:
    """s_i (A s)_i of spins, float64 [B, d]: neighbours on the same side minus those on the other."""
    spins = (2 * x.float() - 1) * graph.mask
    return spins * _sums(spins, graph)


def _sums(values: Tensor, graph: GraphBatch) -> Tensor:
    """Sums over neighbours of whole numbers [B, d], exact in single precision: float64."""
    return (graph.adjacent @ values[..., None]).squeeze(-1).double()


PROBLEMS: dict[str, type[GraphTarget]] = {"mis": MIS, "maxcut": MaxCut}


def problem_on(problem: str, graphs: Sequence[Graph], held_out: int = 0, **arguments: float) -> GraphTarget:
    """A problem on given graphs."""
    empty = PROBLEMS[problem](len(graphs), max(graph.nodes for graph in graphs), held_out, **arguments)
    return empty.with_graphs(graphs, held_out)


@component("target", ask="target=mis or target=maxcut")
def graph_problem(
    problem: Literal["mis", "maxcut"],
    path: str | None = None,
    kind: Literal["er", "ba"] = "er",
    nodes: Sequence[int] = (16, 20),
    parameter: float = 0.19,
    number: int = 1000,
    held_out: int | None = None,
    seed: int = 0,
    inverse_temperature: float = 5.0,
) -> GraphTarget:
    """A problem on graphs from files, or on random ones.

    Args:
        problem: `mis` or `maxcut`.
        path: a file or folder, see `read_graphs`; None for random graphs.
        kind: of random graphs, `er` or `ba`.
        nodes: least and largest number of nodes.
        parameter: probability of an edge, or edges of a new node.
        number: of graphs to train on.
        held_out: graphs besides these; of files, how many are not trained on. None for 100, or a tenth of the files.
        seed: of random graphs.
        inverse_temperature: 1 / T.

    Raises:
        UserError: unreadable files, or more held out than there are.
    """
    if path is None:
        extra = _HELD_OUT if held_out is None else held_out
        graphs = random_graphs(kind, nodes, parameter, number + extra, seed)
    else:
        graphs = read_graphs(path)
        extra = len(graphs) // _SHARE if held_out is None else held_out
        if extra >= (there := len(graphs)):
            raise UserError(f"target.held_out={extra}: there are {there} graphs at {path}, and some must be trained on")
    return problem_on(problem, graphs, extra, inverse_temperature=inverse_temperature)


_MOST_PAIRS = 20_000_000
"""Edges of a graph that a reduction makes."""

Array = NDArray[Any]


class Problem(NamedTuple):
    """What is asked of a graph, as what is solved.

    Args:
        name: of the problem.
        given: the graph as it was given.
        base: `mis` or `maxcut`.
        graph: on which that is solved.
        back: solutions of the base, uint8 [..., n'], as those of the problem, uint8 [..., n].
        sign: -1 if the problem's value is to be small.
        offset: its value is offset + sign * value of the base.
    """

    name: str
    given: Graph
    base: str
    graph: Graph
    back: Callable[[Array], Array] = lambda x: x
    sign: int = 1
    offset: float = 0.0

    def value(self, of_base: Any) -> Any:
        """The problem's value of the base's."""
        return self.offset + self.sign * of_base


TAKES = {
    "mis": ("nodes",), "maxcut": ("edges",), "clique": ("nodes",), "vertex_cover": ("nodes",), "colouring": (),
    "qubo": ("nodes", "edges", "model"),
}  # fmt: skip
"""Problem -> what its weights are of."""


def problem_of(name: str, graph: Graph, colours: int = 3, unit_weights: bool = False) -> Problem:
    """A problem on a graph.

    Args:
        name: `mis` (of greatest weight), `maxcut`, `clique` (of greatest weight), `vertex_cover` (of least weight),
            `colouring` (of as many nodes as possible) or `qubo` (of least energy).
        graph: with the weights that the problem takes.
        colours: of `colouring`.
        unit_weights: take all weights as 1.

    Raises:
        UserError: weights that the problem does not take, no model for `qubo`, or too large a reduction.
    """
    if unit_weights and graph.offset is None:
        graph = replace(graph, weights=None, node_weights=None)
    has = {"nodes": graph.node_weights, "edges": graph.weights, "model": graph.offset}
    if (name == "qubo") != (graph.offset is not None):
        raise UserError(f"{graph.name} is {'no' if name == 'qubo' else 'a'} quadratic model, which qubo is for")
    if strange := [what for what, weights in has.items() if weights is not None and what not in TAKES[name]]:
        raise UserError(
            f"{graph.name} has weights of {strange[0]}, which {name} does not take; --unit-weights takes all as 1"
        )
    if name == "clique":  # an independent set of the graph of all other pairs
        _refuse_many(graph, graph.nodes * (graph.nodes - 1) // 2)
        other = np.triu(np.ones((graph.nodes, graph.nodes), bool), 1)
        other[graph.edges.min(1), graph.edges.max(1)] = False
        return Problem(name, graph, "mis", replace(graph, edges=np.argwhere(other)))
    if name == "vertex_cover":  # what an independent set leaves
        return Problem(name, graph, "mis", graph, lambda x: 1 - x, -1, float(graph.of_nodes.sum()))
    if name == "colouring":  # node i with colour c is node i * colours + c: one colour each, another one's neighbours
        _refuse_many(graph, colours * (len(graph.edges) + graph.nodes * (colours - 1) // 2))
        both = [graph.edges * colours + colour for colour in range(colours)]
        first, second = np.triu_indices(colours, 1)
        same = np.arange(graph.nodes)[:, None, None] * colours + np.stack([first, second], 1)
        edges = np.concatenate([*both, same.reshape(-1, 2)])
        numbers = np.arange(1, colours + 1, dtype=np.uint8)
        return Problem(
            name, graph, "mis", Graph(graph.name, graph.nodes * colours, edges),
            lambda x: (x.reshape(*x.shape[:-1], -1, colours) * numbers).sum(-1, dtype=np.uint8),
        )  # fmt: skip
    if name == "qubo":  # a cut with one node more, whose side is that of zeros [Barahona 1989]
        fields = graph.of_nodes.copy()
        for ends in graph.edges.T:
            np.add.at(fields, ends, graph.of_edges / 2)
        ghost = np.stack([np.arange(graph.nodes), np.full(graph.nodes, graph.nodes)], 1)
        weights = np.concatenate([graph.of_edges / 2, -fields])
        cut = Graph(graph.name, graph.nodes + 1, np.concatenate([graph.edges, ghost]), weights)
        return Problem(name, graph, "maxcut", cut, lambda x: x[..., :-1] ^ x[..., -1:], -1, graph.offset or 0.0)
    return Problem(name, graph, name, graph)


def _refuse_many(graph: Graph, pairs: int) -> None:
    if pairs > _MOST_PAIRS:
        raise UserError(f"{graph.name}: the problem has {pairs:,} pairs of nodes; at most {_MOST_PAIRS:,} are possible")
