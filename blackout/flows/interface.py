"""What draws and their outputs need of a model and of each other."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from blackout.family import Watch
from blackout.flows.simulation import Paths, Scores, Simulation
from blackout.flows.targets import Target


class FlowModel(Protocol):
    """A target and rates that carry noise to it."""

    simulation: Simulation
    config: dict[str, Any]

    @property
    def target(self) -> Target:
        """The law."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        ...

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        ...

    def rates(self, trained: bool = False) -> Scores:
        """The scores as simulations take them."""
        ...


class Runner(Protocol):
    """A way of drawing weighted samples of a model."""

    model: FlowModel
    simulation: Simulation
    resample: bool
    own: int | None
    batch_size: int

    def run(self, indices: Tensor, seed: int, watch: Watch | None = None, observe: bool = False) -> Paths:
        """Chains with these numbers, int64 [b]."""
        ...
