"""What drawing needs of a shuffle diffusion."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from blackout.family import Source
from blackout.permutations.metrics import PuzzleScores
from blackout.permutations.shuffle.decoding import Decoder
from blackout.permutations.shuffle.losses import ShuffleLoss
from blackout.permutations.shuffle.reverse import Denoiser, ForwardProcess


class ShuffleModel(Protocol):
    """A trained model; see `blackout.permutations.shuffle.ShuffleDiffusion`."""

    shuffle: ForwardProcess
    loss: ShuffleLoss
    sampler: Decoder
    data: dict[str, Any]
    config: dict[str, Any]

    @property
    def device(self) -> torch.device: ...

    def denoiser(self, items: Tensor) -> Denoiser: ...

    def using(self) -> AbstractContextManager[None]: ...

    def scores(self) -> PuzzleScores: ...

    def require_source(self) -> Source: ...
