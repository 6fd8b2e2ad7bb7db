"""`posterior=` of `sample.py`: the draw that a way of sampling makes of a model and of measurements.

It gives the samples of every one's posterior, measurement after measurement.
"""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from blackout.config.instantiate import instantiate
from blackout.diffusion.plots import grid
from blackout.diffusion.sampler import Sampler
from blackout.errors import UserError, error_context, refuse
from blackout.posterior.outputs import SPENT, STEPS, PosteriorOutputs
from blackout.posterior.problem import STRIDE, Measured, Measurements, Prior, read_measurements
from blackout.posterior.unknown_number import Blind, unknown_of
from blackout.protocols import Draw, Drawn, OutputNames, References, Samples, Watch
from blackout.random import SampleStreams

if TYPE_CHECKING:
    from PIL import Image

_NUMBER = -4


def _asked(request: Mapping[str, Any]) -> Any:
    """The setting `measurement`; so many truths of the model's own where `calibrate` is given in its place."""
    number = request.get("calibrate")
    if number is None:
        return request.get("measurement")
    if request.get("measurement") is not None or type(number) is not int or number < 10:
        raise UserError("calibrate draws so many truths from the model, at least 10, in place of a measurement")
    return f"model:0-{number - 1}"


_UNUSED = {
    "guidance.scale": (1, "p(x | y) has no guided law"), "guidance.between": (None, "p(x | y) has no guided law"),
    "correction.steps": (0, "reverse runs take none"),
    "correction.corrector": (None, "reverse runs take none"), "correction.between": (None, "reverse runs take none"),
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
        part, _, setting = name.rpartition(".")
        settings = (given.get(part) or {}) if part else given
        if settings.get(setting, neutral) not in (None, neutral) and not (whole and setting == "corrector"):
            raise UserError(f"sampler.{name} is not for posteriors: {why}; leave it out")
    for name in () if whole or walks else ("num_steps", "poisson_start"):
        why = "a reverse run takes one step per unit of the logit of survival; posterior.sweeps, moves or steps set it"
        refuse(given.get(name) is not None, f"sampler.{name} is not for this posterior: {why}")


def prior_of(model: Any, sampler: Sampler) -> Prior:
    """A model as a prior, with a sampler's kernel and grid; exact laws have their own."""
    if hasattr(model, "prior"):
        return cast(Prior, model.prior())
    mean, sampler = model.mean if sampler.poisson_start else None, sampler.memoryless
    times = sampler.times(model.schedule)
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
    parts, unknown = unknown_of(request)
    with error_context("operator"):
        operator = instantiate(parts["operator"], "operator")
        operator.prepare(model)
    with error_context("noise"):
        noise = instantiate(parts["noise"], "noise") if parts["noise"] else operator.noise
    with error_context("posterior"):
        asked = _asked(request)
        kind = Measured if unknown is None else partial(Blind, unknown=unknown)
        measurements = replace(read_measurements(model, sampler, operator, noise, asked), kind=kind)
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
    references = References(
        ideal={"residual_chi_square": 1.0, "r_hat": 1.0, "coverage_50": 0.5, "coverage_90": 0.9}
    )

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
