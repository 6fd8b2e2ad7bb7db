"""Plackett-Luce permutations, which no code represents by independent digits.

References: Plackett 1975.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Size, Tensor

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.coded.data import (
    NUM_HELD_OUT,
    TEST_KEY,
    VALIDATION_KEY,
    PermutationData,
    check_length,
)
from blackout.permutations.distributions import PlackettLuce
from blackout.random import SampleStreams


@component("dataset")
def plackett_luce(length: int = 5, ratio: float = 2.0) -> PermutationData:
    """Return Plackett-Luce permutations with worths 1, ratio, ratio^2, ...

    Their distribution is not a product of independent digits.

    Args:
        length: items.
        ratio: of consecutive worths.

    Raises:
        ValueError: length < 2, or a ratio that is not positive.

    References: Plackett 1975.

    Example:
        >>> data = plackett_luce(3, ratio=2.0)
        >>> data.batch("test", torch.arange(2))["x"].shape
        torch.Size([2, 3])
    """
    check_length("plackett_luce", length)
    ensure(
        ratio > 0 and math.isfinite(ratio), f"plackett_luce: ratio must be positive, not {ratio}"
    )
    distribution = PlackettLuce(math.log(ratio) * torch.arange(length).double())

    def make(index: Tensor, augment: Tensor | None = None, key: int = 0) -> dict[str, Tensor]:
        """Draw permutations `x` [b, n]."""
        return {"x": distribution.sample(Size([len(index)]), SampleStreams(key, index).step(0))}

    def log_prob(context: Mapping[str, Tensor], permutations: Tensor) -> Tensor:
        """Return log p of permutations [m, n], float64 [m]."""
        return distribution.log_prob(permutations)

    index = torch.arange(NUM_HELD_OUT)
    return PermutationData(
        "plackett_luce",
        make,
        make(index, key=TEST_KEY),
        log_prob=log_prob,
        validation=make(index, key=VALIDATION_KEY),
    )
