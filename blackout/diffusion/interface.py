"""What draws, rehearsals, bounds and reports need of a model: `BlackoutDiffusion`, or anything alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from blackout.diffusion.heads import Head
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.losses import Loss
from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes import Process
from blackout.diffusion.sampling import Callback, Sampler
from blackout.diffusion.schedules import Schedule


class CountModel(Protocol):
    """A network with everything that gives its output a meaning."""

    config: dict[str, Any]
    network: nn.Module
    head: Head
    process: Process
    schedule: Schedule
    loss: Loss
    sampler: Sampler
    mean: Tensor
    class_mean: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        ...

    @property
    def num_classes(self) -> int | None:
        """How many classes the network knows; None if it knows of none."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def averaged(self) -> nn.Module:
        """The network that `denoiser` evaluates."""
        ...

    def denoiser(self, classes: Tensor | None = None) -> Denoiser:
        """(xt, t) -> prediction with the averaged weights, given classes [B] or None."""
        ...

    def times(self, sampler: Sampler) -> Tensor:
        """The grid a sampler walks, float64 [T + 1]."""
        ...

    def evaluations(self, sampler: Sampler, with_classes: bool = False, with_known: bool = False) -> int:
        """Network evaluations per sample."""
        ...

    def sample_batches(
        self,
        indices: Tensor,
        seed: int = 0,
        sampler: Sampler | None = None,
        callback: Callback | None = None,
        classes: Tensor | None = None,
        known: KnownElements | None = None,
        batch_size: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(indices [b], counts [b, *shape]), a batch at a time."""
        ...
