"""Optimisation problems on graphs: one flow for many graphs."""

from blackout.flows.graphs.problems import MIS, MaxCut, Qubo, graph_problem
from blackout.flows.graphs.target import GraphTarget

__all__ = ["MIS", "GraphTarget", "MaxCut", "Qubo", "graph_problem"]
