"""Linear operators m = A x: binning, blur and matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.counts import Shape
from blackout.errors import ensure
from blackout.posterior.noise import Gaussian, Poisson
from blackout.posterior.operators.base import Operator
from blackout.posterior.parameter_maps import read_array
from blackout.representation import format_fields

MIN_DIVISOR = 1e-12  # sums of weights below this are replaced by it, as for black measurements


class LinearOperator(Operator):
    """A linear operator m = A x, by default with A >= 0 and shot noise."""

    linear = True
    noise = Poisson()

    def adjoint(self, m: Tensor, shape: Shape) -> Tensor:
        """Return A^T m, float64 [n, *shape], of m [n, *measurement]."""
        x = torch.zeros((len(m), *shape), dtype=torch.float64, device=m.device)
        return torch.func.vjp(self, x)[1](m.double())[0]

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Return A^T (m / A 1) / A^T 1, float64 [n, *shape].

        Every sum is spread evenly over its elements; elements in several sums get the average.

        References: this project; checked in tests/posterior/test_operators.py.
        """
        ones = torch.ones((1, *shape), dtype=torch.float64, device=m.device)
        spread = self.adjoint(m / self(ones).clamp(min=MIN_DIVISOR), shape)
        return spread / self.adjoint(torch.ones_like(m[:1]), shape).clamp(min=MIN_DIVISOR)


@dataclass(frozen=True)
class Pool(LinearOperator):
    """Binning: sums over blocks of size x size pixels, or of `size` neighbours of a vector.

    Args:
        size: side of a block, which must divide the sides of the image.

    References: checked in tests/posterior/test_operators.py.

    Example:
        >>> Pool(2)(torch.arange(16).view(1, 1, 4, 4)).tolist()
        [[[[10.0, 18.0], [42.0, 50.0]]]]
    """

    size: int = 2
    sums_elements = True

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the number of blocks in each direction, and of channels."""
        is_divisible = self.size >= 1 and not any(side % self.size for side in shape[-2:])
        if len(shape) not in (1, 3) or not is_divisible:
            raise ValueError(f"size={self.size} must divide the sides of the data, {shape}")
        return (*shape[:-2], *(side // self.size for side in shape[-2:]))

    def __call__(self, x: Tensor) -> Tensor:
        """Return sums over blocks of x [n, *shape], float64 [n, *measurement].

        References: definition of the class.
        """
        blocks = self.measurement_shape(tuple(x.shape[1:]))
        if len(blocks) == 1:
            return x.double().reshape(len(x), -1, self.size).sum(-1)
        # adding slices is several times faster than a sum over two axes of blocks
        first, *other_slices = (
            x[:, :, row :: self.size, column :: self.size]
            for row in range(self.size)
            for column in range(self.size)
        )
        return sum(other_slices, first.double())

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return the block of every element, int64 [2, P]; see `Operator.incidence`."""
        blocks = self.measurement_shape(shape)
        block_index = torch.arange(math.prod(blocks)).view(1, *blocks)
        block_of_element = self.adjoint(block_index, shape).flatten().long()
        return torch.stack([block_of_element, torch.arange(math.prod(shape))])


@dataclass(frozen=True)
class Blur(LinearOperator):
    """Convolution with a normal point spread function; pixels beyond the border are 0.

    Every channel is blurred by itself.

    Args:
        size: of the kernel in pixels, odd.
        width: standard deviation in pixels.

    References: checked in tests/posterior/test_operators.py.

    Example:
        >>> x = torch.zeros(1, 1, 3, 3)
        >>> x[0, 0, 1, 1] = 16
        >>> Blur(3, 1.0)(x).round().tolist()
        [[[[1.0, 2.0, 1.0], [2.0, 3.0, 2.0], [1.0, 2.0, 1.0]]]]
    """

    size: int = 3
    width: float = 1.0

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the shape of the image."""
        if self.size < 1 or self.size % 2 == 0 or not self.width > 0:
            raise ValueError(
                f"size must be odd and width positive, not {self.size} and {self.width}"
            )
        ensure(len(shape) == 3, f"blur needs images, not data of shape {shape}")
        return shape

    def __call__(self, x: Tensor) -> Tensor:
        """Return the blurred x, float64 [n, C, H, W].

        References: definition of the class.
        """
        self.measurement_shape(tuple(x.shape[1:]))
        offset = torch.arange(self.size, dtype=torch.float64, device=x.device) - self.size // 2
        profile = torch.exp(-((offset / self.width) ** 2) / 2)
        kernel = torch.outer(profile, profile) / profile.sum() ** 2
        images = x.double().flatten(0, 1)[:, None]
        blurred = F.conv2d(images, kernel[None, None], padding=self.size // 2)
        return blurred.view(x.shape)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return the neighbours of every pixel, int64 [2, P]; see `Operator.incidence`."""
        index = torch.arange(math.prod(shape)).view(shape[0], 1, *shape[1:])
        # indices from 1, so that 0 marks pixels beyond the border: [C, size^2, H W]
        neighbours = F.unfold(index.double() + 1, self.size, padding=self.size // 2).long() - 1
        pairs = torch.stack([index.flatten(2).expand_as(neighbours), neighbours]).flatten(1)
        return pairs[:, pairs[1] >= 0]


@dataclass(frozen=True)
class Matrix(LinearOperator):
    """Multiplication by a matrix, m = A x. If A has negative numbers, the default noise is normal.

    Args:
        matrix: float [K, D], or an .npy file of it; elements of x in the order channel, row,
            column.

    Raises:
        ValueError: not a finite matrix.

    Example:
        >>> operator = Matrix(torch.tensor([[1.0, 2.0, 0.5]]))
        >>> operator(torch.tensor([[4, 1, 2]])).tolist()
        [[7.0]]

    References: definition of the class.
    """

    matrix: Tensor | str
    values: ClassVar[Tensor] = torch.empty(0)

    __repr__ = format_fields

    def __post_init__(self) -> None:
        values = self.matrix
        if not isinstance(values, Tensor):
            values = torch.from_numpy(read_array(values, "matrix"))
        if values.ndim != 2 or not bool(torch.isfinite(values).all()):
            shape = tuple(values.shape)
            raise ValueError(f"matrix must be finite numbers of shape [K, D], not of {shape}")
        is_zero_or_one = (values == 0) | (values == 1)
        has_negative = bool((values < 0).any())
        object.__setattr__(self, "values", values.double())
        object.__setattr__(self, "sums_elements", bool(is_zero_or_one.all()))
        object.__setattr__(self, "noise", Gaussian() if has_negative else Poisson())

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Return data near m, float64 [n, *shape].

        For A >= 0 as `LinearOperator`; otherwise by the pseudo-inverse, with negative data set
        to 0.

        References: this project; checked in tests/posterior/test_operators.py.
        """
        if bool((self.values >= 0).all()):
            return super().back_project(m, shape)
        least_squares = m @ torch.linalg.pinv(self.values).T.to(m.device)
        return least_squares.view(-1, *shape).clamp(min=0)

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the number of rows."""
        if self.values.shape[1] != math.prod(shape):
            raise ValueError(
                f"matrix must have {math.prod(shape)} columns for data of shape {shape}, "
                f"not {self.values.shape[1]}"
            )
        return (len(self.values),)

    def __call__(self, x: Tensor) -> Tensor:
        """Return A x, float64 [n, K].

        References: definition of the class.
        """
        self.measurement_shape(tuple(x.shape[1:]))
        return x.double().flatten(1) @ self.values.to(x.device).T

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return where A is not 0, int64 [2, P]; see `Operator.incidence`."""
        return self.values.nonzero().T
