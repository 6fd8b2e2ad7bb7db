"""The draw of `sample.py posterior=...`: samples of the posterior of every measurement in turn."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from blackout.config.instantiate import instantiate
from blackout.diffusion.plots import grid
from blackout.diffusion.sampler import Sampler
from blackout.errors import UserError, error_context, refuse
from blackout.posterior.blind import BlindProblem, parse_unknown
from blackout.posterior.gathered_samples import COST_COLUMNS
from blackout.posterior.measurement_checks import MODEL_DRAW_STEPS
from blackout.posterior.measurements import SAMPLE_STRIDE, Measurements, read_measurements
from blackout.posterior.prior import Prior
from blackout.posterior.problem import InverseProblem
from blackout.posterior.report import PosteriorOutputs
from blackout.protocols import (
    Draw,
    Drawn,
    MetricDescription,
    OutputNames,
    References,
    Samples,
    Watch,
)
from blackout.random import SampleStreams
from blackout.training.lightning_module import TrainingModule

if TYPE_CHECKING:
    from PIL import Image

PARAMETER_KEY = -4  # random numbers of an unknown parameter
MIN_CALIBRATION_TRUTHS = 10  # fewer give no p-value of ranks
MIN_PICTURE_ELEMENTS = 3  # smaller vectors are points, without a picture

# a measurement is far from the model, as readings of a camera with an offset are, if each of its
# more than 10 values exceeds 10 and twice the largest expected one
MIN_OFFSET_VALUES = 10
MIN_OFFSET = 10
MIN_OFFSET_RATIO = 2

METRICS = {
    "r_hat": MetricDescription(better="lower"),
    "ess_bulk": MetricDescription("samples", "higher"),
    "ess_tail": MetricDescription("samples", "higher"),
    "network_evaluations": MetricDescription("per sample", "lower"),
    "likelihood_evaluations": MetricDescription("per sample", "lower"),
    "seconds": MetricDescription("s", "lower"),
    "repaired_share": MetricDescription("share of elements", "lower"),
    "log_evidence": MetricDescription("nats", "higher"),
    "log_likelihood": MetricDescription("nats", "reference"),
    "log_likelihood_of_truth": MetricDescription("nats"),
    "reward": MetricDescription(better="higher"),
    "violations": MetricDescription("elements per sample", "lower"),
    "residual_chi_square": MetricDescription("per element", "reference"),
    "psnr": MetricDescription("dB", "higher"),
    "psnr_of_mean": MetricDescription("dB", "higher"),
    "std": MetricDescription("counts"),
    "coverage_50": MetricDescription("share", "reference"),
    "coverage_90": MetricDescription("share", "reference"),
}


def _measurement_setting(request: Mapping[str, Any]) -> Any:
    """Return the setting `measurement`, or that of N truths of the model for `calibrate=N`."""
    num_truths = request.get("calibrate")
    measurement = request.get("measurement")
    if num_truths is None:
        return measurement
    is_number = type(num_truths) is int and num_truths >= MIN_CALIBRATION_TRUTHS
    if measurement is not None or not is_number:
        raise UserError(
            "calibrate=N simulates N truths and measures them: N must be a whole number of at "
            f"least {MIN_CALIBRATION_TRUTHS}, and measurement must be left out"
        )
    return f"model:0-{num_truths - 1}"


class UnusedSetting(NamedTuple):
    """A setting of a sampler that posteriors do not use.

    Attributes:
        neutral: value that switches it off, which is allowed.
        reason: why it is not used.
    """

    neutral: Any
    reason: str


UNUSED_SETTINGS = {
    "guidance.scale": UnusedSetting(1, "the prior is the distribution without guidance"),
    "guidance.logit_range": UnusedSetting(None, "the prior is the distribution without guidance"),
    "correction.steps": UnusedSetting(0, "reverse runs take no corrector steps"),
    "correction.corrector": UnusedSetting(None, "reverse runs take no corrector steps"),
    "correction.logit_range": UnusedSetting(None, "reverse runs take no corrector steps"),
    "inpainting_particles": UnusedSetting(
        None, "posterior=overwrite posterior.particles=16 weights particles as inpaint= does"
    ),
}
GRID_SETTINGS = ("num_steps", "poisson_start")


def _refuse_unused_settings(settings: Mapping[str, Any], uses_grid: bool) -> None:
    """Refuse settings of a sampler that would change nothing.

    Args:
        settings: that replace those of the model's sampler; or, with `_target_`, a complete
            sampler, whose steps and corrector belong to its name.
        uses_grid: see `Method.uses_grid`.
    """
    is_complete = "_target_" in settings
    for name, unused in UNUSED_SETTINGS.items():
        group, _, setting = name.rpartition(".")
        values = (settings.get(group) or {}) if group else settings
        value = values.get(setting, unused.neutral)
        belongs_to_name = is_complete and setting == "corrector"
        if value not in (None, unused.neutral) and not belongs_to_name:
            raise UserError(f"sampler.{name} is not for posteriors: {unused.reason}; leave it out")
    if is_complete or uses_grid:
        return
    for name in GRID_SETTINGS:
        refuse(
            settings.get(name) is not None,
            f"sampler.{name} has no effect here: reverse runs take one step per unit of the "
            "logit of survival; set posterior.sweeps, posterior.moves or posterior.steps",
        )


def make_prior(model: Any, sampler: Sampler) -> Prior:
    """Return a model as a prior, with the kernel and time grid of a sampler.

    Models with a method `prior`, as exact distributions, return their own.

    Args:
        model: of counts, or the module of Lightning that trains it, as `from_data` returns it.
        sampler: of the reverse runs.
    """
    if isinstance(model, TrainingModule):
        model = model.model
    if hasattr(model, "prior"):
        return cast(Prior, model.prior())
    data_mean = model.data_mean if sampler.poisson_start else None
    sampler = sampler.memoryless
    return Prior(
        model.denoiser(),
        model.process,
        model.shape,
        sampler.kernel,
        data_mean,
        sampler.times(model.schedule),
        device=model.device,
    )


def _warn_about_offset(problem: InverseProblem, mean: Tensor) -> None:
    """Warn if all values of a measurement are far above what the model's mean [1, *shape] gives.

    Readings of a camera are, if its offset is not specified. So are data of another brightness.
    """
    y = problem.measurements(tuple(mean.shape[1:]))[0]
    largest = float(problem.noise.mean(problem.operator(mean)).max())
    smallest = float(y.min())
    if y.numel() > MIN_OFFSET_VALUES and smallest > max(MIN_OFFSET, MIN_OFFSET_RATIO * largest):
        warnings.warn(
            f"each y is at least {smallest:g}, but the model's mean gives at most {largest:.3g}: "
            "for raw readings of a camera use noise=camera noise.offset=...",
            stacklevel=2,
        )


def make_draw(
    method: Any, model: Any, sampler: Sampler, request: Mapping[str, Any]
) -> PosteriorDraw:
    """Return the draw of `sample.py` for a method.

    Args:
        method: a `method.Method`.
        model: trained model of counts.
        sampler: kernel, time grid and batch size.
        request: descriptions of `operator` and `noise`; `measurement` or `calibrate`;
            `num_samples` of each measurement.

    Raises:
        UserError: parts that do not fit together, or not with the model.
    """
    # 1. Operator and noise.
    refuse(
        not request.get("operator"),
        "operator must be given: operator=identity, inpaint_box, pool, ...",
    )
    settings, unknown = parse_unknown(request)
    with error_context("operator"):
        operator = instantiate(settings["operator"], "operator")
        operator.prepare(model)
    noise = operator.noise
    if settings["noise"]:
        with error_context("noise"):
            noise = instantiate(settings["noise"], "noise")

    with error_context("posterior"):
        # 2. Measurements.
        measurement = _measurement_setting(request)
        measurements = read_measurements(model, sampler, operator, noise, measurement)
        if unknown is not None:
            make_problem = partial(BlindProblem, unknown=unknown)
            measurements = replace(measurements, make_problem=make_problem)
        prior = make_prior(model, sampler)
        problem = measurements.example()
        mean = model.data_mean[None].cpu().double()
        problem.terms(mean)  # refuses maps and matrices of another size
        _warn_about_offset(problem, mean)

        # 3. The method for this problem.
        method = method.resolve(prior, problem)
        method.check(prior, problem)
        draws_truths = str(measurement).startswith("model:")
        uses_grid = draws_truths or method.uses_grid(prior, problem)
        _refuse_unused_settings(request.get("sampler") or {}, uses_grid)

    # InpaintBox -> inpaint_box
    folder = re.sub(r"(?<!^)(?=[A-Z])", "_", type(operator).__name__).lower()
    names = OutputNames(folder=f"posterior/{folder}")
    return PosteriorDraw(model, sampler, method, measurements, request["num_samples"], names)


@dataclass
class PosteriorDraw(Draw):
    """A draw in which row m S + k is sample k of the m-th measurement, with S samples of each.

    Args:
        model: in eval mode.
        sampler: kernel, time grid and batch size.
        method: a `method.Method`.
        measurements: of the run.
        num_samples: S.
        names: of the results.
        cost: network and likelihood evaluations of a sample and seconds of all samples, for every
            sweep; filled by `PosteriorOutputs`.
    """

    model: Any
    sampler: Sampler
    method: Any
    measurements: Measurements
    num_samples: int
    names: OutputNames
    condition: Mapping[str, Any] = field(init=False)
    batch_size: int = field(init=False)
    cost: list[dict[str, float]] = field(default_factory=list)
    resumable = True
    references = References(
        ideal={"residual_chi_square": 1.0, "r_hat": 1.0, "coverage_50": 0.5, "coverage_90": 0.9},
        metrics=METRICS,
    )

    def __post_init__(self) -> None:
        self.condition = {"measurement": self.measurements.source}
        self.batch_size = self.sampler.batch_size

    def rows(self, num_samples: int) -> int:
        """Return the number of rows for `num_samples` of each measurement."""
        return len(self.measurements) * num_samples

    def outputs(self, seed: int) -> PosteriorOutputs:
        """Return the collector that writes estimates, pictures and diagnostics."""
        return PosteriorOutputs(self, seed)

    @property
    def steps(self) -> int:
        """The number of sweeps."""
        return int(self.method.num_sweeps(make_prior(self.model, self.sampler)))

    @property
    def nfe(self) -> int:
        """The network evaluations per sample, as counted in the first batch."""
        return int(sum(sweep["network_evaluations"] for sweep in self.cost))

    @property
    def description(self) -> Mapping[str, Any]:
        """Method, operator and noise with all their settings."""
        settings = _settings(self.method)
        operator = self.measurements.operator
        noise = self.measurements.noise
        return {
            "method": type(self.method).__name__,
            **{name: value for name, value in settings.items() if value is not None},
            "operator": {"name": type(operator).__name__, **_settings(operator)},
            "noise": {"name": type(noise).__name__, **_settings(noise)},
            "measurement": self.measurements.source,
        }

    def batches(
        self,
        indices: Tensor,
        seed: int,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Draw rows in batches.

        Yields:
            Indices [b], and arrays: `samples` [b, *shape], `log_likelihood` and `num_repaired`
            [b], `chains` [b, sweeps, ...], `_cost` float64 [b, sweeps, 5] (see
            `gathered_samples.COST_COLUMNS`); `log_evidence` [b] of particles, and the unknown
            parameter [b].
        """
        if not len(indices):
            return
        num_rows = self.rows(self.num_samples)
        if int(indices.max()) >= num_rows:
            raise UserError(
                f"indices must be below {num_rows}, which is {len(self.measurements)} measurements "
                f"x {self.num_samples} samples"
            )
        size = batch_size or min(self.batch_size, len(indices))
        for part in indices.split(size):
            # 1. Draw a full batch, repeating the last row.
            padding = part[-1:].expand(size - len(part))
            result = self._sample(torch.cat([part, padding]), seed, watch)
            batch = {
                "samples": result.samples,
                "log_likelihood": result.log_likelihood,
                "chains": result.chains,
                "num_repaired": result.num_repaired,
            }
            if len(result.log_evidence):
                batch["log_evidence"] = result.log_evidence

            # 2. An unknown parameter given the samples.
            problem = self._problem(part, seed)
            if isinstance(problem, BlindProblem):
                source = self._streams(part, seed).fold_in(PARAMETER_KEY).step(0)
                x = result.samples[: len(part)]
                batch[problem.unknown.name] = problem.draw_value(x, source)

            # 3. The cost of each sample; the seconds of a batch are shared equally.
            cost = torch.tensor(
                [[sweep[name] for name in COST_COLUMNS] for sweep in result.trace],
                dtype=torch.float64,
            )
            cost[:, -1] /= len(part)
            batch["_cost"] = cost.expand(size, -1, -1)
            yield part, {name: values[: len(part)].cpu() for name, values in batch.items()}

    def _sample(self, rows: Tensor, seed: int, watch: Watch | None) -> Any:
        """Return the `method.PosteriorSamples` of rows."""
        streams = self._streams(rows, seed)
        problem = self._problem(rows, seed)
        prior = make_prior(self.model, self.sampler)

        def show(sweep: int, num_sweeps: int, x: Tensor, z: Tensor, level: float) -> None:
            states = torch.cat([x, z], -1)
            if sweep == 1:  # a watcher expects step 0
                cast(Watch, watch)(0, num_sweeps, states)
            cast(Watch, watch)(sweep, num_sweeps, states)

        observer = None if watch is None else show
        with torch.no_grad(), self.sampler.evaluating(self.model.averaged):
            return self.method.sample(prior, problem, len(rows), streams, observer=observer)

    def draw_unconditional(self, num_samples: int, seed: int) -> Tensor:
        """Draw samples of the model in few steps, counts [num_samples, *shape].

        The default kernels evaluate the network twice per step.
        """
        prior = make_prior(self.model, self.sampler)
        times = prior.reverse_times(prior.final_time, MODEL_DRAW_STEPS - 1)
        prior = replace(prior, times=times)

        def draw(part: Tensor, streams: SampleStreams) -> Tensor:
            return prior.draw(len(part), streams)

        return self._draw_in_batches(num_samples, seed, draw)

    def perturb(self, x: Tensor, num_samples: int, seed: int) -> Tensor:
        """Return data similar to x [n, *shape], counts [n, num_samples, *shape].

        Each row of x takes one network evaluation; see `Prior.perturb`.
        """
        prior = make_prior(self.model, self.sampler)
        x = x.to(self.model.device)

        def draw(part: Tensor, streams: SampleStreams) -> Tensor:
            return prior.perturb(x[part], streams, num_samples)

        return self._draw_in_batches(len(x), seed, draw)

    def _draw_in_batches(
        self, num_rows: int, seed: int, draw: Callable[[Tensor, SampleStreams], Tensor]
    ) -> Tensor:
        batches = []
        with torch.no_grad(), self.sampler.evaluating(self.model.averaged):
            for part in torch.arange(num_rows, device=self.model.device).split(self.batch_size):
                batches.append(draw(part, SampleStreams(seed, part)).cpu())
        return torch.cat(batches)

    def _streams(self, rows: Tensor, seed: int) -> SampleStreams:
        number = self.measurements.numbers[rows // self.num_samples]
        sample = rows % self.num_samples
        return SampleStreams(seed, (number * SAMPLE_STRIDE + sample).to(self.model.device))

    def _problem(self, rows: Tensor, seed: int) -> InverseProblem:
        problem = self.measurements.problem(seed)
        return problem.select(rows // self.num_samples, self.model.shape)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Return a grid of the counts; None for vectors of one or two elements."""
        x = samples["samples"]
        if x[0].numel() < MIN_PICTURE_ELEMENTS:
            return None
        return grid(x, self.model.process.max_count, columns)


def _settings(component: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain values; objects become their name."""
    if not dataclasses.is_dataclass(component):
        return {}
    values = {
        setting.name: getattr(component, setting.name) for setting in dataclasses.fields(component)
    }
    text = json.dumps(values, default=lambda v: getattr(v, "__name__", type(v).__name__))
    return dict(json.loads(text))
