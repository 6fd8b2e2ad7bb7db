"""Some elements are seen, the others are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.files import opened
from blackout.posterior.operators.base import Separable, Shape, mask_of


@dataclass(frozen=True)
class Inpaint(Separable):
    """The observed elements of x.

    Args:
        mask: bool of x's shape, True where it is observed; or an .npy file of it (or .npz with `mask`), images channels
            last.
    """

    mask: Tensor | str

    def seen(self, shape: Shape) -> Tensor | None:
        """The mask."""
        return mask_of(shape, self.mask if isinstance(self.mask, Tensor) else read_mask(Path(self.mask), shape))


@dataclass(frozen=True)
class InpaintBox(Separable):
    """All of an image but a box.

    Args:
        rows, columns: first and last hidden one.
    """

    rows: Sequence[int] = (2, 5)
    columns: Sequence[int] = (1, 6)

    def seen(self, shape: Shape) -> Tensor | None:
        """False in the box."""
        if len(shape) != 3:
            raise ValueError(f"a box is hidden in images, not in data of shape {shape}")
        mask = torch.ones(shape, dtype=torch.bool)
        mask[:, self._range("rows", self.rows, shape[1]), self._range("columns", self.columns, shape[2])] = False
        return mask_of(shape, mask)

    @staticmethod
    def _range(name: str, ends: Sequence[int], size: int) -> slice:
        if len(ends) != 2 or not 0 <= ends[0] <= ends[1] < size:
            raise ValueError(f"{name} must be the first and last hidden one of 0..{size - 1}, not {list(ends)}")
        return slice(ends[0], ends[1] + 1)


@dataclass(frozen=True)
class InpaintRandom(Separable):
    """Every element is hidden or not at random, the same ones in every measurement.

    Args:
        hidden: share of hidden elements, in (0, 1).
        seed: of the choice.
    """

    hidden: float = 0.5
    seed: int = 0

    def seen(self, shape: Shape) -> Tensor | None:
        """A fixed share of elements."""
        if not 0 < self.hidden < 1:
            raise ValueError(f"hidden must be a share between 0 and 1, not {self.hidden}")
        elements = math.prod(shape)
        order = torch.randperm(elements, generator=torch.Generator().manual_seed(self.seed))
        mask = torch.ones(elements, dtype=torch.bool)
        mask[order[: round(self.hidden * elements)]] = False
        return mask_of(shape, mask.view(shape))


def read_mask(path: Path, shape: Shape) -> Tensor:
    """A mask in a file.

    Raises:
        ValueError: not such a file, or of another shape.
    """
    try:
        with opened(path) as file:
            loaded = np.load(file, allow_pickle=False)
            array = loaded["mask"] if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise ValueError(f"mask={path} is not an .npy file of booleans: {error}") from None
    if array.dtype != bool:
        raise ValueError(f"mask={path} must hold booleans, not {array.dtype}")
    mask = torch.from_numpy(array)
    return mask.permute(2, 0, 1) if mask.ndim == 3 and tuple(mask.shape) != shape else mask
