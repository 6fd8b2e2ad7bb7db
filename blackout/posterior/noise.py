"""Noise models: the distribution p(y | m) of a measurement y given its noiseless value m.

All are elementwise, and defined for real m too. Parameters such as `survival` are maps: one number
for all elements of a measurement, or one number for each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.posterior.parameter_maps import (
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    Constraint,
    ParameterMap,
    broadcast_map,
    to_tensor,
)
from blackout.random import RandomSource, binomial, poisson, uniform
from blackout.representation import format_arguments, format_fields

MAX_TABLE_SIZE = 1_000_000  # entries of a table of `ThinnedPoisson`, 8 MB
CAMERA_TAIL = 6.0  # standard deviations of readout noise within which photon numbers are summed


class Noise(ABC):
    """A distribution p(y | m) of measurements y, float64 [n, *measurement].

    By default y are integers with expectation m.

    References: this project; checked in tests/posterior/test_noise.py.
    """

    # whether log p(y | m) is smooth in m, so that real m between integers make sense
    smooth: ClassVar[bool] = True
    # whether y are integers
    integer_valued: ClassVar[bool] = True
    # whether p(y | m) sums to 1 over y, so that evidence can be estimated
    normalised: ClassVar[bool] = True
    # conditions on parameters, by name
    constraints: ClassVar[Mapping[str, Constraint]] = MappingProxyType({})

    __repr__ = format_arguments

    def __post_init__(self) -> None:
        for name, constraint in self.constraints.items():
            value = getattr(self, name)
            if not bool(constraint.holds(to_tensor(value, name)).all()):
                raise ValueError(f"{name} must {constraint.description}, not {value}")

    @abstractmethod
    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return log p(y | m), float64 of the broadcast shape; -inf where y is impossible."""

    @abstractmethod
    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Draw y given m, float64 of m's shape."""

    def estimate(self, y: Tensor) -> Tensor:
        """Estimate m from y by the method of moments.

        The mean of y must be linear in m.

        Returns:
            float64 of y's shape [n, *measurement], not negative.

        References: this project; checked in tests/posterior/test_noise.py.
        """
        mean_at_zero = self.mean(torch.zeros_like(y))
        slope = self.mean(torch.ones_like(y)) - mean_at_zero
        return ((y.double() - mean_at_zero) / slope).clamp(min=0)

    def mean(self, m: Tensor) -> Tensor:
        """Return E[y | m], float64 of m's shape."""
        return m.double()

    def variance(self, m: Tensor) -> Tensor:
        """Return Var[y | m], float64 of m's shape."""
        return torch.zeros_like(m, dtype=torch.float64)

    def check(self, y: Tensor) -> None:
        """Check that y are possible measurements.

        Raises:
            ValueError: y that no m can give.
        """
        is_whole = torch.isfinite(y) & (y >= 0) & (y == y.round())
        if self.integer_valued and not bool(is_whole.all()):
            raise ValueError("y must be whole numbers of at least 0")
        ensure(bool(torch.isfinite(y).all()), "y must be finite")

    def select(self, rows: Tensor) -> Noise:
        """Return the noise of some rows of y, where parameters have a value per row [n, 1, ...]."""
        if not is_dataclass(self):
            return self
        selected: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and value.ndim > 1 and value[:1].numel() == 1:
                selected[name] = value[rows.to(value.device)]
        return replace(self, **selected) if selected else self

    def thin(self, survival: float, y: Tensor, max_m: int) -> Noise | None:
        """Return a noise whose average over z ~ Binomial(m, survival) is this one, for every m.

        Args:
            survival: probability that a unit of m is a unit of z.
            y: measurements at which the result will be evaluated.
            max_m: largest m.

        Returns:
            The noise p(y | z), or None where none is known.
        """
        return None


@dataclass(frozen=True)
class Exact(Noise):
    """No noise: y = m.

    References: definition of the class.

    Example:
        >>> Exact().log_prob(torch.tensor([2.0, 3.0]), torch.tensor([2, 2])).tolist()
        [0.0, -inf]
    """

    smooth: ClassVar[bool] = False

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return 0 where y equals m, else -inf, float64 [n, *measurement]."""
        return torch.where(y == m, 0.0, -math.inf).double()

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Return m itself, float64 [n, *measurement]."""
        return m.double()


@dataclass(frozen=True)
class Flips(Exact):
    """A penalty for every element in which y differs from m; simulated measurements have no noise.

    The likelihood is not normalised over y, so that no evidence follows from it.

    Args:
        penalty: in nats, positive.

    Raises:
        ValueError: a penalty that is not positive.

    References: Chu et al. 2025, section 4.5.

    Example:
        >>> Flips(2.0).log_prob(torch.tensor([0.0, 1.0]), torch.tensor([1, 1])).tolist()
        [-2.0, -0.0]
    """

    normalised: ClassVar[bool] = False
    penalty: float = 3.0
    constraints: ClassVar = {"penalty": POSITIVE}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return -penalty where y differs from m, else 0, float64 [n, *measurement].

        References: Chu et al. 2025, section 4.5.
        """
        return (y != m).double() * -self.penalty


@dataclass(frozen=True)
class Binomial(Noise):
    """Binomial thinning, y ~ Binomial(m, survival): every unit of m is detected or lost.

    Args:
        survival: probability that a unit is detected, in (0, 1].

    Raises:
        ValueError: a survival outside (0, 1].

    References: definition of the binomial; checked in tests/posterior/test_noise.py.

    Example:
        >>> m = torch.tensor([[10, 20]])
        >>> Binomial(0.3).mean(m).tolist()
        [[3.0, 6.0]]
        >>> Binomial(0.5).log_prob(torch.tensor([[1.0]]), torch.tensor([[2]])).exp().tolist()
        [[0.5]]
    """

    survival: ParameterMap = 0.3
    constraints: ClassVar = {"survival": PROBABILITY}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return log C(m, y) + y log p + (m - y) log(1 - p), float64 [n, *measurement].

        The gamma function extends it to real m; it is -inf where y > m.

        References: definition of the binomial; real m: this project, checked in
            tests/posterior/test_noise.py.
        """
        p = broadcast_map(self.survival, y, "survival")
        y = y.double()
        m = m.double()
        lost = (m - y).clamp(min=0)
        log_m_factorial = torch.lgamma(m.clamp(min=0) + 1)
        log_choices = log_m_factorial - torch.lgamma(y + 1) - torch.lgamma(lost + 1)
        log_p = log_choices + torch.special.xlogy(y, p) + torch.special.xlogy(lost, 1 - p)
        return torch.where(m >= y, log_p, -math.inf)

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Draw y given m, float64 [n, *measurement]; see `blackout.random.binomial`."""
        survival = broadcast_map(self.survival, m, "survival").expand(m.shape)
        return binomial(m.round().double(), survival, source).double()

    def mean(self, m: Tensor) -> Tensor:
        """Return p m, float64 [n, *measurement].

        References: definition of the binomial.
        """
        return m.double() * broadcast_map(self.survival, m, "survival")

    def variance(self, m: Tensor) -> Tensor:
        """Return p (1 - p) m, float64 [n, *measurement].

        References: definition of the binomial.
        """
        return self.mean(m) * (1 - broadcast_map(self.survival, m, "survival"))

    def thin(self, survival: float, y: Tensor, max_m: int) -> Noise | None:
        """Return thinning of z with p / survival, or None where that exceeds 1.

        References: this project; checked in tests/verification/posterior_claims.py.
        """
        p = to_tensor(self.survival, "survival") / survival
        return None if bool((p > 1).any()) else Binomial(p.tolist())


@dataclass(frozen=True)
class Poisson(Noise):
    """Shot noise, y ~ Poisson(exposure m + background): photons on a detector with dark counts.

    Args:
        exposure: mean counts per unit of m, positive.
        background: mean dark counts, not negative.

    Raises:
        ValueError: an exposure or background out of range.

    References: definition of the Poisson distribution; checked in tests/posterior/test_noise.py.

    Example:
        >>> Poisson(exposure=0.5, background=2.0).mean(torch.tensor([[4, 8]])).tolist()
        [[4.0, 6.0]]
    """

    exposure: ParameterMap = 1.0
    background: ParameterMap = 0.0
    constraints: ClassVar = {"exposure": POSITIVE, "background": NOT_NEGATIVE}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return y log(rate) - rate - log y!, float64 [n, *measurement], rate = s m + b.

        It is -inf where the rate is negative.

        References: definition of the Poisson distribution.
        """
        rate = self.mean(m)
        log_power = torch.special.xlogy(y.double(), rate.clamp(min=0))
        log_p = log_power - rate - torch.lgamma(y.double() + 1)
        return torch.where(rate < 0, -math.inf, log_p)

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Draw y given m, float64 [n, *measurement]; see `blackout.random.poisson`."""
        return poisson(self.mean(m), source)

    def mean(self, m: Tensor) -> Tensor:
        """Return s m + b, float64 [n, *measurement].

        References: definition of the Poisson distribution.
        """
        exposure = broadcast_map(self.exposure, m, "exposure")
        return m.double() * exposure + broadcast_map(self.background, m, "background")

    def variance(self, m: Tensor) -> Tensor:
        """Return s m + b, float64 [n, *measurement].

        References: definition of the Poisson distribution.
        """
        return self.mean(m)

    def thin(self, survival: float, y: Tensor, max_m: int) -> Noise | None:
        """Return `ThinnedPoisson`; None for maps, low survivals and tables that are too large."""
        exposure = to_tensor(self.exposure, "exposure")
        background = to_tensor(self.background, "background")
        if exposure.ndim or background.ndim:
            return None
        if survival <= -math.expm1(-float(exposure)):  # terms of the table would change sign
            return None
        max_y = int(y.max())
        max_mean = float(exposure) * max_m + float(background) + 1
        if (max_m + 1) * max_mean > MAX_TABLE_SIZE or max_y > 10 * max_mean + 1000:
            return None
        table = _thinned_poisson_table(float(exposure), float(background), survival, max_y, max_m)
        return ThinnedPoisson(self.exposure, self.background, table=table)


@dataclass(frozen=True)
class ThinnedPoisson(Poisson):
    """A function g_y(z) with E[g_y(z)] = Poisson(y; s m + b) for z ~ Binomial(m, q), integers z.

    For g(z) = b^z the average is a^m with a = 1 - q + q b. And z (g(z) + (1 / q - 1) g(z - 1))
    averages to m times the average of g. Repeating this gives all powers of m times e^(-s m). All
    terms are positive as long as q > 1 - e^-s.

    Args:
        table: log g_y(z), float64 [max y + 1, max z + 1].

    References: this project; checked in tests/verification/posterior_claims.py.
    """

    table: Tensor = field(kw_only=True)

    __repr__ = format_fields

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return log g_y(m), float64 [n, *measurement], from the table; see the class."""
        return self.table.to(m.device)[y.long().expand_as(m), m.long()]


@lru_cache(maxsize=256)
def _thinned_poisson_table(
    exposure: float, background: float, survival: float, max_y: int, max_z: int
) -> Tensor:
    """Return log g_y(z) of `ThinnedPoisson`, float64 [max_y + 1, max_z + 1].

    References: this project; checked in tests/verification/posterior_claims.py.
    """
    # 1. Without dark counts, by the recursion in y.
    z = torch.arange(max_z + 1, dtype=torch.float64)
    log_g = z * math.log1p(math.expm1(-exposure) / survival)
    rows = [log_g]
    for _ in range(max_y):
        shifted = torch.cat([torch.full((1,), -math.inf, dtype=torch.float64), log_g[:-1]])
        log_g = z.log() + torch.logaddexp(log_g, shifted + math.log(1 / survival - 1))
        rows.append(log_g)
    y = torch.arange(max_y + 1, dtype=torch.float64)
    table = torch.stack(rows) + (y * math.log(exposure) - torch.lgamma(y + 1))[:, None]
    if background == 0:
        return table

    # 2. y is the sum of detected units and dark counts: a convolution over y.
    log_dark = torch.special.xlogy(y, torch.full_like(y, background)) - background
    log_dark = log_dark - torch.lgamma(y + 1)
    convolved = []
    for k in range(max_y + 1):
        log_terms = table[: k + 1] + log_dark[: k + 1].flip(0)[:, None]
        convolved.append(torch.logsumexp(log_terms, 0))
    return torch.stack(convolved)


@dataclass(frozen=True)
class Gaussian(Noise):
    """Additive normal noise of mean 0.

    Args:
        std: standard deviation, positive.

    Raises:
        ValueError: a standard deviation that is not positive.

    References: definition of the normal; checked in tests/posterior/test_noise.py.

    Example:
        >>> Gaussian(2.0).variance(torch.tensor([[4, 8]])).tolist()
        [[4.0, 4.0]]
    """

    integer_valued: ClassVar[bool] = False
    std: ParameterMap = 1.0
    constraints: ClassVar = {"std": POSITIVE}

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return -(y - m)^2 / (2 std^2) - log(std sqrt(2 pi)), float64 [n, *measurement].

        References: definition of the normal.
        """
        std = broadcast_map(self.std, y, "std")
        return -(((y - m).double() / std) ** 2) / 2 - (math.sqrt(2 * math.pi) * std).log()

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Draw y given m, float64 [n, *measurement], from two uniforms per element.

        References: Box and Muller 1958.
        """
        shape = tuple(m.shape)
        u = uniform(shape, source, m.device)
        v = uniform(shape, source, m.device)
        standard_normal = torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * math.pi * v)
        return m.double() + standard_normal * broadcast_map(self.std, m, "std")

    def variance(self, m: Tensor) -> Tensor:
        """Return std^2, float64 [n, *measurement].

        References: definition of the normal.
        """
        return broadcast_map(self.std, m, "std").expand(m.shape) ** 2


@dataclass(frozen=True)
class Camera(Poisson):
    """Readings of a camera, y = offset + gain N + normal noise.

    N ~ Poisson(exposure m + background) is the number of photons and dark counts.

    The likelihood is a sum over photon numbers N within six standard deviations of the readout
    noise; there is no other approximation.

    Args:
        exposure: mean photons per unit of m, positive.
        background: mean dark counts, not negative.
        gain: units of y per photon, positive.
        offset: y without photons.
        readout: standard deviation of the readout noise, in units of y, positive.

    Raises:
        ValueError: a parameter out of range.

    References: this project; checked in tests/posterior/test_noise.py.

    Example:
        >>> noise = Camera(exposure=0.5, gain=2.0, offset=100.0, readout=1.5)
        >>> noise.mean(torch.tensor([[10]])).tolist()
        [[110.0]]
        >>> noise.variance(torch.tensor([[10]])).tolist()
        [[22.25]]
    """

    integer_valued: ClassVar[bool] = False
    gain: ParameterMap = 1.0
    offset: ParameterMap = 0.0
    readout: ParameterMap = 1.0
    constraints: ClassVar = {
        **Poisson.constraints,
        "gain": POSITIVE,
        "readout": POSITIVE,
        "offset": FINITE,
    }

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return log sum_N Poisson(N; s m + b) Normal(y; offset + gain N, readout).

        Returns:
            float64 [n, *measurement]; see the class.
        """
        # 1. Everything in units of photons.
        gain = broadcast_map(self.gain, y, "gain")
        readout = broadcast_map(self.readout, y, "readout")
        rate = Poisson.mean(self, m)
        reading = (y.double() - broadcast_map(self.offset, y, "offset")) / gain
        deviation = readout / gain

        # 2. Photon numbers near the reading, [numbers, n, *measurement].
        reach = math.ceil(CAMERA_TAIL * float(deviation.max()))
        shifts = torch.arange(-reach, reach + 1, device=y.device).double()
        photons = reading.round() + shifts.view(-1, *[1] * y.ndim)
        clamped = photons.clamp(min=0)

        # 3. Their probabilities, without the factor e^-rate that all share.
        log_scale = (math.sqrt(2 * math.pi) * readout).log()
        log_normal = -(((reading - photons) / deviation) ** 2) / 2 - log_scale
        log_terms = torch.where(photons < 0, -math.inf, log_normal - torch.lgamma(clamped + 1))
        log_terms = log_terms + torch.special.xlogy(clamped, rate.clamp(min=0))
        log_p = torch.logsumexp(log_terms, 0) - rate
        return torch.where(rate < 0, -math.inf, log_p)

    def draw(self, m: Tensor, source: RandomSource = None) -> Tensor:
        """Draw y given m, float64 [n, *measurement]: photons, amplified and read out."""
        photons = poisson(Poisson.mean(self, m), source)
        amplified = photons * broadcast_map(self.gain, m, "gain")
        reading = Gaussian(self.readout).draw(amplified, source)
        return broadcast_map(self.offset, m, "offset") + reading

    def mean(self, m: Tensor) -> Tensor:
        """Return offset + gain (s m + b), float64 [n, *measurement]; see the class."""
        amplified = broadcast_map(self.gain, m, "gain") * super().mean(m)
        return broadcast_map(self.offset, m, "offset") + amplified

    def variance(self, m: Tensor) -> Tensor:
        """Return gain^2 (s m + b) + readout^2, float64 [n, *measurement].

        References: law of total variance.
        """
        shot = broadcast_map(self.gain, m, "gain") ** 2 * Poisson.mean(self, m)
        return shot + broadcast_map(self.readout, m, "readout") ** 2

    def thin(self, survival: float, y: Tensor, max_m: int) -> None:
        """Return None: no such noise is known."""
