"""Classical families of distributions over orders, which are products, or chains, of digits of a code."""

from blackout.permutations.families.consensus import consensus
from blackout.permutations.families.independent import Ewens, IndependentDigits, Mallows, RepeatedInsertion
from blackout.permutations.families.plackett_luce import PlackettLuceCodes

__all__ = ["Ewens", "IndependentDigits", "Mallows", "PlackettLuceCodes", "RepeatedInsertion", "consensus"]
