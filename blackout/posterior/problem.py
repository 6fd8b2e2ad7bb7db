"""Inverse problems: a trained model as their prior, a pointwise likelihood, and what more it may offer.

`Measured` is the one of the package: y = G(x) with noise. A likelihood of your own needs `Problem` alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from blackout.counts import time_on
from blackout.diffusion.predictions import CategoricalPrediction, CountPrediction, Denoiser
from blackout.diffusion.processes import JumpProcess, Process, PureDeath
from blackout.diffusion.samplers import (
    BinomialBridge,
    CountingDenoiser,
    Kernel,
    LevelBridge,
    ReverseStep,
    sample,
    source_at,
)
from blackout.diffusion.schedules import logit_survival, logit_times, time_of_logit
from blackout.errors import ensure
from blackout.posterior.noise import Binomial, Exact, Noise
from blackout.posterior.operators import Operator, Separable, Shape
from blackout.random import RandomSource, SampleStreams, categorical, uniform

_NOISED = 1.0
"""Level at which two elements of three are forgotten, so that the model must tell them by the others."""
Streams: TypeAlias = SampleStreams | torch.Generator | None
"""Where a whole loop takes its numbers from; streams make sample k a function of (seed, k)."""


@dataclass(frozen=True)
class Prior:
    """p(x), as a denoiser and the process it was trained for; its reverse runs are the prior step [Chu 2025, eq. 9].

    Args:
        denoiser: (xt [n, *shape], t) -> prediction.
        process: forward; one in continuous time.
        shape: of one sample.
        kernel: the reverse step; None takes the binomial bridge for pure death, else the level bridge.
        mean: E[X_0], broadcastable to [n, *shape], for priors that start from it.
        times: the grid of unconditional samples, float64 [T + 1]; its first positive time is where every run ends.
        steps_per_logit: steps of a reverse run per unit of the logit of survival.
        device: where states are.

    Raises:
        ValueError: a process in discrete time, which has no levels between its steps.
    """

    denoiser: Denoiser
    process: Process
    shape: tuple[int, ...]
    kernel: Kernel = None  # type: ignore[assignment]  # chosen below
    mean: Tensor | None = None
    times: Tensor = field(default_factory=lambda: logit_times(25, 6.0, -6.0))
    steps_per_logit: float = 1.0
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        discrete = f"{type(self.process).__name__} runs in discrete time, where posteriors need levels: process=uniform"
        ensure(isinstance(self.process, JumpProcess), discrete)
        if self.kernel is None:
            bridge = BinomialBridge() if isinstance(self.process, PureDeath) else LevelBridge()
            object.__setattr__(self, "kernel", bridge)
        object.__setattr__(self, "denoiser", CountingDenoiser(self.denoiser))

    @property
    def evaluations(self) -> int:
        """Network evaluations of batches so far."""
        assert isinstance(self.denoiser, CountingDenoiser)
        return self.denoiser.evaluations

    @property
    def final_time(self) -> float:
        """The largest level there is."""
        return float(self.times[-1])

    def walk(self, t: float, steps: int | None = None) -> Tensor:
        """Times from 0 to the level t, equal steps of the logit of survival above the grid's first time.

        Ours (tests/posterior/test_parts.py).

        Args:
            t: level, 0 < t.
            steps: above the first time; None for `steps_per_logit`.

        Returns:
            float64 [H + 1], the first 0 and the last t.
        """
        first, level = self.times[1], torch.tensor(t, dtype=torch.float64)
        if level <= first:
            return torch.stack([torch.zeros_like(level), level])
        ends = logit_survival(first), logit_survival(level)
        number = steps or max(1, math.ceil(float(ends[0] - ends[1]) * self.steps_per_logit - 1e-9))
        inner = time_of_logit(torch.linspace(float(ends[0]), float(ends[1]), number + 1, dtype=torch.float64))
        inner[0], inner[-1] = first, level
        return torch.cat([torch.zeros(1, dtype=torch.float64), inner])

    def reverse(self, z: Tensor, t: float, source: Streams = None, steps: int | None = None) -> Tensor:
        """X_0 given X_t = z, as far as denoiser and steps are exact [Chu 2025, eq. 9 and section 3.2].

        Args:
            z: integer states [n, *shape].
            t: level; at most the final time.
            source: of random numbers.
            steps: see `walk`.

        Returns:
            Counts [n, *shape].
        """
        times = self.walk(t, steps)
        return sample(
            self.denoiser, self.process, times, tuple(z.shape), source, kernel=self.kernel, start=z, device=z.device
        )

    def draw(self, number: int, source: Streams = None) -> Tensor:
        """Unconditional samples, counts [number, *shape]."""
        return sample(
            self.denoiser, self.process, self.times, (number, *self.shape), source, kernel=self.kernel,
            mean=self.mean, device=self.device,
        )  # fmt: skip

    def begin(self, number: int, source: Streams = None) -> Tensor:
        """Where an unconditional run over `times` begins, states [number, *shape]."""
        last, numbers = time_on(self.times[-1], torch.device(self.device)), source_at(source, len(self.times))
        return self.process.prior((number, *self.shape), last, numbers, mean=self.mean)

    def step(self, x: Tensor, s: Tensor, t: Tensor, source: RandomSource = None) -> Tensor:
        """X_s given X_t = x, states [n, *shape], as far as denoiser and kernel are exact."""
        return self.kernel(ReverseStep(self.denoiser, self.process, x, s, t, source))

    def expected(self, x: Tensor, s: Tensor) -> Tensor:
        """The data expected given X_s = x, float64 [n, *shape], as DPS asks for them [Chu 2025, eq. 50]. Names have no
        mean; of these it is the likeliest level: ours.
        """
        said = self.denoiser(x, s)
        if isinstance(said, CategoricalPrediction):
            return said.log_probs.argmax(1).double()
        missing = said.expected if isinstance(said, CountPrediction) else torch.sub(*said.expected.unbind(1))
        return (x.double() + missing).clamp(0, self.process.max_count)

    def guess(self, x: Tensor, s: Tensor, streams: SampleStreams, number: int) -> list[Tensor]:
        """So many guesses of the data that X_s = x leads to, counts [n, *shape] each: reverse runs of one step, whose
        elements are independent of one another, all of one evaluation.
        """
        said, zero, sources = self.denoiser(x, s), torch.zeros_like(s), (streams.fold(k).at(0) for k in range(number))
        runs = (self.kernel(ReverseStep(lambda xt, t: said, self.process, x, zero, s, source)) for source in sources)
        return [x0.clamp(max=self.process.max_count) for x0 in runs]

    def restored(self, x: Tensor, streams: SampleStreams, number: int) -> Tensor:
        """What else data x [n, *shape] may be once they are noised: so many guesses, counts [n, number, *shape]."""
        level = torch.tensor(min(_NOISED, self.final_time), dtype=torch.float64)
        z = self.process.sample(x, level, streams.at(0))
        return torch.stack(self.guess(z, level, streams.fold(0), number), 1)


@runtime_checkable
class Problem(Protocol):
    """All that a posterior sampler must have."""

    def log_likelihood(self, x: Tensor) -> Tensor:
        """log p(y | x), float64 [n], for data [n, *shape], float64, whole or not; -inf is legal."""
        ...


def repeated(rows: Tensor, n: int) -> Tensor:
    """n rows [n, ...], row r being row r modulo their number; a single row stays alone, and broadcasts."""
    return rows if len(rows) in (1, n) else rows.repeat(n // len(rows), *[1] * (rows.ndim - 1))


@dataclass(frozen=True)
class Measured:
    """y = operator(x), with noise.

    Args:
        operator: G.
        noise: log p(y | G(x)); None for the operator's own.
        measurement: y, of the operator's measured shape, or one for every row of x: float64 [n, *measured]. With fewer
            rows than x, row r of x is of y's row r modulo their number.
    """

    operator: Operator
    noise: Noise
    measurement: Tensor

    @property
    def real(self) -> bool:
        """Whether it has an extension to real x."""
        return self.noise.real

    def log_likelihood(self, x: Tensor) -> Tensor:
        """log p(y | x), float64 [n]."""
        return self.terms(x).sum(1)

    def terms(self, x: Tensor) -> Tensor:
        """log p(y_k | x) for every element of the measurement, 0 where it is hidden: float64 [n, K]."""
        return self.terms_of(self.operator(x), tuple(x.shape[1:]))

    def terms_of(self, m: Tensor, shape: Shape) -> Tensor:
        """`terms` by m = G(x) [n, *measured] of data of this shape."""
        values, seen = self.noise.log_prob(self.rows(m), m), self.operator.seen(shape)
        return (values if seen is None else torch.where(seen.to(m.device), values, 0.0)).flatten(1)

    def incidence(self, shape: Shape) -> Tensor | None:
        """See `Operator.incidence`."""
        return self.operator.incidence(shape)

    def select(self, rows: Tensor, shape: Shape) -> Measured:
        """The problem of some rows of x."""
        y = self.y(shape)
        which = rows.to(y.device) % len(y)
        return self if len(y) == 1 else replace(self, measurement=y[which], noise=self.noise.select(which))

    def estimate(self, n: int, shape: Shape) -> Tensor | None:
        """Data near the measurement, float64 [n, *shape], not whole; None where none are known."""
        near = self.operator.back_project(self.noise.estimate(self.y(shape)), shape)
        return None if near is None else repeated(near, n).expand(n, *shape)

    def repaired(self, x: Tensor) -> Tensor:
        """x [n, *shape] with its impossible elements put where the measurement allows them.

        Known elements are what they are known to be, and no unit was seen that is not there.
        """
        if not isinstance(self.operator, Separable) or not isinstance(self.noise, Exact | Binomial):
            return x
        impossible = torch.isneginf(self.noise.log_prob(y := self.rows(x), x.double()))
        seen = self.operator.seen(tuple(x.shape[1:]))
        impossible = impossible if seen is None else impossible & seen.to(x.device)
        return torch.where(impossible, y.to(x.dtype), x)

    def known(self, shape: Shape) -> tuple[Tensor, Tensor] | None:
        """What is known of x exactly: y [n or 1, *shape], and where, bool [*shape]; None of any other noise."""
        if type(self.noise) is not Exact or not isinstance(self.operator, Separable):
            return None
        seen = self.operator.seen(shape)
        return self.y(shape), torch.ones(shape, dtype=torch.bool) if seen is None else seen

    def y(self, shape: Shape) -> Tensor:
        """The measurement with a first axis, [n or 1, *measured]."""
        return self._checked(self.operator.measured(shape))

    def rows(self, m: Tensor) -> Tensor:
        """The measurement of every row of m [n, *measured], [n or 1, *measured], where m is."""
        return repeated(self._checked(tuple(m.shape[1:])).to(m.device), len(m))

    def _checked(self, wanted: Shape) -> Tensor:
        y = self.measurement if self.measurement.ndim > len(wanted) else self.measurement[None]
        ensure(tuple(y.shape[1:]) == wanted, f"y must have shape {wanted}, not {tuple(self.measurement.shape)}")
        return y

    def thinned(self, survival: float, shape: Shape, max_count: int) -> Measured | None:
        """The problem of z whose likelihood averages to this one's over z ~ Binomial(x, survival); None if unknown."""
        if not self.operator.counting:
            return None
        full = self.operator(torch.full((1, *shape), max_count, dtype=torch.float64))
        noise = self.noise.thinned(survival, self.measurement, int(full.max()))
        return None if noise is None else replace(self, noise=noise)

    def check(self, shape: Shape, max_count: int) -> None:
        """Raise ValueError where no data of this shape, 0..max_count, could have given the measurement."""
        check_fit(self.operator, self.noise, shape, max_count)
        self.noise.check(y := self.y(shape))
        if self.operator.incidence(shape) is None:
            return
        possible = torch.zeros(len(y), y[0].numel(), dtype=torch.bool)
        for level in torch.linspace(0, max_count, min(max_count, 4096) + 1).round().unique().tolist():
            possible |= ~torch.isneginf(self.terms(torch.full((len(y), *shape), level, dtype=torch.float64)))
        if impossible := (~possible).nonzero().tolist():
            row, number = impossible[0]
            value = float(y[row].flatten()[number])
            raise ValueError(f"y = {value:g}, element {number} of measurement {row}, is impossible whatever data are")


_CELLS, _ZOOMS, _NEGLIGIBLE = 72, 3, 12.0
"""Of a grid over an unknown number; how often it is laid over what is not negligible, in nats, of the one before."""


@dataclass(frozen=True)
class Unknown:
    """A number of operator or noise that is not known, uniform in its logarithm a priori.

    Args:
        of: "operator" or "noise".
        name: of the setting.
        low, high: its ends.

    Raises:
        ValueError: they are not two positive numbers in order.
    """

    of: str
    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(f"{self.name}=unknown:{self.low:g}-{self.high:g} must be two positive numbers in order")

    @property
    def middle(self) -> float:
        """Of its logarithm."""
        return math.sqrt(self.low * self.high)

    def at(self, share: Tensor) -> Tensor:
        """Its value where `share` of the prior lies below."""
        return self.low * (self.high / self.low) ** share


@dataclass(frozen=True)
class Blind(Measured):
    """A measurement one of whose numbers is unknown: p(y | x) is the mean over its prior, by a grid of midpoints.

    So x is drawn from its own posterior, whatever draws it, and then the number given x: a joint draw. As a function of
    x it is a black box. Of numbers of the noise the grid is as fine as each x needs.

    Args:
        operator, noise: with the unknown number in the middle of its prior.
        unknown: which it is.
    """

    unknown: Unknown

    def at(self, value: float | Tensor) -> Measured:
        """The problem if this were the number; of noise it may be another one for every row, float64 [n, 1, ...]."""
        y = self.measurement
        if isinstance(value, Tensor):
            y = y if y.ndim == value.ndim else y[None]
            y = repeated(y, len(value)).expand(len(value), *y.shape[1:])
        parts = {"operator": self.operator, "noise": self.noise, "measurement": y}
        changed = replace(getattr(self, self.unknown.of), **{self.unknown.name: value})
        return Measured(**{**parts, self.unknown.of: changed})

    def _cells(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Midpoints of the grid as shares of the prior, log p(y | x, number), float64 [G, n]; a cell's width [n]."""
        of_noise = self.unknown.of == "noise"
        cells, zooms = _CELLS, _ZOOMS if of_noise else 1
        middle = torch.arange(cells, dtype=torch.float64, device=x.device)[:, None] + 0.5
        ones = [1] * len(self.operator.measured(tuple(x.shape[1:])))
        low = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        width = torch.full_like(low, 1 / cells)
        while True:
            shares, zooms = low + middle * width, zooms - 1
            values = self.unknown.at(shares)
            each = (self.at(row.view(-1, *ones) if of_noise else float(row[0])) for row in values)
            log_l = torch.stack([one.log_likelihood(x) for one in each])
            if not zooms:
                return shares, log_l, width
            near = (log_l >= log_l.amax(0) - _NEGLIGIBLE).long()
            first, end = (near.argmax(0) - 1).clamp(min=0), cells - (near.flip(0).argmax(0) - 1).clamp(min=0)
            low, width = low + first * width, (end - first) * width / cells

    def settled(self, x: Tensor | None = None, source: RandomSource = None) -> Measured:
        """The problem with a draw of the number given x for every row; without x, with its middle.

        With an unknown number of the operator, of which no row can have its own, the problem itself.
        """
        if self.unknown.of != "noise":
            return self
        ones = [1] * len(self.operator.measured(tuple(x.shape[1:]))) if x is not None else []
        return self.at(self.unknown.middle if x is None else self.number(x, source).view(-1, *ones))

    def terms(self, x: Tensor) -> Tensor:
        """log p(y | x), [n, 1]."""
        _, log_l, width = self._cells(x)
        return (torch.logsumexp(log_l, 0) + width.log())[:, None]

    def incidence(self, shape: Shape) -> Tensor | None:
        """The number depends on all elements."""
        return None

    def known(self, shape: Shape) -> None:
        """Nothing is known exactly."""

    def with_numbers(self, x: Tensor, numbers: Tensor) -> tuple[Noise, Tensor]:
        """Noise and noiseless values [n, *measured], where every row of x has a number of its own, float64 [n]."""
        if self.unknown.of == "noise":
            m = self.operator(x)
            return self.at(numbers.view(-1, *[1] * (m.ndim - 1))).noise, m
        each = zip(x.split(1), numbers.tolist(), strict=True)
        return self.noise, torch.cat([self.at(number).operator(row) for row, number in each])

    def number(self, x: Tensor, source: RandomSource = None) -> Tensor:
        """The unknown number given x and y, float64 [n]: of the grid's cells, uniform within them."""
        shares, log_l, width = self._cells(x.double())
        cell = categorical(torch.softmax(log_l.T, 1), source)
        u = uniform((len(x),), source, x.device)
        return self.unknown.at(shares.T.gather(1, cell[:, None])[:, 0] + (u - 0.5) * width)


def check_fit(operator: Operator, noise: Noise, shape: Shape, max_count: int) -> None:
    """Raise ValueError for an operator and a noise that do not go together, or not with such data."""
    name = type(operator).__name__
    if operator.binary and max_count != 1:
        raise ValueError(f"operator: {name} is for data of 0 and 1, not for counts up to {max_count}")
    operator.measured(shape)
    operator.seen(shape)
    if type(noise) is Exact and not isinstance(operator, Separable):
        raise ValueError(f"noise=exact leaves a chain no way to move under operator {name}: use noise=flips or poisson")
