"""Shuffle diffusion on permutations: shuffle a list step by step, learn to take the steps back."""

from blackout.permutations.seams import SeamNetwork
from blackout.permutations.shuffle.baselines import (
    SeamLoss,
    Seams,
    SinkhornLoss,
    TwoOpt,
)
from blackout.permutations.shuffle.decoding import Beam, Best, Greedy, Sample
from blackout.permutations.shuffle.family import ShuffleFamily
from blackout.permutations.shuffle.losses import (
    InformedLoss,
    LabelFreeLoss,
    RandomTimeLoss,
    ReadingLoss,
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
    "Beam", "Best", "Greedy", "InformedLoss", "LabelFreeLoss", "RandomTimeLoss", "ReadingLoss", "ReverseAssignment",
    "ReverseGPL", "ReverseInsertion", "ReversePL", "ReversePointer", "ReverseRiffle", "ReverseTransposition", "Sample",
    "SeamLoss", "SeamNetwork", "Seams", "ShuffleDiffusion", "ShuffleFamily", "SinkhornLoss", "TrajectoryLoss", "TwoOpt",
]  # fmt: skip
