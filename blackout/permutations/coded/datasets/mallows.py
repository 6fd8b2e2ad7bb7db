"""Mallows permutations of all dispersions, with the dispersion as the condition.

References: Mallows 1957.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blackout.component import component
from blackout.permutations.coded.data import (
    NUM_HELD_OUT,
    TEST_KEY,
    VALIDATION_KEY,
    PermutationData,
    check_length,
)
from blackout.permutations.distributions import Mallows
from blackout.permutations.group import kendall_distance
from blackout.protocols import Samples
from blackout.random import SampleStreams

MIN_PHI = 0.1  # of Mallows permutations; the largest is 1, uniform
REPORTED_PHIS = (0.2, 0.5, 0.8, 1.0)  # for which the divergence from the truth is reported


@component("dataset")
def mallows(length: int = 8) -> PermutationData:
    """Return Mallows permutations whose dispersion phi is the condition, uniform on [0.1, 1].

    A single network represents all of these distributions.

    Args:
        length: items.

    Raises:
        ValueError: length < 2.

    References: Mallows 1957.

    Example:
        >>> data = mallows(6)
        >>> data.batch("test", torch.arange(2))["condition"].shape
        torch.Size([2, 1])
    """
    check_length("mallows", length)

    def make(index: Tensor, augment: Tensor | None = None, key: int = 0) -> dict[str, Tensor]:
        """Draw phi, the `condition` [b, 1], and a permutation `x` [b, n] for each."""
        streams = SampleStreams(key, index).step(0)
        phi = MIN_PHI + (1 - MIN_PHI) * streams.next_draw().uniform((len(index), 1))
        x = Mallows(length, phi.squeeze(1)).sample(generator=streams)
        return {"x": x, "condition": phi.float()}

    def log_prob(context: Mapping[str, Tensor], permutations: Tensor) -> Tensor:
        """Return log p of permutations [m, n], float64 [m]."""
        phi = context["condition"].double().flatten()[0]
        return Mallows(length, phi).log_prob(permutations)

    def sample_scores(samples: Samples) -> Mapping[str, Tensor]:
        """Return the Kendall distance of samples [b, n] from the identity, and its expectation."""
        phi = samples["condition"].double().squeeze(1)
        expected_distance, _ = Mallows(length, phi).moments()
        distance = kendall_distance(samples["samples"]).double()
        return {"distance": distance, "expected_distance": expected_distance}

    index = torch.arange(NUM_HELD_OUT)
    contexts = {f"phi={phi}": {"condition": torch.tensor([[phi]])} for phi in REPORTED_PHIS}
    return PermutationData(
        "mallows",
        make,
        make(index, key=TEST_KEY),
        sample_scores=sample_scores,
        log_prob=log_prob,
        reported_contexts=contexts,
        validation=make(index, key=VALIDATION_KEY),
    )
