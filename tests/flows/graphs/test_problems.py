"""Problems on graphs: ratios, repair, cuts, padding and relabelling, by brute force."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.proposals import LocallyInformed
from blackout.errors import UserError
from blackout.flows.graphs.draw import graph_layout
from blackout.flows.graphs.graphs import Graph, barabasi_albert, erdos_renyi, random_graphs
from blackout.flows.graphs.problems import MIS, graph_problem, make_graph_target
from blackout.flows.graphs.reductions import reduce_problem
from blackout.flows.graphs.solvers import (
    greedy,
    objective_value,
    simulated_annealing,
    solve_exactly,
)
from blackout.flows.path import States
from blackout.flows.refinement import DMALA, Gibbs, Refinement
from blackout.flows.simulation import Events, Leap, Simulation
from blackout.flows.targets import all_states
from blackout.networks import LESite, LETransformer, LocallyEquivariant
from blackout.networks.graph_batch import NUM_DISTANCE_CLASSES
from blackout.random import SampleStreams

GRAPHS = random_graphs("er", [3, 12], 50, 1, p=0.3)
PROBLEMS = ("mis", "maxcut")


def log_density(
    problem: str, graph: Graph, x: Tensor, beta: float, penalty: float = 1.0001
) -> Tensor:
    """Return the log-density of the paper, with sums over edges; x float64 [B, n]."""
    i, j = torch.from_numpy(graph.edges).unbind(1)
    if problem == "mis":
        return beta * (x.sum(1) - penalty * (x[:, i] * x[:, j]).sum(1))
    # that of the paper plus half the number of edges
    return beta * (x[:, i] != x[:, j]).double().sum(1)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_densities_and_ratios_match_brute_force_on_fifty_graphs(problem: str) -> None:
    target = make_graph_target(problem, GRAPHS, inverse_temperature=3.3)
    instances = target.instances(torch.arange(50))
    x = instances.sample_initial(
        torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0))
    )
    ratios = instances.log_ratios(x)
    density = instances.log_density(x)
    for k, graph in enumerate(GRAPHS):
        row = x[k : k + 1, : graph.num_nodes].double()
        expected_density = log_density(problem, graph, row, 3.3)
        assert abs(float(density[k] - expected_density)) < 1e-10
        for i in range(target.sites):
            if i >= graph.num_nodes:
                assert ratios[k, i].tolist() == [0, 0]
                continue
            flipped = row.clone()
            flipped[0, i] = 1 - flipped[0, i]
            expected = float(log_density(problem, graph, flipped, 3.3) - expected_density)
            assert abs(float(ratios[k, i, int(flipped[0, i])]) - expected) < 1e-10


def test_repaired_solutions_are_feasible_and_keep_isolated_nodes() -> None:
    target = make_graph_target("mis", GRAPHS)
    instances = target.instances(torch.arange(50).repeat_interleave(20))
    x = instances.sample_initial(
        torch.rand(1000, target.sites, generator=torch.Generator().manual_seed(0))
    )
    solutions, sizes = instances.solutions(x)
    assert bool((solutions <= x).all())
    isolated = (x > 0) & ((instances.graph.adjacency @ x[..., None].float())[..., 0] == 0)
    assert bool((solutions[isolated] == 1).all())
    for k in range(1000):
        graph = GRAPHS[k // 20]
        assert objective_value("mis", graph, solutions[k, : graph.num_nodes].numpy()) == int(
            sizes[k]
        )
    # repairing twice changes nothing
    assert bool((instances.solutions(solutions)[0] == solutions).all())


def test_cuts_count_edges_between_the_sides() -> None:
    target = make_graph_target("maxcut", GRAPHS)
    instances = target.instances(torch.arange(50))
    x = instances.sample_initial(
        torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0))
    )
    for k, graph in enumerate(GRAPHS):
        sides = x[k, : graph.num_nodes].numpy()
        cut = objective_value("maxcut", graph, sides)
        assert int(instances.solutions(x)[1][k]) == cut
        s = 2.0 * sides - 1
        adjacent = graph.adjacency_matrix().toarray()
        assert cut == len(graph.edges) / 2 - s @ adjacent @ s / 4
    # solutions must not share memory with the states
    assert instances.solutions(x)[0].data_ptr() != x.data_ptr()


def graph_site(**settings: Any) -> LESite:
    """Return a small site-wise network on graphs."""
    return LESite(1, 2, 8, 2, distances=NUM_DISTANCE_CLASSES, **settings)


NETWORKS = {
    "lesite": lambda: graph_site(messages=4, heat_bath=True),
    "lesite, all nodes": lambda: graph_site(messages=4, reach=NUM_DISTANCE_CLASSES - 1),
    "lesite, relayed": lambda: graph_site(heat_bath=True, relayed=4),
    "legf": lambda: LETransformer(1, 2, 8, 2, 2, distances=NUM_DISTANCE_CLASSES),
}


def randomised_network(name: str) -> LocallyEquivariant:
    """Return a network with large random weights."""
    network = NETWORKS[name]().double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return network


def make_scores(network: LocallyEquivariant):  # type: ignore[no-untyped-def]
    """Return the network as a function of states and time."""

    def scores(states: States, t: float) -> Tensor:
        times = torch.full((len(states.x),), t, dtype=torch.float64)
        with torch.no_grad():
            return network(states.x, times, states.log_ratios, *states.target.context())

    return scores


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_on_graphs_are_locally_equivariant_and_use_all_other_nodes(name: str) -> None:
    network = randomised_network(name)
    graphs = random_graphs("er", [5, 9], 6, 2, p=0.35)
    target = make_graph_target(
        "mis",
        [
            replace(with_random_weights(g, k, k % 2 == 0), edge_weights=None)
            for k, g in enumerate(graphs)
        ],
    )
    instances = target.instances(torch.arange(6))
    scores = make_scores(network)
    x = instances.sample_initial(
        torch.rand(6, target.sites, generator=torch.Generator().manual_seed(1))
    )
    scores_before = scores(States.evaluate(instances, x), 0.4)
    assert float(scores_before.abs().max()) > 0.05 and bool(
        (scores_before[instances.frozen_sites] == 0).all()
    )
    rows = torch.arange(6)
    connected = instances.graph.distance_classes[..., :] < NUM_DISTANCE_CLASSES - 1
    for site in range(target.sites):
        y = x.clone()
        y[:, site] = torch.where(instances.graph.mask[:, site], 1 - y[:, site], y[:, site])
        scores_after = scores(States.evaluate(instances, y), 0.4)
        existing = instances.graph.mask[:, site]
        sums = (
            scores_before[rows, site, y[:, site].long()]
            + scores_after[rows, site, x[:, site].long()]
        )[existing]
        assert float(sums.abs().max()) <= 1e-12 * max(1.0, float(scores_before.abs().max()))
        changed = (scores_after.abs().amax(-1) - scores_before.abs().amax(-1)).abs() > 1e-9
        for k in rows[existing]:
            expected_to_change = connected[k, site] & instances.graph.mask[k]
            expected_to_change[site] = False
            assert bool(changed[k][expected_to_change].all())


@pytest.mark.parametrize(
    "refine, simulation",
    [(None, Events(4)), (DMALA(1), Leap(4)), (Gibbs(), Events(4)), (LocallyInformed(1), Leap(4))],
    ids=["plain", "dmala", "gibbs", "informed"],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_padding_does_not_change_samples_or_weights(
    name: str, refine: Refinement | None, simulation: Simulation
) -> None:
    small = random_graphs("er", [5, 6], 4, 4, p=0.3)
    large = random_graphs("er", [11, 12], 2, 5, p=0.3)
    for problem in PROBLEMS:
        unpadded = make_graph_target(problem, small)
        padded = make_graph_target(problem, small + large)
        scores = make_scores(randomised_network(name))
        chains = torch.arange(12)
        paths = [
            simulation.run(target.instances(chains % 4), scores, chains, 0, refine=refine)
            for target in (unpadded, padded)
        ]
        num_sites = unpadded.sites
        assert torch.equal(paths[0].states.x, paths[1].states.x[:, :num_sites])
        assert not bool(paths[1].states.x[:, num_sites:].any())
        assert float((paths[0].log_weights - paths[1].log_weights).abs().max()) < 1e-12 * max(
            1.0, float(paths[0].log_weights.abs().max())
        )
        unpadded_solutions, padded_solutions = (
            path.states.target.solutions(path.states.x) for path in paths
        )  # type: ignore[attr-defined]
        assert torch.equal(
            unpadded_solutions[0], padded_solutions[0][:, :num_sites]
        ) and torch.equal(unpadded_solutions[1], padded_solutions[1])


@pytest.mark.parametrize("problem", PROBLEMS)
def test_weights_estimate_the_partition_function(problem: str) -> None:
    graph = random_graphs("er", [5, 5], 1, 3, p=0.4)[0]
    target = make_graph_target(
        problem, [graph, *random_graphs("er", [8, 8], 1, 3, p=0.4)], inverse_temperature=0.7
    )
    network = NETWORKS["lesite"]().double()
    instances = target.instances(torch.zeros(20_000, dtype=torch.int64))
    weights = Events(2).run(instances, make_scores(network), torch.arange(20_000), 0).log_weights
    states = all_states(2, 5).double()
    exact = float(torch.logsumexp(log_density(problem, graph, states, 0.7), 0))
    ratios = (weights - exact).exp()
    assert abs(float(ratios.mean()) - 1) < 4 * float(ratios.std()) / math.sqrt(20_000)


def test_relabelling_permutes_nodes_and_keeps_the_distribution() -> None:
    target = make_graph_target("mis", GRAPHS)
    keys = torch.arange(50) + 50 * (torch.arange(50) + 1)
    plain = target.instances(torch.arange(50))
    relabelled = target.instances(keys)
    assert not torch.equal(plain.graph.adjacency, relabelled.graph.adjacency)
    assert torch.equal(plain.graph.mask, relabelled.graph.mask) and torch.equal(
        plain.num_nodes, relabelled.num_nodes
    )
    for name in ("adjacency", "distance_classes"):
        before = getattr(plain.graph, name)
        after = getattr(relabelled.graph, name)
        assert torch.equal(before.sum(-1).sort().values, after.sum(-1).sort().values)
    for k in range(6):
        graph = GRAPHS[k]
        relabelled_adjacency = relabelled.graph.adjacency[
            k, : GRAPHS[k].num_nodes, : GRAPHS[k].num_nodes
        ]
        edges = torch.nonzero(relabelled_adjacency.triu(1)).numpy()
        best = [
            _largest_independent_set(Graph("", graph.num_nodes, e)) for e in (graph.edges, edges)
        ]
        assert best[0] == best[1]
    x = torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0))
    swept = relabelled.gibbs_sweep(
        relabelled.sample_initial(x),
        SampleStreams(0, torch.arange(50)).step(0).next_draw().uniform(x.shape),
        1.0,
    )
    independent = relabelled.colours[:, :, None] == relabelled.colours[:, None]
    assert not bool((independent & (relabelled.graph.adjacency > 0)).any()) and not bool(
        swept[relabelled.frozen_sites].any()
    )


def _largest_independent_set(graph: Graph) -> int:
    """Return the size of the largest independent set, by enumeration."""
    states = all_states(2, graph.num_nodes).numpy()
    ends = states[:, graph.edges.T]
    return int(states.sum(1)[(ends[:, 0] & ends[:, 1]).sum(1) == 0].max())


def with_random_weights(graph: Graph, seed: int, integer: bool) -> Graph:
    """Return the graph with random weights of edges, some negative, and of nodes."""
    rng = np.random.default_rng(seed)
    edges = rng.normal(0, 3, len(graph.edges))
    nodes = rng.normal(3, 2, graph.num_nodes)
    return replace(
        graph,
        edge_weights=edges.round() if integer else edges,
        node_weights=nodes.round() if integer else nodes,
    )


def enumerated_value(problem: str, graph: Graph, states: np.ndarray) -> np.ndarray:
    """Return the objective of all states by its definition; -inf if infeasible.

    Objectives to be minimised are negated.
    """
    ends = states[:, graph.edges].astype(bool)
    if problem == "qubo":
        return -(
            graph.offset
            + states @ graph.node_weights_or_ones
            + ends.all(-1) @ graph.edge_weights_or_ones
        )
    if problem == "maxcut":
        return (ends[..., 0] ^ ends[..., 1]) @ graph.edge_weights_or_ones
    if problem == "mis":
        return np.where(ends.all(-1).any(-1), -np.inf, states @ graph.node_weights_or_ones)
    if problem == "vertex_cover":
        return np.where(ends.any(-1).all(-1), -(states @ graph.node_weights_or_ones), -np.inf)
    adjacent = graph.adjacency_matrix().toarray() + np.eye(graph.num_nodes)
    missing = np.einsum("si,ij,sj->s", states, adjacent == 0, states)
    return np.where(missing > 0, -np.inf, states @ graph.node_weights_or_ones)


UNUSED_PARTS = {
    "mis": {"edge_weights": None},
    "clique": {"edge_weights": None},
    "vertex_cover": {"edge_weights": None},
    "maxcut": {"node_weights": None},
    "qubo": {"offset": 0.75},
}


@pytest.mark.parametrize("name", UNUSED_PARTS)
def test_solvers_of_weighted_problems_match_enumeration(name: str) -> None:
    methods = ["milp", *(["cpsat"] if find_spec("ortools") else [])]
    for k, graph in enumerate(random_graphs("er", [2, 9], 12, 7, p=0.5)):
        integer = k % 2 == 0
        problem = reduce_problem(
            name, replace(with_random_weights(graph, k, integer), **UNUSED_PARTS[name])
        )
        states = all_states(2, graph.num_nodes).numpy().astype(float)
        values = enumerated_value(name, problem.graph, states)
        # nodes of negative weight are never taken
        optimum = max(0.0, values.max()) if name == "mis" else values.max()
        solutions = [
            greedy(problem.base, problem.base_graph, 16, 10.0, 0),
            simulated_annealing(problem.base, [problem.base_graph, GRAPHS[1]], 16, 40, 10.0, 0)[0],
        ]
        for method in methods:
            if integer or method != "cpsat":  # CP-SAT takes integer weights only
                (solution,) = solve_exactly(method, problem.base, [problem.base_graph], 10.0)
                assert (
                    solution.proved
                    and abs(problem.sign * problem.from_base_value(solution.value) - optimum) < 1e-6
                ), method
                solutions.append(solution.x[None])
        for x in solutions:  # all values are as reported, and annealing finds the optimum
            values_of_x = problem.sign * problem.from_base_value(
                objective_value(problem.base, problem.base_graph, x)
            )
            expected = enumerated_value(name, problem.graph, problem.decode(x).astype(float))
            assert np.allclose(values_of_x, expected) and values_of_x.max() <= optimum + 1e-6
        assert (
            abs(
                (
                    problem.sign
                    * problem.from_base_value(
                        objective_value(problem.base, problem.base_graph, solutions[1])
                    )
                ).max()
                - optimum
            )
            < 1e-6
        )


@pytest.mark.parametrize("problem", ("mis", "maxcut", "qubo"))
def test_targets_of_weighted_problems_match_enumeration(problem: str) -> None:
    """Ratios, values and graphs are exact, and the distribution does not depend on the unit of
    weights."""
    weighted_graphs = [
        with_random_weights(graph, k, k % 2 == 0)
        for k, graph in enumerate(GRAPHS[:20])
        if len(graph.edges)
    ]
    graphs = [replace(graph, **UNUSED_PARTS[problem]) for graph in weighted_graphs]
    parts = ("edge_weights", "node_weights", "offset")
    scaled_graphs = [
        replace(
            graph, **{part: 100 * w for part in parts if (w := getattr(graph, part)) is not None}
        )
        for graph in graphs
    ]
    target = make_graph_target(problem, graphs)
    indices = torch.arange(len(graphs))
    instances = target.instances(indices)
    scaled_instances = make_graph_target(problem, scaled_graphs).instances(indices)
    x = instances.sample_initial(
        torch.rand(len(graphs), target.sites, generator=torch.Generator().manual_seed(0))
    )
    density = instances.log_density(x)
    ratios = instances.log_ratios(x)
    assert torch.allclose(density, scaled_instances.log_density(x)) and torch.allclose(
        ratios, scaled_instances.log_ratios(x)
    )
    for site in range(target.sites):
        y = x.clone()
        y[:, site] = torch.where(instances.graph.mask[:, site], 1 - y[:, site], 0)
        gain = ratios.gather(2, y.long()[..., None])[:, site, 0]
        assert torch.allclose(instances.log_density(y) - density, gain, atol=1e-10)
    solutions, values = instances.solutions(x)
    for k, graph in enumerate(graphs):
        restored = target.graph(k)
        states = all_states(2, graph.num_nodes)
        assert (
            restored.adjacency_matrix() != graph.adjacency_matrix()
        ).nnz == 0 and restored.offset == graph.offset
        expected = enumerated_value(problem, graph, solutions[k : k + 1, : graph.num_nodes].numpy())
        assert np.allclose(target.sign * values[k].item(), expected)
        rows = target.instances(torch.full((len(states),), k))
        padded = torch.zeros(len(states), target.sites, dtype=torch.uint8)
        padded[:, : graph.num_nodes] = states
        best = rows.solutions(padded)[1][rows.log_density(padded).argmax()].item()
        optimum = enumerated_value(problem, graph, states.numpy()).max()
        # the most probable state is the best solution
        assert np.isclose(target.sign * best, optimum)


def test_colourings_colour_as_many_nodes_as_possible() -> None:
    wheel = Graph(
        "wheel", 6, np.array([[k, (k + 1) % 5] for k in range(5)] + [[k, 5] for k in range(5)])
    )
    for colours, optimum in ((1, 2), (2, 4), (3, 5), (4, 6)):
        problem = reduce_problem("colouring", wheel, colours)
        (solution,) = solve_exactly("milp", problem.base, [problem.base_graph], 10.0)
        x = problem.decode(solution.x)
        assert solution.proved and solution.value == optimum == (x > 0).sum() and x.max() <= colours
        ends = x[wheel.edges]
        assert not ((ends[:, 0] == ends[:, 1]) & (ends[:, 0] > 0)).any()


def test_unsupported_weights_are_refused() -> None:
    graph = with_random_weights(GRAPHS[3], 0, True)
    for name, parts in (
        ("mis", {"node_weights": None}),
        ("maxcut", {"edge_weights": None}),
        ("colouring", {}),
        ("qubo", {}),
    ):
        with pytest.raises(UserError, match=graph.name):
            reduce_problem(name, replace(graph, **parts))
    plain = reduce_problem("mis", graph, unit_weights=True).graph
    assert plain.edge_weights is None and plain.node_weights is None
    with pytest.raises(UserError, match="weights"):
        make_graph_target("mis", [graph])
    with pytest.raises(UserError, match="edges"):
        reduce_problem("clique", Graph("large", 10_000, graph.edges))


@pytest.mark.deep
def test_a_solution_within_a_gap_is_not_reported_as_proved() -> None:
    """By default HiGHS stops within a relative gap of 1e-4 of the optimum, here at 280,803."""
    graph = random_graphs("er", [80, 80], 1, 2, p=0.1)[0]
    graph = replace(graph, node_weights=10_000.0 + np.random.default_rng(2).integers(0, 50, 80))
    (solution,) = solve_exactly("milp", "mis", [graph], 60.0)
    values = objective_value("mis", graph, simulated_annealing("mis", [graph], 8, 300, 60.0, 0)[0])
    assert solution.proved and solution.value == values.max() == 280_828


def gset(seed: int) -> Graph:
    """Return G1 and similar graphs, which rudy generates with Knuth's generators.

    References: Knuth 1993, GB_FLIP and GB_RAND.
    """
    state = [0] * 56
    k = 21
    following = 1
    previous = seed
    state[55] = seed
    while k:
        state[k] = following
        following = (previous - following) % 2**31
        seed = (seed >> 1) + (seed & 1) * 2**30
        following = (following - seed) % 2**31
        previous = state[k]
        k = (k + 21) % 55

    def numbers() -> Iterator[int]:
        for cycle in count():
            for j in range(1, 56):
                state[j] = (state[j] - state[j + 31 if j < 25 else j - 24]) % 2**31
            if cycle > 3:  # the first number after four cycles is skipped
                yield from (
                    number % 800
                    for number in state[55 - (cycle == 4) : 0 : -1]
                    if number < 2**31 - 2**31 % 800
                )

    stream = numbers()
    edges = set()
    while len(edges) < 19_176:
        i = next(stream)
        j = next(stream)
        edges |= {(min(i, j), max(i, j))} - {(i, i)}
    return Graph("", 800, np.array(sorted(edges)))


def test_annealing_comes_close_to_the_best_known_cuts_of_g1_and_g3() -> None:
    for number, best in ((1, 11_624), (3, 11_622)):
        graph = gset(8000 + number)
        values = objective_value(
            "maxcut", graph, simulated_annealing("maxcut", [graph], 16, 300, 60.0, 0)[0]
        )
        assert 0.999 * best < values.max() <= best


def three_sat(seed: int, variables: int = 100, clauses: int = 403) -> Graph:
    """Return the graph of a satisfiable random formula.

    A largest independent set has one literal of each clause.
    """
    rng = np.random.default_rng(seed)
    literals = []
    truth = rng.random(variables) < 0.5
    while len(literals) < 3 * clauses:
        names = rng.choice(variables, 3, replace=False)
        signs = rng.random(3) < 0.5
        if (truth[names] == signs).any():
            literals += list(zip(names.tolist(), signs.tolist(), strict=True))
    n = len(literals)
    edges = [
        (i, j)
        for j in range(n)
        for i in range(j)
        if i // 3 == j // 3 or literals[i] == (literals[j][0], not literals[j][1])
    ]
    return Graph(f"3sat{seed}", n, np.array(edges))


def test_annealing_and_greedy_come_close_to_the_optimum_on_1209_nodes() -> None:
    graph = three_sat(0)
    annealed = objective_value(
        "mis", graph, simulated_annealing("mis", [graph], 8, 400, 60.0, 0)[0]
    )
    assert graph.num_nodes == 1209 and 0.99 * 403 < annealed.max() <= 403
    assert (
        0.9 * 403
        < objective_value("mis", graph, greedy("mis", graph, 4, 60.0, 0)).max()
        <= annealed.max()
    )


def test_random_graphs_have_the_right_statistics() -> None:
    rng = np.random.default_rng(0)
    mean = np.mean([len(erdos_renyi(18, 0.19, rng)) for _ in range(400)])
    assert abs(mean - 0.19 * 153) < 4 * math.sqrt(153 * 0.19 * 0.81 / 400)
    for _ in range(20):
        edges = barabasi_albert(20, 4, rng)
        assert len(edges) == 4 + 15 * 4 and len(np.unique(edges, axis=0)) == len(edges)
        degrees = np.bincount(edges.flatten(), minlength=20)
        assert degrees[5:].min() >= 4 and (edges[:, 0] != edges[:, 1]).all()
    for nodes in range(3, 12):  # networkx samples the same edges, one by one
        package_rng, networkx_rng = (np.random.default_rng([0, nodes]) for _ in range(2))
        expected = np.array(nx.gnp_random_graph(nodes, 0.4, seed=networkx_rng).edges).reshape(-1, 2)
        assert np.array_equal(erdos_renyi(nodes, 0.4, package_rng), expected)
    pair_of_lists = [random_graphs("ba", [8, 12], 5, 3, m=4) for _ in range(2)]
    assert all(
        np.array_equal(first.edges, second.edges)
        for first, second in zip(*pair_of_lists, strict=True)
    )
    for kind, sizes, options in (
        ("ws", [8, 12], {}),
        ("er", [8, 12], {"p": 1.5}),
        ("ba", [3, 12], {"m": 4}),
        ("er", [9, 8], {}),
    ):
        with pytest.raises(ValueError):
            random_graphs(kind, sizes, 1, 0, **options)


@pytest.mark.parametrize("relabel", [False, True])
def test_training_uses_all_training_graphs_equally_often_and_no_others(
    relabel: bool,
) -> None:
    target = graph_problem("mis", nodes=[5, 6], num_training=4, num_test=1, num_validation=2)
    indices = target.sample_instances(8, 2, 0, relabel=relabel) % len(target.num_nodes)
    assert torch.bincount(indices, minlength=7).tolist() == [4, 4, 4, 4, 0, 0, 0]
    assert target.test_instances.tolist() == [6] and target.validation_instances.tolist() == [4, 5]
    assert torch.equal(indices[::2], indices[1::2])
    assert "4 training + 2 validation + 1 test graphs" in target.summary()


def test_training_and_test_graphs_do_not_depend_on_validation_graphs() -> None:
    with_validation, without_validation = (
        graph_problem("mis", nodes=[5, 6], num_training=4, num_test=2, num_validation=v)
        for v in (3, 0)
    )
    # validation uses training graphs then, never test graphs
    assert without_validation.validation_instances.tolist() == [0, 1, 2, 3]
    for numbers in (slice(0, 4), slice(-2, None)):
        assert torch.equal(
            with_validation.edge_weights[numbers], without_validation.edge_weights[numbers]
        )
    with pytest.raises(
        ValueError, match="3 validation and 2 test graphs of 5 leave no graph to train on"
    ):
        type(with_validation)(5, 6, 2, num_validation=3)


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("num_nodes", (0,), -7),
        ("num_nodes", (1,), 0),
        ("num_nodes", (1,), 10**9),
        ("edge_weights", (0, 0, 0), 1),
        ("edge_weights", (0, 0, 1), 9),
        ("edge_weights", (2, slice(-1, None), slice(None)), 1),
    ],
)
def test_tensors_that_are_no_graphs_are_refused(name: str, index: Any, value: int) -> None:
    target = make_graph_target("mis", GRAPHS)
    target.check_tensors()
    getattr(target, name)[index] = value
    with pytest.raises(ValueError, match="target: "):
        target.check_tensors()


def test_more_graphs_than_memory_are_refused_before_they_are_allocated() -> None:
    with pytest.raises(ValueError, match="do not fit into memory"):
        MIS(num_graphs=10**12, max_nodes=100)


def test_the_layout_of_a_graph_is_always_the_same():
    edges = erdos_renyi(12, 0.3, np.random.default_rng(4))
    graph = Graph("a graph", 12, edges)
    first = graph_layout(graph)
    assert np.array_equal(graph_layout(graph), first)


def test_unknown_problems_and_no_training_graphs_are_refused():
    """An unknown problem is not a maximum cut."""
    path = Graph("path", 3, np.array([[0, 1], [1, 2]]))
    with pytest.raises(UserError, match="no problem 'cut': choose one of mis, maxcut"):
        reduce_problem("cut", path)
    with pytest.raises(UserError, match="problem must be one of mis, maxcut, qubo, not 'clique'"):
        graph_problem("clique", num_training=4, num_test=1)
    with pytest.raises(ValueError, match="num_training must be at least 1, not -5"):
        graph_problem("mis", num_training=-5, num_test=10)
