"""Greedy and annealing for independent sets and cuts: sparse, and many chains of many graphs at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blackout.flows.graphs.graphs import Graph
from blackout.flows.targets.base import coloured

Array = NDArray[Any]
_HOT, _COLD = {"mis": 1.0, "maxcut": 0.6}, {"mis": 0.2, "maxcut": 0.04}
"""Temperatures: over the mean weight of a node (mis), or the root of its mean sum of squared edges (maxcut)."""


def greedy(problem: str, graph: Graph, tries: int, seconds: float, seed: int) -> Array:
    """The greedy solutions, ties broken at random, of up to so many tries, at least one: uint8 [tries, n].

    For `mis` the node of greatest weight over degree + 1 among those left is next [Sakai 2003]; for `maxcut` nodes go
    in any order to the side that cuts more [Sahni and Gonzalez 1976].
    """
    began, rng, matrix = time.process_time(), np.random.default_rng(seed), graph.matrix()
    rows = np.split(matrix.indices, matrix.indptr[1:-1])
    weights = np.split(matrix.data, matrix.indptr[1:-1])
    found: list[Array] = []
    while len(found) < tries and not (found and time.process_time() - began > seconds):
        if problem == "mis":
            found.append(_least_degree(rows, graph.of_nodes, rng))
            continue
        spins = np.zeros(graph.nodes)
        for node in rng.permutation(graph.nodes):
            spins[node] = -np.sign(weights[node] @ spins[rows[node]]) or rng.choice([-1.0, 1.0])
        found.append((spins > 0).astype(np.uint8))
    return np.stack(found)


def _least_degree(rows: Sequence[Array], weights: Array, rng: np.random.Generator) -> Array:
    degree, ties = np.array([len(row) for row in rows]), 1 + 1e-9 * rng.random(len(rows))
    x, score = np.zeros(len(rows), np.uint8), np.maximum(weights, 0) * ties / (degree + 1)
    while score[node := score.argmax()] > 0:
        x[node], score[node] = 1, 0
        gone = rows[node][score[rows[node]] > 0]
        score[gone] = 0
        if len(gone):
            seen = np.concatenate([rows[other] for other in gone])
            np.subtract.at(degree, seen, 1)
            left = seen[score[seen] > 0]
            score[left] = weights[left] * ties[left] / (degree[left] + 1)
    return x


def annealed(problem: str, graphs: Sequence[Graph], chains: int, sweeps: int, seconds: float, seed: int) -> list[Array]:
    """Simulated annealing [Kirkpatrick 1983] of all graphs together: the best state of each chain, uint8 [chains, n].

    Nodes of one colour move together. A node joins an independent set and drives its neighbours out, in proportion to
    exp(gain / T): where it replaces one of equal weight, that is a swap. Spins of a cut flip, and at last only upwards.

    Args:
        problem: `mis` or `maxcut`.
        graphs: each with as many chains.
        chains: of every graph.
        sweeps: at most so many, of all nodes.
        seconds: of processor time, for all graphs; the temperature falls with whichever ends first.
        seed: of all draws.
    """
    from scipy.sparse import block_diag  # only here: importing it takes a second

    began, rng, sizes = time.process_time(), np.random.default_rng(seed), [graph.nodes for graph in graphs]
    matrix = block_diag([graph.matrix() for graph in graphs], format="csr")
    groups = coloured(matrix)
    starts, gain = np.cumsum([0, *sizes[:-1]]), np.concatenate([graph.of_nodes for graph in graphs])
    units = [np.sqrt(2 * (graph.of_edges**2).sum() / graph.nodes) for graph in graphs]
    if problem == "mis":
        matrix.data[:] = 1
        units = [np.abs(graph.of_nodes).mean() for graph in graphs]
    scale = np.repeat(units, sizes)
    exact = bool(((gain if problem == "mis" else matrix.data) == 1).all())
    kind: Any = np.float32 if exact else np.float64
    matrix, gain = matrix.astype(kind), gain.astype(kind)[:, None]
    groups = [group[gain[group, 0] > 0] for group in groups]
    parts = [(group, matrix[group], matrix[:, group].tocsr(), scale[group].astype(kind)[:, None]) for group in groups]
    shape = (len(gain), chains)
    x = np.zeros(shape, kind) if problem == "mis" else np.where(rng.random(shape) < 0.5, kind(-1), kind(1))
    best, value = np.zeros(shape, bool), np.zeros((len(graphs), chains))
    sweep, share = 0, 0.0
    while share < 1:
        warmth = _HOT[problem] * (_COLD[problem] / _HOT[problem]) ** share
        for part in rng.permutation(len(parts)):  # one order would choose among swaps
            group, rows, columns, unit = parts[part]
            gained = gain[group] - rows @ x if problem == "mis" else x[group] * (rows @ x)
            moved = -rng.standard_exponential(gained.shape, kind) * (warmth * unit) < gained
            if problem == "mis":
                moved &= x[group] == 0
                x[columns @ moved.astype(kind) > 0] = 0
                x[group] = np.where(moved, gain[group], x[group])
            else:
                x[group] = np.where(moved, -x[group], x[group])
        if problem == "mis":
            now = np.add.reduceat(x, starts, 0)
            np.copyto(best, x > 0, where=np.repeat(now > value, sizes, 0))
            np.maximum(value, now, out=value)
        sweep += 1
        share = max(sweep / sweeps, (time.process_time() - began) / seconds)
    while problem == "maxcut":
        before = x.copy()
        for group, rows, _, unit in parts:  # gains of rounding are none
            x[group] = np.where(x[group] * (rows @ x) > 1e-9 * unit, -x[group], x[group])
        if (before == x).all():
            best = x > 0
            break
    return [part.T.astype(np.uint8) for part in np.split(best, starts[1:])]
