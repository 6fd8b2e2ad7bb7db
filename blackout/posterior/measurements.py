"""Measurements of a run: read from a file, or simulated from data or from samples of the model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.data.formats import COUNTS, read_file
from blackout.diffusion.sampler import Sampler
from blackout.errors import UserError, refuse
from blackout.posterior.noise import Noise
from blackout.posterior.operators import Operator
from blackout.posterior.problem import InverseProblem, check_compatible
from blackout.posterior.rewards import Tilt
from blackout.protocols import SPLIT_NAMES
from blackout.random import SampleStreams, fold_seed
from blackout.representation import format_fields
from blackout.safe_reading import check_size

SAMPLE_STRIDE = 1 << 32  # sample k of measurement m has random stream m SAMPLE_STRIDE + k
SIMULATION_KEY = 11  # random numbers of simulated measurements
TRUTH_KEY = 12  # random numbers of truths drawn from the model
TRUTHS_PER_BATCH = 64
MAX_MEASUREMENTS = 1_000_000  # of one range

SIMULATED_SETTING = re.compile(r"(test|val|train|model):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")

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
        """Return the problem with one placeholder measurement, to check settings with."""
        y = torch.zeros((1, *self.operator.measurement_shape(self.shape)), dtype=torch.float64)
        if self.y is not None:
            y = self.y[:1]
        return self.make_problem(self.operator, self.noise, y)


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
        draw_truths = _make_draw_truths(model, sampler, match[1], numbers, setting)
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
    refuse(len(set(numbers)) < len(numbers), f"measurement={setting} must not have a number twice")
    return torch.tensor(numbers, dtype=torch.int64)


def _make_draw_truths(
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
        f"measurement={setting}: numbers must be in 0..{size - 1}, those of the {split} split",
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
    refuse("y" not in arrays, f"measurement={path} has no array y: save the measurements as y")
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
    x0 = _to_rows(arrays["x0"].astype(np.float64), shape, f"measurement={path}: x0")
    is_count = (x0 >= 0) & (x0 <= max_count) & (x0 == x0.round())
    if len(x0) != len(y) or not bool(is_count.all()):
        raise UserError(
            f"measurement={path}: x0 must be whole numbers from 0 to {max_count}, "
            "one array for every y"
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
