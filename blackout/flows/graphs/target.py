"""Targets rho = exp(-E / T) on the nodes of graphs, one network for all of them.

`GraphTarget` holds the graphs, and `GraphInstances` those of a batch. Problems are subclasses of
`GraphTarget`, in `blackout.flows.graphs.problems`.

References: Ou et al. 2025, section 4.3 and appendix D.3.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from blackout.errors import ensure
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.reductions import ACCEPTED_WEIGHTS
from blackout.flows.targets.base import Target, flip_log_ratios, greedy_colouring
from blackout.networks.graph_batch import NUM_DISTANCE_CLASSES, GraphBatch, compute_distance_classes
from blackout.random import SampleStreams, fold_seed
from blackout.safe_reading import available_memory

RELABELLING_KEY = 23  # separates the draws of the relabelling from other uses of a seed
MAX_NODES = 1024  # of a graph that a flow learns; distances of all pairs are kept


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
        num_bytes = num_graphs * max_nodes**2 * (8 if weighted else 1)
        ensure(
            num_bytes <= available_memory(),
            f"{num_graphs:,} graphs of {max_nodes:,} nodes do not fit into memory; use fewer",
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

    def check_tensors(self) -> None:
        """Check graphs that were loaded from a file.

        Raises:
            ValueError: a number of nodes out of range, or weights that are no graph's.
        """
        nodes = self.num_nodes
        ensure(
            bool(((nodes >= 1) & (nodes <= self.sites)).all()),
            f"target: graphs must have from 1 to {self.sites} nodes",
        )
        weights = self.edge_weights
        is_symmetric = torch.equal(weights, weights.transpose(1, 2))
        has_loops = bool(weights.diagonal(dim1=1, dim2=2).any())
        absent = torch.arange(self.sites, device=nodes.device) >= nodes[:, None]
        has_strays = bool((weights * absent[:, None]).any())
        ensure(
            is_symmetric and not has_loops and not has_strays,
            "target: weights of edges must be symmetric, without loops, and between nodes",
        )

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

    def sample_instances(
        self, num_instances: int, chains: int, seed: int, *, relabel: bool
    ) -> Tensor:
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
        """Return the network arguments of the first graph, as an example."""
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
