"""Distributions on permutations, with the conventions of `torch.distributions`.

- `PlackettLuce` and `GeneralizedPlackettLuce` choose the item of one position after another, and
  `PointerDistribution` with scores that depend on the choices before. A beam search finds their
  most probable permutations.
- `Matching` assigns items to positions.
- `InverseRiffle`, `InverseTransposition` and `InverseInsertion` undo one step of a card shuffle.
- `Mallows` and `Mixture` are fitted to orders, as `PlackettLuce` can be.

Example:
    >>> import torch
    >>> distribution = PlackettLuce(torch.tensor([0.0, 2.0, 1.0]))
    >>> distribution.mode.tolist()
    [1, 2, 0]
    >>> round(distribution.log_prob(distribution.mode).item(), 3)
    -0.721

References: Zhang et al. 2025 (SymmetricDiffusers), sections 3.2.1 and 3.2.2; Plackett 1975;
Luce 1959; Mallows 1957.
"""

from blackout.permutations.distributions.base import PermutationDistribution, most_probable
from blackout.permutations.distributions.generalized_plackett_luce import GeneralizedPlackettLuce
from blackout.permutations.distributions.inverse_insertion import InverseInsertion
from blackout.permutations.distributions.inverse_riffle import InverseRiffle
from blackout.permutations.distributions.inverse_transposition import InverseTransposition
from blackout.permutations.distributions.mallows import Mallows
from blackout.permutations.distributions.matching import Matching
from blackout.permutations.distributions.mixture import Mixture
from blackout.permutations.distributions.plackett_luce import (
    PlackettLuce,
    describe_worths,
    fit_plackett_luce,
)
from blackout.permutations.distributions.pointer import PointerDistribution

__all__ = [
    "GeneralizedPlackettLuce",
    "InverseInsertion",
    "InverseRiffle",
    "InverseTransposition",
    "Mallows",
    "Matching",
    "Mixture",
    "PermutationDistribution",
    "PlackettLuce",
    "PointerDistribution",
    "describe_worths",
    "fit_plackett_luce",
    "most_probable",
]
