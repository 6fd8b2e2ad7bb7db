"""Draws of count models as `sample.py` requests them: a sampler, classes and known elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from blackout.config.descriptions import add_defaults, complete_description
from blackout.config.instantiate import instantiate
from blackout.data import CountData
from blackout.data.annotated_samples import AnnotatedSamples
from blackout.data.labels import decode_labels
from blackout.diffusion.checks import check_guidance
from blackout.diffusion.conditions import Conditions, parse_labels, requested_total
from blackout.diffusion.data_stats import check_facts
from blackout.diffusion.evaluations import evaluations_per_sample
from blackout.diffusion.grid_ends import add_grid_ends
from blackout.diffusion.inpainting import KnownElements, read_known_elements
from blackout.diffusion.latent_features import has_latent_features, latent_features
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.particles import particles_per_sample
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.errors import UserError, refuse
from blackout.protocols import (
    Draw,
    Drawn,
    MetricDescription,
    OutputNames,
    Outputs,
    References,
    Samples,
    Source,
    Watch,
    refuse_unknown,
)
from blackout.representation import format_fields

if TYPE_CHECKING:
    from PIL import Image

# Ratio of the largest count to the mean above which brightness is logarithmic: nearly all elements
# would be black otherwise. Handwritten digits have a ratio of at most 10.
MIN_LOG_SCALE_RATIO = 16
RELATIVE_DESCRIPTION = (
    "A row is a sample, or one of its states in turn; a column is an element. "
    "Black is 0, grey the mean of the element in the training data, white far above it."
)
MAX_BYTE = 255  # counts up to it are brightness in 8 bits, which needs no scale

# Vectors with known elements: 13 steps of the trapezoidal rule, with 2 evaluations each, of 4
# particles cost about 100 evaluations per sample. Networks of short vectors are cheap; there 50
# steps, about 400 evaluations, estimate p(known) of rough counts to 5 %, where 13 steps are up to
# 15 % off (benchmarks/results/known_probability.json). More particles do not reduce that error.
VECTOR_INPAINTING = {"num_steps": 13, "inpainting_particles": 4}
SHORT_VECTOR_INPAINTING = {"num_steps": 50, "inpainting_particles": 4}
MAX_SHORT_VECTOR = 16  # elements
BITS = MetricDescription("bits per dimension", "lower")
METRICS = {
    "bits_per_dim": BITS,
    "bits_per_dim_train": BITS,
    "bits_per_dim_test": BITS,
    "bits_per_dim_train_unconditional": BITS,
    "bits_per_dim_test_unconditional": BITS,
    "energy_score": MetricDescription(better="lower"),
}
POSTERIOR_SETTINGS = ("operator", "noise", "measurement", "calibrate")  # need posterior=...


@dataclass(frozen=True)
class CountDraw(Draw):
    """Draw of counts from a model by a sampler.

    Args:
        model: in eval mode.
        sampler: settings of sampling.
        description: the sampler as plain values.
        classes: int64 [c], taken in turn: sample k has the class classes[k mod c]; None draws from
            all classes.
        known_elements: known elements, one row for all samples or row k for sample k.
        total: total count of every sample, for models with totals as a covariate.
        condition: the requested conditions as plain values.
    """

    references = References(metrics=METRICS)

    model: BlackoutDiffusion
    sampler: Sampler
    description: Mapping[str, Any]
    classes: Tensor | None = None
    known_elements: KnownElements | None = None
    total: float | None = None
    condition: Mapping[str, Any] = field(default_factory=dict)
    resumable = True

    __repr__ = format_fields

    @property
    def names(self) -> OutputNames:  # type: ignore[override]
        """Names of the results, and the layout of the data's file for its samples."""
        sample_shape = tuple(self.data.get("sample_shape") or ())
        fits = bool(sample_shape) and math.prod(sample_shape) == math.prod(self.model.shape)
        return OutputNames(shape=sample_shape if fits else None, units=self.units)

    @property
    def units(self) -> tuple[int, int]:
        """Offset and gain of the data's file."""
        offset, gain = self.data.get("units") or (0, 1)
        return offset, gain

    @property
    def data(self) -> Mapping[str, Any]:
        """Facts of the model's data."""
        return self.model.config.get("data", {})

    def metadata(self, seed: int) -> Mapping[str, int]:
        """Return seed and largest possible count in the units of the data's file.

        Offset and gain of the file are added unless they are 0 and 1.
        """
        offset, gain = self.units
        metadata = {"seed": seed, "max_count": self.model.process.max_count * gain + offset}
        if (offset, gain) != (0, 1):
            metadata["offset"] = offset
            metadata["gain"] = gain
        return metadata

    def outputs(self, seed: int) -> Outputs | None:
        """Return the writer of an .h5ad if the data came from AnnData, else None."""
        if len(self.data.get("features") or ()) != math.prod(self.model.shape):
            return None
        covariates = self.condition.get("values") or {}
        return AnnotatedSamples(self.data, self.metadata(seed), covariates, self._latent)

    def _latent(self, counts: Tensor) -> Any:
        """Return features of counts [n, D], float32 [n, width], or None if the network has none."""
        if has_latent_features(self.model):
            return latent_features(self.model, counts).numpy()
        return None

    def compared_with(self, source: Source) -> Source:
        """Return the part of a dataset that has the classes and covariates of the samples.

        Raises:
            UserError: the dataset has other classes or covariates than the model, or samples with
                known elements cannot be compared.
        """
        is_inpainting = self.known_elements is not None
        if is_inpainting or self.classes is None or not isinstance(source, CountData):
            return super().compared_with(source)
        for name in ("class_names", "covariates"):
            source_value = source.facts.get(name)
            model_value = self.data.get(name)
            if source_value != model_value:
                raise UserError(
                    f"evaluate=true: {name.replace('_', ' ')} of {source.name} are {source_value}, "
                    f"those of the model {model_value}: "
                    "give dataset.labels and dataset.covariates as in training"
                )
        return source.select_condition(self.classes)

    @property
    def batch_size(self) -> int:
        """Samples per batch: all their particles together fill the sampler's batch."""
        num_particles = particles_per_sample(
            self.sampler, self.model.process, self.known_elements is not None
        )
        return max(1, self.sampler.batch_size // num_particles)

    @property
    def steps(self) -> int:
        """Number of steps of the sampler."""
        return self.sampler.num_steps

    @cached_property
    def nfe(self) -> int:
        """Number of network function evaluations per sample."""
        return evaluations_per_sample(
            self.model,
            self.sampler,
            with_classes=self.classes is not None,
            with_known_elements=self.known_elements is not None,
        )

    def batches(
        self,
        indices: Tensor,
        seed: int,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Draw the samples with these indices, int64 [n], batch by batch.

        Args:
            indices: int64 [n].
            seed: any integer.
            batch_size: of every batch; None for the sampler's.
            watch: called with (step, number of steps, states) before the first and after every
                step of a batch.

        Yields:
            (indices [b], samples) as `BlackoutDiffusion.batches` yields them.
        """
        classes = None if self.classes is None else self.classes[indices % len(self.classes)]
        known_elements = self.known_elements
        if known_elements is not None:
            known_elements = known_elements.select(indices)
        conditions = Conditions(classes, known_elements, self.total)

        def callback(k: int, xt: Tensor, prediction: Any) -> None:
            if watch is not None:
                watch(self.steps - k, self.steps, xt)

        return self.model.batches(
            indices,
            seed,
            batch_size,
            sampler=self.sampler,
            conditions=conditions,
            callback=callback,
        )

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image:
        """Return a grid of images with their classes, or a heat map of vectors.

        Black is 0, white is the largest count. Brightness of images is logarithmic if the largest
        count is far above the mean. A bar shows the scale, except of images whose counts are
        brightness in 8 bits. Vectors whose largest count is far above the mean, and those whose
        elements have names, are shown relative to the mean of every element, sorted by class.

        Args:
            samples: `samples` [n, *shape], and `classes` [n] of conditional models.
            columns: of the grid, which then has no names of classes; None for a square grid.
        """
        from blackout.diffusion.plots import (  # only here: imports PIL
            add_scale,
            grid,
            heat_map,
            relative_heat_map,
        )

        counts = samples["samples"]
        max_count = self.model.process.max_count
        logarithmic = max_count > MIN_LOG_SCALE_RATIO * float(self.model.data_mean.mean())
        names = self.data.get("features") or ()
        if counts.ndim == 2 and (logarithmic or names):
            row_names = self._class_names(samples) if columns is None else []
            if row_names:
                order = sorted(range(len(counts)), key=row_names.__getitem__)
                counts = counts[order]
                row_names = [row_names[row] for row in order]
            means = self.model.data_mean.cpu().expand(self.model.shape)
            picture = relative_heat_map(counts, means, names, row_names)
            picture.info["Description"] = RELATIVE_DESCRIPTION
            return picture
        if counts.ndim == 2:
            picture = heat_map(counts, max_count, logarithmic=False)
            picture = add_scale(picture, max_count, logarithmic=False)
            picture.info["Description"] = (
                "A row is a sample, or one of its states in turn; a column is an element."
            )
            return picture
        class_names = self._class_names(samples) if columns is None else []
        picture = grid(counts, max_count, columns, logarithmic, class_names)
        if logarithmic or max_count > MAX_BYTE:
            return add_scale(picture, max_count, logarithmic)
        return picture

    def _class_names(self, samples: Samples) -> list[str]:
        """Return the name, or the number, of the class of every sample; empty without classes."""
        labels = samples.get("classes")
        if labels is None:
            return []
        covariates = self.data.get("covariates") or {}
        classes = decode_labels(labels, [len(levels) for levels in covariates.values()])[0]
        names = self.data.get("class_names")
        return [str(names[k] if names else k) for k in classes.tolist()]


def request_draw(model: BlackoutDiffusion, request: Mapping[str, Any]) -> Any:
    """Return the draw that the settings of `sample.py` request.

    Args:
        model: in eval mode.
        request: `sampler` (a description, or fields that replace those of the model's sampler),
            `classes`, `condition`, `inpaint` and `num_samples`. `posterior` is a component whose
            `make_draw(model, sampler, request)` returns the draw instead.

    Raises:
        UserError: a setting that does not exist, or that the model does not support.
    """
    # 1. Posteriors, and samples without any request.
    refuse_unknown(
        request, "sampler", "classes", "condition", "inpaint", "posterior", *POSTERIOR_SETTINGS
    )
    if request.get("posterior"):
        return _request_posterior(model, request)
    for name in POSTERIOR_SETTINGS:
        refuse(
            request.get(name),
            f"{name} works with a posterior only: add posterior=auto, or leave out {name}",
        )
    if not any(request.get(name) for name in ("sampler", "classes", "condition", "inpaint")):
        return CountDraw(model, model.sampler, model.config.get("model", {}).get("sampler", {}))

    # 2. Sampler and classes.
    inpaint = request.get("inpaint")
    overrides = dict(request.get("sampler") or {})
    if inpaint and len(model.shape) == 1 and isinstance(model.process, PureDeath):
        is_short = model.shape[0] <= MAX_SHORT_VECTOR
        defaults = SHORT_VECTOR_INPAINTING if is_short else VECTOR_INPAINTING
        overrides = defaults | _without_nulls(overrides)
    description = describe_sampler(overrides, model.config)
    sampler: Sampler = instantiate(description, "sampler")
    classes = parse_labels(model, request.get("classes"), request.get("condition"))
    check_guidance(sampler, with_classes=classes is not None)

    # 3. Known elements.
    known_elements: KnownElements | None = None
    if inpaint is not None:
        max_count = model.process.max_count
        units = model.config.get("data", {}).get("units") or (0, 1)
        path = Path(str(inpaint))
        known_elements = read_known_elements(
            path, model.shape, max_count, request["num_samples"], units
        )

    # 4. The conditions as plain values.
    condition = {
        name: request[key]
        for name, key in (("classes", "classes"), ("values", "condition"), ("inpaint", "inpaint"))
        if request.get(key)
    }
    if sampler.guidance.scale != 1:
        condition["guidance"] = sampler.guidance.scale
    total = requested_total(model, request.get("condition"))
    return CountDraw(model, sampler, description, classes, known_elements, total, condition)


def _request_posterior(model: BlackoutDiffusion, request: Mapping[str, Any]) -> Any:
    """Return the draw of the component in `posterior`; raises UserError as `request_draw` does."""
    for name in ("inpaint", "classes", "condition"):
        refuse(
            request.get(name),
            f"{name} does not work with a posterior: leave out {name} or posterior",
        )
    sampler = model.sampler
    if request.get("sampler"):
        sampler = instantiate(describe_sampler(request["sampler"], model.config), "sampler")
    component = instantiate(request["posterior"], "posterior")
    refuse(
        not hasattr(component, "make_draw"),
        f"posterior: {type(component).__name__} is not a posterior method; type posterior=auto",
    )
    return component.make_draw(model, sampler, request)


def describe_sampler(
    overrides: Mapping[str, Any], model_description: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the full description of a sampler: the model's, with some fields replaced.

    Fields that depend on the data are filled in.

    Args:
        overrides: fields that replace those of the model's sampler, also within `correction` and
            `guidance`. Null fields are ignored. A description of another class replaces the
            model's sampler.
        model_description: description of the model.
    """
    default = add_defaults(model_description.get("model", {}).get("sampler") or {}, "sampler")
    description = _merge_fields(default, overrides, nested=("correction", "guidance"))
    stats = add_grid_ends(check_facts(model_description))
    return complete_description(description, stats, "sampler")


def _merge_fields(
    default: Mapping[str, Any], overrides: Mapping[str, Any], nested: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Replace fields of a description by those that are not null, and fields of `nested` parts."""
    fields = _without_nulls(overrides)
    if fields.get("_target_", default.get("_target_")) != default.get("_target_"):
        return fields
    for name in nested:
        if isinstance(fields.get(name), Mapping):
            fields[name] = _merge_fields(default.get(name) or {}, fields[name])
    return {**default, **fields}


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
