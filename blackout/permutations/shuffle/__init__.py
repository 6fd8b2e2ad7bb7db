"""Shuffle diffusion on permutations: shuffle a list step by step, learn to take the steps back."""

from blackout.permutations.distributions import (
    ReverseAssignment,
    ReverseGPL,
    ReverseInsertion,
    ReversePL,
    ReversePointer,
    ReverseRiffle,
    ReverseTransposition,
)
from blackout.permutations.seams import SeamNetwork
from blackout.permutations.shuffle.decoding import Beam, Best, Greedy, Sample, Seams, TwoOpt
from blackout.permutations.shuffle.family import ShuffleFamily
from blackout.permutations.shuffle.losses import (
    InformedLoss,
    LabelFreeLoss,
    RandomTimeLoss,
    ReadingLoss,
    SeamLoss,
    SinkhornLoss,
    TrajectoryLoss,
)
from blackout.permutations.shuffle.model import ShuffleDiffusion

__all__ = [
    "Beam", "Best", "Greedy", "InformedLoss", "LabelFreeLoss", "RandomTimeLoss", "ReadingLoss", "ReverseAssignment",
    "ReverseGPL", "ReverseInsertion", "ReversePL", "ReversePointer", "ReverseRiffle", "ReverseTransposition", "Sample",
    "SeamLoss", "SeamNetwork", "Seams", "ShuffleDiffusion", "ShuffleFamily", "SinkhornLoss", "TrajectoryLoss", "TwoOpt",
]  # fmt: skip
