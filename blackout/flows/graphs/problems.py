"""Problems on graphs as targets: maximum independent set, maximum cut and quadratic models.

Signs and factors of the paper's equations 47 and 50 are corrected; log-ratios are checked by brute
force.

References: Ou et al. 2025, section 4.3 and appendix D.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from blackout.component import component
from blackout.errors import ensure, refuse
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import Graph, random_graphs
from blackout.flows.graphs.reductions import reduce_problem
from blackout.flows.graphs.target import GraphTarget
from blackout.networks.graph_batch import GraphBatch

NUM_RANDOM_TEST_GRAPHS = 100  # as in the paper (Ou et al. 2025, appendix E.3)
TEST_FRACTION = 10  # one in ten of the graphs in files is a test graph
# factor of edges between selected nodes, above 1 so that no optimum has one (Ou 2025, appendix D.3)
MIS_PENALTY = 1.0001


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
        UserError: another problem, or a graph with weights that the problem does not accept.

    Example:
        >>> import numpy as np
        >>> path = Graph("path", 3, np.array([[0, 1], [1, 2]]))
        >>> target = make_graph_target("mis", [path]).instances(torch.tensor([0]))
        >>> target.solutions(torch.tensor([[1, 0, 1]], dtype=torch.uint8))[1].tolist()
        [2.0]
    """
    refuse(
        problem not in PROBLEMS,
        f"target.problem must be one of {', '.join(PROBLEMS)}, not {problem!r}",
    )
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


@component("target", command_line="target=mis or target=maxcut")
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
        ValueError: a number out of range.
    """
    if path is None:
        ensure(num_training >= 1, f"num_training must be at least 1, not {num_training}")
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
