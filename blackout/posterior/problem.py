"""Inverse problems: a trained model as their prior, a pointwise likelihood, and measurements, read or simulated from
data.

`Measured` is the problem of the package: y = G(x) with noise. A likelihood of your own needs `Problem` alone.
`Measurements` are simulated from data or from the model, a truth by its number, or come from a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from blackout.counts import count_dtype, time_on
from blackout.data.formats import COUNTS, read_file
from blackout.diffusion.kernels import BinomialBridge, Kernel, LevelBridge, ReverseStep
from blackout.diffusion.predictions import CategoricalPrediction, CountPrediction, Denoiser
from blackout.diffusion.processes import JumpProcess, Process, PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import CountingDenoiser, SamplingPlan, run_sampler, source_at
from blackout.diffusion.schedules import logit_survival, logit_times, time_of_logit
from blackout.errors import UserError, ensure, refuse
from blackout.files import check_size
from blackout.posterior.noise import Binomial, Exact, Noise
from blackout.posterior.operators import Operator, Separable, Shape
from blackout.posterior.rewards import Tilt
from blackout.protocols import SPLIT_NAMES
from blackout.random import RandomSource, SampleStreams, fold_seed

_NOISED = 1.0
"""Level at which two elements of three are forgotten, so that the model must tell them by the others."""
Streams: TypeAlias = SampleStreams | torch.Generator | None
"""Where a whole loop takes its numbers from; with streams, sample k's are a function of (seed, k)."""


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
        plan = SamplingPlan(self.denoiser, self.process, times, self.kernel, device=z.device)
        return run_sampler(plan, tuple(z.shape), source, start=z)

    def draw(self, number: int, source: Streams = None) -> Tensor:
        """Unconditional samples, counts [number, *shape]."""
        plan = SamplingPlan(
            self.denoiser, self.process, self.times, self.kernel, mean=self.mean, device=self.device
        )
        return run_sampler(plan, (number, *self.shape), source)

    def begin(self, number: int, source: Streams = None) -> Tensor:
        """Where an unconditional run over `times` begins, states [number, *shape]."""
        last, numbers = time_on(self.times[-1], torch.device(self.device)), source_at(source, len(self.times))
        return self.process.prior((number, *self.shape), last, numbers, mean=self.mean)

    @torch.no_grad()
    def step(self, x: Tensor, s: Tensor, t: Tensor, source: RandomSource = None) -> Tensor:
        """X_s given X_t = x, states [n, *shape], as far as denoiser and kernel are exact."""
        return self.kernel(ReverseStep(self.denoiser, self.process, x, s, t, source))

    @torch.no_grad()
    def expected(self, x: Tensor, s: Tensor) -> Tensor:
        """The data expected given X_s = x, float64 [n, *shape], as DPS asks for them [Chu 2025, eq. 50]. Names have no
        mean; of these it is the likeliest level: ours.
        """
        said = self.denoiser(x, s)
        if isinstance(said, CategoricalPrediction):
            return said.log_probs.argmax(1).double()
        missing = said.expected if isinstance(said, CountPrediction) else torch.sub(*said.expected.unbind(1))
        return (x.double() + missing).clamp(0, self.process.max_count)

    @torch.no_grad()
    def guess(self, x: Tensor, s: Tensor, streams: SampleStreams, number: int) -> list[Tensor]:
        """So many guesses of the data that X_s = x leads to, counts [n, *shape] each: reverse runs of one step, whose
        elements are independent of one another, all of one evaluation. See `Kernel`.
        """
        said, zero = self.denoiser(x, s), torch.zeros_like(s)
        sources = (streams.fold_in(k).step(0) for k in range(number))
        runs = (self.kernel(ReverseStep(lambda xt, t: said, self.process, x, zero, s, source)) for source in sources)
        return [x0.clamp(max=self.process.max_count) for x0 in runs]

    def restored(self, x: Tensor, streams: SampleStreams, number: int) -> Tensor:
        """What else data x [n, *shape] may be once they are noised: so many guesses (`guess`), counts
        [n, number, *shape].
        """
        level = torch.tensor(min(_NOISED, self.final_time), dtype=torch.float64)
        z = self.process.sample(x, level, streams.step(0))
        return torch.stack(self.guess(z, level, streams.fold_in(0), number), 1)


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
        """log p(y | x) of data [n, *shape], float64 [n]: the sum of `terms`."""
        return self.terms(x).sum(1)

    def terms(self, x: Tensor) -> Tensor:
        """log p(y_k | x) for every element of the measurement, 0 where it is hidden: float64 [n, K].

        Of data [n, *shape], by `Noise.log_prob` of what the operator gives.
        """
        return self.terms_of(self.operator(x), tuple(x.shape[1:]))

    def terms_of(self, m: Tensor, shape: Shape) -> Tensor:
        """`terms`, float64 [n, K], by m = G(x) [n, *measured] of data of this shape."""
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

        Ours (tests/posterior/test_parts.py).

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
        """The problem of z whose likelihood averages to this one's over z ~ Binomial(x, survival); None if unknown.

        Ours, see `Binomial.thinned` and `ThinnedPoisson` of the noise (tests/verification/posterior_claims.py).
        """
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
        levels = torch.linspace(0, max_count, min(max_count, 4096) + 1).round().unique()
        # all alike; and of either end at random, where a difference of elements is what is measured
        ends = max_count * torch.randint(2, (_TRIED, *shape), generator=torch.Generator().manual_seed(0)).double()
        possible = torch.zeros(len(y), y[0].numel(), dtype=torch.bool)
        for x in (*levels.double().view(-1, *[1] * len(shape)), *ends):
            possible |= ~torch.isneginf(self.terms(x.expand(len(y), *shape)))
        if impossible := (~possible).nonzero().tolist():
            row, number = impossible[0]
            value = float(y[row].flatten()[number])
            raise ValueError(f"y = {value:g}, element {number} of measurement {row}, is impossible whatever data are")


def check_fit(operator: Operator, noise: Noise, shape: Shape, max_count: int) -> None:
    """Raise ValueError for an operator and a noise that do not go together, or not with such data."""
    name = type(operator).__name__
    if operator.binary and max_count != 1:
        raise ValueError(f"operator: {name} is for data of 0 and 1, not for counts up to {max_count}")
    operator.measured(shape)
    operator.seen(shape)
    if type(noise) is Exact and not isinstance(operator, Separable):
        raise ValueError(f"noise=exact leaves a chain no way to move under operator {name}: use noise=flips or poisson")


STRIDE = 1 << 32
"""Sample k of measurement m has the random numbers of sample m STRIDE + k."""
_SIMULATION, _TRUTH = 11, 12
_TRUTHS_AT_ONCE = 64
_MOST = 1_000_000
_TRIED = 32
"""Data of random ends among which a measurement may be possible."""
_SIMULATED = re.compile(r"(test|val|train|model):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")


@dataclass
class Measurements:
    """What is to be explained.

    Args:
        operator, noise: how it was measured.
        shape, max_count: of the data.
        numbers: m of each, int64 [M].
        truths_of: seed -> counts [M, *shape] or None, where they are known.
        given: y, float64 [M, *measured], where it is not simulated.
        source: where they are from, as the user wrote it.
        kind: of problem they make.
    """

    operator: Operator
    noise: Noise
    shape: tuple[int, ...]
    max_count: int
    numbers: Tensor
    truths_of: Callable[[int], Tensor | None]
    given: Tensor | None
    source: str
    kind: Callable[[Operator, Noise, Tensor], Measured] = Measured
    _made: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.numbers)

    def of(self, seed: int) -> tuple[Tensor, Tensor | None]:
        """y, float64 [M, *measured], and the truths, counts [M, *shape] or None: measurement m depends on (seed, m)."""
        if seed not in self._made:
            truths, y = self.truths_of(seed), self.given
            if y is None:
                assert truths is not None
                numbers = SampleStreams(fold_seed(seed, _SIMULATION), self.numbers * STRIDE).step(0)
                y = self.noise.draw(self.operator(truths.double()), numbers)
                seen = self.operator.seen(self.shape)
                y = y if seen is None else torch.where(seen, y, 0.0)
            self._made[seed] = y, truths
        return self._made[seed]

    def problem(self, seed: int | None) -> Measured:
        """All of them, one for every row; without a seed one of this kind, to see what can be done with it."""
        empty = torch.zeros((1, *self.operator.measured(self.shape)), dtype=torch.float64)
        example = empty if self.given is None else self.given[:1]
        return self.kind(self.operator, self.noise, example if seed is None else self.of(seed)[0])


def read_measurements(model: Any, sampler: Sampler, operator: Operator, noise: Noise, asked: Any) -> Measurements:
    """The measurements that a setting names.

    Args:
        model: a trained model of counts.
        sampler: for truths drawn from the model.
        asked: `test:17`, `val:0-15`, `train:3`, `model:0-99,200`, a file (`read_file`; an .npz has `y` and, where it
            is known, `x0`), or None where the operator needs none.

    Raises:
        UserError: anything else, numbers beyond a split, or measurements that the operator cannot have made.
    """
    shape, largest = model.shape, model.process.max_count
    check_fit(operator, noise, shape, largest)
    make = partial(Measurements, operator, noise, shape, largest)
    if isinstance(noise, Tilt):
        refuse(asked is not None, "measurement: a reward or classifier measures nothing: leave it out")
        y = noise.measurements(operator.measured(shape))
        return make(torch.arange(len(y)), lambda seed: None, y, "none")
    if not isinstance(asked, str) or not asked:
        ways = "test:0-15, val:3, train:3, model:0-99 or a file (.npz with y, .npy, ...)"
        raise UserError(f"measurement must be given: {ways}")
    if match := _SIMULATED.fullmatch(asked):
        numbers = _numbers(match[2], asked)
        return make(numbers, _truths(model, sampler, match[1], numbers, asked), None, asked)
    if asked.split(":")[0] in ("test", "val", "train", "model"):
        raise UserError(f"measurement={asked}: numbers such as {asked.split(':')[0]}:17 or 0-15 or 1,5,9 must follow")
    y, truths = _from_file(Path(asked), operator, shape, largest)
    Measured(operator, noise, y).check(shape, largest)
    return make(torch.arange(len(y)), lambda seed: truths, y, asked)


def _numbers(text: str, asked: str) -> Tensor:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < STRIDE or high - low >= _MOST:
            raise UserError(f"measurement={asked}: {part} is no range of numbers, or too large")
        numbers.extend(range(low, high + 1))
    refuse(len(set(numbers)) < len(numbers), f"measurement={asked} names a number twice")
    return torch.tensor(numbers, dtype=torch.int64)


def _truths(model: Any, sampler: Sampler, split: Any, numbers: Tensor, asked: str) -> Callable[[int], Tensor | None]:
    if split == "model":

        def drawn(seed: int) -> Tensor:
            size = min(_TRUTHS_AT_ONCE, len(numbers))
            batches = model.batches(numbers, fold_seed(seed, _TRUTH), size, sampler=sampler)
            return torch.cat([samples["samples"].cpu() for _, samples in batches])

        return drawn
    source = model.require_source()
    size = source.size(split)
    refuse(size == 0, f"measurement={asked}: {source.name} has no {SPLIT_NAMES[split]} data")
    refuse(int(numbers.max()) >= size, f"measurement={asked}: the {split} split has numbers 0..{size - 1}")
    x0 = source.batch(split, numbers)["x0"].cpu()
    return lambda seed: x0


def _from_file(path: Path, operator: Operator, shape: tuple[int, ...], max_count: int) -> tuple[Tensor, Tensor | None]:
    """y [M, *measured] and x0 [M, *shape] or None: `y` and `x0` of an .npz or HDF5 file, or all that another holds."""
    try:
        store = read_file(path)
    except UserError as error:
        ways = "test:..., val:..., train:..., model:..."
        raise UserError(f"measurement={path} is no {ways} or readable file: {error}") from None
    if store.is_table:
        if text := [name for name, values in store.arrays.items() if values.dtype.kind not in "biuf"]:
            raise UserError(f"measurement={path}: column {text[0]!r} holds text, not numbers")
        arrays = {"y": np.stack(list(store.arrays.values()), 1)}
    else:
        whole = {"y": store.arrays.get("y", store.arrays.get(COUNTS)), "x0": store.arrays.get("x0")}
        arrays = {name: _whole(array, path) for name, array in whole.items() if array is not None}
    refuse("y" not in arrays, f"measurement={path} has no array y")
    for name, array in arrays.items():
        refuse(array.dtype.kind not in "biuf", f"measurement={path}: {name} must be numbers, not {array.dtype}")
    y = _rows(arrays["y"].astype(np.float64), operator.measured(shape), f"measurement={path}: y")
    refuse(not bool(torch.isfinite(y).all()), f"measurement={path}: y must be finite")
    if "x0" not in arrays:
        return y, None
    x0 = _rows(arrays["x0"], shape, f"measurement={path}: x0").long()
    if len(x0) != len(y) or not 0 <= int(x0.min()) <= int(x0.max()) <= max_count:
        raise UserError(f"measurement={path}: x0 must be counts in 0..{max_count}, one for every y")
    return y, x0.to(count_dtype(max_count))


def _whole(array: Any, path: Path) -> np.ndarray:
    """All of an array that may be sparse, or on the disk."""
    check_size(path, 8 * math.prod(array.shape))
    return np.asarray(array.toarray() if hasattr(array, "toarray") else array)


def _rows(array: np.ndarray, shape: tuple[int, ...], what: str) -> Tensor:
    """One or many, images channels last, or of one channel without it, or as rows of a table: [M, *shape]."""
    wanted = (*shape[1:], shape[0]) if len(shape) == 3 else shape
    plain = wanted[:-1] if len(shape) == 3 and shape[0] == 1 else wanted
    if array.shape in (wanted, plain):
        array = array[None]
    if array.shape[1:] not in (wanted, plain, (math.prod(shape),)) or not len(array):
        raise UserError(f"{what} must have shape {wanted} or [M, {', '.join(map(str, wanted))}], not {array.shape}")
    tensor = torch.from_numpy(np.ascontiguousarray(array)).reshape(-1, *wanted)
    return tensor.permute(0, 3, 1, 2).contiguous() if len(shape) == 3 else tensor
