"""`posterior=` of `sample.py`: the draw that a way of sampling makes of a model, and the measurements it explains.

Measurements are simulated from data or from the model, or come from a file. A draw gives the samples of every one's
posterior, measurement after measurement.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.data.file_formats import COUNTS, read_store
from blackout.diffusion.particles import taken_apart
from blackout.diffusion.plots import grid
from blackout.diffusion.samplers import Sampler
from blackout.errors import UserError, error_context, refuse
from blackout.files import check_size
from blackout.posterior.noise import Noise
from blackout.posterior.operators import Operator
from blackout.posterior.outputs import SPENT, STEPS, PosteriorOutputs
from blackout.posterior.problem import Blind, Measured, Prior, Unknown, check_fit
from blackout.posterior.rewards import Tilt
from blackout.protocols import Draw, Drawn, OutputNames, Samples, Watch
from blackout.random import SampleStreams, fold_seed
from blackout.training.instantiate import make

if TYPE_CHECKING:
    from PIL import Image

_NUMBER = -4
_UNKNOWN = re.compile(r"unknown(?::([^-]+)-(.+))?")
STRIDE = 1 << 32
"""Sample k of measurement m has the random numbers of sample m STRIDE + k."""
_SIMULATION, _TRUTH = 11, 12
_TRUTHS_AT_ONCE = 64
_MOST = 1_000_000
_SIMULATED = re.compile(r"(test|train|model):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")


def _unknown(request: Mapping[str, Any]) -> tuple[dict[str, Any], Unknown | None]:
    """Operator and noise with the middle of its prior for the number that is `unknown:low-high`, and that number."""
    parts: dict[str, Any] = {}
    found: list[Unknown] = []
    for of in ("operator", "noise"):
        parts[of] = dict(request.get(of) or {})
        for name, value in parts[of].items():
            if match := _UNKNOWN.fullmatch(str(value)):
                try:
                    found.append(Unknown(of, name, *map(float, match.groups())))
                except (TypeError, ValueError):
                    raise UserError(f"{of}.{name}={value}: unknown:0.5-4 has two positive ends in order") from None
                parts[of][name] = found[-1].middle
    if len(found) > 1:
        raise UserError(f"{found[1].of}.{found[1].name}: {found[0].of}.{found[0].name} is unknown; only one may be")
    return parts, found[0] if found else None


def _asked(request: Mapping[str, Any]) -> Any:
    """The setting `measurement`; so many truths of the model's own where `calibrate` is given in its place."""
    number = request.get("calibrate")
    if number is None:
        return request.get("measurement")
    if request.get("measurement") is not None or type(number) is not int or number < 10:
        raise UserError("calibrate draws so many truths from the model, at least 10, in place of a measurement")
    return f"model:0-{number - 1}"


_UNUSED = {
    "guidance": (1, "p(x | y) has no guided law"), "guidance_between": (None, "p(x | y) has no guided law"),
    "guidance_particles": (1, "p(x | y) has no guided law"), "corrector_steps": (0, "reverse runs take none"),
    "corrector": (None, "reverse runs take none"), "corrector_between": (None, "reverse runs take none"),
    "inpainting_particles": (None, "posterior=overwrite posterior.particles=16 is what inpaint= does"),
}  # fmt: skip
"""Settings of a sampler that posteriors have no use for, what leaves them out, and why."""


def _refuse_unused(given: Mapping[str, Any], walks: bool) -> None:
    """Refuse settings of a sampler that would change nothing.

    Args:
        given: fields that the user replaces in the model's own sampler, or a whole description, whose steps and
            corrector came with its name.
        walks: see `Method.takes_steps`.
    """
    whole = "_target_" in given
    for name, (neutral, why) in _UNUSED.items():
        if given.get(name, neutral) not in (None, neutral) and not (whole and name == "corrector"):
            raise UserError(f"sampler.{name} is not for posteriors: {why}; leave it out")
    for name in () if whole or walks else ("num_steps", "poisson_start"):
        if given.get(name) is not None:
            raise UserError(
                f"sampler.{name} is not for this posterior, whose reverse runs take one step per unit of the logit of "
                "survival: posterior.sweeps, moves or steps set its length"
            )


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

    def problem(self, seed: int | None) -> Measured:
        """All of them, one for every row; without a seed one of this kind, to see what can be done with it."""
        empty = torch.zeros((1, *self.operator.measured(self.shape)), dtype=torch.float64)
        example = empty if self.given is None else self.given[:1]
        given = (self.operator, self.noise, example if seed is None else self.of(seed)[0])
        return Measured(*given) if self.unknown is None else Blind(*given, self.unknown)


def read_measurements(model: Any, sampler: Sampler, operator: Operator, noise: Noise, asked: Any) -> Measurements:
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
        refuse(asked is not None, "measurement: a reward or classifier measures nothing: leave it out")
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


def prior_of(model: Any, sampler: Sampler) -> Prior:
    """A model as a prior, with a sampler's kernel and grid; exact laws have their own."""
    if hasattr(model, "prior"):
        return cast(Prior, model.prior())
    mean, sampler = model.mean if sampler.poisson_start else None, taken_apart(sampler)
    times = model.times(sampler)
    return Prior(model.denoiser(), model.process, model.shape, sampler.kernel, mean, times, device=model.device)


def _look_for_offset(problem: Measured, mean: Tensor) -> None:
    """Warn where every number measured is far above what the model's mean, data [1, *shape], gives anywhere.

    Such are the readings of a camera whose offset was not said. So are data of another brightness, all of them.
    """
    y, most = problem.y(tuple(mean.shape[1:]))[0], float(problem.noise.mean(problem.operator(mean)).max())
    if y.numel() > 10 and float(y.min()) > max(10, 2 * most):
        told = f"each y is {float(y.min()):g} or more, and the model's mean gives {most:.3g} at most"
        warnings.warn(f"{told}: raw readings of a camera need noise=camera noise.offset=...", stacklevel=2)


def requested(way: Any, model: Any, sampler: Sampler, request: Mapping[str, Any]) -> PosteriorDraw:
    """What `sample.py` draws.

    Args:
        way: of sampling, a `method.Method`.
        model: a trained model of counts.
        sampler: kernel, grid and batches.
        request: `operator` and `noise` as descriptions, `measurement`, `num_samples`.

    Raises:
        UserError: parts that do not go together, or not with the model.
    """
    refuse(not request.get("operator"), "operator must be given: operator=identity, inpaint_box, pool, ...")
    parts, unknown = _unknown(request)
    with error_context("operator"):
        operator = make(parts["operator"], "operator")
        operator.prepare(model)
    with error_context("noise"):
        noise = make(parts["noise"], "noise") if parts["noise"] else operator.noise
    with error_context("posterior"):
        asked = _asked(request)
        measurements = replace(read_measurements(model, sampler, operator, noise, asked), unknown=unknown)
        prior, problem = prior_of(model, sampler), measurements.problem(None)
        problem.terms(mean := model.mean[None].cpu().double())  # maps and matrices of another size are refused here
        _look_for_offset(problem, mean)
        method = way.method(prior, problem)
        method.check(prior, problem)
        simulated = str(asked).startswith("model:")
        _refuse_unused(request.get("sampler") or {}, simulated or method.takes_steps(prior, problem))
    folder = re.sub(r"(?<!^)(?=[A-Z])", "_", type(operator).__name__).lower()
    names = OutputNames(folder=f"posterior/{folder}")
    return PosteriorDraw(model, sampler, method, measurements, request["num_samples"], names)


@dataclass
class PosteriorDraw(Draw):
    """Row m S + k is sample k of the m-th measurement, S samples of each.

    Args:
        model: in eval mode.
        sampler: whose kernel, grid and batches are used.
        method: how to sample, a `method.Method`.
        measurements: what is given.
        samples_of_each: S.
        names: of the results.
    """

    model: Any
    sampler: Sampler
    method: Any
    measurements: Measurements
    samples_of_each: int
    names: OutputNames
    condition: Mapping[str, Any] = field(init=False)
    batch_size: int = field(init=False)
    spent: list[dict[str, float]] = field(default_factory=list)
    """What a sample took, sweep by sweep, and the seconds of all, as `outputs` were given them."""
    resumable = True

    def __post_init__(self) -> None:
        self.condition, self.batch_size = {"measurement": self.measurements.source}, self.sampler.batch_size

    def rows(self, num_samples: int) -> int:
        """num_samples of each measurement."""
        return len(self.measurements) * num_samples

    def outputs(self, seed: int) -> PosteriorOutputs:
        """Estimates, pictures and diagnostics."""
        return PosteriorOutputs(self, seed)

    @property
    def steps(self) -> int:
        """Sweeps."""
        return int(self.method.length(prior_of(self.model, self.sampler)))

    @property
    def nfe(self) -> int:
        """As counted in the first batch that `outputs` were given."""
        return int(sum(sweep["evaluations"] for sweep in self.spent))

    @property
    def description(self) -> Mapping[str, Any]:
        """Method, operator and noise with all their settings."""
        method = {name: value for name, value in _settings(self.method).items() if value is not None}
        parts = {"operator": self.measurements.operator, "noise": self.measurements.noise}
        named = {name: {"name": type(part).__name__, **_settings(part)} for name, part in parts.items()}
        return {"method": type(self.method).__name__, **method, **named, "measurement": self.measurements.source}

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """(indices [b], `samples` [b, *shape], `log_likelihood` and `pasted` [b], of particles `log_evidence` [b],
        `chains` [b, sweeps, ...], `_spent` of them float64 [b, sweeps, 5], see `outputs.SPENT`).
        """
        if not len(indices):
            return
        total = self.rows(self.samples_of_each)
        if int(indices.max()) >= total:
            raise UserError(f"indices must be below {total}: {len(self.measurements)} measurements x num_samples")
        size = batch_size or min(self.batch_size, len(indices))
        for part in indices.split(size):
            found = self._run(torch.cat([part, part[-1:].expand(size - len(part))]), seed, watch)
            named = {name: getattr(found, name) for name in ("samples", "log_likelihood", "chains", "pasted")}
            if isinstance(problem := self._problem(part, seed), Blind):
                x, streams = found.samples[: len(part)], self._streams(part, seed)
                named[problem.unknown.name] = problem.number(x, streams.fold(_NUMBER).at(0))
            named |= {"log_evidence": found.log_evidence} if len(found.log_evidence) else {}
            spent = torch.tensor([[sweep[name] for name in SPENT] for sweep in found.trace], dtype=torch.float64)
            spent[:, -1] /= len(part)
            named["_spent"] = spent.expand(size, -1, -1)
            yield part, {name: values[: len(part)].cpu() for name, values in named.items()}

    def _run(self, rows: Tensor, seed: int, watch: Watch | None) -> Any:
        streams, problem = self._streams(rows, seed), self._problem(rows, seed)
        prior = prior_of(self.model, self.sampler)

        def shown(sweep: int, sweeps: int, x: Tensor, z: Tensor, level: float) -> None:
            for step in (0, sweep) if sweep == 1 else (sweep,):
                cast(Watch, watch)(step, sweeps, torch.cat([x, z], -1))

        observer = None if watch is None else shown
        with torch.no_grad(), self.sampler.evaluating(self.model.averaged):
            return self.method.sample(prior, problem, len(rows), streams, observer=observer)

    def unconditional(self, number: int, seed: int) -> Tensor:
        """So many draws of the model alone, counts [number, *shape], by few steps: evaluations are twice as many."""
        prior = prior_of(self.model, self.sampler)
        prior = replace(prior, times=prior.walk(prior.final_time, STEPS - 1))
        return self._by_parts(number, seed, lambda part, streams: prior.draw(len(part), streams))

    def restored(self, x: Tensor, number: int, seed: int) -> Tensor:
        """See `Prior.restored`, of data [n, *shape]: counts [n, number, *shape], by one evaluation of each."""
        prior = prior_of(self.model, self.sampler)
        x = x.to(self.model.device)
        return self._by_parts(len(x), seed, lambda part, streams: prior.restored(x[part], streams, number))

    def _by_parts(self, number: int, seed: int, draw: Callable[[Tensor, SampleStreams], Tensor]) -> Tensor:
        parts = torch.arange(number, device=self.model.device).split(self.batch_size)
        with torch.no_grad(), self.sampler.evaluating(self.model.averaged):
            return torch.cat([draw(part, SampleStreams(seed, part)).cpu() for part in parts])

    def _streams(self, rows: Tensor, seed: int) -> SampleStreams:
        number, k = rows // self.samples_of_each, rows % self.samples_of_each
        return SampleStreams(seed, (self.measurements.numbers[number] * STRIDE + k).to(self.model.device))

    def _problem(self, rows: Tensor, seed: int) -> Measured:
        return self.measurements.problem(seed).select(rows // self.samples_of_each, self.model.shape)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """A grid of the counts; None for points, vectors of fewer than three of them."""
        x = samples["samples"]
        return None if x[0].numel() < 3 else grid(x, self.model.process.max_count, columns)


def _settings(part: Any) -> dict[str, Any]:
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    given = {one.name: getattr(part, one.name) for one in fields}
    return dict(json.loads(json.dumps(given, default=lambda v: getattr(v, "__name__", type(v).__name__))))
