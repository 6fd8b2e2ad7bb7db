"""Inpainting by overwriting: the observed elements follow a path of the forward process that ends in their values.

The simplest way to condition on elements; approximate, because the others never look ahead. The exact posterior needs
a sampler of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.processes import Process
from blackout.random import RandomSource, SampleStreams


@dataclass(frozen=True)
class KnownElements:
    """Observed elements of X_0.

    Args:
        x0: counts [N, ...] or, the same for all samples, [1, ...]; only the observed ones matter.
        mask: bool of the same shape, True where x0 is observed.

    Raises:
        ValueError: shapes differ.
    """

    x0: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        if self.x0.shape != self.mask.shape or self.mask.dtype != torch.bool:
            raise ValueError(
                f"observed elements need a boolean mask of the counts' shape {tuple(self.x0.shape)}, not "
                f"{self.mask.dtype} of {tuple(self.mask.shape)}"
            )

    def select(self, index: Tensor) -> KnownElements:
        """The rows at `index`, int64 [B], if x0 has one per sample; else the same for all."""
        if len(self.x0) == 1:
            return self
        return KnownElements(self.x0[index], self.mask[index])

    def path(
        self, process: Process, times: Tensor, shape: tuple[int, ...], generator: torch.Generator | SampleStreams | None
    ) -> KnownPath:
        """A path X_{t_T}, ..., X_{t_0} of the observed elements, for a batch of `shape`."""
        device = times.device
        return KnownPath(
            self.x0.to(device).expand(shape), self.mask.to(device).expand(shape), process, times, generator
        )


class KnownPath:
    """Walks with the sampler from times[T] down to times[0]: X_{t_k} given X_0 and X_{t_{k + 1}}."""

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
        self._state: Tensor | None = None

    def overwrite(self, k: int, xt: Tensor) -> Tensor:
        """xt with its observed elements replaced by the path's at times[k]; call it for k = T, T - 1, ..., 0."""
        source = self._source(k)
        if self._state is None:
            self._state = self._process.sample(self._x0, self._times[k], source)
        else:
            s, t = self._times[k], self._times[k + 1]
            self._state = self._process.bridge(self._x0, self._state, s, t, source)
        return torch.where(self._mask, self._state.to(xt.dtype), xt)

    def _source(self, k: int) -> RandomSource:
        # negative steps are the path's own: the sampler's are positive
        return self._generator.at(-k - 1) if isinstance(self._generator, SampleStreams) else self._generator
