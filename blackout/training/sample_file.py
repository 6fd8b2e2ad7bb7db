"""Samples written to an .npz as they are drawn, so that a file of millions never sits in memory."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from torch import Tensor


class SampleFile:
    """The array `samples` of an .npz, images channels last, filled batch by batch.

    A context manager: the file appears, whole, when the context is left without an error and every sample is there.

    Args:
        path: of the .npz.
        num_samples: how many samples it will hold.
    """

    def __init__(self, path: Path, num_samples: int) -> None:
        self._path, self._missing, self._num_samples = path, num_samples, num_samples
        self._part = path.with_name(f".{path.name}.part")
        self._member: IO[bytes] | None = None

    def __enter__(self) -> SampleFile:
        self._archive = zipfile.ZipFile(self._part, "w", zipfile.ZIP_DEFLATED)
        return self

    def write(self, counts: Tensor) -> None:
        """Append counts [b, C, H, W] or [b, D].

        Raises:
            ValueError: more samples than were announced.
        """
        if len(counts) > self._missing:
            raise ValueError(f"{len(counts)} samples for a file that has room for {self._missing} more")
        rows = (counts.permute(0, 2, 3, 1) if counts.ndim == 4 else counts).contiguous().cpu().numpy()
        if self._member is None:
            self._member = self._archive.open("samples.npy", "w", force_zip64=True)
            shape = (self._num_samples, *rows.shape[1:])
            header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._member, header)
        self._member.write(rows.tobytes())
        self._missing -= len(rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._member is not None:
            self._member.close()
        self._archive.close()
        if kind is None and not self._missing:
            os.replace(self._part, self._path)
            return
        self._part.unlink(missing_ok=True)
        if kind is None:
            raise ValueError(f"{self._missing} of {self._num_samples} samples were not written")


def save_samples(counts: Tensor, path: Path) -> None:
    """Write counts as `samples` in an .npz, images channels last; the file appears whole or not at all."""
    with SampleFile(path, len(counts)) as file:
        file.write(counts)
