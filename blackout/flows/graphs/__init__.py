"""Optimisation problems on graphs: one flow for many graphs.

- `graphs` has edge lists and random graphs, and `files` reads graphs of the user.
- `target` has the interface of problems, `problems` those that there are, and `reductions` turns
  one into another.
- `solvers` needs no network, and `graph_solver` runs them for `blackout solve`; `draw` draws
  solutions of a trained flow.
"""

from blackout.flows.graphs.problems import MIS, MaxCut, Qubo, graph_problem
from blackout.flows.graphs.target import GraphTarget

__all__ = ["MIS", "GraphTarget", "MaxCut", "Qubo", "graph_problem"]
