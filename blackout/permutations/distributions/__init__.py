"""Distributions over orders, with the conventions of `torch.distributions`."""

from blackout.permutations.distributions.base import OrderDistribution, SequentialLaw
from blackout.permutations.distributions.inverse_shuffles import InverseInsertion, InverseRiffle, InverseTransposition
from blackout.permutations.distributions.matching import Matching
from blackout.permutations.distributions.plackett_luce import GeneralizedPlackettLuce, PlackettLuce, PointerLaw

__all__ = [
    "GeneralizedPlackettLuce", "InverseInsertion", "InverseRiffle", "InverseTransposition", "Matching",
    "OrderDistribution", "PlackettLuce", "PointerLaw", "SequentialLaw",
]  # fmt: skip
