"""Optimisation on graphs: one flow for many of them."""

from blackout.flows.graphs.making import graph_problem
from blackout.flows.graphs.module import GraphFlow
from blackout.flows.graphs.problems import MIS, GraphTarget, MaxCut

__all__ = ["MIS", "GraphFlow", "GraphTarget", "MaxCut", "graph_problem"]
