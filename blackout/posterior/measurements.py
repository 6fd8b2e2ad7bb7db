"""The measurements that the command line names: simulated from data or from the model, or in a file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.data.file_formats import COUNTS, read_store
from blackout.diffusion.samplers import Sampler
from blackout.errors import UserError
from blackout.files import check_size
from blackout.posterior.noise import Noise
from blackout.posterior.operators import Operator
from blackout.posterior.problem import Blind, Measured, Unknown, check_fit
from blackout.posterior.rewards import Tilt
from blackout.random import SampleStreams, fold_seed

STRIDE = 1 << 32
"""Sample k of measurement m has the random numbers of sample m STRIDE + k."""
_SIMULATION, _TRUTH = 11, 12
_TRUTHS_AT_ONCE = 64
_MOST = 1_000_000
_SIMULATED = re.compile(r"(test|train|model):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")


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
    """

    operator: Operator
    noise: Noise
    shape: tuple[int, ...]
    max_count: int
    numbers: Tensor
    truths_of: Callable[[int], Tensor | None]
    given: Tensor | None
    source: str
    unknown: Unknown | None = None
    _made: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.numbers)

    def of(self, seed: int) -> tuple[Tensor, Tensor | None]:
        """y, float64 [M, *measured], and the truths, counts [M, *shape] or None: measurement m depends on (seed, m)."""
        if seed not in self._made:
            truths, y = self.truths_of(seed), self.given
            if y is None:
                assert truths is not None
                numbers = SampleStreams(fold_seed(seed, _SIMULATION), self.numbers * STRIDE).at(0)
                y = self.noise.draw(self.operator(truths.double()), numbers)
                seen = self.operator.seen(self.shape)
                y = y if seen is None else torch.where(seen, y, 0.0)
            self._made[seed] = y, truths
        return self._made[seed]

    def problem(self, seed: int) -> Measured:
        """All of them, one for every row."""
        return self._of(self.of(seed)[0])

    def example(self) -> Measured:
        """One problem of this kind, to see what can be done with it."""
        y = torch.zeros((1, *self.operator.measured(self.shape)), dtype=torch.float64)
        return self._of(y if self.given is None else self.given[:1])

    def _of(self, y: Tensor) -> Measured:
        given = (self.operator, self.noise, y)
        return Measured(*given) if self.unknown is None else Blind(*given, self.unknown)


def read(model: Any, sampler: Sampler, operator: Operator, noise: Noise, asked: Any) -> Measurements:
    """The measurements that a setting names.

    Args:
        model: a trained model of counts.
        sampler: for truths drawn from the model.
        asked: `test:17`, `train:0-15`, `model:0-99,200`, a file (`read_store`; an .npz has `y` and, where it is known,
            `x0`), or None where the operator needs none.

    Raises:
        UserError: anything else, numbers beyond a split, or measurements that the operator cannot have made.
    """
    shape, largest = model.shape, model.process.max_count
    check_fit(operator, noise, shape, largest)
    make = partial(Measurements, operator, noise, shape, largest)
    if isinstance(noise, Tilt):
        if asked is not None:
            raise UserError("measurement: a reward or classifier measures nothing: leave it out")
        y = noise.measurements(operator.measured(shape))
        return make(torch.arange(len(y)), lambda seed: None, y, "none")
    if not isinstance(asked, str) or not asked:
        raise UserError("measurement must be given: test:0-15, train:3, model:0-99 or a file (.npz with y, .npy, ...)")
    if match := _SIMULATED.fullmatch(asked):
        numbers = _numbers(match[2], asked)
        return make(numbers, _truths(model, sampler, match[1], numbers, asked), None, asked)
    if asked.split(":")[0] in ("test", "train", "model"):
        raise UserError(f"measurement={asked}: numbers such as {asked.split(':')[0]}:17 or 0-15 or 1,5,9 must follow")
    y, truths = _from_file(Path(asked), operator, shape, largest)
    found = make(torch.arange(len(y)), lambda seed: truths, y, asked)
    Measured(operator, noise, y).check(shape, largest)
    return found


def _numbers(text: str, asked: str) -> Tensor:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < STRIDE or high - low >= _MOST:
            raise UserError(f"measurement={asked}: {part} is no range of numbers, or too large")
        numbers.extend(range(low, high + 1))
    if len(set(numbers)) < len(numbers):
        raise UserError(f"measurement={asked} names a number twice")
    return torch.tensor(numbers, dtype=torch.int64)


def _truths(model: Any, sampler: Sampler, split: str, numbers: Tensor, asked: str) -> Callable[[int], Tensor | None]:
    if split == "model":

        def drawn(seed: int) -> Tensor:
            size = min(_TRUTHS_AT_ONCE, len(numbers))
            batches = model.batches(numbers, fold_seed(seed, _TRUTH), size, sampler=sampler)
            return torch.cat([samples["samples"].cpu() for _, samples in batches])

        return drawn
    source = model.require_source()
    if int(numbers.max()) >= source.size(split):
        raise UserError(f"measurement={asked}: the {split} split has numbers 0..{source.size(split) - 1}")
    x0 = source.batch(split, numbers)["x0"].cpu()
    return lambda seed: x0


def _from_file(path: Path, operator: Operator, shape: tuple[int, ...], max_count: int) -> tuple[Tensor, Tensor | None]:
    """y [M, *measured] and x0 [M, *shape] or None: `y` and `x0` of an .npz or HDF5 file, or all that another holds."""
    try:
        store = read_store(path)
    except UserError as error:
        raise UserError(
            f"measurement={path} is neither test:..., train:..., model:... nor a readable file: {error}"
        ) from None
    if store.tabular:
        arrays = {"y": _columns(store.arrays, path)}
    else:
        whole = {"y": store.arrays.get("y", store.arrays.get(COUNTS)), "x0": store.arrays.get("x0")}
        arrays = {name: _whole(array, path) for name, array in whole.items() if array is not None}
    if "y" not in arrays:
        raise UserError(f"measurement={path} has no array y")
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise UserError(f"measurement={path}: {name} must be numbers, not {array.dtype}")
    y = _rows(arrays["y"].astype(np.float64), operator.measured(shape), f"measurement={path}: y")
    if not bool(torch.isfinite(y).all()):
        raise UserError(f"measurement={path}: y must be finite")
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


def _columns(columns: dict[str, np.ndarray], path: Path) -> np.ndarray:
    """The table [rows, columns] of numbers that they make up."""
    if text := [name for name, values in columns.items() if values.dtype.kind not in "biuf"]:
        raise UserError(f"measurement={path}: column {text[0]!r} holds text, not numbers")
    return np.stack(list(columns.values()), 1)


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
