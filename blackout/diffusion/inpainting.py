"""Inpainting: the known elements follow a path of the forward process that ends in their values.

Where nothing else is done, as in RePaint [Lugmayr 2022], the others are born at the model's rates beside them and never
look ahead: total variation .1 to .3 to the exact conditional law on a pixel pair, however many steps are taken. It is
the weights that are missing: the model's probability of the known path's own births, given all elements, and a particle
loop that resamples by them (`blackout.diffusion.particles`). Ours (tests/verification/test_particle_laws.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.counts import count_dtype, per_row
from blackout.data.file_formats import load_arrays
from blackout.diffusion.processes import Process
from blackout.errors import UserError
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
        return self if len(self.x0) == 1 else KnownElements(self.x0[index], self.mask[index])

    def of_batch(self, shape: tuple[int, ...], device: torch.device) -> KnownElements:
        """The same on a device, one row for each of a batch of `shape`, [B, ...]."""
        return KnownElements(*(one.to(device).expand(shape) for one in (self.x0, self.mask)))


class KnownPath:
    """Walks with the sampler from times[T] down to times[0]: X_{t_k} given X_0 and X_{t_{k + 1}}, the process's bridge.

    Args:
        known: elements of the batch, see `KnownElements.of_batch`.
        process: forward.
        generator: streams make the random numbers of sample k a function of (seed, k).
        copies: particles of every sample, which share its path; they are next to one another.
    """

    def __init__(
        self, known: KnownElements, process: Process, generator: torch.Generator | SampleStreams | None, copies: int = 1
    ) -> None:
        self.x0, self.mask = (one.repeat_interleave(copies, 0) for one in (known.x0, known.mask))
        self._process, self._generator, self._copies = process, generator, copies
        self._origin, self._state, self._time = known.x0, known.x0, torch.empty(0)
        self._step: int | None = None
        self._source: RandomSource = None

    def at(self, k: int, time: Tensor, xt: Tensor) -> Tensor:
        """xt with its observed elements replaced by the path's at a time within the step to times[k], or at its end;
        call it for k = T, T - 1, ..., 0.

        The path's own numbers of a step are negative ones, where the sampler's are positive.
        """
        begins = self._step is None
        if self._step != k:
            streams = self._generator
            self._step, self._source = k, streams.at(-k - 1) if isinstance(streams, SampleStreams) else streams
        if begins:
            self._state = self._process.sample(self._origin, time, self._source)
        else:
            self._state = self._process.bridge(self._origin, self._state, time, self._time, self._source)
        self._time = time
        return self.put(xt)

    def hold(self) -> Tensor:
        """Let the first copy of every sample follow the whole path; where it is now, states [B * copies, ...]."""
        first = torch.arange(len(self.mask), device=self.mask.device) % self._copies == 0
        self.mask = self.mask | per_row(first, self.mask)
        return self._state.repeat_interleave(self._copies, 0)

    def put(self, xt: Tensor) -> Tensor:
        """xt [B * copies, ...] with its observed elements replaced by where the path is."""
        return torch.where(self.mask, self._state.repeat_interleave(self._copies, 0).to(xt.dtype), xt)


def read_known(
    path: Path, sample_shape: tuple[int, ...], max_count: int, num_samples: int, units: Sequence[int] = (0, 1)
) -> KnownElements:
    """Read `x0` and `mask` from an .npz: arrays of one sample or of num_samples, images channels last.

    `x0` is in the units of the data's file, offset + gain x counts.

    Raises:
        UserError: not such a file, or not for this model.
    """
    try:
        arrays = load_arrays(path)
    except UserError as error:
        raise UserError(f"inpaint={error}") from None
    if not isinstance(arrays, dict) or not {"x0", "mask"} <= arrays.keys():
        raise UserError(f"inpaint={path}: needs an .npz with the arrays x0 and mask")
    x0, mask = arrays["x0"], arrays["mask"]
    if not np.issubdtype(x0.dtype, np.integer) or mask.dtype != bool:
        raise UserError(f"inpaint={path}: x0 must be integers and mask booleans, not {x0.dtype} and {mask.dtype}")
    if tuple(units) != (0, 1):
        above = np.where(mask, x0.astype(np.int64) - units[0], 0)
        if (above % units[1]).any():
            raise UserError(f"inpaint={path}: x0 must be {units[0]} and whole numbers of {units[1]}, as the data are")
        x0 = above // units[1]
    if x0.size and not 0 <= x0.min() <= x0.max() <= max_count:
        raise UserError(f"inpaint={path}: x0 must be counts in 0..{max_count}, not {x0.min()}..{x0.max()}")
    found = []
    for name, array in (("x0", x0.astype(np.int64)), ("mask", mask)):
        tensor = torch.from_numpy(array if array.ndim > len(sample_shape) else array[None])
        found.append(tensor := tensor.permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor)
        if tuple(tensor.shape[1:]) != sample_shape or len(tensor) not in (1, num_samples):
            raise UserError(
                f"inpaint={path}: {name} must be one sample or {num_samples} of the model's shape, channels last"
            )
    return KnownElements(*torch.broadcast_tensors(found[0].to(count_dtype(max_count)), found[1]))
