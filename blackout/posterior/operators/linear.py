"""Weighted sums of elements: a coarse detector, a blurred one, any matrix."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.files import opened
from blackout.posterior.noise import Flips, Noise, Poisson
from blackout.posterior.operators.base import BlackBox, Separable, Shape, mask_of


class Sums(BlackBox, ABC):
    """m = A x with A >= 0."""

    @property
    def noise(self) -> Noise:
        """Photons."""
        return Poisson()

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """A x, float64 [n, *measured]."""

    @abstractmethod
    def transposed(self, m: Tensor, shape: Shape) -> Tensor:
        """A^T m, float64 [n, *shape]."""

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """A^T (m / A 1) / A^T 1: each sum spread over its elements, averaged where they take part in several."""
        ones = torch.ones((1, *shape), dtype=torch.float64, device=m.device)
        spread = self.transposed(m / self(ones).clamp(min=1e-12), shape)
        return spread / self.transposed(torch.ones_like(m[:1]), shape).clamp(min=1e-12)


@dataclass(frozen=True)
class Pool(Sums):
    """Sums over blocks of size x size pixels, or of `size` neighbours of a vector.

    Args:
        size: side of a block, which must divide the sides of the image.
    """

    size: int = 2

    @property
    def counting(self) -> bool:
        """Sums of pixels."""
        return True

    def measured(self, shape: Shape) -> Shape:
        """The number of blocks in each direction."""
        if self.size < 1 or len(shape) not in (1, 3) or any(side % self.size for side in shape[-2:]):
            raise ValueError(f"size={self.size}: such blocks do not divide data of shape {shape}")
        return (*shape[:-2], *(side // self.size for side in shape[-2:]))

    def __call__(self, x: Tensor) -> Tensor:
        blocks = self.measured(tuple(x.shape[1:]))
        if len(blocks) == 1:
            return x.double().reshape(len(x), -1, self.size).sum(-1)
        # by slices: several times faster than a sum over two axes of blocks
        corners = [x[:, :, i :: self.size, j :: self.size] for i in range(self.size) for j in range(self.size)]
        return sum(corners[1:], corners[0].double())

    def transposed(self, m: Tensor, shape: Shape) -> Tensor:
        for axis in range(2, m.ndim) if m.ndim > 2 else (1,):
            m = m.repeat_interleave(self.size, axis)
        return m

    def incidence(self, shape: Shape) -> Tensor | None:
        blocks = self.measured(shape)
        number = torch.arange(math.prod(blocks)).view(1, *blocks)
        return torch.stack([self.transposed(number, shape).flatten(), torch.arange(math.prod(shape))])


@dataclass(frozen=True)
class Blur(Sums):
    """A normal point spread function, every channel by itself, black beyond the border.

    Args:
        size: pixels across, odd.
        width: standard deviation in pixels.
    """

    size: int = 3
    width: float = 1.0

    def measured(self, shape: Shape) -> Shape:
        if self.size < 1 or self.size % 2 == 0 or not self.width > 0:
            raise ValueError(f"size must be odd and width positive, not {self.size} and {self.width}")
        if len(shape) != 3:
            raise ValueError(f"blur is for images, not for data of shape {shape}")
        return shape

    def __call__(self, x: Tensor) -> Tensor:
        self.measured(tuple(x.shape[1:]))
        weights = self._weights(x.device)
        flat = F.conv2d(x.double().flatten(0, 1)[:, None], weights[None, None], padding=self.size // 2)
        return flat.view(x.shape)

    def _weights(self, device: torch.device) -> Tensor:
        offset = torch.arange(self.size, dtype=torch.float64, device=device) - self.size // 2
        line = torch.exp(-((offset / self.width) ** 2) / 2)
        return torch.outer(line, line) / line.sum() ** 2

    def transposed(self, m: Tensor, shape: Shape) -> Tensor:
        return self(m)  # the weights are symmetric

    def incidence(self, shape: Shape) -> Tensor | None:
        pairs = []
        number, reach = torch.arange(math.prod(shape)).view(shape), self.size // 2
        for down in range(-reach, reach + 1):
            for right in range(-reach, reach + 1):
                rows = slice(max(0, -down), min(shape[1], shape[1] - down))
                columns = slice(max(0, -right), min(shape[2], shape[2] - right))
                near = number.roll((-down, -right), (1, 2))
                pairs.append(torch.stack([number[:, rows, columns].flatten(), near[:, rows, columns].flatten()]))
        return torch.cat(pairs, 1)


@dataclass(frozen=True)
class Matrix(Sums):
    """m = A x for any matrix of non-negative numbers.

    Args:
        matrix: float [K, D], or an .npy file of it; x in the order channel, row, column.

    Raises:
        ValueError: it is no such matrix.
    """

    matrix: Tensor | str

    def __post_init__(self) -> None:
        values = self.matrix if isinstance(self.matrix, Tensor) else _read(self.matrix)
        if values.ndim != 2 or not bool((torch.isfinite(values) & (values >= 0)).all()):
            raise ValueError(f"matrix must be finite numbers >= 0 of shape [K, D], not of {tuple(values.shape)}")
        object.__setattr__(self, "values", values.double())

    values = torch.empty(0)

    @property
    def counting(self) -> bool:
        """Where all its numbers are 0 or 1."""
        return bool(((self.values == 0) | (self.values == 1)).all())

    def measured(self, shape: Shape) -> Shape:
        if self.values.shape[1] != math.prod(shape):
            raise ValueError(f"matrix has {self.values.shape[1]} columns, but data of shape {shape}")
        return (len(self.values),)

    def __call__(self, x: Tensor) -> Tensor:
        self.measured(tuple(x.shape[1:]))
        return x.double().flatten(1) @ self.values.to(x.device).T

    def transposed(self, m: Tensor, shape: Shape) -> Tensor:
        return (m @ self.values.to(m.device)).view(-1, *shape)

    def incidence(self, shape: Shape) -> Tensor | None:
        return self.values.nonzero().T


@lru_cache(maxsize=4)
def _read(path: str) -> Tensor:
    try:
        with opened(Path(path)) as file:
            return torch.from_numpy(np.load(file, allow_pickle=False).astype(np.float64))
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise ValueError(f"matrix={path} is not an .npy file of numbers: {error}") from None


# --- Some elements are seen, the others are not.


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


# --- Boolean functions of random pairs of pixels (Chu et al. 2025, section 5.3).


@dataclass(frozen=True)
class Pairs(BlackBox):
    """A function of ratio x D pairs of different elements, none of them twice; the same for all measurements.

    Args:
        ratio: pairs per element.
        seed: of the choice.

    Raises:
        ValueError: ratio is not positive.
    """

    ratio: float = 0.5
    seed: int = 0
    binary: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"ratio must be positive, not {self.ratio}")

    @property
    def noise(self) -> Noise:
        """A violated pair costs three nats."""
        return Flips()

    def measured(self, shape: Shape) -> Shape:
        """[pairs]."""
        return (self.pairs(shape).shape[1],)

    def pairs(self, shape: Shape) -> Tensor:
        """Both elements of every pair, int64 [2, pairs]."""
        return _pairs(math.prod(shape), self.ratio, self.seed)

    def ends(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The values of both, [n, pairs] each."""
        first, second = self.pairs(tuple(x.shape[1:])).to(x.device)
        flat = x.double().flatten(1)
        return flat[:, first], flat[:, second]

    def incidence(self, shape: Shape) -> Tensor | None:
        """Each pair on its two elements."""
        pairs = self.pairs(shape)
        number = torch.arange(pairs.shape[1])
        return torch.cat([torch.stack([number, end]) for end in pairs], 1)


class Xor(Pairs):
    """1 where the two differ."""

    def __call__(self, x: Tensor) -> Tensor:
        """|a - b|, float64 [n, pairs]."""
        a, b = self.ends(x)
        return (a - b).abs()


class And(Pairs):
    """1 where both are 1."""

    def __call__(self, x: Tensor) -> Tensor:
        """a b, float64 [n, pairs]."""
        a, b = self.ends(x)
        return a * b


@lru_cache(maxsize=8)
def _pairs(elements: int, ratio: float, seed: int) -> Tensor:
    number, all_pairs = round(ratio * elements), elements * (elements - 1) // 2
    if not 1 <= number <= all_pairs:
        raise ValueError(f"ratio={ratio} asks for {number} pairs of {elements} elements; there are {all_pairs}")
    chosen = np.random.default_rng(seed).choice(all_pairs, number, replace=False)
    # pair c is (i, j), i < j, with c = j (j - 1) / 2 + i
    j = ((1 + np.sqrt(8 * chosen + 1)) / 2).astype(np.int64)
    j = np.where(j * (j - 1) // 2 > chosen, j - 1, j)
    return torch.from_numpy(np.stack([chosen - j * (j - 1) // 2, j]))
