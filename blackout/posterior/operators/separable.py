"""Operators that return x itself, or its observed elements: the identity and masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.counts import Shape
from blackout.errors import ensure
from blackout.posterior.operators.base import Operator
from blackout.posterior.parameter_maps import read_array
from blackout.representation import format_fields


class Separable(Operator):
    """An operator that returns x, or the observed elements of x."""

    sums_elements = True
    linear = True

    def __call__(self, x: Tensor) -> Tensor:
        """Return x, float64 [n, *shape]."""
        return x.double()

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the shape of x."""
        return shape

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return observed elements, each with itself, int64 [2, P]."""
        mask = self.observed_mask(shape)
        index = torch.arange(math.prod(shape))
        if mask is not None:
            index = index[mask.flatten()]
        return index.expand(2, -1)

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Return m where it is observed, else 0: [n, *shape]."""
        mask = self.observed_mask(shape)
        return m if mask is None else torch.where(mask.to(m.device), m, 0.0)


class Identity(Separable):
    """The identity: every element of x is measured.

    References: definition of the class.

    Example:
        >>> Identity()(torch.tensor([[3, 0, 1]])).tolist()
        [[3.0, 0.0, 1.0]]
    """


@dataclass(frozen=True)
class Inpaint(Separable):
    """A mask of observed elements.

    Args:
        mask: bool [*shape], True where x is observed. Or an .npy file of it, or an .npz file with
            an array `mask`; masks of images in files have their channels last.

    References: definition of the class.

    Example:
        >>> Inpaint(torch.tensor([True, False, True])).observed_mask((3,)).tolist()
        [True, False, True]
    """

    mask: Tensor | str

    __repr__ = format_fields

    def observed_mask(self, shape: Shape) -> Tensor | None:
        """Return the mask, bool [*shape].

        Raises:
            ValueError: no booleans, another shape, or no observed element.
        """
        mask = self.mask if isinstance(self.mask, Tensor) else self._read_mask(shape)
        if tuple(mask.shape) != shape or mask.dtype != torch.bool:
            content = f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise ValueError(f"mask must be booleans of shape {shape}, not {content}")
        return _check_observed(mask)

    def _read_mask(self, shape: Shape) -> Tensor:
        array = read_array(str(self.mask), "mask", "booleans", dtype=None)
        ensure(array.dtype == bool, f"mask={self.mask} must contain booleans, not {array.dtype}")
        mask = torch.from_numpy(array)
        if mask.ndim == 2 and (1, *mask.shape) == shape:
            mask = mask[None]
        if mask.ndim == 3 and tuple(mask.shape) != shape:
            mask = mask.permute(2, 0, 1)
        return mask


@dataclass(frozen=True)
class InpaintBox(Separable):
    """An image with a hidden box.

    Args:
        rows: first and last hidden row.
        columns: first and last hidden column.

    References: definition of the class; checked in tests/posterior/test_operators.py.

    Example:
        >>> InpaintBox((0, 0), (1, 2)).observed_mask((1, 2, 4)).long().tolist()
        [[[1, 0, 0, 1], [1, 1, 1, 1]]]
    """

    rows: Sequence[int] = (2, 5)
    columns: Sequence[int] = (1, 6)

    def observed_mask(self, shape: Shape) -> Tensor | None:
        """Return False in the box, else True, bool [*shape].

        Raises:
            ValueError: no images, or a box that is not inside.
        """
        ensure(len(shape) == 3, f"inpaint_box needs images, not data of shape {shape}")
        sides = {"rows": (self.rows, shape[1]), "columns": (self.columns, shape[2])}
        for name, (ends, size) in sides.items():
            if len(ends) != 2 or not 0 <= ends[0] <= ends[1] < size:
                raise ValueError(
                    f"{name} must be the first and last hidden index, from 0 to {size - 1}, "
                    f"not {list(ends)}"
                )
        rows = slice(self.rows[0], self.rows[1] + 1)
        columns = slice(self.columns[0], self.columns[1] + 1)
        mask = torch.ones(shape, dtype=torch.bool)
        mask[:, rows, columns] = False
        return _check_observed(mask)


@dataclass(frozen=True)
class InpaintRandom(Separable):
    """A random mask, the same for all measurements.

    Args:
        hidden: share of hidden elements, in (0, 1).
        seed: seed of the mask.

    References: definition of the class; checked in tests/posterior/test_operators.py.

    Example:
        >>> int(InpaintRandom(0.25).observed_mask((8,)).sum())  # six of eight elements
        6
    """

    hidden: float = 0.5
    seed: int = 0

    def observed_mask(self, shape: Shape) -> Tensor | None:
        """Return the mask, bool [*shape].

        Raises:
            ValueError: a share outside (0, 1), or no observed element.
        """
        ensure(0 < self.hidden < 1, f"hidden must be between 0 and 1, not {self.hidden}")
        num_elements = math.prod(shape)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(num_elements, generator=generator)
        mask = torch.ones(num_elements, dtype=torch.bool)
        mask[order[: round(self.hidden * num_elements)]] = False
        return _check_observed(mask.view(shape))


def _check_observed(mask: Tensor) -> Tensor:
    ensure(bool(mask.any()), "mask: at least one element must be observed")
    return mask
