"""Optimisation problems on graphs as targets, rho = exp(-E / T) on the nodes of each graph.

Maximum independent set, maximum cut and quadratic models have targets. Other problems are reduced
to one of the first two on another graph (`reduce_problem`). Signs and factors of the paper's
equations 47 and 50 are corrected; log-ratios are checked by brute force.

References: Ou et al. 2025, section 4.3 and appendix D.3.
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
from blackout.flows.graphs.solvers import BaseProblem, Solution, objective_value
from blackout.flows.targets.base import Target, flip_log_ratios, greedy_colouring
from blackout.networks.graph_batch import NUM_DISTANCE_CLASSES, GraphBatch, compute_distance_classes
from blackout.random import SampleStreams, fold_seed

Array = NDArray[Any]

RELABELLING_KEY = 23  # separates the draws of the relabelling from other uses of a seed
MAX_NODES = 1024  # of a graph that a flow learns; distances of all pairs are kept
NUM_RANDOM_TEST_GRAPHS = 100  # as in the paper (Ou et al. 2025, appendix E.3)
TEST_FRACTION = 10  # one in ten of the graphs in files is a test graph
MAX_REDUCED_EDGES = 20_000_000  # of a graph to which a problem is reduced
# factor of edges between selected nodes, above 1 so that no optimum has one (Ou 2025, appendix D.3)
MIS_PENALTY = 1.0001


class GraphTarget(Target):
    """A family of targets, one on the nodes of each graph; `instances` selects those of a batch.

    log rho = (f'x - c x'Px / 2) / T with linear terms f and pair terms P made of the weights of
    nodes and edges. They are divided by the mean absolute value of the entries of P, so that one T
    suits graphs of any weights.

    Graphs 0, ..., G - 1 are training, then validation, then test graphs. The index of an instance
    is that of its graph plus G times a key by which its nodes are permuted at random; key 0 keeps
    their order.

    References: Ou et al. 2025, appendix D.3; weights other than 1: this project, checked in
    tests/flows/graphs/test_problems.py.

    Args:
        num_graphs: G; their edges are loaded, or set by `make_graph_target`.
        max_nodes: number of nodes of the largest graph.
        num_test: number of test graphs.
        inverse_temperature: 1 / T.
        weighted: whether weights other than 1 are kept.
        num_validation: number of validation graphs.

    Raises:
        ValueError: a number out of range.
    """

    problem = ""
    sign = 1  # -1 if the objective is minimised
    pair_factor = 1.0  # c
    amortised = True

    def __init__(
        self,
        num_graphs: int,
        max_nodes: int,
        num_test: int = 0,
        inverse_temperature: float = 5.0,
        weighted: bool = False,
        num_validation: int = 0,
    ) -> None:
        super().__init__(2, [max_nodes])
        valid_split = min(num_test, num_validation) >= 0 and num_test + num_validation < num_graphs
        ensure(
            valid_split,
            f"{num_validation} validation and {num_test} test graphs of {num_graphs} leave no "
            "graph to train on; reduce num_validation or num_test",
        )
        ensure(
            0 < inverse_temperature < math.inf,
            f"inverse_temperature must be positive and finite, not {inverse_temperature}",
        )
        ensure(
            max_nodes <= MAX_NODES,
            f"flows need graphs of at most {MAX_NODES} nodes, not {max_nodes}; use blackout solve",
        )
        self.num_test = num_test
        self.num_validation = num_validation
        self.inverse_temperature = inverse_temperature
        self.weighted = weighted
        dtype = torch.float64 if weighted else torch.uint8
        self.edge_weights = nn.Buffer(torch.zeros(num_graphs, max_nodes, max_nodes, dtype=dtype))
        self.node_weights = nn.Buffer(torch.zeros(num_graphs, max_nodes, dtype=dtype))
        self.offset = nn.Buffer(torch.zeros(num_graphs, dtype=torch.float64))
        self.num_nodes = nn.Buffer(torch.zeros(num_graphs, dtype=torch.int64))
        self.names = [str(k) for k in range(num_graphs)]
        self._structure: tuple[Tensor, Tensor] | None = None

    def graph(self, index: int) -> Graph:
        """Return a graph as an edge list."""
        num_nodes = int(self.num_nodes[index])
        weights = self.edge_weights[index].cpu().triu(1)
        edges = torch.nonzero(weights)
        arguments: dict[str, Any] = {}
        if self.weighted:
            values = {
                "edge_weights": weights[tuple(edges.T)].numpy(),
                "node_weights": self.node_weights[index, :num_nodes].cpu().numpy(),
                "offset": float(self.offset[index]),
            }
            arguments = {name: values[name] for name in ACCEPTED_WEIGHTS[self.problem]}
        return Graph(self.names[index], num_nodes, edges.numpy(), **arguments)

    def description(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return settings of a target of the same sizes; the graphs are saved as tensors."""
        names = ("num_test", "inverse_temperature", "weighted", "num_validation")
        return {
            "_target_": f"blackout.flows.{type(self).__name__}",
            "num_graphs": len(self.num_nodes),
            "max_nodes": self.sites,
            **{name: getattr(self, name) for name in names},
        }

    @property
    def facts(self) -> dict[str, Any]:
        """Values for networks; also `distances`, the number of classes of pairs of nodes."""
        return super().facts | {"distances": NUM_DISTANCE_CLASSES}

    def summary(self) -> str:
        """Describe the graphs in one line for the summary of a run."""
        return (
            f"{self.problem}: {self.num_training:,} training + {self.num_validation:,} validation "
            f"+ {self.num_test:,} test graphs of {int(self.num_nodes.min())} to {self.sites} nodes"
        )

    @property
    def test_instances(self) -> Tensor:
        """Indices of the test graphs, int64; of all graphs if there are none."""
        return torch.arange(len(self.num_nodes))[-self.num_test :]

    @property
    def validation_instances(self) -> Tensor:
        """Indices of the validation graphs, int64; of the training graphs if there are none."""
        if self.num_validation:
            return self.num_training + torch.arange(self.num_validation)
        return torch.arange(self.num_training)

    @property
    def num_training(self) -> int:
        """Number of training graphs."""
        return len(self.num_nodes) - self.num_test - self.num_validation

    def sample_instances(self, num_instances: int, chains: int, seed: int, relabel: bool) -> Tensor:
        """Draw indices to train on, int64 [num_instances * chains]: each `chains` times in a row.

        References: this project; checked in tests/flows/graphs/test_problems.py.

        Args:
            num_instances: training graphs without replacement, as far as there are enough.
            chains: of each instance.
            seed: of the draws.
            relabel: permute the nodes of every graph.
        """
        generator = torch.Generator().manual_seed(fold_seed(seed, RELABELLING_KEY))
        num_rounds = -(-num_instances // self.num_training)
        n = self.num_training
        permutations = [torch.randperm(n, generator=generator) for _ in range(num_rounds)]
        graphs = torch.cat(permutations)[:num_instances]
        keys = torch.randint(1, 1 << 32, (num_instances,), generator=generator) * int(relabel)
        return (graphs + len(self.num_nodes) * keys).repeat_interleave(chains)

    def instances(self, index: Tensor) -> GraphInstances:
        """Return the targets with these indices, int64 [B], one for each row."""
        # 1. Weights, distances and colours of the graphs.
        distances, colours = self._graph_structure()
        graph = index % len(self.num_nodes)
        key = index // len(self.num_nodes)
        weights = self.edge_weights[graph]
        node_weights = self.node_weights[graph]
        distances = distances[graph]
        colours = colours[graph]
        node = torch.arange(self.sites, device=index.device)
        mask = node < self.num_nodes[graph][:, None]

        # 2. Permute the nodes of rows with a key; padding stays at the end.
        if bool(key.any()):
            streams = SampleStreams(RELABELLING_KEY, index)
            uniforms = streams.step(0).next_draw().uniform((len(index), self.sites))
            permuted = mask & (key > 0)[:, None]
            order = torch.where(permuted, uniforms, node + 1.0).argsort(1)
            row = torch.arange(len(index), device=index.device)[:, None]
            pairs = (row[..., None], order[..., None], order[:, None])
            weights = weights[pairs]
            distances = distances[pairs]
            node_weights = node_weights[row, order]
            colours = colours[row, order]

        # 3. Linear and pair terms, over the mean absolute value of the pair terms.
        adjacent = (weights != 0).float()
        if not self.weighted:
            weights = adjacent
        linear, pair = self.quadratic_form(node_weights.to(weights.dtype), weights)
        mean = pair.abs().sum((-1, -2)) / adjacent.sum((-1, -2)).clamp(min=1)
        scale = torch.where(mean > 0, mean, 1)
        batch = GraphBatch(
            adjacent,
            distances,
            mask,
            pair / scale[:, None, None],
            linear / scale[:, None],
        )
        units = torch.stack([scale.double(), self.offset[graph]], -1)
        return GraphInstances(self, batch, colours, self.num_nodes[graph], units)

    def context(self) -> tuple[Any, ...]:
        """Return the first graph."""
        first = torch.zeros(1, dtype=torch.int64, device=self.num_nodes.device)
        return self.instances(first).context()

    def _graph_structure(self) -> tuple[Tensor, Tensor]:
        """Return distance classes [G, d, d] and colours [G, d] of all graphs, computed once."""
        if self._structure is None or self._structure[0].device != self.num_nodes.device:
            colours = torch.zeros(self.num_nodes.shape[0], self.sites, dtype=torch.uint8)
            for k, weights in enumerate(self.edge_weights.cpu().numpy()):
                for colour, nodes in enumerate(greedy_colouring(csr_array(weights))):
                    colours[k, nodes] = colour
            distances = compute_distance_classes(self.edge_weights != 0)
            self._structure = (distances, colours.to(self.num_nodes.device))
        return self._structure

    @abstractmethod
    def quadratic_form(self, node_weights: Tensor, edge_weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return f [B, d] and symmetric P [B, d, d] of weights [B, d] and [B, d, d]."""

    def repair(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """Return feasible solutions [B, d] of states [B, d], which are not changed."""
        return x.clone()


class GraphInstances(Target):
    """The targets of the rows of a batch, each on its own graph; see `GraphTarget`.

    Padding nodes stay 0 and do not count.

    Args:
        problem: the family of targets.
        graph: graphs of the rows.
        colours: of their nodes, uint8 [B, d]; nodes of one colour have no edges between them.
        num_nodes: int64 [B].
        units: scale of the terms, and offset of the objective, float64 [B, 2].
    """

    problem: GraphTarget

    def __init__(
        self,
        problem: GraphTarget,
        graph: GraphBatch,
        colours: Tensor,
        num_nodes: Tensor,
        units: Tensor,
    ) -> None:
        super().__init__(2, [graph.mask.shape[1]])
        vars(self)["problem"] = problem  # not a submodule, whose graphs would be saved again
        self.graph = graph
        self.colours = colours
        self.units = units
        self.frozen_sites = ~graph.mask
        self.num_nodes = nn.Buffer(num_nodes)

    @property
    def log_num_states(self) -> Tensor:
        """-log eta = n log 2 of graphs with n nodes, [B].

        References: Ou et al. 2025, section 3.
        """
        return self.num_nodes * math.log(2)

    def sample_initial(self, uniforms: Tensor) -> Tensor:
        """Draw uniform states of the nodes by uniforms [B, d]: uint8 [B, d]."""
        return super().sample_initial(uniforms) * self.graph.mask

    def select(self, rows: Tensor) -> GraphInstances:
        """Return the targets of some rows, by index or mask."""
        return GraphInstances(
            self.problem,
            self.graph.select(rows),
            self.colours[rows],
            self.num_nodes[rows],
            self.units[rows],
        )

    def context(self) -> tuple[Any, ...]:
        """Return the graphs of the rows, as networks read them."""
        return (self.graph,)

    def objective(self, x: Tensor) -> Tensor:
        """Return f'x - c x'Px / 2 of states [B, d], float64 [B]; see `GraphTarget`."""
        pair_term = self.problem.pair_factor / 2 * self._neighbour_sum(x)
        return (x.double() * (self.graph.fields - pair_term)).sum(-1)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log rho = objective / T of states [B, d], [B].

        References: Ou et al. 2025, eq. 14.
        """
        return self.problem.inverse_temperature * self.objective(x)

    def flip_log_ratios(self, x: Tensor) -> Tensor:
        """Return the log-ratios (1 - 2x)(f - c P x) / T of flips, float64 [B, d] of states [B, d].

        References: Ou et al. 2025, eqs. 47 and 50, corrected; checked in
        tests/flows/graphs/test_problems.py.
        """
        local_field = self.graph.fields - self.problem.pair_factor * self._neighbour_sum(x)
        signs = 1 - 2 * x.double()
        return self.problem.inverse_temperature * signs * local_field * self.graph.mask

    def _neighbour_sum(self, x: Tensor) -> Tensor:
        """Return P x of states [B, d], float64 [B, d]; sums of ones are exact in float32."""
        product = self.graph.weights @ x.to(self.graph.weights.dtype)[..., None]
        return product.squeeze(-1).double()

    def log_ratios(self, x: Tensor) -> Tensor:
        """Return the log-ratios of all nodes and values, [B, d, 2]; 0 at padding nodes."""
        return flip_log_ratios(self.flip_log_ratios(x), x)

    def gibbs_sweep(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """Draw every node of states [B, d], all nodes of one colour together: [B, d].

        References: Geman and Geman 1984.
        """
        x = x.clone()
        for colour in range(int(self.colours.max()) + 1):
            log_odds = self.flip_log_ratios(x) * (1 - 2 * x.double())
            values = (uniforms < torch.sigmoid(t * log_odds)).to(x.dtype)
            x = torch.where((self.colours == colour) & self.graph.mask, values, x)
        return x

    def solutions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return feasible solutions of states [B, d], and their values, float64 [B].

        A value is offset + sign * scale * objective, see `GraphTarget`.
        """
        feasible = self.problem.repair(x, self.graph)
        scale, offset = self.units.unbind(-1)
        return feasible, offset + self.problem.sign * scale * self.objective(feasible)


@component("target")
class MIS(GraphTarget):
    """Maximum independent set: log rho = (1'x - lambda x'Ax / 2) / T with lambda = 1.0001.

    Of weighted nodes, the weights take the place of 1, and the smaller weight of two neighbours
    that of the entry of A.

    References: Ou et al. 2025, eqs. 14 and 46.

    Args:
        num_graphs, max_nodes, num_test, inverse_temperature, weighted, num_validation: see
            `GraphTarget`.
    """

    problem = "mis"
    pair_factor = MIS_PENALTY

    def quadratic_form(self, node_weights: Tensor, edge_weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return f [B, d], the node weights, and P [B, d, d], the smaller weight of an edge's ends.

        References: Ou et al. 2025, eq. 46.
        """
        smaller = torch.minimum(node_weights[:, None], node_weights[..., None])
        return node_weights, edge_weights * smaller.clamp(min=0)

    def repair(self, x: Tensor, graph: GraphBatch) -> Tensor:
        """Visit nodes by decreasing weight; a selected one removes its selected neighbours.

        References: Ou et al. 2025, appendix D.3; the order is this project's, checked in
        tests/flows/graphs/test_problems.py.

        Args:
            x: states [B, d].
            graph: of the rows.
        """
        x = x * (graph.fields > 0)
        rows = torch.arange(len(x), device=x.device)
        order = graph.fields.argsort(dim=1, descending=True, stable=True)
        for node in order.T:
            is_neighbour = graph.adjacency[rows, node] > 0
            selected = (x[rows, node] > 0)[:, None]
            x[is_neighbour & selected] = 0
        return x


@component("target")
class MaxCut(GraphTarget):
    """Maximum cut: log rho = weight of the cut / T = -s'As / (4 T) + constant, s = 2x - 1.

    References: Ou et al. 2025, eq. 49.
    """

    problem = "maxcut"
    pair_factor = 2.0

    def quadratic_form(self, node_weights: Tensor, edge_weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return f [B, d], the weighted degrees, and P [B, d, d]: the cut is f'x - x'Px.

        References: Ou et al. 2025, eq. 49.
        """
        return edge_weights.sum(-1), edge_weights


@component("target")
class Qubo(GraphTarget):
    """Quadratic model: log rho = -(sum_i a_i x_i + sum_ij b_ij x_i x_j) / T, to be minimised.

    References: this project; checked in tests/flows/graphs/test_problems.py.
    """

    problem = "qubo"
    sign = -1

    def quadratic_form(self, node_weights: Tensor, edge_weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return f = -a [B, d] and P = b [B, d, d]."""
        return -node_weights, edge_weights


PROBLEMS: dict[str, type[GraphTarget]] = {"mis": MIS, "maxcut": MaxCut, "qubo": Qubo}


def make_graph_target(
    problem: str,
    graphs: Sequence[Graph],
    num_test: int = 0,
    inverse_temperature: float = 5.0,
    num_validation: int = 0,
) -> GraphTarget:
    """Build the target of a problem on graphs.

    Args:
        problem: "mis", "maxcut" or "qubo".
        graphs: training, then validation, then test graphs.
        num_test: number of test graphs.
        inverse_temperature: 1 / T.
        num_validation: number of validation graphs.

    Raises:
        UserError: a graph has weights that the problem does not accept.

    Example:
        >>> path = Graph("path", 3, np.array([[0, 1], [1, 2]]))
        >>> target = make_graph_target("mis", [path]).instances(torch.tensor([0]))
        >>> target.solutions(torch.tensor([[1, 0, 1]], dtype=torch.uint8))[1].tolist()
        [2.0]
    """
    for graph in graphs:
        reduce_problem(problem, graph)
    optional = ("edge_weights", "node_weights", "offset")
    weighted = any(getattr(graph, name) is not None for graph in graphs for name in optional)
    max_nodes = max(graph.num_nodes for graph in graphs)
    target = PROBLEMS[problem](
        len(graphs),
        max_nodes,
        num_test,
        inverse_temperature,
        weighted,
        num_validation,
    )
    for k, graph in enumerate(graphs):
        n = graph.num_nodes
        target.edge_weights[k, :n, :n] = torch.from_numpy(graph.adjacency_matrix().toarray())
        target.node_weights[k, :n] = torch.from_numpy(graph.node_weights_or_ones)
        target.offset[k] = graph.offset or 0.0
        target.num_nodes[k] = n
        target.names[k] = graph.name
    return target


@component("target", ask="target=mis or target=maxcut")
def graph_problem(  # noqa: PLR0913 - built from YAML
    problem: Literal["mis", "maxcut", "qubo"],
    path: str | None = None,
    kind: Literal["er", "ba"] = "er",
    nodes: Sequence[int] = (16, 20),
    p: float = 0.19,
    m: int = 4,
    num_training: int = 1000,
    num_test: int | None = None,
    seed: int = 0,
    inverse_temperature: float = 5.0,
    num_validation: int | None = None,
) -> GraphTarget:
    """Build a problem on graphs from files, or on random graphs.

    Args:
        problem: "mis", "maxcut" or "qubo".
        path: a file or folder, see `read_graphs`; None for random graphs.
        kind: of random graphs: "er" for Erdos-Renyi, "ba" for Barabasi-Albert.
        nodes: smallest and largest number of nodes of random graphs.
        p: probability of an edge in an Erdos-Renyi graph.
        m: edges of a new node in a Barabasi-Albert graph.
        num_training: random graphs to train on.
        num_test: test graphs; of files the last ones. None for 100, or a tenth of the files.
        seed: of random graphs.
        inverse_temperature: 1 / T.
        num_validation: validation graphs; of files those before the test graphs. None for as many
            as test graphs. With 0, validations use training graphs.

    Raises:
        UserError: unreadable files, or weights that the problem does not accept.
    """
    if path is None:
        num_test = NUM_RANDOM_TEST_GRAPHS if num_test is None else num_test
        num_validation = num_test if num_validation is None else num_validation
        total = num_training + num_test + num_validation
        generated = random_graphs(kind, nodes, total, seed, p=p, m=m)
        # validation graphs are generated last, so that their number changes no other graph
        training = generated[:num_training]
        test = generated[num_training : num_training + num_test]
        validation = generated[num_training + num_test :]
        graphs = [*training, *validation, *test]
    else:
        graphs = read_graphs(path)
        num_test = len(graphs) // TEST_FRACTION if num_test is None else num_test
        num_validation = num_test if num_validation is None else num_validation
    return make_graph_target(problem, graphs, num_test, inverse_temperature, num_validation)


def _identity(x: Array) -> Array:
    return x


class Problem(NamedTuple):
    """A problem on a graph, and its reduction to a base problem on another graph.

    References: this project; checked in tests/flows/graphs/test_problems.py.

    Args:
        name: of the problem.
        graph: of the problem.
        base: "mis" or "maxcut".
        base_graph: graph of the base problem.
        decode: solutions of the base problem, uint8 [..., n'], to those of the problem, [..., n].
        sign: -1 if the problem is a minimisation.
        offset: the value is offset + sign * value of the base problem.
    """

    name: str
    graph: Graph
    base: BaseProblem
    base_graph: Graph
    decode: Callable[[Array], Array] = _identity
    sign: int = 1
    offset: float = 0.0

    def value(self, base_value: Any) -> Any:
        """Return the problem's value of that of the base problem, a number or an array."""
        return self.offset + self.sign * base_value

    def solution(self, base_solution: Solution) -> Solution:
        """Return a solution of the base problem with the problem's value."""
        return replace(base_solution, value=self.value(base_solution.value))

    def best_value(self, x: Array) -> float:
        """Return the best value of solutions of the base problem, uint8 [k, n']."""
        return float(self.value(objective_value(self.base, self.base_graph, x).max()))


# fields of a `Graph` that a problem uses
ACCEPTED_WEIGHTS: dict[str, tuple[str, ...]] = {
    "mis": ("node_weights",),
    "maxcut": ("edge_weights",),
    "clique": ("node_weights",),
    "vertex_cover": ("node_weights",),
    "colouring": (),
    "qubo": ("node_weights", "edge_weights", "offset"),
}


def reduce_problem(
    name: str,
    graph: Graph,
    colours: int = 3,
    *,
    unit_weights: bool = False,
) -> Problem:
    """Reduce a problem on a graph to "mis" or "maxcut".

    References: Barahona et al. 1989 (qubo); the others are elementary, checked in
    tests/flows/graphs/test_problems.py.

    Args:
        name: "mis" or "clique" (of largest weight), "maxcut", "vertex_cover" (of smallest weight),
            "colouring" (of as many nodes as possible) or "qubo" (of lowest energy).
        graph: with the weights that the problem accepts.
        colours: number of colours of "colouring".
        unit_weights: replace all weights by 1.

    Raises:
        UserError: weights that the problem does not accept, no quadratic model for "qubo", or too
            large a reduction.

    Example:
        >>> path = Graph("path", 3, np.array([[0, 1], [1, 2]]))
        >>> reduce_problem("vertex_cover", path).value(2)
        1.0
    """
    if unit_weights and graph.offset is None:
        graph = replace(graph, edge_weights=None, node_weights=None)
    if name == "qubo" and graph.offset is None:
        raise UserError(f"{graph.name} is a graph; qubo needs a quadratic model")
    if name != "qubo" and graph.offset is not None:
        raise UserError(f"{graph.name} is a quadratic model; use qubo")
    for elements, attribute in (("nodes", "node_weights"), ("edges", "edge_weights")):
        if getattr(graph, attribute) is not None and attribute not in ACCEPTED_WEIGHTS[name]:
            raise UserError(
                f"{graph.name}: {name} accepts no weights of {elements}; "
                "blackout solve --unit-weights replaces them by 1"
            )
    if name == "mis":
        return Problem(name, graph, "mis", graph)
    if name == "clique":
        return Problem(name, graph, "mis", _complement(graph))
    if name == "vertex_cover":
        total_weight = float(graph.node_weights_or_ones.sum())
        return Problem(name, graph, "mis", graph, _complement_set, -1, total_weight)
    if name == "colouring":
        return _reduce_colouring(graph, colours)
    if name == "qubo":
        return _reduce_qubo(graph)
    return Problem(name, graph, "maxcut", graph)


def _complement_set(x: Array) -> Array:
    """Return the nodes that are not selected, of [..., n]."""
    return np.asarray(1 - x)


def _complement(graph: Graph) -> Graph:
    """Return the complement of a graph, whose independent sets are the graph's cliques."""
    n = graph.num_nodes
    _check_num_edges(graph, n * (n - 1) // 2)
    adjacent = np.triu(np.ones((n, n), bool), 1)
    adjacent[graph.edges.min(1), graph.edges.max(1)] = False
    return replace(graph, edges=np.argwhere(adjacent))


def _reduce_colouring(graph: Graph, colours: int) -> Problem:
    """Reduce a colouring to an independent set: node i * colours + c is node i with colour c."""
    _check_num_edges(graph, colours * (len(graph.edges) + graph.num_nodes * (colours - 1) // 2))
    # neighbours have different colours
    conflicts = [graph.edges * colours + colour for colour in range(colours)]
    # a node has at most one colour
    first, second = np.triu_indices(colours, 1)
    node = np.arange(graph.num_nodes)[:, None, None]
    same_node = node * colours + np.stack([first, second], 1)
    edges = np.concatenate([*conflicts, same_node.reshape(-1, 2)])
    base_graph = Graph(graph.name, graph.num_nodes * colours, edges)
    numbers = np.arange(1, colours + 1, dtype=np.uint8)

    def decode(x: Array) -> Array:
        """Return the colour of each node, 1, 2, ..., or 0 for none, [..., n]."""
        is_colour = x.reshape(*x.shape[:-1], -1, colours)
        return np.asarray((is_colour * numbers).sum(-1, dtype=np.uint8))

    return Problem("colouring", graph, "mis", base_graph, decode)


def _reduce_qubo(graph: Graph) -> Problem:
    """Reduce a quadratic model to a cut with one more node, whose side is that of zeros.

    References: Barahona et al. 1989.
    """
    n = graph.num_nodes
    fields = graph.node_weights_or_ones.copy()
    for ends in graph.edges.T:
        np.add.at(fields, ends, graph.edge_weights_or_ones / 2)
    extra_edges = np.stack([np.arange(n), np.full(n, n)], 1)
    edges = np.concatenate([graph.edges, extra_edges])
    weights = np.concatenate([graph.edge_weights_or_ones / 2, -fields])
    base_graph = Graph(graph.name, n + 1, edges, weights)

    def decode(x: Array) -> Array:
        """Return whether nodes are on the other side than the extra node, [..., n]."""
        return np.asarray(x[..., :-1] ^ x[..., -1:])

    return Problem("qubo", graph, "maxcut", base_graph, decode, -1, graph.offset or 0.0)


def _check_num_edges(graph: Graph, num_edges: int) -> None:
    refuse(
        num_edges > MAX_REDUCED_EDGES,
        f"{graph.name}: the problem reduces to a graph of {num_edges:,} edges; "
        f"at most {MAX_REDUCED_EDGES:,} are supported",
    )
