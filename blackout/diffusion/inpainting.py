"""Inpainting by overwriting: the known elements follow a path of the forward process that ends in their values.

The simplest way to condition on elements; approximate, because the unknown ones never look ahead. The exact
posterior needs a sampler of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.processes import Process
from blackout.diffusion.streams import RandomSource, SampleStreams


@dataclass(frozen=True)
class KnownElements:
    """What is known of X_0.

    Args:
        x0: counts [N, ...] or, the same for all samples, [1, ...]; only the known ones matter.
        mask: bool of the same shape, True where x0 is known.

    Raises:
        ValueError: shapes differ.
    """

    x0: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        if self.x0.shape != self.mask.shape or self.mask.dtype != torch.bool:
            raise ValueError(
                f"known elements need a boolean mask of the counts' shape {tuple(self.x0.shape)}, not "
                f"{self.mask.dtype} of {tuple(self.mask.shape)}"
            )

    def select(self, places: Tensor) -> KnownElements:
        """What is known of the samples at these places, if x0 has one row per sample; else the same for all.

        Args:
            places: int64 [B].
        """
        if len(self.x0) == 1:
            return self
        return KnownElements(self.x0[places], self.mask[places])

    def path(
        self, process: Process, times: Tensor, shape: tuple[int, ...], generator: torch.Generator | SampleStreams | None
    ) -> KnownPath:
        """A path X_{t_T}, ..., X_{t_0} of the known elements, for a batch of `shape`."""
        device = times.device
        return KnownPath(
            self.x0.to(device).expand(shape), self.mask.to(device).expand(shape), process, times, generator
        )


class KnownPath:
    """Walks with the sampler from level T down to 0; at each it is X_{t_k} given X_0 and the level before."""

    def __init__(
        self,
        x0: Tensor,
        mask: Tensor,
        process: Process,
        times: Tensor,
        generator: torch.Generator | SampleStreams | None,
    ) -> None:
        self._x0, self._mask, self._process, self._times = x0, mask, process, times
        self._generator = generator
        self._level: Tensor | None = None

    def overwrite(self, k: int, xt: Tensor) -> Tensor:
        """xt with its known elements replaced by the path's at level k; call it for k = T, T - 1, ..., 0."""
        source = self._source(k)
        if self._level is None:
            self._level = self._process.sample(self._x0, self._times[k], source)
        else:
            s, t = self._times[k], self._times[k + 1]
            self._level = self._process.bridge(self._x0, self._level, s, t, source)
        return torch.where(self._mask, self._level.to(xt.dtype), xt)

    def _source(self, k: int) -> RandomSource:
        # negative steps are the path's own: the sampler's are positive
        return self._generator.at(-k - 1) if isinstance(self._generator, SampleStreams) else self._generator
