"""Forward operators: what is measured, m = G(x), before noise.

A custom operator derives from `Operator`. If it only defines values, samplers treat it as a black
box and take Metropolis steps. With `incidence`, elements that share no term of the likelihood are
drawn together. With `sums_elements`, likelihoods of thinned counts can be used.

`Separable` operators return x itself, `LinearOperator` weighted sums of elements, and `Pairs`
functions of two pixels each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.counts import Shape
from blackout.diffusion.model import BlackoutDiffusion
from blackout.errors import ensure
from blackout.posterior.noise import Exact, Flips, Gaussian, Noise, Poisson, read_array
from blackout.representation import format_arguments, format_fields

MIN_DIVISOR = 1e-12  # sums of weights below this are replaced by it, as for black measurements


class SampleSet(NamedTuple):
    """Posterior samples to be scored by an operator or by a model whose distribution is known.

    Attributes:
        x: counts [n, *shape].
        measurement_index: measurement that each sample belongs to, int64 [n].
        problem: all measurements, an `InverseProblem` (defined above this module).
        truths: counts [M, *shape], or None where they are unknown.
        seed: seed of the samples.
    """

    x: Tensor
    measurement_index: Tensor
    problem: Any
    truths: Tensor | None
    seed: int


class Operator(ABC):
    """A forward operator G for data x [n, *shape], integers or real numbers.

    By default it is a black box that returns one number.

    References: this project.
    """

    # whether data must be 0 and 1
    binary: ClassVar[bool] = False
    # whether every element of m is a sum of elements of x, so that thinning x thins m
    sums_elements: bool = False
    # whether G(a x + b z) = a G(x) + b G(z); all levels of an element then cost one evaluation
    linear: ClassVar[bool] = False
    # noise unless the user chooses another
    noise: Noise = Exact()

    __repr__ = format_arguments

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Return G(x), float64 [n, *measurement_shape(shape)]."""

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the shape of a measurement of data of a shape.

        Raises:
            ValueError: data that the operator cannot measure.
        """
        return (1,)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return which elements of x each element of m depends on.

        Returns:
            Pairs (index in m, index in x), int64 [2, P]; None if they are unknown.
        """
        return None

    def observed_mask(self, shape: Shape) -> Tensor | None:
        """Return which elements of m are observed, bool [*measurement_shape]; None for all."""
        return None

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Return data [n, *shape] from which m could come, to start from; or None."""
        return None

    def prepare(self, model: BlackoutDiffusion) -> None:
        """Take what the operator needs from a model or its data, before anything is measured."""
        return

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """Return entries of metrics.json about samples, with numbers in `values`.

        Pictures may be written to `directory`.
        """
        return {}


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

    References: definition of the class; checked in tests/posterior/test_parts.py.

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

    References: definition of the class; checked in tests/posterior/test_parts.py.

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


@dataclass(frozen=True)
class Function(Operator):
    """A black box: a function on tensors, a torch module, or a physics object of deepinv (its `A`).

    Args:
        function: x [n, *shape] -> m [n, *measurement]. x is float64, or of the dtype of a module's
            weights.

    References: definition of the class; checked in tests/posterior/test_parts.py.

    Example:
        >>> Function(lambda x: x.cumsum(1))(torch.tensor([[1, 2, 3]])).tolist()
        [[1.0, 3.0, 6.0]]
    """

    function: Callable[[Tensor], Tensor]
    noise = Gaussian()

    __repr__ = format_fields

    def __call__(self, x: Tensor) -> Tensor:
        """Return G(x), float64 [n, *measurement].

        Raises:
            ValueError: the function does not return one tensor with a row for every x.
        """
        dtype = x.dtype
        if isinstance(self.function, nn.Module):
            dtype = next(self.function.parameters(), x).dtype
        m = getattr(self.function, "A", self.function)(x.to(dtype))
        if not isinstance(m, Tensor) or m.shape[:1] != x.shape[:1] or m.ndim < 2:
            result = tuple(m.shape) if isinstance(m, Tensor) else type(m).__name__
            raise ValueError(
                f"function must return m [n, ...] for x [n, ...], not {result} for {tuple(x.shape)}"
            )
        return m.detach().double()

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the shape of the function's value at 0."""
        return tuple(self(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])


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

        References: this project; checked in tests/posterior/test_parts.py.
        """
        ones = torch.ones((1, *shape), dtype=torch.float64, device=m.device)
        spread = self.adjoint(m / self(ones).clamp(min=MIN_DIVISOR), shape)
        return spread / self.adjoint(torch.ones_like(m[:1]), shape).clamp(min=MIN_DIVISOR)


@dataclass(frozen=True)
class Pool(LinearOperator):
    """Binning: sums over blocks of size x size pixels, or of `size` neighbours of a vector.

    Args:
        size: side of a block, which must divide the sides of the image.

    References: checked in tests/posterior/test_parts.py.

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

    References: checked in tests/posterior/test_parts.py.

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

        References: this project; checked in tests/posterior/test_parts.py.
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


@dataclass(frozen=True)
class Pairs(Operator):
    """A function of random pairs of elements, the same pairs for all measurements.

    Args:
        ratio: pairs per element; no pair occurs twice.
        seed: seed of the pairs.

    Raises:
        ValueError: a ratio that is not positive.

    References: Chu et al. 2025, eq. 15.
    """

    ratio: float = 0.5
    seed: int = 0
    binary: ClassVar[bool] = True
    noise = Flips()

    def __post_init__(self) -> None:
        ensure(0 < self.ratio < math.inf, f"ratio must be positive, not {self.ratio}")

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the number of pairs."""
        return (self.pairs(shape).shape[1],)

    def pairs(self, shape: Shape) -> Tensor:
        """Return the indices of both elements of every pair, int64 [2, pairs]."""
        return draw_pairs(math.prod(shape), self.ratio, self.seed)

    def pair_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the first and second elements, float64 [n, pairs] each."""
        first, second = self.pairs(tuple(x.shape[1:])).to(x.device)
        flat = x.double().flatten(1)
        return flat[:, first], flat[:, second]

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return the two elements of every pair, int64 [2, 2 pairs]."""
        pairs = self.pairs(shape)
        pair_index = torch.arange(pairs.shape[1]).repeat(2)
        return torch.stack([pair_index, pairs.flatten()])


class Xor(Pairs):
    """Exclusive or: 1 where the two elements of a pair differ.

    References: Chu et al. 2025, eq. 15.

    Example:
        >>> x = torch.tensor([[0, 1, 1, 0]])
        >>> Xor(0.5).pairs((4,)).tolist()
        [[1, 0], [3, 3]]
        >>> Xor(0.5)(x).tolist()
        [[1.0, 0.0]]
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return |a - b| of every pair (a, b), float64 [n, pairs].

        References: Chu et al. 2025, eq. 15.
        """
        a, b = self.pair_values(x)
        return (a - b).abs()


class And(Pairs):
    """Logical and: 1 where both elements of a pair are 1.

    References: Chu et al. 2025, eq. 15.

    Example:
        >>> x = torch.tensor([[0, 1, 1, 1]])
        >>> And(0.5).pairs((4,)).tolist()
        [[1, 0], [3, 3]]
        >>> And(0.5)(x).tolist()
        [[1.0, 0.0]]
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return a b of every pair (a, b), float64 [n, pairs].

        References: Chu et al. 2025, eq. 15.
        """
        a, b = self.pair_values(x)
        return a * b


@lru_cache(maxsize=8)
def draw_pairs(num_elements: int, ratio: float, seed: int) -> Tensor:
    """Draw ratio x num_elements pairs of different elements, without repetition.

    Returns:
        int64 [2, pairs].

    Raises:
        ValueError: no pair, or more pairs than there are.

    References: Chu et al. 2025, eq. 15; the numbering of pairs: this project, checked in
        tests/posterior/test_parts.py.
    """
    num_pairs = round(ratio * num_elements)
    max_pairs = num_elements * (num_elements - 1) // 2
    if not 1 <= num_pairs <= max_pairs:
        raise ValueError(
            f"ratio={ratio} means {num_pairs} pairs of {num_elements} elements; "
            f"it must be between 1 and {max_pairs}"
        )
    number = np.random.default_rng(seed).choice(max_pairs, num_pairs, replace=False)
    # pair (i, j), i < j, has the number j (j - 1) / 2 + i; rounding may give one j too many
    j = ((1 + np.sqrt(8 * number + 1)) / 2).astype(np.int64)
    j = np.where(j * (j - 1) // 2 > number, j - 1, j)
    i = number - j * (j - 1) // 2
    return torch.from_numpy(np.stack([i, j]))


@dataclass(frozen=True)
class Decoded(Operator):
    """An operator on decoded data, G(decoder(x)): the diffusion model generates codes x.

    Args:
        decoder: codes x [n, *shape], float64 -> data [n, *decoded_shape].
        decoded_shape: shape of what the decoder returns.
        operator: G, of the decoded data.
        encoder: data [n, *decoded_shape] -> codes [n, *shape], near integers. With an encoder,
            chains start at the measurement; None starts them at samples of the prior.

    References: Chu et al. 2025, appendix D.1.

    Example:
        >>> operator = Decoded(lambda x: 2 * x, (3,), Identity())
        >>> operator(torch.tensor([[3, 0, 1]])).tolist()
        [[6.0, 0.0, 2.0]]
    """

    decoder: Callable[[Tensor], Tensor]
    decoded_shape: tuple[int, ...] | list[int]
    operator: Operator
    encoder: Callable[[Tensor], Tensor] | None = None

    __repr__ = format_fields

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", self.operator.noise)

    def __call__(self, x: Tensor) -> Tensor:
        """Return G(decoder(x)), float64 [n, *measurement].

        Raises:
            ValueError: the decoder returns another shape.
        """
        data = self.decoder(x).detach()
        if tuple(data.shape[1:]) != tuple(self.decoded_shape):
            shape = tuple(data.shape[1:])
            raise ValueError(
                f"decoded_shape={list(self.decoded_shape)}, but the decoder returns {shape}"
            )
        return self.operator(data)

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the measurement shape of G."""
        return self.operator.measurement_shape(tuple(self.decoded_shape))

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Return the codes of G's back-projection, [n, *shape]; None without an encoder."""
        data = self.operator.back_project(m, tuple(self.decoded_shape))
        if data is None or self.encoder is None:
            return None
        codes = self.encoder(data).detach().double()
        code_shape = tuple(codes.shape[1:])
        ensure(code_shape == shape, f"the encoder returns {code_shape}, not {shape}")
        return codes

    def prepare(self, model: BlackoutDiffusion) -> None:
        """Prepare G."""
        self.operator.prepare(model)

    def observed_mask(self, shape: Shape) -> Tensor | None:
        """Return the observed elements of G's measurement."""
        return self.operator.observed_mask(tuple(self.decoded_shape))
