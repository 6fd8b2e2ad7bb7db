"""Inverse problems: a trained model as their prior, a likelihood, and measurements.

`InverseProblem` is y = G(x) with noise. A custom likelihood only needs the protocol `Problem`.
`Measurements` come from a file, or are simulated from data or from samples of the model.
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
from blackout.errors import UserError, refuse
from blackout.posterior.noise import Binomial, Exact, Noise
from blackout.posterior.operators import Operator, Separable, Shape
from blackout.posterior.rewards import Tilt
from blackout.protocols import SPLIT_NAMES
from blackout.random import RandomSource, SampleStreams, fold_seed
from blackout.representation import format_fields
from blackout.safe_reading import check_size

RESAMPLING_LEVEL = 1.0  # time t at which about two of three elements are lost, 1 - e^-1
SAMPLE_STRIDE = 1 << 32  # sample k of measurement m has random stream m SAMPLE_STRIDE + k
SIMULATION_KEY = 11  # random numbers of simulated measurements
TRUTH_KEY = 12  # random numbers of truths drawn from the model
TRUTHS_PER_BATCH = 64
MAX_MEASUREMENTS = 1_000_000  # of one range
MAX_TESTED_LEVELS = 4096  # uniform data sets at which a measurement is tested for possibility
NUM_TESTED_EXTREMES = 32  # random data sets of 0 and max_count for the same test

# random numbers of a whole loop; with streams, those of sample k are a function of (seed, k)
Streams: TypeAlias = SampleStreams | torch.Generator | None


@dataclass(frozen=True)
class Prior:
    """A prior p(x): a denoiser and the forward process it was trained for.

    Args:
        denoiser: (xt [n, *shape], t) -> prediction.
        process: forward process in continuous time.
        shape: of one sample.
        kernel: reverse step; None takes the binomial bridge for pure death, else the level bridge.
        data_mean: E[X_0], broadcastable to [n, *shape], for processes that start from it.
        times: time grid of unconditional samples, float64 [T + 1]; the first positive time is the
            last one before 0 in every reverse run.
        steps_per_logit: steps of a reverse run per unit of the logit of survival.
        device: of the states.

    Raises:
        ValueError: a process in discrete time, which has no levels between its steps.

    References: Chu et al. 2025, eq. 9 (the prior step of split Gibbs sampling).
    """

    denoiser: Denoiser
    process: Process
    shape: tuple[int, ...]
    kernel: Kernel = None  # type: ignore[assignment]  # chosen in __post_init__
    data_mean: Tensor | None = None
    times: Tensor = field(default_factory=lambda: logit_times(25, 6.0, -6.0))
    steps_per_logit: float = 1.0
    device: torch.device | str = "cpu"

    __repr__ = format_fields

    def __post_init__(self) -> None:
        if not isinstance(self.process, JumpProcess):
            name = type(self.process).__name__
            raise ValueError(
                f"{name} runs in discrete time, but posteriors need continuous time: "
                "use a model of process=uniform, absorbing or pure_death"
            )
        if self.kernel is None:
            bridge = BinomialBridge() if isinstance(self.process, PureDeath) else LevelBridge()
            object.__setattr__(self, "kernel", bridge)
        object.__setattr__(self, "denoiser", CountingDenoiser(self.denoiser))

    def with_kernel(self, kernel: Kernel) -> Prior:
        """Return the prior whose runs follow the denoiser by the steps of another kernel.

        Its network evaluations are counted by this prior, too.
        """
        return replace(self, kernel=kernel)

    @property
    def evaluations(self) -> int:
        """Return the number of network evaluations so far, each of a batch."""
        assert isinstance(self.denoiser, CountingDenoiser)
        return self.denoiser.evaluations

    @property
    def final_time(self) -> float:
        """Return the largest time of the grid."""
        return float(self.times[-1])

    def reverse_times(self, t: float, num_steps: int | None = None) -> Tensor:
        """Return times from 0 to t, evenly spaced in the logit of survival above the first.

        Args:
            t: positive.
            num_steps: steps above the first positive time; None for `steps_per_logit`.

        Returns:
            float64 [H + 1], the first 0 and the last t.

        References: this project; checked in tests/posterior/test_parts.py.
        """
        first = self.times[1]
        last = torch.tensor(t, dtype=torch.float64)
        if last <= first:
            return torch.stack([torch.zeros_like(last), last])
        first_logit = logit_survival(first)
        last_logit = logit_survival(last)
        if not num_steps:
            distance = float(first_logit - last_logit)
            num_steps = max(1, math.ceil(distance * self.steps_per_logit - 1e-9))
        logits = torch.linspace(
            float(first_logit), float(last_logit), num_steps + 1, dtype=torch.float64
        )
        times = time_of_logit(logits)
        times[0] = first  # exactly, without rounding
        times[-1] = last
        return torch.cat([torch.zeros(1, dtype=torch.float64), times])

    def reverse(
        self, z: Tensor, t: float, source: Streams = None, num_steps: int | None = None
    ) -> Tensor:
        """Draw X_0 given X_t = z, as exactly as the denoiser and the number of steps allow.

        Args:
            z: integer states [n, *shape].
            t: time, at most the final time.
            source: random numbers.
            num_steps: see `reverse_times`.

        Returns:
            Counts [n, *shape].

        References: Chu et al. 2025, eq. 9 and section 3.2.
        """
        times = self.reverse_times(t, num_steps)
        plan = SamplingPlan(self.denoiser, self.process, times, self.kernel, device=z.device)
        return run_sampler(plan, tuple(z.shape), source, start=z)

    def draw(self, num_samples: int, source: Streams = None) -> Tensor:
        """Draw unconditional samples, counts [num_samples, *shape]."""
        plan = SamplingPlan(
            self.denoiser,
            self.process,
            self.times,
            self.kernel,
            data_mean=self.data_mean,
            device=self.device,
        )
        return run_sampler(plan, (num_samples, *self.shape), source)

    def initial_states(self, num_samples: int, source: Streams = None) -> Tensor:
        """Draw states at the final time, [num_samples, *shape]."""
        final_time = time_on(self.times[-1], torch.device(self.device))
        numbers = source_at(source, len(self.times))
        return self.process.prior(
            (num_samples, *self.shape), final_time, numbers, data_mean=self.data_mean
        )

    @torch.no_grad()
    def step(self, x: Tensor, s: Tensor, t: Tensor, source: RandomSource = None) -> Tensor:
        """Draw X_s given X_t = x by one step of the kernel, states [n, *shape]."""
        return self.kernel(ReverseStep(self.denoiser, self.process, x, s, t, source))

    @torch.no_grad()
    def expected_data(self, x: Tensor, s: Tensor) -> Tensor:
        """Return E[X_0 | X_s = x], float64 [n, *shape]; of categories the most likely level.

        References: Chu et al. 2025, eq. 50; categories: this project.
        """
        prediction = self.denoiser(x, s)
        if isinstance(prediction, CategoricalPrediction):
            return prediction.log_probs.argmax(1).double()
        if isinstance(prediction, CountPrediction):
            missing = prediction.expected
        else:  # births and deaths
            missing = torch.sub(*prediction.expected.unbind(1))
        return (x.double() + missing).clamp(0, self.process.max_count)

    @torch.no_grad()
    def one_step_samples(
        self, x: Tensor, s: Tensor, streams: SampleStreams, num_samples: int
    ) -> list[Tensor]:
        """Draw X_0 given X_s = x several times by a single step, from one evaluation.

        Given the prediction, the elements are independent; see `Kernel`.

        Returns:
            Counts [n, *shape], `num_samples` of them.
        """
        prediction = self.denoiser(x, s)
        zero = torch.zeros_like(s)
        samples = []
        for k in range(num_samples):
            source = streams.fold_in(k).step(0)
            step = ReverseStep(lambda xt, t: prediction, self.process, x, zero, s, source)
            samples.append(self.kernel(step).clamp(max=self.process.max_count))
        return samples

    def perturb(self, x: Tensor, streams: SampleStreams, num_samples: int) -> Tensor:
        """Noise data and denoise them in one step, several times: similar data.

        Args:
            x: data [n, *shape].
            streams: random numbers.
            num_samples: for every row of x.

        Returns:
            Counts [n, num_samples, *shape].
        """
        t = torch.tensor(min(RESAMPLING_LEVEL, self.final_time), dtype=torch.float64)
        z = self.process.sample(x, t, streams.step(0))
        return torch.stack(self.one_step_samples(z, t, streams.fold_in(0), num_samples), 1)


@runtime_checkable
class Problem(Protocol):
    """A likelihood, all that a posterior sampler needs."""

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return log p(y | x), float64 [n], of data [n, *shape], float64 and perhaps not integers.

        It may be -inf.
        """
        ...


def repeat_rows(rows: Tensor, n: int) -> Tensor:
    """Return n rows [n, ...], row r being row r modulo their number.

    A single row is returned as it is, and broadcasts.
    """
    if len(rows) in (1, n):
        return rows
    return rows[torch.arange(n, device=rows.device) % len(rows)]


@dataclass(frozen=True)
class InverseProblem:
    """An inverse problem y = operator(x) with noise.

    Args:
        operator: G.
        noise: p(y | G(x)).
        measurement: y, float64 [*measurement] or [M, *measurement]. Row r of x belongs to row r
            modulo M of y.

    Example:
        >>> from blackout.posterior import Gaussian, Pool
        >>> problem = InverseProblem(Pool(2), Gaussian(1.0), torch.tensor([3.0, 5.0]))
        >>> problem.log_likelihood(torch.tensor([[1.0, 2.0, 5.0, 0.0]])).shape
        torch.Size([1])
    """

    operator: Operator
    noise: Noise
    measurement: Tensor

    __repr__ = format_fields

    @property
    def smooth(self) -> bool:
        """Return whether the likelihood extends to real x."""
        return self.noise.smooth

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return log p(y | x), float64 [n], of data [n, *shape]: the sum of `terms`."""
        return self.terms(x).sum(1)

    def terms(self, x: Tensor) -> Tensor:
        """Return log p(y_k | x) for every element of the measurement, 0 where it is hidden.

        Args:
            x: data [n, *shape].

        Returns:
            float64 [n, K], by `Noise.log_prob`.
        """
        return self.terms_at(self.operator(x), tuple(x.shape[1:]))

    def terms_at(self, m: Tensor, shape: Shape) -> Tensor:
        """Return `terms`, float64 [n, K], from m = G(x) [n, *measurement] of data of a shape."""
        log_p = self.noise.log_prob(self.measurement_rows(m), m)
        mask = self.operator.observed_mask(shape)
        if mask is not None:
            log_p = torch.where(mask.to(m.device), log_p, 0.0)
        return log_p.flatten(1)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return which elements of x each term depends on; see `Operator.incidence`."""
        return self.operator.incidence(shape)

    def select(self, rows: Tensor, shape: Shape) -> InverseProblem:
        """Return the problem of some rows of x, int64 [m]."""
        y = self.measurements(shape)
        if len(y) == 1:
            return self
        index = rows.to(y.device) % len(y)
        return replace(self, measurement=y[index], noise=self.noise.select(index))

    def estimate(self, n: int, shape: Shape) -> Tensor | None:
        """Return real data near the measurement, float64 [n, *shape]; None where none are known."""
        m = self.noise.estimate(self.measurements(shape))
        x = self.operator.back_project(m, shape)
        return None if x is None else repeat_rows(x, n).expand(n, *shape)

    def repair(self, x: Tensor) -> Tensor:
        """Replace the elements of x [n, *shape] that contradict the measurement by its values.

        Exactly known elements get their value, and thinned ones at least what was detected.

        References: this project; checked in tests/posterior/test_parts.py.
        """
        has_values = isinstance(self.noise, Exact | Binomial)
        if not isinstance(self.operator, Separable) or not has_values:
            return x
        y = self.measurement_rows(x)
        impossible = torch.isneginf(self.noise.log_prob(y, x.double()))
        mask = self.operator.observed_mask(tuple(x.shape[1:]))
        if mask is not None:
            impossible = impossible & mask.to(x.device)
        return torch.where(impossible, y.to(x.dtype), x)

    def known_elements(self, shape: Shape) -> tuple[Tensor, Tensor] | None:
        """Return elements of x that the measurement determines exactly.

        Returns:
            y [M, *shape] and a mask, bool [*shape]; None for other operators and noises.
        """
        if type(self.noise) is not Exact or not isinstance(self.operator, Separable):
            return None
        mask = self.operator.observed_mask(shape)
        if mask is None:
            mask = torch.ones(shape, dtype=torch.bool)
        return self.measurements(shape), mask

    def measurements(self, shape: Shape) -> Tensor:
        """Return y with a batch axis, [M, *measurement], for data of a shape."""
        return self._add_batch_axis(self.operator.measurement_shape(shape))

    def measurement_rows(self, m: Tensor) -> Tensor:
        """Return y for every row of m [n, *measurement], [n or 1, *measurement], on m's device."""
        return repeat_rows(self._add_batch_axis(tuple(m.shape[1:])).to(m.device), len(m))

    def _add_batch_axis(self, measurement_shape: Shape) -> Tensor:
        y = self.measurement
        if y.ndim <= len(measurement_shape):
            y = y[None]
        if tuple(y.shape[1:]) != measurement_shape:
            shape = tuple(self.measurement.shape)
            raise ValueError(f"y must have shape {measurement_shape}, not {shape}")
        return y

    def thin(self, survival: float, shape: Shape, max_count: int) -> InverseProblem | None:
        """Return a problem of z ~ Binomial(x, survival) whose mean likelihood is this one.

        Returns:
            The problem, or None where none is known; see `Noise.thin`.

        References: this project; checked in tests/verification/posterior_claims.py.
        """
        if not self.operator.sums_elements:
            return None
        max_m = self.operator(torch.full((1, *shape), max_count, dtype=torch.float64)).max()
        noise = self.noise.thin(survival, self.measurement, int(max_m))
        return None if noise is None else replace(self, noise=noise)

    def check(self, shape: Shape, max_count: int) -> None:
        """Check that data of a shape, counts 0..max_count, could have given the measurement.

        Only uniform data and random data of 0 and `max_count` are tried.

        Raises:
            ValueError: an impossible measurement, with its first impossible element.
        """
        check_compatible(self.operator, self.noise, shape, max_count)
        y = self.measurements(shape)
        self.noise.check(y)
        if self.operator.incidence(shape) is None:
            return

        num_levels = min(max_count, MAX_TESTED_LEVELS) + 1
        levels = torch.linspace(0, max_count, num_levels).round().unique()
        uniform_data = levels.double().view(-1, *[1] * len(shape))
        # operators that measure differences of elements give 0 for uniform data
        generator = torch.Generator().manual_seed(0)
        bits = torch.randint(2, (NUM_TESTED_EXTREMES, *shape), generator=generator)
        extreme_data = max_count * bits.double()

        possible = torch.zeros(len(y), y[0].numel(), dtype=torch.bool)
        for x in (*uniform_data, *extreme_data):
            possible |= ~torch.isneginf(self.terms(x.expand(len(y), *shape)))
        impossible = (~possible).nonzero().tolist()
        if impossible:
            row, element = impossible[0]
            value = float(y[row].flatten()[element])
            raise ValueError(
                f"y = {value:g}, element {element} of measurement {row}, is impossible for all "
                f"data from 0 to {max_count}: check the operator, the noise and the units of y"
            )


def check_compatible(operator: Operator, noise: Noise, shape: Shape, max_count: int) -> None:
    """Check that an operator, a noise and data of a shape, counts 0..max_count, fit together.

    Raises:
        ValueError: they do not.
    """
    name = type(operator).__name__
    if operator.binary and max_count != 1:
        raise ValueError(f"operator: {name} needs data of 0 and 1, not counts up to {max_count}")
    operator.measurement_shape(shape)
    operator.observed_mask(shape)
    if type(noise) is Exact and not isinstance(operator, Separable):
        raise ValueError(
            f"noise=exact does not work with operator {name}, because chains cannot move: "
            "use noise=flips or noise=poisson"
        )


MakeProblem: TypeAlias = Callable[[Operator, Noise, Tensor], InverseProblem]


@dataclass
class Measurements:
    """The measurements of a run.

    Args:
        operator: of all measurements.
        noise: of all measurements.
        shape: of the data.
        max_count: of the data.
        numbers: of the measurements, int64 [M].
        draw_truths: seed -> counts [M, *shape], or None where they are unknown.
        y: float64 [M, *measurement], or None to simulate them from the truths.
        source: where they come from, as the user wrote it.
        make_problem: (operator, noise, y) -> problem.
    """

    operator: Operator
    noise: Noise
    shape: tuple[int, ...]
    max_count: int
    numbers: Tensor
    draw_truths: Callable[[int], Tensor | None]
    y: Tensor | None
    source: str
    make_problem: MakeProblem = InverseProblem
    _cache: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    __repr__ = format_fields

    def __len__(self) -> int:
        return len(self.numbers)

    def simulate(self, seed: int) -> tuple[Tensor, Tensor | None]:
        """Return y, float64 [M, *measurement], and the truths, counts [M, *shape] or None.

        Measurement m is a function of (seed, m).
        """
        if seed not in self._cache:
            truths = self.draw_truths(seed)
            y = self.y
            if y is None:
                assert truths is not None
                streams = SampleStreams(
                    fold_seed(seed, SIMULATION_KEY), self.numbers * SAMPLE_STRIDE
                )
                y = self.noise.draw(self.operator(truths.double()), streams.step(0))
                mask = self.operator.observed_mask(self.shape)
                if mask is not None:
                    y = torch.where(mask, y, 0.0)
            self._cache[seed] = (y, truths)
        return self._cache[seed]

    def problem(self, seed: int) -> InverseProblem:
        """Return the problem of all measurements, one for every row."""
        y, _ = self.simulate(seed)
        return self.make_problem(self.operator, self.noise, y)

    def example(self) -> InverseProblem:
        """Return a problem of this kind with one measurement, without simulating any."""
        y = torch.zeros((1, *self.operator.measurement_shape(self.shape)), dtype=torch.float64)
        if self.y is not None:
            y = self.y[:1]
        return self.make_problem(self.operator, self.noise, y)


SIMULATED_SETTING = re.compile(r"(test|val|train|model):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")


def read_measurements(
    model: Any, sampler: Sampler, operator: Operator, noise: Noise, setting: Any
) -> Measurements:
    """Return the measurements that the setting `measurement` names.

    Args:
        model: trained model of counts.
        sampler: for truths drawn from the model.
        operator: of the measurements.
        noise: of the measurements.
        setting: `test:17`, `val:0-15`, `train:3`, `model:0-99,200`, a file, or None where nothing
            is measured. A file has `y` and perhaps `x0`; see `read_file`.

    Raises:
        UserError: another setting, numbers beyond a split, or impossible measurements.
    """
    shape = model.shape
    max_count = model.process.max_count
    check_compatible(operator, noise, shape, max_count)
    make_measurements = partial(Measurements, operator, noise, shape, max_count)

    # 1. Rewards and classifiers measure nothing.
    if isinstance(noise, Tilt):
        refuse(
            setting is not None,
            "measurement: a reward or classifier measures nothing; leave out measurement",
        )
        y = noise.measurements(operator.measurement_shape(shape))
        return make_measurements(torch.arange(len(y)), lambda seed: None, y, "none")

    # 2. Simulated measurements.
    if not isinstance(setting, str) or not setting:
        raise UserError(
            "measurement must be given: test:0-15, val:3, train:3, model:0-99, or a file "
            "(.npz with y, .npy, ...)"
        )
    match = SIMULATED_SETTING.fullmatch(setting)
    if match:
        numbers = _parse_numbers(match[2], setting)
        draw_truths = _truths(model, sampler, match[1], numbers, setting)
        return make_measurements(numbers, draw_truths, None, setting)
    split = setting.split(":")[0]
    if split in ("test", "val", "train", "model"):
        raise UserError(
            f"measurement={setting}: numbers must follow the split, such as {split}:17, "
            f"{split}:0-15 or {split}:1,5,9"
        )

    # 3. Measurements in a file.
    y, truths = _read_file(Path(setting), operator, shape, max_count)
    InverseProblem(operator, noise, y).check(shape, max_count)
    return make_measurements(torch.arange(len(y)), lambda seed: truths, y, setting)


def _parse_numbers(text: str, setting: str) -> Tensor:
    """Return the numbers of a list of numbers and ranges, int64 [M]."""
    numbers: list[int] = []
    for part in text.split(","):
        first_text, _, last_text = part.partition("-")
        first = int(first_text)
        last = int(last_text or first_text)
        if not first <= last < SAMPLE_STRIDE or last - first >= MAX_MEASUREMENTS:
            raise UserError(
                f"measurement={setting}: {part} must be a range first-last of at most "
                f"{MAX_MEASUREMENTS:,} numbers"
            )
        numbers.extend(range(first, last + 1))
    refuse(len(set(numbers)) < len(numbers), f"measurement={setting} has a number twice")
    return torch.tensor(numbers, dtype=torch.int64)


def _truths(
    model: Any, sampler: Sampler, split: Any, numbers: Tensor, setting: str
) -> Callable[[int], Tensor | None]:
    """Return the function seed -> truths, counts [M, *shape]."""
    if split == "model":

        def draw_truths(seed: int) -> Tensor:
            batch_size = min(TRUTHS_PER_BATCH, len(numbers))
            batches = model.batches(
                numbers, fold_seed(seed, TRUTH_KEY), batch_size, sampler=sampler
            )
            return torch.cat([samples["samples"].cpu() for _, samples in batches])

        return draw_truths
    source = model.require_source()
    size = source.size(split)
    refuse(size == 0, f"measurement={setting}: {source.name} has no {SPLIT_NAMES[split]} data")
    refuse(
        int(numbers.max()) >= size,
        f"measurement={setting}: the {split} split has numbers 0 to {size - 1}",
    )
    x0 = source.batch(split, numbers)["x0"].cpu()
    return lambda seed: x0


def _read_file(
    path: Path, operator: Operator, shape: tuple[int, ...], max_count: int
) -> tuple[Tensor, Tensor | None]:
    """Return y [M, *measurement] and x0 [M, *shape] or None.

    They are the arrays `y` and `x0` of an .npz or HDF5 file, or all of another file is y.
    """
    # 1. Read the arrays.
    try:
        store = read_file(path)
    except UserError as error:
        raise UserError(
            f"measurement={path} must be test:..., val:..., train:..., model:... or a readable "
            f"file: {error}"
        ) from None
    arrays: dict[str, np.ndarray] = {}
    if store.is_table:
        for name, values in store.arrays.items():
            if values.dtype.kind not in "biuf":
                raise UserError(
                    f"measurement={path}: column {name!r} must contain numbers, not text"
                )
        arrays["y"] = np.stack(list(store.arrays.values()), 1)
    else:
        stored = {
            "y": store.arrays.get("y", store.arrays.get(COUNTS)),
            "x0": store.arrays.get("x0"),
        }
        for name, array in stored.items():
            if array is not None:
                arrays[name] = _load(array, path)
    refuse("y" not in arrays, f"measurement={path} has no array y")
    for name, array in arrays.items():
        is_number = array.dtype.kind in "biuf"
        refuse(not is_number, f"measurement={path}: {name} must be numbers, not {array.dtype}")

    # 2. Check the measurements.
    y_shape = operator.measurement_shape(shape)
    y = _to_rows(arrays["y"].astype(np.float64), y_shape, f"measurement={path}: y")
    refuse(not bool(torch.isfinite(y).all()), f"measurement={path}: y must be finite")
    if "x0" not in arrays:
        return y, None

    # 3. Check the truths.
    x0 = _to_rows(arrays["x0"], shape, f"measurement={path}: x0").long()
    if len(x0) != len(y) or not 0 <= int(x0.min()) <= int(x0.max()) <= max_count:
        raise UserError(
            f"measurement={path}: x0 must be counts from 0 to {max_count}, one for every y"
        )
    return y, x0.to(count_dtype(max_count))


def _load(array: Any, path: Path) -> np.ndarray:
    """Load an array that may be sparse or on disk, unless it is too large."""
    check_size(path, 8 * math.prod(array.shape))
    return np.asarray(array.toarray() if hasattr(array, "toarray") else array)


def _to_rows(array: np.ndarray, shape: tuple[int, ...], name: str) -> Tensor:
    """Return one or several arrays of a file as [M, *shape].

    Images have their channels last in files, or no axis for a single channel; rows of tables are
    flat.
    """
    file_shape = (*shape[1:], shape[0]) if len(shape) == 3 else shape
    shape_without_channel = file_shape
    if len(shape) == 3 and shape[0] == 1:
        shape_without_channel = file_shape[:-1]
    if array.shape in (file_shape, shape_without_channel):
        array = array[None]
    allowed = (file_shape, shape_without_channel, (math.prod(shape),))
    if array.shape[1:] not in allowed or not len(array):
        sides = ", ".join(map(str, file_shape))
        raise UserError(f"{name} must have shape {file_shape} or [M, {sides}], not {array.shape}")
    tensor = torch.from_numpy(np.ascontiguousarray(array)).reshape(-1, *file_shape)
    if len(shape) == 3:
        tensor = tensor.permute(0, 3, 1, 2).contiguous()
    return tensor
