"""What is measured: m = G(x), and what is known about which element of x each element of y depends on.

An operator of your own derives from `Operator`, of which nothing is known but its values: chains then take Metropolis
steps. With `incidence` elements that share no term are drawn together; with `counting` likelihoods of thinned counts
are used. `Separable` ones show x itself, `Sums` are weighted sums of elements, `Pairs` functions of two pixels each.
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


class Judged(NamedTuple):
    """Samples for a judge that knows what they should be: an operator, or the law they were drawn from.

    Args:
        samples: counts [n, *shape].
        of: row of each one's measurement, int64 [n].
        problem: all measurements, a `Measured`, which stands above this file.
        truths: counts [M, *shape], where they are known.
        seed: of the samples.
    """

    samples: Tensor
    of: Tensor
    problem: Any
    truths: Tensor | None
    seed: int


class Operator(ABC):
    """G, for data [n, *shape], whole or not: a black box that gives one number, unless it says more."""

    binary: ClassVar[bool] = False
    """Whether data must be 0 and 1."""
    counting: bool = False
    """Whether every element of y is a sum of elements of x: units of m then vanish with those of x."""
    linear: ClassVar[bool] = False
    """Whether G(a x + b z) = a G(x) + b G(z): levels of an element are then tried at the price of a sum each."""
    noise: Noise = Exact()
    """How it is seen unless the user says otherwise."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """G(x), float64 [n, *measured(shape)]."""

    def measured(self, shape: Shape) -> Shape:
        """Shape of a measurement of data of this shape; raises ValueError where there is none."""
        return (1,)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Which element of x each element of y depends on: pairs (number in y, number in x), int64 [2, P].

        None where that is not known, or anything depends on everything.
        """
        return None

    def seen(self, shape: Shape) -> Tensor | None:
        """Which elements of y there are, bool [*measured]; None for all."""
        return None

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Data [n, *shape] near such an m, to start from; None where no such data are known."""
        return None

    def prepare(self, model: BlackoutDiffusion) -> None:
        """Take what it needs of the model or its data, before anything is measured."""
        return

    def judge(self, judged: Judged, directory: Path) -> dict[str, Any]:
        """Figures of its own about samples, `values` among them, for metrics.json; may write pictures."""
        return {}


class Separable(Operator):
    """m = x, or x where it is seen."""

    counting = True
    linear = True

    def __call__(self, x: Tensor) -> Tensor:
        """x, float64 [n, *shape]."""
        return x.double()

    def measured(self, shape: Shape) -> Shape:
        """x's own."""
        return shape

    def incidence(self, shape: Shape) -> Tensor | None:
        """Each element on itself, where it is seen: int64 [2, P]."""
        seen, number = self.seen(shape), torch.arange(math.prod(shape))
        return (number if seen is None else number[seen.flatten()]).expand(2, -1)

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """m where it is seen, else 0: [n, *shape]."""
        seen = self.seen(shape)
        return m if seen is None else torch.where(seen.to(m.device), m, 0.0)


class Identity(Separable):
    """All of x."""


@dataclass(frozen=True)
class Inpaint(Separable):
    """The observed elements of x.

    Args:
        mask: bool of x's shape, True where it is observed; or an .npy file of it (or .npz with `mask`), images channels
            last.
    """

    mask: Tensor | str

    def seen(self, shape: Shape) -> Tensor | None:
        """The mask, bool [*shape]."""
        mask = self.mask if isinstance(self.mask, Tensor) else self._read(shape)
        if tuple(mask.shape) != shape or mask.dtype != torch.bool:
            raise ValueError(f"mask must be booleans of shape {shape}, not {mask.dtype} of {tuple(mask.shape)}")
        return _not_empty(mask)

    def _read(self, shape: Shape) -> Tensor:
        array = read_array(str(self.mask), "mask", "booleans", dtype=None)
        ensure(array.dtype == bool, f"mask={self.mask} must hold booleans, not {array.dtype}")
        mask = torch.from_numpy(array)
        mask = mask[None] if mask.ndim == 2 and (1, *mask.shape) == shape else mask
        return mask.permute(2, 0, 1) if mask.ndim == 3 and tuple(mask.shape) != shape else mask


@dataclass(frozen=True)
class InpaintBox(Separable):
    """All of an image but a box.

    Args:
        rows, columns: first and last hidden one.
    """

    rows: Sequence[int] = (2, 5)
    columns: Sequence[int] = (1, 6)

    def seen(self, shape: Shape) -> Tensor | None:
        """False in the box, bool [*shape]."""
        ensure(len(shape) == 3, f"a box is hidden in images, not in data of shape {shape}")
        for name, ends, size in (("rows", self.rows, shape[1]), ("columns", self.columns, shape[2])):
            if len(ends) != 2 or not 0 <= ends[0] <= ends[1] < size:
                raise ValueError(f"{name} must be the first and last hidden one of 0..{size - 1}, not {list(ends)}")
        mask = torch.ones(shape, dtype=torch.bool)
        mask[:, self.rows[0] : self.rows[1] + 1, self.columns[0] : self.columns[1] + 1] = False
        return _not_empty(mask)


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
        """A fixed share of elements, bool [*shape]."""
        ensure(0 < self.hidden < 1, f"hidden must be a share between 0 and 1, not {self.hidden}")
        elements = math.prod(shape)
        order = torch.randperm(elements, generator=torch.Generator().manual_seed(self.seed))
        mask = torch.ones(elements, dtype=torch.bool)
        mask[order[: round(self.hidden * elements)]] = False
        return _not_empty(mask.view(shape))


def _not_empty(mask: Tensor) -> Tensor:
    ensure(bool(mask.any()), "mask: no element is observed")
    return mask


@dataclass(frozen=True)
class Function(Operator):
    """Any callable on tensors, a black box: a function, a torch module, a physics object of deepinv (its `A`).

    Args:
        function: x [n, *shape], float64, or in the type of a module's weights -> m [n, *measured].

    Raises:
        ValueError: when called, what it returns is not one tensor for every x.
    """

    function: Callable[[Tensor], Tensor]
    noise = Gaussian()

    def __call__(self, x: Tensor) -> Tensor:
        """m = G(x) of x [n, *shape], float64 [n, *measured]."""
        weights = self.function.parameters() if isinstance(self.function, nn.Module) else iter(())
        value = getattr(self.function, "A", self.function)(x.to(next(weights, x).dtype))
        if not isinstance(value, Tensor) or value.shape[:1] != x.shape[:1] or value.ndim < 2:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"function must return m [n, ...] for x [n, ...], not {found} for {tuple(x.shape)}")
        return value.detach().double()

    def measured(self, shape: Shape) -> Shape:
        return tuple(self(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])


class Sums(Operator):
    """m = A x with A >= 0, of photons."""

    linear = True
    noise = Poisson()

    def transposed(self, m: Tensor, shape: Shape) -> Tensor:
        """A^T m of m [n, *measured], float64 [n, *shape]: the gradient of the sum of m A x."""
        x = torch.zeros((len(m), *shape), dtype=torch.float64, device=m.device)
        return torch.func.vjp(self, x)[1](m.double())[0]

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """A^T (m / A 1) / A^T 1: each sum spread over its elements, averaged where they take part in several.

        float64 [n, *shape]. Ours (tests/posterior/test_parts.py).
        """
        ones = torch.ones((1, *shape), dtype=torch.float64, device=m.device)
        spread = self.transposed(m / self(ones).clamp(min=1e-12), shape)
        return spread / self.transposed(torch.ones_like(m[:1]), shape).clamp(min=1e-12)


@dataclass(frozen=True)
class Pool(Sums):
    """Sums over blocks of size x size pixels, or of `size` neighbours of a vector (tests/posterior/test_parts.py).

    Args:
        size: side of a block, which must divide the sides of the image.
    """

    size: int = 2
    counting = True

    def measured(self, shape: Shape) -> Shape:
        """The number of blocks in each direction."""
        if self.size < 1 or len(shape) not in (1, 3) or any(side % self.size for side in shape[-2:]):
            raise ValueError(f"size={self.size}: such blocks do not divide data of shape {shape}")
        return (*shape[:-2], *(side // self.size for side in shape[-2:]))

    def __call__(self, x: Tensor) -> Tensor:
        """Sums over blocks of x [n, *shape], float64 [n, *measured]: by definition, see the class."""
        blocks = self.measured(tuple(x.shape[1:]))
        if len(blocks) == 1:
            return x.double().reshape(len(x), -1, self.size).sum(-1)
        # by slices: several times faster than a sum over two axes of blocks
        corners = [x[:, :, i :: self.size, j :: self.size] for i in range(self.size) for j in range(self.size)]
        return sum(corners[1:], corners[0].double())

    def incidence(self, shape: Shape) -> Tensor | None:
        """int64 [2, P]: see `Operator.incidence`."""
        blocks = self.measured(shape)
        number = torch.arange(math.prod(blocks)).view(1, *blocks)
        return torch.stack([self.transposed(number, shape).flatten().long(), torch.arange(math.prod(shape))])


@dataclass(frozen=True)
class Blur(Sums):
    """A normal point spread function, every channel by itself, black beyond the border (tests/posterior/test_parts.py).

    Args:
        size: pixels across, odd.
        width: standard deviation in pixels.
    """

    size: int = 3
    width: float = 1.0

    def measured(self, shape: Shape) -> Shape:
        if self.size < 1 or self.size % 2 == 0 or not self.width > 0:
            raise ValueError(f"size must be odd and width positive, not {self.size} and {self.width}")
        ensure(len(shape) == 3, f"blur is for images, not for data of shape {shape}")
        return shape

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, C, H, W] convolved with the class's spread function, float64 [n, C, H, W]: by definition, see the
        class.
        """
        self.measured(tuple(x.shape[1:]))
        offset = torch.arange(self.size, dtype=torch.float64, device=x.device) - self.size // 2
        line = torch.exp(-((offset / self.width) ** 2) / 2)
        weights = torch.outer(line, line) / line.sum() ** 2
        flat = F.conv2d(x.double().flatten(0, 1)[:, None], weights[None, None], padding=self.size // 2)
        return flat.view(x.shape)

    def incidence(self, shape: Shape) -> Tensor | None:
        """int64 [2, P]: see `Operator.incidence`."""
        number = torch.arange(math.prod(shape)).view(shape[0], 1, *shape[1:])
        # numbers from 1, so that 0 is what lies beyond the border: [C, size^2, H W]
        near = F.unfold(number.double() + 1, self.size, padding=self.size // 2).long() - 1
        pairs = torch.stack([number.flatten(2).expand_as(near), near]).flatten(1)
        return pairs[:, pairs[1] >= 0]


@dataclass(frozen=True)
class Matrix(Sums):
    """m = A x for any matrix; one with negative numbers is seen with a normal error unless the user says otherwise.

    Args:
        matrix: float [K, D], or an .npy file of it; x in the order channel, row, column.

    Raises:
        ValueError: it is no such matrix.
    """

    matrix: Tensor | str
    values: ClassVar[Tensor] = torch.empty(0)

    def __post_init__(self) -> None:
        given = self.matrix
        values = given if isinstance(given, Tensor) else torch.from_numpy(read_array(given, "matrix"))
        if values.ndim != 2 or not bool(torch.isfinite(values).all()):
            raise ValueError(f"matrix must be finite numbers of shape [K, D], not of {tuple(values.shape)}")
        object.__setattr__(self, "values", values.double())
        object.__setattr__(self, "counting", bool(((values == 0) | (values == 1)).all()))
        object.__setattr__(self, "noise", Gaussian() if bool((values < 0).any()) else Poisson())

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """As of all sums; with negative numbers the data of least squares, A's pseudo-inverse times m [n, K]:
        [n, *shape].

        Ours (tests/posterior/test_parts.py).
        """
        if bool((self.values >= 0).all()):
            return super().back_project(m, shape)
        return (m @ torch.linalg.pinv(self.values).T.to(m.device)).view(-1, *shape).clamp(min=0)

    def measured(self, shape: Shape) -> Shape:
        if self.values.shape[1] != math.prod(shape):
            raise ValueError(f"matrix has {self.values.shape[1]} columns, but data of shape {shape}")
        return (len(self.values),)

    def __call__(self, x: Tensor) -> Tensor:
        """A x of x [n, *shape], float64 [n, K]: by definition."""
        self.measured(tuple(x.shape[1:]))
        return x.double().flatten(1) @ self.values.to(x.device).T

    def incidence(self, shape: Shape) -> Tensor | None:
        """int64 [2, P]: see `Operator.incidence`."""
        return self.values.nonzero().T


@dataclass(frozen=True)
class Pairs(Operator):
    """A function of ratio x D random pairs of elements, the same for all measurements [Chu 2025, eq. 15].

    Args:
        ratio: pairs of different elements per element; none occurs twice.
        seed: of the choice.

    Raises:
        ValueError: ratio is not positive.
    """

    ratio: float = 0.5
    seed: int = 0
    binary: ClassVar[bool] = True
    noise = Flips()

    def __post_init__(self) -> None:
        ensure(0 < self.ratio < math.inf, f"ratio must be positive, not {self.ratio}")

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
        """Each pair on its two elements, int64 [2, 2 pairs]."""
        pairs = self.pairs(shape)
        return torch.stack([torch.arange(pairs.shape[1]).repeat(2), pairs.flatten()])


class Xor(Pairs):
    """1 where the two differ [Chu 2025, eq. 15]."""

    def __call__(self, x: Tensor) -> Tensor:
        """|a - b| of the two ends of every pair, float64 [n, pairs] [Chu 2025, eq. 15]."""
        a, b = self.ends(x)
        return (a - b).abs()


class And(Pairs):
    """1 where both are 1 [Chu 2025, eq. 15]."""

    def __call__(self, x: Tensor) -> Tensor:
        """a b of the two ends of every pair, float64 [n, pairs] [Chu 2025, eq. 15]."""
        a, b = self.ends(x)
        return a * b


@lru_cache(maxsize=8)
def _pairs(elements: int, ratio: float, seed: int) -> Tensor:
    """Both elements of ratio x elements pairs, none twice, int64 [2, pairs]: the pairs of [Chu 2025, eq. 15].

    Pairs are numbered, and that numbers are pairs is ours (tests/posterior/test_parts.py).
    """
    number, all_pairs = round(ratio * elements), elements * (elements - 1) // 2
    if not 1 <= number <= all_pairs:
        raise ValueError(f"ratio={ratio} asks for {number} pairs of {elements} elements; there are {all_pairs}")
    chosen = np.random.default_rng(seed).choice(all_pairs, number, replace=False)
    # pair c is (i, j), i < j, with c = j (j - 1) / 2 + i
    j = ((1 + np.sqrt(8 * chosen + 1)) / 2).astype(np.int64)
    j = np.where(j * (j - 1) // 2 > chosen, j - 1, j)
    return torch.from_numpy(np.stack([chosen - j * (j - 1) // 2, j]))


@dataclass(frozen=True)
class Decoded(Operator):
    """An operator of decoder(x): x are codes, what is measured is what they stand for [Chu 2025, appendix D.1].

    Args:
        decoder: x [n, *shape], float64 -> [n, *decoded].
        decoded: its shape.
        operator: of what is decoded, here called G.
        encoder: the way back, [n, *decoded] -> [n, *shape] near counts: chains then begin at the data.
    """

    decoder: Callable[[Tensor], Tensor]
    decoded: tuple[int, ...] | list[int]
    operator: Operator
    encoder: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", self.operator.noise)

    def __call__(self, x: Tensor) -> Tensor:
        """G(decoder(x)), [n, *measured]."""
        value = self.decoder(x).detach()
        if tuple(value.shape[1:]) != tuple(self.decoded):
            raise ValueError(f"the decoder returns {tuple(value.shape[1:])}, not decoded={list(self.decoded)}")
        return self.operator(value)

    def measured(self, shape: Shape) -> Shape:
        """G's."""
        return self.operator.measured(tuple(self.decoded))

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """G's, encoded, [n, *shape]; None without an encoder."""
        near = self.operator.back_project(m, tuple(self.decoded))
        if near is None or self.encoder is None:
            return None
        codes = self.encoder(near).detach().double()
        ensure(tuple(codes.shape[1:]) == shape, f"the encoder returns {tuple(codes.shape[1:])}, not {shape}")
        return codes

    def prepare(self, model: BlackoutDiffusion) -> None:
        """G's."""
        self.operator.prepare(model)

    def seen(self, shape: Shape) -> Tensor | None:
        """G's."""
        return self.operator.seen(tuple(self.decoded))
