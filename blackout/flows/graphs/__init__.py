"""Optimisation problems on graphs: one flow for many graphs."""

from blackout.flows.graphs.problems import MIS, GraphTarget, MaxCut, Qubo, graph_problem

__all__ = ["MIS", "GraphTarget", "MaxCut", "Qubo", "graph_problem"]
