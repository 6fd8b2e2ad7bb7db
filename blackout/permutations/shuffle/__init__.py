"""Shuffle diffusion on permutations: shuffle a list step by step, learn to take the steps back."""

from blackout.permutations.shuffle.decoding import Beam, Best, Borders, Greedy, Sample, TwoOpt
from blackout.permutations.shuffle.family import ShuffleFamily
from blackout.permutations.shuffle.losses import (
    LabelFreeLoss,
    RandomTimeLoss,
    SinkhornLoss,
    TrajectoryLoss,
)
from blackout.permutations.shuffle.model import ShuffleDiffusion
from blackout.permutations.shuffle.reverse import (
    ReverseAssignment,
    ReverseGPL,
    ReverseInsertion,
    ReversePL,
    ReversePointer,
    ReverseRiffle,
    ReverseTransposition,
)

__all__ = [
    "Beam",
    "Best",
    "Borders",
    "Greedy",
    "LabelFreeLoss",
    "RandomTimeLoss",
    "ReverseAssignment",
    "ReverseGPL",
    "ReverseInsertion",
    "ReversePL",
    "ReversePointer",
    "ReverseRiffle",
    "ReverseTransposition",
    "Sample",
    "ShuffleDiffusion",
    "ShuffleFamily",
    "SinkhornLoss",
    "TrajectoryLoss",
    "TwoOpt",
]
