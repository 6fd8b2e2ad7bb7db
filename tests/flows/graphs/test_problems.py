"""Problems on graphs: ratios, repair, cuts, padding and numbering, each by brute force."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from blackout.flows.graphs.graphs import Graph, barabasi_albert, erdos_renyi, random_graphs
from blackout.flows.graphs.problems import problem_on
from blackout.flows.graphs.solvers import by_heat_bath, solver, value_of
from blackout.flows.path import States
from blackout.flows.refinement import DMALA, Gibbs, LocallyInformed, Refinement
from blackout.flows.simulation import Events, Leap, Simulation
from blackout.flows.targets import all_states
from blackout.networks import LEGraphTransformer, LESite, LocallyEquivariant
from blackout.networks.equivariant_graphs import CLASSES
from blackout.random import SampleStreams

MANY = random_graphs("er", [3, 12], 0.3, 50, 1)
PROBLEMS = ("mis", "maxcut")


def log_density(problem: str, graph: Graph, x: Tensor, beta: float, penalty: float = 1.0001) -> Tensor:
    """As the paper writes it, with sums over edges; x float64 [B, n]."""
    i, j = torch.from_numpy(graph.edges).unbind(1)
    if problem == "mis":
        return beta * (x.sum(1) - penalty * (x[:, i] * x[:, j]).sum(1))
    s = 2 * x - 1
    return -beta * (s[:, i] * s[:, j]).sum(1) / 2


@pytest.mark.parametrize("problem", PROBLEMS)
def test_densities_and_ratios_by_brute_force_on_fifty_graphs(problem: str) -> None:
    target = problem_on(problem, MANY, inverse_temperature=3.3)
    on = target.of(torch.arange(50))
    x = on.uniform(torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0)))
    ratios, density = on.log_ratios(x), on.log_density(x)
    for k, graph in enumerate(MANY):
        row = x[k : k + 1, : graph.nodes].double()
        here = log_density(problem, graph, row, 3.3)
        assert abs(float(density[k] - here)) < 1e-10
        for i in range(target.sites):
            if i >= graph.nodes:
                assert ratios[k, i].tolist() == [0, 0]
                continue
            flipped = row.clone()
            flipped[0, i] = 1 - flipped[0, i]
            expected = float(log_density(problem, graph, flipped, 3.3) - here)
            assert abs(float(ratios[k, i, int(flipped[0, i])]) - expected) < 1e-10


def test_repair_is_feasible_and_keeps_lone_nodes() -> None:
    target = problem_on("mis", MANY)
    on = target.of(torch.arange(50).repeat_interleave(20))
    x = on.uniform(torch.rand(1000, target.sites, generator=torch.Generator().manual_seed(0)))
    found, sizes = on.solutions(x)
    assert bool((found <= x).all())
    lone = (x > 0) & ((on.graph.adjacent @ x[..., None].float())[..., 0] == 0)
    assert bool((found[lone] == 1).all())
    for k in range(1000):
        graph = MANY[k // 20]
        assert value_of("mis", graph, found[k, : graph.nodes].numpy()) == int(sizes[k])
    assert bool((on.solutions(found)[0] == found).all())  # and again changes nothing


def test_cuts_count_edges_between_the_sides() -> None:
    target = problem_on("maxcut", MANY)
    on = target.of(torch.arange(50))
    x = on.uniform(torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0)))
    for k, graph in enumerate(MANY):
        sides = x[k, : graph.nodes].numpy()
        cut = value_of("maxcut", graph, sides)
        assert int(on.solutions(x)[1][k]) == cut
        s = 2.0 * sides - 1
        adjacent = graph.adjacency().numpy()
        assert cut == len(graph.edges) / 2 - s @ adjacent @ s / 4
    assert on.solutions(x)[0].data_ptr() != x.data_ptr()  # batches are stored whole: nothing may share memory


NETWORKS = {
    "lesite": lambda: LESite(1, 2, 8, 2, messages=4, heat_bath=True, distances=CLASSES),
    "lesite, all nodes": lambda: LESite(1, 2, 8, 2, messages=4, distances=CLASSES, reach=CLASSES - 1),
    "lesite, relayed": lambda: LESite(1, 2, 8, 2, heat_bath=True, distances=CLASSES, relayed=4),
    "legf": lambda: LEGraphTransformer(CLASSES, 2, 8, 2, 2),
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
            return network(states.x, times, states.ratios, *states.target.context())

    return scores


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_on_graphs_are_locally_equivariant_and_see_all_others(name: str) -> None:
    network, graphs = far_from_the_start(name), random_graphs("er", [5, 9], 0.35, 6, 2)
    target = problem_on("mis", graphs)
    on, scores = target.of(torch.arange(6)), scores_of(network)
    x = on.uniform(torch.rand(6, target.sites, generator=torch.Generator().manual_seed(1)))
    here = scores(States.of(on, x), 0.4)
    assert float(here.abs().max()) > 0.05 and bool((here[on.frozen] == 0).all())
    rows = torch.arange(6)
    connected = on.graph.classes[..., :] < CLASSES - 1
    for site in range(target.sites):
        y = x.clone()
        y[:, site] = torch.where(on.graph.mask[:, site], 1 - y[:, site], y[:, site])
        there = scores(States.of(on, y), 0.4)
        real = on.graph.mask[:, site]
        back = (here[rows, site, y[:, site].long()] + there[rows, site, x[:, site].long()])[real]
        assert float(back.abs().max()) <= 1e-12 * max(1.0, float(here.abs().max()))
        changed = (there.abs().amax(-1) - here.abs().amax(-1)).abs() > 1e-9
        for k in rows[real]:
            seen = connected[k, site] & on.graph.mask[k]
            seen[site] = False
            assert bool(changed[k][seen].all())


@pytest.mark.parametrize("simulation", [Events(4), Leap(4)], ids=["events", "leap"])
@pytest.mark.parametrize(
    "refine", [None, DMALA(1), Gibbs(), LocallyInformed(1)], ids=["plain", "dmala", "gibbs", "informed"]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_padding_changes_nothing(name: str, refine: Refinement | None, simulation: Simulation) -> None:
    small, large = random_graphs("er", [5, 6], 0.3, 4, 4), random_graphs("er", [11, 12], 0.3, 2, 5)
    for problem in PROBLEMS:
        alone, together = problem_on(problem, small), problem_on(problem, small + large)
        scores, chains = scores_of(far_from_the_start(name)), torch.arange(12)
        paths = [
            simulation.run(target.of(chains % 4), scores, chains, 0, refine=refine) for target in (alone, together)
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
    graph = random_graphs("er", [5, 5], 0.4, 1, 3)[0]
    target = problem_on(problem, [graph, *random_graphs("er", [8, 8], 0.4, 1, 3)], inverse_temperature=0.7)
    network = NETWORKS["lesite"]().double()
    on = target.of(torch.zeros(20_000, dtype=torch.int64))
    weights = Events(2).run(on, scores_of(network), torch.arange(20_000), 0).log_weights
    states = all_states(2, 5).double()
    exact = float(torch.logsumexp(log_density(problem, graph, states, 0.7), 0))
    mean = (weights - exact).exp()
    assert abs(float(mean.mean()) - 1) < 4 * float(mean.std()) / math.sqrt(20_000)


def test_relabelling_moves_nodes_and_keeps_the_law() -> None:
    target = problem_on("mis", MANY)
    keys = torch.arange(50) + 50 * (torch.arange(50) + 1)
    plain, moved = target.of(torch.arange(50)), target.of(keys)
    assert not torch.equal(plain.graph.adjacent, moved.graph.adjacent)
    assert torch.equal(plain.graph.mask, moved.graph.mask) and torch.equal(plain.nodes, moved.nodes)
    for one, two in ((plain.graph.adjacent, moved.graph.adjacent), (plain.graph.classes, moved.graph.classes)):
        assert torch.equal(one.sum(-1).sort().values, two.sum(-1).sort().values)
    for k in range(6):
        graph, other = MANY[k], moved.graph.adjacent[k, : MANY[k].nodes, : MANY[k].nodes]
        edges = torch.nonzero(other.triu(1)).numpy()
        best = [_optimum(Graph("", graph.nodes, e)) for e in (graph.edges, edges)]
        assert best[0] == best[1]
    x = torch.rand(50, target.sites, generator=torch.Generator().manual_seed(0))
    swept = moved.swept(moved.uniform(x), SampleStreams(0, torch.arange(50)).at(0).next_draw().uniform(x.shape), 1.0)
    independent = moved.colours[:, :, None] == moved.colours[:, None]
    assert not bool((independent & (moved.graph.adjacent > 0)).any()) and not bool(swept[moved.frozen].any())


def _optimum(graph: Graph) -> int:
    states = all_states(2, graph.nodes).numpy()
    ends = states[:, graph.edges.T]
    return int(states.sum(1)[(ends[:, 0] & ends[:, 1]).sum(1) == 0].max())


def test_oracles_agree_with_enumeration() -> None:
    for graph in MANY[:12]:
        solved = solver("milp")("mis", graph, 10.0)
        assert solved.proved and solved.value == _optimum(graph)
        states = all_states(2, graph.nodes).numpy()
        best = max(value_of("maxcut", graph, x) for x in states[:: max(1, len(states) // 4096)])
        cut = solver("milp")("maxcut", graph, 10.0)
        if len(states) <= 4096:
            assert cut.proved and cut.value == best
    target = problem_on("mis", MANY[:12])
    found, values, _ = by_heat_bath(target, torch.arange(12), 16, 30, 0)
    assert values.max(1).values.tolist() == [_optimum(graph) for graph in MANY[:12]]
    assert found.shape == (12, 16, target.sites)


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
    same = [random_graphs("ba", [8, 12], 4, 5, 3) for _ in range(2)]
    assert all(np.array_equal(one.edges, two.edges) for one, two in zip(*same, strict=True))
    for wrong in (("ws", [8, 12], 4.0), ("er", [8, 12], 1.5), ("ba", [3, 12], 4.0), ("er", [9, 8], 0.2)):
        with pytest.raises(ValueError):
            random_graphs(*wrong, 1, 0)
