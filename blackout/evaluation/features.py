"""The 8-bit RGB images that feature extractors read, the cache folder of what is made of them, accumulators of samples.

These are put together over processes, so that any number of processes gives the single-process result.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blackout.distributed import sum_over_processes, world_size
from blackout.errors import UserError, refuse
from blackout.files import replacing


def to_uint8(counts: Tensor, max_count: int) -> Tensor:
    """Map counts 0..max_count to 0..255: round(255 x / max_count), halves upwards.

    Exact (integer arithmetic) for every `max_count`; the identity for 255, {0, 255} for 1.

    Args:
        counts: integer tensor of any shape, values in 0..max_count.
        max_count: the largest count the data can hold, at least 1.

    Returns:
        uint8 tensor of the same shape.

    Raises:
        UserError: no integers, none at all, or a value outside 0..max_count.
    """
    refuse(max_count < 1, f"max_count is {max_count}; it must be at least 1")
    if counts.dtype.is_floating_point or counts.dtype.is_complex or counts.dtype is torch.bool:
        raise UserError(f"images must be integer counts in 0..{max_count}, never scaled floats, not {counts.dtype}")
    refuse(counts.numel() == 0, f"the batch of images is empty (shape {tuple(counts.shape)})")
    if counts.dtype is torch.uint8 and max_count == 255:
        return counts
    low, high = (int(v) for v in torch.aminmax(counts))
    refuse(low < 0 or high > max_count, f"image values lie in {low}..{high}, but the counts must be in 0..{max_count}")
    return ((510 * counts.long() + max_count) // (2 * max_count)).to(torch.uint8)


def to_rgb(images: Tensor) -> Tensor:
    """uint8 [B, 1 or 3, H, W] -> uint8 [B, 3, H, W]; grey is repeated.

    Raises:
        UserError: another dtype, number of dimensions or number of channels.
    """
    refuse(images.dtype is not torch.uint8, f"images must be uint8, not {images.dtype}")
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise UserError(f"images must be [B, 1 or 3, H, W], but their shape is {tuple(images.shape)}")
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/blackout`, or `~/.cache/blackout`; without a home directory, in that of temporary files."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "blackout"
    except RuntimeError:  # no home directory
        return Path(tempfile.gettempdir()) / "blackout-cache"


def key_hash(key: Mapping[str, Any]) -> str:
    """32 hexadecimal digits of the SHA-256 of a key's JSON with sorted names."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def keep(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a cache file, whole or not at all; where it cannot be written, warn and continue."""
    try:
        with replacing(path, durably=True) as part:
            write(part)
    except OSError as error:
        warnings.warn(f"cannot keep {path} for the next run: {error}", stacklevel=2)


class SampleRows:
    """One row for every sample, such as its features, in the order of the sample indices.

    The buffer is allocated at once (400 MB for 2048 features of 50,000 samples). Rows of other processes stay zero
    until `gather`.

    Args:
        shape: n, the number of samples, and the shape of a row.
        dtype: of the rows.
        device: where they are.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        self._rows = torch.zeros(shape, dtype=dtype, device=device)

    def update(self, rows: Tensor, indices: Tensor) -> None:
        """Store rows [B, ...] as those with the numbers `indices`, int64 [B]."""
        self._rows[indices.to(self._rows.device)] = rows.detach().to(self._rows)

    def gather(self) -> Tensor:
        """All rows [n, ...], on every process; leaves the own rows as they are."""
        return sum_over_processes(self._rows.clone()) if world_size() > 1 else self._rows

    def reset(self) -> None:
        """Forget all samples."""
        self._rows.zero_()
