"""Samples written to an .npz as they are drawn, so that millions of them need not fit in memory."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
import torch
from torch import Tensor

from blackout.family import Samples
from blackout.files import replacing


class SampleFile:
    """An .npz written batch by batch: `samples` at once, the other (small) arrays at the end.

    A context manager: the file appears, whole, when the context is left without an error and no sample is missing.
    Samples [b, C, H, W] are images and are written channels last.

    Args:
        path: of the .npz.
        num_samples: how many samples it will hold.
        array: what `samples` is called in the file.
    """

    def __init__(self, path: Path, num_samples: int, array: str = "samples") -> None:
        self._path, self._missing, self.num_samples = path, num_samples, num_samples
        self._array = array
        self._member: IO[bytes] | None = None
        self._others: dict[str, list[Tensor]] = {}

    def __enter__(self) -> SampleFile:
        self._replacing = replacing(self._path)
        self._archive = zipfile.ZipFile(self._replacing.__enter__(), "x", zipfile.ZIP_DEFLATED)
        return self

    def write(self, samples: Samples) -> None:
        """Append samples: `samples` [b, ...], and further arrays [b, ...] by name, the same in every call.

        Raises:
            ValueError: more samples than were announced.
        """
        main = samples["samples"]
        if len(main) > self._missing:
            raise ValueError(f"{len(main)} samples for a file that has capacity for {self._missing} more")
        rows = (main.permute(0, 2, 3, 1) if main.ndim == 4 else main).contiguous().cpu().numpy()
        if self._member is None:
            self._member = self._archive.open(f"{self._array}.npy", "w", force_zip64=True)
            shape = (self.num_samples, *rows.shape[1:])
            header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._member, header)
        self._member.write(rows.tobytes())
        for name, values in samples.items():
            if name != "samples":
                self._others.setdefault(name, []).append(values.cpu())
        self._missing -= len(rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(self._replacing)
            with self._archive:
                if self._member is not None:
                    self._member.close()
                if error is not None:
                    raise error
                for name, parts in self._others.items():
                    with self._archive.open(f"{name}.npy", "w") as member:
                        np.lib.format.write_array(member, torch.cat(parts).numpy())
            if self._missing:
                raise ValueError(f"{self._missing} of {self.num_samples} samples were not written")


def save_samples(samples: Samples, path: Path, array: str = "samples") -> None:
    """Write samples to an .npz, where `samples` is called `array`; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with SampleFile(path, len(samples["samples"]), array) as file:
        file.write(samples)
