"""The distribution of a pointer network: scores that depend on all earlier choices.

References: Vinyals et al. 2015.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from blackout.permutations.distributions.base import BEAM_WIDTH
from blackout.permutations.distributions.generalized_plackett_luce import GeneralizedPlackettLuce
from blackout.permutations.distributions.sequential import PlaceScores, SequentialDistribution


class PointerDistribution(SequentialDistribution):
    """A distribution whose scores depend on all earlier choices, as those of a pointer network.

    It can represent every distribution on permutations.

    Args:
        pointers: scores for the lists of a batch, see `blackout.networks.set_transformer.Pointers`.
        scores: [*batch, n]; only their shape, device and dtype are used.
        width: smallest width of the beam search.

    References: Vinyals et al. 2015.
    """

    def __init__(self, pointers: Any, scores: Tensor, width: int = BEAM_WIDTH) -> None:
        super().__init__(scores, width=width)
        self.pointers = pointers

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...].

        One network evaluation has the scores of all positions.
        """
        shape = np.broadcast_shapes(value.shape[:-1], self.batch_shape)
        orders = value.expand(*shape, self._n).reshape(-1, self.batch_shape.numel(), self._n)
        conditional = GeneralizedPlackettLuce(self.pointers.score_orders(orders))
        return conditional.log_prob(orders).view(shape)

    def place_scores(self) -> PlaceScores:
        """Return the scores position by position, see `SequentialDistribution.place_scores`."""
        return self.pointers.next_scores()
