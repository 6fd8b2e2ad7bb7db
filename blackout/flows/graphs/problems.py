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
from scipy.sparse import csr_array
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import UserError, ensure, refuse
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import Graph, random_graphs
from blackout.flows.graphs.solvers import Solution, value_of
from blackout.flows.targets.base import Target, coloured, of_flips
from blackout.networks.graph_batch import NUM_DISTANCE_CLASSES, GraphBatch, compute_distance_classes
from blackout.random import SampleStreams, fold_seed

_RELABELLING = 23
"""Key of the relabelling of nodes among the uses of a seed."""
MOST_NODES = 1024
"""Of a graph that a flow learns: distances of all pairs are kept."""
_HELD_OUT, _SHARE = 100, 10
"""Of random graphs; of a user's, one of so many."""


class GraphTarget(Target):
    """One law on the nodes of each of some graphs; `of` gives those of a batch, which are a target.

    log rho = (f'x - c x'Px / 2) / T, with f and P made of the weights of the nodes and edges of a graph, over the mean
    size of what is in P, so that one T serves graphs of all weights [Ou 2025, appendix D.3]; weights other than 1 are
    ours (tests/flows/graphs/test_problems.py).

    The numbers of graphs are 0 .. G - 1: those to train on, validation graphs, test graphs. A law's number is that of
    its graph plus G times a key, by which its nodes are relabelled at random; key 0 leaves them as they are.

    Args:
        graphs: how many; their edges are loaded, or given by `problem_on`.
        nodes: of the largest.
        held_out: how many are test graphs.
        inverse_temperature: 1 / T.
        weighted: whether weights other than 1 are kept.
        validation: how many are validation graphs.

    Raises:
        ValueError: numbers out of range.
    """

    problem = ""
    sign = 1
    """-1 where the value is to be small."""
    factor = 1.0
    """c."""
    many = True

    def __init__(
        self,
        graphs: int,
        nodes: int,
        held_out: int = 0,
        inverse_temperature: float = 5.0,
        weighted: bool = False,
        validation: int = 0,
    ) -> None:
        super().__init__(2, [nodes])
        told = f"of {graphs} graphs {validation} are validation and {held_out} test graphs"
        ensure(min(held_out, validation) >= 0 and held_out + validation < graphs, f"{told}: one must be trained on")
        ensure(0 < inverse_temperature < math.inf, f"1 / T must be positive, not {inverse_temperature}")
        ensure(nodes <= MOST_NODES, f"at most {MOST_NODES} nodes, not {nodes}: use blackout solve")
        self.held_out, self.validation = held_out, validation
        self.inverse_temperature, self.weighted = inverse_temperature, weighted
        kind = torch.float64 if weighted else torch.uint8
        self.weights = nn.Buffer(torch.zeros(graphs, nodes, nodes, dtype=kind))
        self.node_weights = nn.Buffer(torch.zeros(graphs, nodes, dtype=kind))
        self.offset = nn.Buffer(torch.zeros(graphs, dtype=torch.float64))
        self.nodes = nn.Buffer(torch.zeros(graphs, dtype=torch.int64))
        self.names = [str(k) for k in range(graphs)]
        self._known: tuple[Tensor, Tensor] | None = None

    def graph(self, number: int) -> Graph:
        """One of the graphs, as a list of edges."""
        nodes, weights = int(self.nodes[number]), self.weights[number].cpu().triu(1)
        edges = torch.nonzero(weights)
        of_edges, of_nodes = weights[tuple(edges.T)].numpy(), self.node_weights[number, :nodes].cpu().numpy()
        told = {"weights": of_edges, "node_weights": of_nodes, "offset": float(self.offset[number])}
        kept: dict[str, Any] = {what: told[what] for what in TAKES[self.problem] if self.weighted}
        return Graph(self.names[number], nodes, edges.numpy(), **kept)

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        """From which one of the same sizes is made."""
        kept = {name: getattr(self, name) for name in ("held_out", "inverse_temperature", "weighted", "validation")}
        sizes = {"graphs": len(self.nodes), "nodes": self.sites}
        return {"_target_": f"blackout.flows.{type(self).__name__}", **sizes, **kept}

    @property
    def facts(self) -> dict[str, Any]:
        """Also `distances`, the number of classes of pairs of nodes."""
        return super().facts | {"distances": NUM_DISTANCE_CLASSES}

    def summary(self) -> str:
        sizes = f"{int(self.nodes.min())} to {self.sites}"
        numbers = f"{self.num_training:,} training + {self.validation:,} validation + {self.held_out:,} test graphs"
        return f"{self.problem}: {numbers} of {sizes} nodes"

    @property
    def numbers(self) -> Tensor:
        """Of the test graphs, or of all graphs where none are held out: int64."""
        return torch.arange(len(self.nodes))[-self.held_out :]

    @property
    def validation_numbers(self) -> Tensor:
        """Of the validation graphs, or where there are none of those that are trained on: int64."""
        training = torch.arange(self.num_training)
        return self.num_training + torch.arange(self.validation) if self.validation else training

    @property
    def num_training(self) -> int:
        """How many graphs are trained on."""
        return len(self.nodes) - self.held_out - self.validation

    def drawn(self, laws: int, chains: int, seed: int, relabel: bool) -> Tensor:
        """Numbers of laws to train on, int64 [laws * chains]: each of `laws` graphs `chains` times in a row.

        Ours (tests/flows/graphs/test_problems.py).
        """
        generator = torch.Generator().manual_seed(fold_seed(seed, _RELABELLING))
        training = self.num_training
        order = torch.cat([torch.randperm(training, generator=generator) for _ in range(-(-laws // training))])
        key = torch.randint(1, 1 << 32, (laws,), generator=generator) * int(relabel)
        return (order[:laws] + len(self.nodes) * key).repeat_interleave(chains)

    def of(self, law: Tensor) -> OnGraphs:
        """The laws with these numbers, int64 [B], one for each row.

        f and P of the class, [B, d] and [B, d, d], over the mean size of what is in P; nodes [B, d] relabelled by the
        key.
        """
        classes, colours = self._pairs()
        graph, key = law % len(self.nodes), law // len(self.nodes)
        weights, fields = self.weights[graph], self.node_weights[graph]
        classes, colours = classes[graph], colours[graph]
        mask = torch.arange(self.sites, device=law.device) < self.nodes[graph][:, None]
        if bool(key.any()):
            order = SampleStreams(_RELABELLING, law).step(0).next_draw().uniform((len(law), self.sites))
            order = torch.where(mask & (key > 0)[:, None], order, torch.arange(self.sites, device=law.device) + 1.0)
            order = order.argsort(1)
            row = torch.arange(len(law), device=law.device)[:, None]
            pairs = row[..., None], order[..., None], order[:, None]
            weights, classes, fields, colours = weights[pairs], classes[pairs], fields[row, order], colours[row, order]
        adjacent = (weights != 0).float()
        if not self.weighted:
            weights = adjacent
        fields, weights = self.quadratic(fields.to(weights.dtype), weights)
        mean = weights.abs().sum((-1, -2)) / adjacent.sum((-1, -2)).clamp(min=1)
        scale = torch.where(mean > 0, mean, 1)
        batch = GraphBatch(adjacent, classes, mask, weights / scale[:, None, None], fields / scale[:, None])
        return OnGraphs(self, batch, colours, self.nodes[graph], torch.stack([scale.double(), self.offset[graph]], -1))

    def context(self) -> tuple[Any, ...]:
        """Of the first graph."""
        return self.of(torch.zeros(1, dtype=torch.int64, device=self.nodes.device)).context()

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Classes of pairs of nodes, and colours of nodes; found once."""
        if self._known is None or self._known[0].device != self.nodes.device:
            colours = torch.zeros(self.nodes.shape[0], self.sites, dtype=torch.uint8)
            for k, weights in enumerate(self.weights.cpu().numpy()):
                for colour, group in enumerate(coloured(csr_array(weights))):
                    colours[k, group] = colour
            self._known = compute_distance_classes(self.weights != 0), colours.to(self.nodes.device)
        return self._known

    @abstractmethod
    def quadratic(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """f [B, d] and P [B, d, d] of the class, symmetric, of weights of nodes and edges of that shape."""

    def repaired(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """Feasible solutions made of states [B, d], in memory of their own: samples are stored beside them."""
        return x.clone()


class OnGraphs(Target):
    """The laws of the rows of a batch, each on a graph of its own.

    Nodes that are none stay 0 and count nothing; `GraphTarget` has the law and its source.

    Args:
        family: the problem.
        graph: graphs of the rows.
        colours: of their nodes, uint8 [B, d]: nodes of one colour have no edges.
        nodes: numbers of nodes, int64 [B].
        units: what weights are given in, and the offset of the value, float64 [B, 2].
    """

    family: GraphTarget

    def __init__(self, family: GraphTarget, graph: GraphBatch, colours: Tensor, nodes: Tensor, units: Tensor) -> None:
        super().__init__(2, [graph.mask.shape[1]])
        vars(self)["family"] = family  # not a submodule: its graphs are not this target's state
        self.graph, self.colours, self.units, self.frozen = graph, colours, units, ~graph.mask
        self.nodes = nn.Buffer(nodes)

    @property
    def log_volume(self) -> Tensor:
        """Of every row, [B]: as many log S as it has nodes. -log eta of [Ou 2025, section 3]."""
        return self.nodes * math.log(2)

    def uniform(self, uniforms: Tensor) -> Tensor:
        """States uint8 [B, d], uniform on the nodes, from uniforms of that shape."""
        return super().uniform(uniforms) * self.graph.mask

    def rows(self, which: Tensor) -> OnGraphs:
        graph = self.graph.select(which)
        return OnGraphs(self.family, graph, self.colours[which], self.nodes[which], self.units[which])

    def context(self) -> tuple[Any, ...]:
        return (self.graph,)

    def gain(self, x: Tensor) -> Tensor:
        """f'x - c x'Px / 2 of states [B, d], float64 [B]: see `GraphTarget`."""
        return (x.double() * (self.graph.fields - self.family.factor / 2 * self._neighbours(x))).sum(-1)

    def log_density(self, x: Tensor) -> Tensor:
        """log rho = gain / T of states [B, d], [B] [Ou 2025, eq. 14]."""
        return self.family.inverse_temperature * self.gain(x)

    def flipped(self, x: Tensor) -> Tensor:
        """log rho of the state with site i flipped, relative to that of x: (1 - 2x)(f - c P x) / T, float64 [B, d].

        In place of [Ou 2025, eqs. 47 and 50], by brute force (tests/flows/graphs/test_problems.py).
        """
        force = self.graph.fields - self.family.factor * self._neighbours(x)
        return self.family.inverse_temperature * (1 - 2 * x.double()) * force * self.graph.mask

    def _neighbours(self, x: Tensor) -> Tensor:
        """P x of states [B, d], in single precision exact without weights: float64 [B, d]."""
        return (self.graph.weights @ x.to(self.graph.weights.dtype)[..., None]).squeeze(-1).double()

    def log_ratios(self, x: Tensor) -> Tensor:
        """Of every node and state, [B, d, 2], made of `flipped`; 0 at nodes that are none."""
        return of_flips(self.flipped(x), x)

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """A Gibbs sweep [Geman and Geman 1984], all nodes of one colour together: [B, d], as states and uniforms."""
        x = x.clone()
        for colour in range(int(self.colours.max()) + 1):
            to_one = self.flipped(x) * (1 - 2 * x.double())
            drawn = (uniforms < torch.sigmoid(t * to_one)).to(x.dtype)  # every node given all others
            x = torch.where((self.colours == colour) & self.graph.mask, drawn, x)
        return x

    def solutions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Feasible solutions of states [B, d], of that shape, and their values, float64 [B].

        A value is offset + sign * unit * gain, see `GraphTarget`.
        """
        feasible, (scale, offset) = self.family.repaired(x, self.graph), self.units.unbind(-1)
        return feasible, offset + self.family.sign * scale * self.gain(feasible)


@component("target")
class MIS(GraphTarget):
    """Maximum independent set: log rho = (1'x - lambda x'Ax / 2) / T, lambda just above 1 [Ou 2025, eqs. 14 and 46].

    Where nodes have weights, they are in place of 1, and the lesser weight of two neighbours in that of their edge.

    Args:
        graphs, nodes, held_out, inverse_temperature, weighted, validation: as for `GraphTarget`.
    """

    problem = "mis"
    factor = 1.0001
    """lambda, of an edge between selected nodes."""

    def quadratic(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """f [B, d], weights of nodes, and P [B, d, d], the lesser weight of the ends of an edge [Ou 2025, eq. 46]."""
        return nodes, edges * torch.minimum(nodes[:, None], nodes[..., None]).clamp(min=0)

    def repaired(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """Node by node, the heaviest first: a selected one drops its selected neighbours [Ou 2025, appendix D.3].

        States [B, d], of that shape; heaviest first is ours (tests/flows/graphs/test_problems.py).
        """
        x, rows = x * (graph.fields > 0), torch.arange(len(x), device=x.device)
        for node in graph.fields.argsort(dim=1, descending=True, stable=True).T:
            dropped = (graph.adjacency[rows, node] > 0) & (x[rows, node] > 0)[:, None]
            x[dropped] = 0
        return x


@component("target")
class MaxCut(GraphTarget):
    """Maximum cut: log rho is its weight over T, -s'As / (4 T) with s = 2x - 1 and a constant [Ou 2025, eq. 49]."""

    problem = "maxcut"
    factor = 2.0

    def quadratic(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """f [B, d], the weights of a node's edges, and P [B, d, d]: f'x - x'Px is the cut [Ou 2025, eq. 49]."""
        return edges.sum(-1), edges


@component("target")
class Qubo(GraphTarget):
    """A quadratic model: log rho = -(sum a_i x_i + sum b_ij x_i x_j) / T, whose least energy is sought.

    Ours (tests/flows/graphs/test_problems.py), of f [B, d] and P [B, d, d].
    """

    problem = "qubo"
    sign = -1

    def quadratic(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """f = -a [B, d] and P = b [B, d, d]: see the class."""
        return -nodes, edges


PROBLEMS: dict[str, type[GraphTarget]] = {"mis": MIS, "maxcut": MaxCut, "qubo": Qubo}


def problem_on(
    problem: str,
    graphs: Sequence[Graph],
    held_out: int = 0,
    inverse_temperature: float = 5.0,
    validation: int = 0,
) -> GraphTarget:
    """A problem on given graphs.

    Args:
        problem: `mis`, `maxcut` or `qubo`.
        graphs: those to train on, validation graphs and test graphs.
        held_out: how many are test graphs.
        inverse_temperature: 1 / T.
        validation: how many are validation graphs.

    Raises:
        UserError: one has weights that the problem does not take.
    """
    for graph in graphs:
        problem_of(problem, graph)
    plain = all(part is None for graph in graphs for part in (graph.weights, graph.node_weights, graph.offset))
    most = max(graph.nodes for graph in graphs)
    target = PROBLEMS[problem](len(graphs), most, held_out, inverse_temperature, not plain, validation)
    for k, graph in enumerate(graphs):
        target.weights[k, : graph.nodes, : graph.nodes] = torch.from_numpy(graph.matrix().toarray())
        target.node_weights[k, : graph.nodes] = torch.from_numpy(graph.of_nodes)
        target.offset[k], target.nodes[k], target.names[k] = graph.offset or 0.0, graph.nodes, graph.name
    return target


@component("target", ask="target=mis or target=maxcut")
def graph_problem(
    problem: Literal["mis", "maxcut", "qubo"],
    path: str | None = None,
    kind: Literal["er", "ba"] = "er",
    nodes: Sequence[int] = (16, 20),
    parameter: float = 0.19,
    number: int = 1000,
    held_out: int | None = None,
    seed: int = 0,
    inverse_temperature: float = 5.0,
    validation: int | None = None,
) -> GraphTarget:
    """A problem on graphs from files, or on random ones.

    Args:
        problem: `mis`, `maxcut` or `qubo`.
        path: a file or folder, see `read_graphs`; None for random graphs.
        kind: of random graphs, `er` or `ba`.
        nodes: least and largest number of nodes.
        parameter: probability of an edge, or edges of a new node.
        number: of graphs to train on.
        held_out: test graphs besides these; of files, the last ones, which are not trained on. None for 100, or a
            tenth of the files.
        seed: of random graphs.
        inverse_temperature: 1 / T.
        validation: validation graphs besides these; of files, those before the test graphs. None for as many as test
            graphs. Of none, validations look at training graphs.

    Raises:
        UserError: unreadable files, or weights that the problem does not take.
    """
    if path is None:
        test = _HELD_OUT if held_out is None else held_out
        validation = test if validation is None else validation
        made = random_graphs(kind, nodes, parameter, number + test + validation, seed)
        # graph k is a function of (seed, k): the others do not depend on the number of validation graphs
        graphs = [*made[:number], *made[number + test :], *made[number : number + test]]
    else:
        graphs = read_graphs(path)
        test = len(graphs) // _SHARE if held_out is None else held_out
        validation = test if validation is None else validation
    return problem_on(problem, graphs, test, inverse_temperature, validation)


_MOST_PAIRS = 20_000_000
"""Edges of a graph that a reduction makes."""

Array = NDArray[Any]


class Problem(NamedTuple):
    """What is asked of a graph, as what is solved.

    Ours (tests/flows/graphs/test_problems.py compares values and solutions with enumeration).

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
        """The problem's value of the base's, a number or an array of that shape: see the class."""
        return self.offset + self.sign * of_base

    def solution(self, of_base: Solution) -> Solution:
        """A solution of the base with the problem's value."""
        return replace(of_base, value=self.value(of_base.value))

    def best_of(self, x: Array) -> float:
        """The best of the values of solutions of the base, uint8 [n, n'], a float: see `value_of`."""
        return float(self.value(value_of(self.base, self.graph, x).max()))


_NODES, _ALL = ("node_weights",), ("node_weights", "weights", "offset")
TAKES = {"mis": _NODES, "maxcut": ("weights",), "clique": _NODES, "vertex_cover": _NODES, "colouring": (), "qubo": _ALL}
"""Problem -> what it takes of a `Graph`."""


def problem_of(name: str, graph: Graph, colours: int = 3, unit_weights: bool = False) -> Problem:
    """A problem on a graph.

    Reductions are elementary (tests/flows/graphs/test_problems.py) but for `qubo` [Barahona 1989]. Solutions of the
    base are uint8 [..., n'], those of the problem [..., n].

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
    if (name == "qubo") != (graph.offset is not None):
        raise UserError(f"{graph.name} is {'no' if name == 'qubo' else 'a'} quadratic model, which qubo is for")
    for what, given in (("nodes", "node_weights"), ("edges", "weights")):
        if getattr(graph, given) is not None and given not in TAKES[name]:
            raise UserError(f"{graph.name}: {name} takes no weights of {what}; solve --unit-weights takes all as 1")
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
    refuse(pairs > _MOST_PAIRS, f"{graph.name}: a problem of {pairs:,} pairs of nodes; at most {_MOST_PAIRS:,} will do")
