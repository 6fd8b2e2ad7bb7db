"""How a measurement y is seen given its noiseless value m, by Gaussian, Poisson or thinned noise or exactly:
log p(y | m), elementwise, for real m too.

Settings such as `survival` are maps: one number, or one for every element of a measurement.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from blackout.data.formats import load_array
from blackout.errors import UserError, ensure
from blackout.random import RandomSource, binomial, poisson, uniform

Map: TypeAlias = float | str | Sequence[float]
"""A number, or one for every element of a measurement: a list or an .npy file, in the measurement's order."""


def as_map(value: Map, name: str) -> Tensor:
    """A number or map as float64, [] or of the map's own shape.

    Raises:
        ValueError: a file that is not an .npy of numbers, or anything else that is not a number.
    """
    if isinstance(value, str):
        return torch.from_numpy(read_array(value, name))
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if not bool(torch.isfinite(tensor).all()):  # not `ensure`: to write a map of tensors takes longer than a step
        raise ValueError(f"{name} must be finite, not {value}")
    return tensor


def read_array(path: str, name: str, of: str = "numbers", dtype: type | None = np.float64) -> np.ndarray:
    """The array of an .npy file, or the one of this name in an .npz, as `dtype`; None leaves it as it is.

    Raises:
        ValueError: it is no such file; `of` says what it should have held.
    """
    try:
        array = load_array(Path(path), name)
    except UserError as error:
        raise ValueError(f"{name}={path} is not an .npy file of {of}: {error}") from None
    ensure(array.dtype.kind in "biuf", f"{name}={path} is not an .npy file of {of}: it holds {array.dtype}")
    return np.asarray(array, dtype)


def like(value: Map, y: Tensor, name: str) -> Tensor:
    """A map for measurements [n, *measured], float64 [] or [1, *measured]; that of a file images channels last.

    One number for every row, [n, 1, ...], remains so: row r of y has that of row r modulo n.
    """
    tensor = as_map(value, name).to(y.device)
    if not tensor.ndim:
        return tensor
    if tensor.ndim == y.ndim and tensor[0].numel() == 1:
        return tensor if len(y) < len(tensor) else tensor.repeat(len(y) // len(tensor), *[1] * (y.ndim - 1))
    ensure(tensor.numel() == y[0].numel(), f"{name} has {tensor.numel()} elements, a measurement {y[0].numel()}")
    if tensor.ndim == 3 and tuple(tensor.shape) == (*y.shape[2:], y.shape[1]) != tuple(y.shape[1:]):
        tensor = tensor.permute(2, 0, 1)  # a file of images channels last, as measurements are
    return tensor.reshape(1, *y.shape[1:])


_RULES: dict[str, Callable[[Tensor], Tensor]] = {
    "be positive": lambda v: v > 0, "not be negative": lambda v: v >= 0,
    "be above 0 and at most 1": lambda v: (v > 0) & (v <= 1), "be finite": torch.isfinite,
}  # fmt: skip


class Noise(ABC):
    """p(y | m) for measurements float64 [n, *measured]: of whole numbers y, expected to be m, unless it says more."""

    real: ClassVar[bool] = True
    """Whether log p(y | m) changes gently between whole m."""
    whole: ClassVar[bool] = True
    """Whether y are whole numbers."""
    allowed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What settings must be, maps all over: a key of `_RULES` by name."""

    def __post_init__(self) -> None:
        for name, rule in self.allowed.items():
            value = getattr(self, name)
            if not bool(_RULES[rule](as_map(value, name)).all()):
                raise ValueError(f"{name} must {rule}, not {value}")

    @abstractmethod
    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """log p(y | m), float64 of the broadcast shape; -inf where y is impossible."""

    @abstractmethod
    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """y given m, float64 of m's shape."""

    def estimate(self, y: Tensor) -> Tensor:
        """The m that y is expected of, float64 of y's shape [n, *measured], not negative: the mean is a line in m.

        By the method of moments; ours (tests/posterior/test_parts.py).
        """
        base = self.mean(torch.zeros_like(y))
        return ((y.double() - base) / (self.mean(torch.ones_like(y)) - base)).clamp(min=0)

    def mean(self, m: Tensor) -> Tensor:
        """E[y | m], float64 of m's shape."""
        return m.double()

    def variance(self, m: Tensor) -> Tensor:
        """Var[y | m], float64 of m's shape."""
        return torch.zeros_like(m, dtype=torch.float64)

    def check(self, y: Tensor) -> None:
        """Raise ValueError for a y that no m can give."""
        if self.whole and not bool((torch.isfinite(y) & (y >= 0) & (y == y.round())).all()):
            raise ValueError("y must be whole numbers from 0 on")
        ensure(bool(torch.isfinite(y).all()), "y must be finite")

    def select(self, rows: Tensor) -> Noise:
        """That of these rows, where a number is another one for every row, [n, 1, ...]."""
        own: dict[str, object] = vars(self) if is_dataclass(self) else {}
        each = {name: v for name, v in own.items() if isinstance(v, Tensor) and v[:1].numel() == 1 < v.ndim}
        chosen = {name: v[rows.to(v.device)] for name, v in each.items()}
        return replace(self, **chosen) if each else self  # type: ignore[type-var]

    def thinned(self, survival: float, y: Tensor, largest: int) -> Noise | None:
        """A noise whose average over z ~ Binomial(m, survival) is this one, whatever m is; None where there is none.

        Args:
            survival: share of the units of m that z has.
            y: measurements it will be asked for.
            largest: m it will be asked for.
        """
        return None


@dataclass(frozen=True)
class Exact(Noise):
    """y = m."""

    real: ClassVar[bool] = False

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """0 where y is m, else -inf, float64 [n, *measured]: by definition."""
        return torch.where(y == m, 0.0, -math.inf).double()

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """m itself, [n, *measured]."""
        return m.double()


@dataclass(frozen=True)
class Flips(Exact):
    """A mismatch costs `penalty` nats, as in [Chu 2025, section 4.5]. Simulated measurements have none.

    Args:
        penalty: positive.

    Raises:
        ValueError: it is not.
    """

    penalty: float = 3.0
    allowed: ClassVar = {"penalty": "be positive"}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """-penalty (y != m), [n, *measured], which is not normalised [Chu 2025, section 4.5]."""
        return (y != m).double() * -self.penalty


@dataclass(frozen=True)
class Binomial(Noise):
    """y ~ Binomial(m, survival): every unit is seen with probability `survival`.

    Mass, mean and variance are checked in tests/posterior/test_parts.py.

    Args:
        survival: in (0, 1].

    Raises:
        ValueError: it is not.
    """

    survival: Map = 0.3
    allowed: ClassVar = {"survival": "be above 0 and at most 1"}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """log C(m, y) + y log p + (m - y) log(1 - p), [n, *measured], by log-gamma for real m; -inf where y > m.

        A binomial's mass by definition; real m are ours (tests/posterior/test_parts.py).
        """
        p, y, m = like(self.survival, y, "survival"), y.double(), m.double()
        rest = (m - y).clamp(min=0)
        ways = torch.lgamma(m.clamp(min=0) + 1) - torch.lgamma(y + 1) - torch.lgamma(rest + 1)
        value = ways + torch.special.xlogy(y, p) + torch.special.xlogy(rest, 1 - p)
        return torch.where(m >= y, value, -math.inf)

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Counts y of m, float64 [n, *measured], by `binomial`, of the class's law."""
        return binomial(m.round().double(), like(self.survival, m, "survival").expand(m.shape), source).double()

    def mean(self, m: Tensor) -> Tensor:
        """p m of m, float64 [n, *measured]: a binomial's by definition, see the class."""
        return m.double() * like(self.survival, m, "survival")

    def variance(self, m: Tensor) -> Tensor:
        """p (1 - p) m of m, float64 [n, *measured]: a binomial's by definition, see the class."""
        return self.mean(m) * (1 - like(self.survival, m, "survival"))

    def thinned(self, survival: float, y: Tensor, largest: int) -> Noise | None:
        """Of what is left every unit is seen with probability p / survival, maps or numbers, if that is one.

        Ours (tests/verification/posterior_claims.py).
        """
        p = as_map(self.survival, "survival") / survival
        return None if bool((p > 1).any()) else Binomial(p.tolist())


@dataclass(frozen=True)
class Poisson(Noise):
    """y ~ Poisson(exposure m + background): photons on a detector with dark counts.

    Mass, mean and variance are checked in tests/posterior/test_parts.py.

    Args:
        exposure: mean counts per unit, positive.
        background: mean dark counts, not negative.

    Raises:
        ValueError: out of range.
    """

    exposure: Map = 1.0
    background: Map = 0.0
    allowed: ClassVar = {"exposure": "be positive", "background": "not be negative"}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """y log(s m + b) - (s m + b) - log y!, float64 [n, *measured]; -inf where the rate is negative.

        A Poisson mass by definition, see the class.
        """
        rate = self.mean(m)
        value = torch.special.xlogy(y.double(), rate.clamp(min=0)) - rate - torch.lgamma(y.double() + 1)
        return torch.where(rate < 0, -math.inf, value)

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Counts y of m, float64 [n, *measured], by `poisson`, of the class's law."""
        return poisson(self.mean(m), source)

    def mean(self, m: Tensor) -> Tensor:
        """s m + b of m, float64 [n, *measured]: by definition, see the class."""
        return m.double() * like(self.exposure, m, "exposure") + like(self.background, m, "background")

    def variance(self, m: Tensor) -> Tensor:
        """The mean, float64 [n, *measured], as of all Poisson counts, see the class."""
        return self.mean(m)

    def thinned(self, survival: float, y: Tensor, largest: int) -> Noise | None:
        """See `ThinnedPoisson`; for one exposure and background alone, and tables of a million numbers at most."""
        exposure, background = as_map(self.exposure, "exposure"), as_map(self.background, "background")
        if exposure.ndim or background.ndim or survival <= -math.expm1(-float(exposure)):
            return None
        most, usual = int(y.max()), float(exposure) * largest + float(background) + 1
        if (largest + 1) * usual > 1_000_000 or most > 10 * usual + 1000:
            return None
        table = _thinned_table(float(exposure), float(background), survival, most, largest)
        return ThinnedPoisson(self.exposure, self.background, table=table)


@dataclass(frozen=True)
class ThinnedPoisson(Poisson):
    """g_y(z), whose average over z ~ Binomial(m, q) is the Poisson probability of y given m: for whole z alone.

    With g(z) = b^z the average is a^m, a = 1 - q + q b; and z (g(z) + (1 / q - 1) g(z - 1)) averages to m times what g
    does. So all powers of m times e^(-s m) are at hand, with positive terms alone as long as q > 1 - e^-s. Ours; the
    average is checked in tests/verification/posterior_claims.py.

    Args:
        table: log g_y(z), float64 [largest y + 1, largest z + 1].
    """

    table: Tensor = field(kw_only=True)

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """log g_y(m) of the class by its table, float64 [n, *measured]."""
        return self.table.to(m.device)[y.long().expand_as(m), m.long()]


@lru_cache(maxsize=256)
def _thinned_table(exposure: float, background: float, survival: float, most: int, largest: int) -> Tensor:
    """log g_y(z) of `ThinnedPoisson`, float64 [most + 1, largest + 1], by its recursion in y; dark counts convolved.

    Ours (tests/verification/posterior_claims.py).
    """
    z = torch.arange(largest + 1, dtype=torch.float64)
    g = z * math.log1p(math.expm1(-exposure) / survival)
    rows = [g]
    for _ in range(most):
        before = torch.cat([torch.full((1,), -math.inf, dtype=torch.float64), g[:-1]])
        g = z.log() + torch.logaddexp(g, before + math.log(1 / survival - 1))
        rows.append(g)
    y = torch.arange(most + 1, dtype=torch.float64)
    table = torch.stack(rows) + (y * math.log(exposure) - torch.lgamma(y + 1))[:, None]
    if background == 0:
        return table
    dark = torch.special.xlogy(y, torch.full_like(y, background)) - background - torch.lgamma(y + 1)
    return torch.stack([torch.logsumexp(table[: k + 1] + dark[: k + 1].flip(0)[:, None], 0) for k in range(most + 1)])


@dataclass(frozen=True)
class Gaussian(Noise):
    """y = m + a normal error. Mean and variance are checked in tests/posterior/test_parts.py.

    Args:
        std: of the error, positive.

    Raises:
        ValueError: it is not.
    """

    whole: ClassVar[bool] = False
    std: Map = 1.0
    allowed: ClassVar = {"std": "be positive"}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """-(y - m)^2 / 2 std^2 - log(std sqrt(2 pi)), float64 [n, *measured]: a normal density by definition, see the
        class.
        """
        std = like(self.std, y, "std")
        return -(((y - m).double() / std) ** 2) / 2 - (math.sqrt(2 * math.pi) * std).log()

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Normal by two uniforms each [Box and Muller 1958], [n, *measured]."""
        shape = tuple(m.shape)
        u, v = (uniform(shape, source, m.device) for _ in range(2))
        normal = torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * math.pi * v)
        return m.double() + normal * like(self.std, m, "std")

    def variance(self, m: Tensor) -> Tensor:
        """std^2 of m, float64 [n, *measured]: by definition, see the class."""
        return like(self.std, m, "std").expand(m.shape) ** 2


_TAIL = 6.0
"""Standard deviations of the readout noise within which numbers of photons are summed over."""


@dataclass(frozen=True)
class Camera(Poisson):
    """y = offset + gain N + a normal error, N ~ Poisson(exposure m + background): what a camera writes.

    Summed over N, with no approximation but that N lies within six standard deviations of the error. Ours
    (tests/posterior/test_parts.py).

    Args:
        exposure, background: see `Poisson`.
        gain: units of y per photon, positive.
        offset: y of no photon.
        readout: standard deviation of the error in units of y, positive.

    Raises:
        ValueError: out of range.
    """

    whole: ClassVar[bool] = False
    gain: Map = 1.0
    offset: Map = 0.0
    readout: Map = 1.0
    allowed: ClassVar = {**Poisson.allowed, "gain": "be positive", "readout": "be positive", "offset": "be finite"}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """log sum_N Poisson(N; s m + b) Normal(y; offset + gain N, readout), float64 [n, *measured], see the class."""
        gain, rate = like(self.gain, y, "gain"), Poisson.mean(self, m)
        near, deviation = (y.double() - like(self.offset, y, "offset")) / gain, like(self.readout, y, "readout") / gain
        reach = math.ceil(_TAIL * float(deviation.max()))
        n = near.round() + torch.arange(-reach, reach + 1, device=y.device).double().view(-1, *[1] * y.ndim)
        scale = (math.sqrt(2 * math.pi) * like(self.readout, y, "readout")).log()
        normal = -(((near - n) / deviation) ** 2) / 2 - scale
        fixed = torch.where(n < 0, -math.inf, normal - torch.lgamma(n.clamp(min=0) + 1))
        value = torch.logsumexp(fixed + torch.special.xlogy(n.clamp(min=0), rate.clamp(min=0)), 0) - rate
        return torch.where(rate < 0, -math.inf, value)

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Photons, amplified and read out, of m: float64 [n, *measured], of the class's law."""
        amplified = poisson(Poisson.mean(self, m), source) * like(self.gain, m, "gain")
        return like(self.offset, m, "offset") + Gaussian(self.readout).draw(amplified, source)

    def mean(self, m: Tensor) -> Tensor:
        """offset + gain (s m + b) of m, float64 [n, *measured], of the class's law."""
        return like(self.offset, m, "offset") + like(self.gain, m, "gain") * super().mean(m)

    def variance(self, m: Tensor) -> Tensor:
        """gain^2 (s m + b) + readout^2, float64 [n, *measured], of the class's law: by the law of total variance."""
        return like(self.gain, m, "gain") ** 2 * Poisson.mean(self, m) + like(self.readout, m, "readout") ** 2

    def thinned(self, survival: float, y: Tensor, largest: int) -> None:
        """None is known."""
