"""What a flow is trained on: an energy, and no data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blackout.family import Source, Split
from blackout.flows.targets import Target


@dataclass(frozen=True)
class EnergySource:
    """A target as a source of endless training "samples", which are only numbers.

    Args:
        target: the law.
        validation: chains that a validation simulates.
    """

    target: Target
    validation: int = 512

    @property
    def name(self) -> str:
        return type(self.target).__name__.lower()

    @property
    def facts(self) -> Mapping[str, Any]:
        """The target's."""
        return self.target.facts

    def __str__(self) -> str:
        return self.target.summary()

    def size(self, split: Split) -> int | None:
        return None if split == "train" else self.validation

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        return {}

    def fingerprint(self, split: Split) -> str:
        """A hash of the target's tensors, so that a run continues with its own energy only."""
        digest = hashlib.sha256(self.name.encode())
        for name, value in sorted(self.target.state_dict().items()):
            digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def to(self, device: torch.device) -> Source:
        return self
