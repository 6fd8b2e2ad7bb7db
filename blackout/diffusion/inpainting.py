"""Inpainting: the known elements follow a path of the forward process that ends in their values.

Where nothing else is done the others are born at the model's rates beside them and never look ahead: total variation
.25 to .32 to the exact conditional law on a pixel pair, however many steps are taken. It is the weights that are
missing: the model's probability of the known path's own births, given all elements (`blackout.diffusion.potentials`),
and a particle loop that resamples by them (`blackout.diffusion.particles`).
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
        self, process: Process, times: Tensor, shape: tuple[int, ...],
        generator: torch.Generator | SampleStreams | None, device: torch.device,
    ) -> KnownPath:  # fmt: skip
        """A path X_{t_T}, ..., X_{t_0} of the observed elements, for a batch of `shape` on a device."""
        return KnownPath(
            self.x0.to(device).expand(shape), self.mask.to(device).expand(shape), process, times, generator
        )


class KnownPath:
    """Walks with the sampler from times[T] down to times[0]: X_{t_k} given X_0 and X_{t_{k + 1}}.

    Args:
        x0, mask: of `KnownElements`, for every row of the batch.
        process: forward.
        times: the sampler's.
        generator: streams make the path of sample k a function of (seed, k).
    """

    def __init__(
        self,
        x0: Tensor,
        mask: Tensor,
        process: Process,
        times: Tensor,
        generator: torch.Generator | SampleStreams | None,
    ) -> None:
        self.x0, self.mask, self.times, self._process = x0, mask, times, process
        self._generator = generator
        self.time = times[-1]
        self._state: Tensor | None = None

    def overwrite(self, k: int, xt: Tensor) -> Tensor:
        """xt with its observed elements replaced by the path's at times[k]; call it for k = T, T - 1, ..., 0."""
        self.advance(self.times[k], self.source(k))
        return self.put(xt)

    def advance(self, s: Tensor, source: RandomSource) -> None:
        """Go to a time s below the path's own, which is anywhere at first."""
        if self._state is None:
            self._state = self._process.sample(self.x0, s, source)
        else:
            self._state = self._process.bridge(self.x0, self._state, s, self.time, source)
        self.time = s

    def put(self, xt: Tensor) -> Tensor:
        """xt with its observed elements replaced by where the path is."""
        return torch.where(self.mask, self.state.to(xt.dtype), xt)

    @property
    def state(self) -> Tensor:
        """Where the path is."""
        assert self._state is not None
        return self._state

    def source(self, k: int) -> RandomSource:
        """The path's own numbers of the step to times[k]: negative ones, where the sampler's are positive."""
        return self._generator.at(-k - 1) if isinstance(self._generator, SampleStreams) else self._generator
