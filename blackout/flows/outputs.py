"""What draws and commands of flows leave behind: arrays and figures."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.family import Samples
from blackout.files import replacing
from blackout.flows.simulation import Paths


class Collected:
    """Samples of a draw, taken batch by batch in order."""

    def __init__(self) -> None:
        self._taken: list[Samples] = []
        self._indices: list[Tensor] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Keep a batch."""
        self._taken.append(samples)
        self._indices.append(indices.cpu())

    def indices(self) -> Tensor:
        """The numbers of all samples, int64 [n]."""
        return torch.cat(self._indices)

    def arrays(self) -> dict[str, Tensor]:
        """All batches."""
        return {name: torch.cat([part[name] for part in self._taken]) for name in self._taken[0]}


def named(paths: Paths, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The arrays of samples.npz."""
    return {
        "samples": paths.states.x.view(-1, *shape),
        "log_weights": paths.log_weights,
        "log_density": paths.states.log_density,
        "jumps": paths.jumps.int(),
        "evaluations": paths.evaluations.int(),
    }


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write an .npz, whole or not at all."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def add_array(path: Path, name: str, values: Tensor) -> None:
    """Add an array to an .npz, which is replaced whole or not at all."""
    with replacing(path) as part:
        shutil.copyfile(path, part)
        with zipfile.ZipFile(part, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as member:
            np.lib.format.write_array(member, values.numpy())
