"""Problems on graphs: ratios, repair, cuts, padding and numbering, each by brute force."""

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
from blackout.flows.graphs.graphs import Graph, barabasi_albert, erdos_renyi, random_graphs
from blackout.flows.graphs.problems import MIS, graph_problem, make_graph_target, reduce_problem
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

MANY = random_graphs("er", [3, 12], 50, 1, p=0.3)
PROBLEMS = ("mis", "maxcut")


def log_density(problem: str, graph: Graph, x: Tensor, beta: float, penalty: float = 1.0001) -> Tensor:
    """As the paper writes it, with sums over edges; x float64 [B, n]."""
    i, j = torch.from_numpy(graph.edges).unbind(1)
    if problem == "mis":
        return beta * (x.sum(1) - penalty * (x[:, i] * x[:, j]).sum(1))
    return beta * (x[:, i] != x[:, j]).double().sum(1)  # the paper's, with half the number of edges more


@pytest.mark.parametrize("problem", PROBLEMS)
def test_densities_and_ratios_by_brute_force_on_fifty_graphs(problem: str) -> None:
    target = make_graph_target(problem, MANY, inverse_temperature=3.3)
    on = target.instances(torch.arange(50))
    x = on.sample_initial(torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0)))
    ratios, density = on.log_ratios(x), on.log_density(x)
    for k, graph in enumerate(MANY):
        row = x[k : k + 1, : graph.num_nodes].double()
        here = log_density(problem, graph, row, 3.3)
        assert abs(float(density[k] - here)) < 1e-10
        for i in range(target.sites):
            if i >= graph.num_nodes:
                assert ratios[k, i].tolist() == [0, 0]
                continue
            flipped = row.clone()
            flipped[0, i] = 1 - flipped[0, i]
            expected = float(log_density(problem, graph, flipped, 3.3) - here)
            assert abs(float(ratios[k, i, int(flipped[0, i])]) - expected) < 1e-10


def test_repair_is_feasible_and_keeps_lone_nodes() -> None:
    target = make_graph_target("mis", MANY)
    on = target.instances(torch.arange(50).repeat_interleave(20))
    x = on.sample_initial(torch.rand(1000, target.sites, generator=torch.Generator().manual_seed(0)))
    found, sizes = on.solutions(x)
    assert bool((found <= x).all())
    lone = (x > 0) & ((on.graph.adjacency @ x[..., None].float())[..., 0] == 0)
    assert bool((found[lone] == 1).all())
    for k in range(1000):
        graph = MANY[k // 20]
        assert objective_value("mis", graph, found[k, : graph.num_nodes].numpy()) == int(sizes[k])
    assert bool((on.solutions(found)[0] == found).all())  # and again changes nothing


def test_cuts_count_edges_between_the_sides() -> None:
    target = make_graph_target("maxcut", MANY)
    on = target.instances(torch.arange(50))
    x = on.sample_initial(torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0)))
    for k, graph in enumerate(MANY):
        sides = x[k, : graph.num_nodes].numpy()
        cut = objective_value("maxcut", graph, sides)
        assert int(on.solutions(x)[1][k]) == cut
        s = 2.0 * sides - 1
        adjacent = graph.adjacency_matrix().toarray()
        assert cut == len(graph.edges) / 2 - s @ adjacent @ s / 4
    assert on.solutions(x)[0].data_ptr() != x.data_ptr()  # batches are stored whole: nothing may share memory


def graph_site(**settings: Any) -> LESite:
    return LESite(1, 2, 8, 2, distances=NUM_DISTANCE_CLASSES, **settings)


NETWORKS = {
    "lesite": lambda: graph_site(messages=4, heat_bath=True),
    "lesite, all nodes": lambda: graph_site(messages=4, reach=NUM_DISTANCE_CLASSES - 1),
    "lesite, relayed": lambda: graph_site(heat_bath=True, relayed=4),
    "legf": lambda: LETransformer(1, 2, 8, 2, 2, distances=NUM_DISTANCE_CLASSES),
}


def far_from_the_start(name: str) -> LocallyEquivariant:
    network = NETWORKS[name]().double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return network


def scores_of(network: LocallyEquivariant):  # type: ignore[no-untyped-def]
    def scores(states: States, t: float) -> Tensor:
        times = torch.full((len(states.x),), t, dtype=torch.float64)
        with torch.no_grad():
            return network(states.x, times, states.log_ratios, *states.target.context())

    return scores


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_on_graphs_are_locally_equivariant_and_see_all_others(name: str) -> None:
    network, graphs = far_from_the_start(name), random_graphs("er", [5, 9], 6, 2, p=0.35)
    target = make_graph_target(
        "mis", [replace(weighted(g, k, k % 2 == 0), edge_weights=None) for k, g in enumerate(graphs)]
    )
    on, scores = target.instances(torch.arange(6)), scores_of(network)
    x = on.sample_initial(torch.rand(6, target.sites, generator=torch.Generator().manual_seed(1)))
    here = scores(States.evaluate(on, x), 0.4)
    assert float(here.abs().max()) > 0.05 and bool((here[on.frozen_sites] == 0).all())
    rows = torch.arange(6)
    connected = on.graph.distance_classes[..., :] < NUM_DISTANCE_CLASSES - 1
    for site in range(target.sites):
        y = x.clone()
        y[:, site] = torch.where(on.graph.mask[:, site], 1 - y[:, site], y[:, site])
        there = scores(States.evaluate(on, y), 0.4)
        real = on.graph.mask[:, site]
        back = (here[rows, site, y[:, site].long()] + there[rows, site, x[:, site].long()])[real]
        assert float(back.abs().max()) <= 1e-12 * max(1.0, float(here.abs().max()))
        changed = (there.abs().amax(-1) - here.abs().amax(-1)).abs() > 1e-9
        for k in rows[real]:
            seen = connected[k, site] & on.graph.mask[k]
            seen[site] = False
            assert bool(changed[k][seen].all())


@pytest.mark.parametrize(
    "refine, simulation",
    [(None, Events(4)), (DMALA(1), Leap(4)), (Gibbs(), Events(4)), (LocallyInformed(1), Leap(4))],
    ids=["plain", "dmala", "gibbs", "informed"],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_padding_changes_nothing(name: str, refine: Refinement | None, simulation: Simulation) -> None:
    small, large = random_graphs("er", [5, 6], 4, 4, p=0.3), random_graphs("er", [11, 12], 2, 5, p=0.3)
    for problem in PROBLEMS:
        alone, together = make_graph_target(problem, small), make_graph_target(problem, small + large)
        scores, chains = scores_of(far_from_the_start(name)), torch.arange(12)
        paths = [
            simulation.run(target.instances(chains % 4), scores, chains, 0, refine=refine)
            for target in (alone, together)
        ]
        d = alone.sites
        assert torch.equal(paths[0].states.x, paths[1].states.x[:, :d])
        assert not bool(paths[1].states.x[:, d:].any())
        assert float((paths[0].log_weights - paths[1].log_weights).abs().max()) < 1e-12 * max(
            1.0, float(paths[0].log_weights.abs().max())
        )
        one, two = (path.states.target.solutions(path.states.x) for path in paths)  # type: ignore[attr-defined]
        assert torch.equal(one[0], two[0][:, :d]) and torch.equal(one[1], two[1])


@pytest.mark.parametrize("problem", PROBLEMS)
def test_weights_give_the_number_of_states_at_this_temperature(problem: str) -> None:
    graph = random_graphs("er", [5, 5], 1, 3, p=0.4)[0]
    target = make_graph_target(problem, [graph, *random_graphs("er", [8, 8], 1, 3, p=0.4)], inverse_temperature=0.7)
    network = NETWORKS["lesite"]().double()
    on = target.instances(torch.zeros(20_000, dtype=torch.int64))
    weights = Events(2).run(on, scores_of(network), torch.arange(20_000), 0).log_weights
    states = all_states(2, 5).double()
    exact = float(torch.logsumexp(log_density(problem, graph, states, 0.7), 0))
    mean = (weights - exact).exp()
    assert abs(float(mean.mean()) - 1) < 4 * float(mean.std()) / math.sqrt(20_000)


def test_relabelling_moves_nodes_and_keeps_the_law() -> None:
    target = make_graph_target("mis", MANY)
    keys = torch.arange(50) + 50 * (torch.arange(50) + 1)
    plain, moved = target.instances(torch.arange(50)), target.instances(keys)
    assert not torch.equal(plain.graph.adjacency, moved.graph.adjacency)
    assert torch.equal(plain.graph.mask, moved.graph.mask) and torch.equal(plain.num_nodes, moved.num_nodes)
    for name in ("adjacency", "distance_classes"):
        before = getattr(plain.graph, name)
        after = getattr(moved.graph, name)
        assert torch.equal(before.sum(-1).sort().values, after.sum(-1).sort().values)
    for k in range(6):
        graph, other = MANY[k], moved.graph.adjacency[k, : MANY[k].num_nodes, : MANY[k].num_nodes]
        edges = torch.nonzero(other.triu(1)).numpy()
        best = [_optimum(Graph("", graph.num_nodes, e)) for e in (graph.edges, edges)]
        assert best[0] == best[1]
    x = torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0))
    swept = moved.gibbs_sweep(
        moved.sample_initial(x), SampleStreams(0, torch.arange(50)).step(0).next_draw().uniform(x.shape), 1.0
    )
    independent = moved.colours[:, :, None] == moved.colours[:, None]
    assert not bool((independent & (moved.graph.adjacency > 0)).any()) and not bool(swept[moved.frozen_sites].any())


def _optimum(graph: Graph) -> int:
    states = all_states(2, graph.num_nodes).numpy()
    ends = states[:, graph.edges.T]
    return int(states.sum(1)[(ends[:, 0] & ends[:, 1]).sum(1) == 0].max())


def weighted(graph: Graph, seed: int, whole: bool) -> Graph:
    """With weights of edges, some of them negative, and of nodes."""
    rng = np.random.default_rng(seed)
    edges, nodes = rng.normal(0, 3, len(graph.edges)), rng.normal(3, 2, graph.num_nodes)
    return replace(
        graph, edge_weights=edges.round() if whole else edges, node_weights=nodes.round() if whole else nodes
    )


def enumerated_value(problem: str, graph: Graph, states: np.ndarray) -> np.ndarray:
    """What is problem for, of all states, by its definition; -inf where it is none; least is best if it is negated."""
    ends = states[:, graph.edges].astype(bool)
    if problem == "qubo":
        return -(graph.offset + states @ graph.node_weights_or_ones + ends.all(-1) @ graph.edge_weights_or_ones)
    if problem == "maxcut":
        return (ends[..., 0] ^ ends[..., 1]) @ graph.edge_weights_or_ones
    if problem == "mis":
        return np.where(ends.all(-1).any(-1), -np.inf, states @ graph.node_weights_or_ones)
    if problem == "vertex_cover":
        return np.where(ends.any(-1).all(-1), -(states @ graph.node_weights_or_ones), -np.inf)
    adjacent = graph.adjacency_matrix().toarray() + np.eye(graph.num_nodes)
    missing = np.einsum("si,ij,sj->s", states, adjacent == 0, states)
    return np.where(missing > 0, -np.inf, states @ graph.node_weights_or_ones)


GIVEN = {"mis": {"edge_weights": None}, "clique": {"edge_weights": None}, "vertex_cover": {"edge_weights": None},
         "maxcut": {"node_weights": None}, "qubo": {"offset": 0.75}}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
def test_weighted_problems_by_enumeration(name: str) -> None:
    methods = ["milp", *(["cpsat"] if find_spec("ortools") else [])]
    for k, graph in enumerate(random_graphs("er", [2, 9], 12, 7, p=0.5)):
        whole = k % 2 == 0
        problem = reduce_problem(name, replace(weighted(graph, k, whole), **GIVEN[name]))
        states = all_states(2, graph.num_nodes).numpy().astype(float)
        values = enumerated_value(name, problem.graph, states)
        greatest = max(0.0, values.max()) if name == "mis" else values.max()  # of negative weights none is taken
        found = [
            greedy(problem.base, problem.base_graph, 16, 10.0, 0),
            simulated_annealing(problem.base, [problem.base_graph, MANY[1]], 16, 40, 10.0, 0)[0],
        ]
        for method in methods:
            if whole or method != "cpsat":  # which takes no other
                (own,) = solve_exactly(method, problem.base, [problem.base_graph], 10.0)
                assert own.proved and abs(problem.sign * problem.value(own.value) - greatest) < 1e-6, method
                found.append(own.x[None])
        for x in found:  # each is what it says, and annealing finds the best of so few
            own_values = problem.sign * problem.value(objective_value(problem.base, problem.base_graph, x))
            back = enumerated_value(name, problem.graph, problem.decode(x).astype(float))
            assert np.allclose(own_values, back) and own_values.max() <= greatest + 1e-6
        assert (
            abs(
                (problem.sign * problem.value(objective_value(problem.base, problem.base_graph, found[1]))).max()
                - greatest
            )
            < 1e-6
        )


@pytest.mark.parametrize("problem", ("mis", "maxcut", "qubo"))
def test_flows_learn_weighted_problems(problem: str) -> None:
    """Ratios by brute force, values by definition, the law in units of the weights, and the graphs come back."""
    given = [weighted(graph, k, k % 2 == 0) for k, graph in enumerate(MANY[:20]) if len(graph.edges)]
    graphs = [replace(graph, **GIVEN[problem]) for graph in given]
    parts = ("edge_weights", "node_weights", "offset")
    units = [
        replace(graph, **{part: 100 * w for part in parts if (w := getattr(graph, part)) is not None})
        for graph in graphs
    ]
    target, laws = make_graph_target(problem, graphs), torch.arange(len(graphs))
    on, larger = target.instances(laws), make_graph_target(problem, units).instances(laws)
    x = on.sample_initial(torch.rand(len(graphs), target.sites, generator=torch.Generator().manual_seed(0)))
    density, ratios = on.log_density(x), on.log_ratios(x)
    assert torch.allclose(density, larger.log_density(x)) and torch.allclose(ratios, larger.log_ratios(x))
    for site in range(target.sites):
        y = x.clone()
        y[:, site] = torch.where(on.graph.mask[:, site], 1 - y[:, site], 0)
        gained = ratios.gather(2, y.long()[..., None])[:, site, 0]
        assert torch.allclose(on.log_density(y) - density, gained, atol=1e-10)
    solutions, values = on.solutions(x)
    for k, graph in enumerate(graphs):
        back, states = target.graph(k), all_states(2, graph.num_nodes)
        assert (back.adjacency_matrix() != graph.adjacency_matrix()).nnz == 0 and back.offset == graph.offset
        found = enumerated_value(problem, graph, solutions[k : k + 1, : graph.num_nodes].numpy())
        assert np.allclose(target.sign * values[k].item(), found)
        rows = target.instances(torch.full((len(states),), k))
        padded = torch.zeros(len(states), target.sites, dtype=torch.uint8)
        padded[:, : graph.num_nodes] = states
        best = rows.solutions(padded)[1][rows.log_density(padded).argmax()].item()
        greatest = enumerated_value(problem, graph, states.numpy()).max()
        assert np.isclose(target.sign * best, greatest)  # the likeliest state is the best solution


def test_colourings_colour_as_many_nodes_as_they_can() -> None:
    wheel = Graph("wheel", 6, np.array([[k, (k + 1) % 5] for k in range(5)] + [[k, 5] for k in range(5)]))
    for colours, most in ((1, 2), (2, 4), (3, 5), (4, 6)):
        problem = reduce_problem("colouring", wheel, colours)
        (own,) = solve_exactly("milp", problem.base, [problem.base_graph], 10.0)
        x = problem.decode(own.x)
        assert own.proved and own.value == most == (x > 0).sum() and x.max() <= colours
        ends = x[wheel.edges]
        assert not ((ends[:, 0] == ends[:, 1]) & (ends[:, 0] > 0)).any()


def test_weights_that_a_problem_does_not_take_are_refused() -> None:
    graph = weighted(MANY[3], 0, True)
    for name, given in (
        ("mis", {"node_weights": None}),
        ("maxcut", {"edge_weights": None}),
        ("colouring", {}),
        ("qubo", {}),
    ):
        with pytest.raises(UserError, match=graph.name):
            reduce_problem(name, replace(graph, **given))
    plain = reduce_problem("mis", graph, unit_weights=True).graph
    assert plain.edge_weights is None and plain.node_weights is None
    with pytest.raises(UserError, match="weights"):
        make_graph_target("mis", [graph])
    with pytest.raises(UserError, match="edges"):
        reduce_problem("clique", Graph("large", 10_000, graph.edges))


@pytest.mark.deep
def test_a_gap_is_not_called_proved() -> None:
    """HiGHS stops by default within a share of 1e-4 of the optimum, here with 280,803."""
    graph = random_graphs("er", [80, 80], 1, 2, p=0.1)[0]
    graph = replace(graph, node_weights=10_000.0 + np.random.default_rng(2).integers(0, 50, 80))
    (own,) = solve_exactly("milp", "mis", [graph], 60.0)
    found = objective_value("mis", graph, simulated_annealing("mis", [graph], 8, 300, 60.0, 0)[0])
    assert own.proved and own.value == found.max() == 280_828


def gset(seed: int) -> Graph:
    """G1 and its like, which rudy makes by Knuth's generators [Knuth 1993, GB_FLIP and GB_RAND]."""
    state, k, following, previous = [0] * 56, 21, 1, seed
    state[55] = seed
    while k:
        state[k], following = following, (previous - following) % 2**31
        seed = (seed >> 1) + (seed & 1) * 2**30
        following, previous, k = (following - seed) % 2**31, state[k], (k + 21) % 55

    def numbers() -> Iterator[int]:
        for cycle in count():
            for j in range(1, 56):
                state[j] = (state[j] - state[j + 31 if j < 25 else j - 24]) % 2**31
            if cycle > 3:  # the first number after four cycles is not given out
                yield from (
                    number % 800 for number in state[55 - (cycle == 4) : 0 : -1] if number < 2**31 - 2**31 % 800
                )

    stream, edges = numbers(), set()
    while len(edges) < 19_176:
        i, j = next(stream), next(stream)
        edges |= {(min(i, j), max(i, j))} - {(i, i)}
    return Graph("", 800, np.array(sorted(edges)))


def test_annealing_finds_the_best_known_cuts_of_g1_and_g3() -> None:
    for number, best in ((1, 11_624), (3, 11_622)):
        graph = gset(8000 + number)
        found = objective_value("maxcut", graph, simulated_annealing("maxcut", [graph], 16, 300, 60.0, 0)[0])
        assert 0.999 * best < found.max() <= best


def three_sat(seed: int, variables: int = 100, clauses: int = 403) -> Graph:
    """Literals of a random formula that can be satisfied: an independent set has one of each clause."""
    rng, literals = np.random.default_rng(seed), []
    truth = rng.random(variables) < 0.5
    while len(literals) < 3 * clauses:
        names, signs = rng.choice(variables, 3, replace=False), rng.random(3) < 0.5
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


def test_annealing_and_greedy_on_1209_nodes() -> None:
    graph = three_sat(0)
    found = objective_value("mis", graph, simulated_annealing("mis", [graph], 8, 400, 60.0, 0)[0])
    assert graph.num_nodes == 1209 and 0.99 * 403 < found.max() <= 403
    assert 0.9 * 403 < objective_value("mis", graph, greedy("mis", graph, 4, 60.0, 0)).max() <= found.max()


def test_random_graphs() -> None:
    rng = np.random.default_rng(0)
    mean = np.mean([len(erdos_renyi(18, 0.19, rng)) for _ in range(400)])
    assert abs(mean - 0.19 * 153) < 4 * math.sqrt(153 * 0.19 * 0.81 / 400)
    for _ in range(20):
        edges = barabasi_albert(20, 4, rng)
        assert len(edges) == 4 + 15 * 4 and len(np.unique(edges, axis=0)) == len(edges)
        degrees = np.bincount(edges.flatten(), minlength=20)
        assert degrees[5:].min() >= 4 and (edges[:, 0] != edges[:, 1]).all()
    for nodes in range(3, 12):  # networkx draws the same edges, one by one
        ours, theirs = (np.random.default_rng([0, nodes]) for _ in range(2))
        expected = np.array(nx.gnp_random_graph(nodes, 0.4, seed=theirs).edges).reshape(-1, 2)
        assert np.array_equal(erdos_renyi(nodes, 0.4, ours), expected)
    same = [random_graphs("ba", [8, 12], 5, 3, m=4) for _ in range(2)]
    assert all(np.array_equal(one.edges, two.edges) for one, two in zip(*same, strict=True))
    for kind, sizes, wrong in (
        ("ws", [8, 12], {}),
        ("er", [8, 12], {"p": 1.5}),
        ("ba", [3, 12], {"m": 4}),
        ("er", [9, 8], {}),
    ):
        with pytest.raises(ValueError):
            random_graphs(kind, sizes, 1, 0, **wrong)


@pytest.mark.parametrize("relabel", [False, True])
def test_graphs_that_are_held_out_are_not_trained_on_and_all_others_equally_often(relabel: bool) -> None:
    target = graph_problem("mis", nodes=[5, 6], num_training=4, num_test=1, num_validation=2)
    drawn = target.sample_instances(8, 2, 0, relabel) % len(target.num_nodes)
    assert torch.bincount(drawn, minlength=7).tolist() == [4, 4, 4, 4, 0, 0, 0]
    assert target.test_instances.tolist() == [6] and target.validation_instances.tolist() == [4, 5]
    assert torch.equal(drawn[::2], drawn[1::2])
    assert "4 training + 2 validation + 1 test graphs" in target.summary()


def test_training_and_test_graphs_do_not_depend_on_validation_graphs() -> None:
    some, none = (graph_problem("mis", nodes=[5, 6], num_training=4, num_test=2, num_validation=v) for v in (3, 0))
    assert none.validation_instances.tolist() == [0, 1, 2, 3]  # of the training graphs, never of the test graphs
    for numbers in (slice(0, 4), slice(-2, None)):
        assert torch.equal(some.edge_weights[numbers], none.edge_weights[numbers])
    with pytest.raises(ValueError, match="3 validation and 2 test graphs of 5 leave no graph to train on"):
        type(some)(5, 6, 2, num_validation=3)


@pytest.mark.parametrize(("name", "index", "value"), [
    ("num_nodes", (0,), -7), ("num_nodes", (1,), 0), ("num_nodes", (1,), 10**9), ("edge_weights", (0, 0, 0), 1),
    ("edge_weights", (0, 0, 1), 9), ("edge_weights", (2, slice(-1, None), slice(None)), 1),
])  # fmt: skip
def test_tensors_that_are_no_graphs_are_refused(name: str, index: Any, value: int) -> None:
    target = make_graph_target("mis", MANY)
    target.check_tensors()
    getattr(target, name)[index] = value
    with pytest.raises(ValueError, match="target: "):
        target.check_tensors()


def test_more_graphs_than_memory_are_refused_before_they_are_allocated() -> None:
    with pytest.raises(ValueError, match="do not fit into memory"):
        MIS(num_graphs=10**12, max_nodes=100)
