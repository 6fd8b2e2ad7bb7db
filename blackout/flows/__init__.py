"""Discrete neural flow samplers: Markov chains trained to sample unnormalised distributions."""

from blackout.flows.family import FlowFamily
from blackout.flows.graphs import MIS, MaxCut, Qubo, graph_problem
from blackout.flows.losses import EstimatedPartition, LearnedPartition
from blackout.flows.model import FlowSampler
from blackout.flows.refinement import DMALA, Clusters, Gibbs
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Events, Leap, Single
from blackout.flows.targets import (
    Couplings,
    EnergyNetwork,
    Ising,
    Potts,
    SpinGlass,
    Target,
    read_couplings,
    read_energy,
)

__all__ = [
    "DMALA",
    "MIS",
    "Clusters",
    "Couplings",
    "EnergyNetwork",
    "EstimatedPartition",
    "Events",
    "FlowFamily",
    "FlowSampler",
    "Gibbs",
    "Ising",
    "Leap",
    "LearnedPartition",
    "MaxCut",
    "Potts",
    "Qubo",
    "Rollout",
    "Single",
    "SpinGlass",
    "Target",
    "graph_problem",
    "read_couplings",
    "read_energy",
]
