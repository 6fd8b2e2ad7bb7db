"""What `sample.py` can ask of a diffusion model on counts: a sampler, classes, elements that are given."""

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
from blackout.diffusion.inpainting import KnownElements, read_known
from blackout.diffusion.latent_features import has_latent_features, latent_features
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.particles import particles_per_sample
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.schedules import add_data_ends
from blackout.errors import UserError, refuse
from blackout.protocols import Draw, Drawn, OutputNames, Outputs, Samples, Source, Watch, refuse_unknown

if TYPE_CHECKING:
    from PIL import Image

_DARK = 16
"""Times the mean that the largest count is above where brightness is logarithmic: 10 at most for digits."""
_OF_VECTORS = {"num_steps": 13, "inpainting_particles": 4}
"""How vectors with known elements are drawn: in 100 evaluations by the trapezoidal rule."""
_OF_POSTERIORS = ("operator", "noise", "measurement", "calibrate")


@dataclass(frozen=True)
class CountDraw(Draw):
    """Counts drawn from a model by a sampler.

    Args:
        model: in eval mode.
        sampler: how to draw.
        description: the sampler as plain values.
        classes: int64 [c], taken in turn: sample k is of class classes[k mod c]; None draws from all.
        known: elements that are given, one row for all samples or row k for sample k.
        total: count of every sample, of models that were told totals.
        condition: what was asked for, as plain values.
    """

    model: BlackoutDiffusion
    sampler: Sampler
    description: Mapping[str, Any]
    classes: Tensor | None = None
    known: KnownElements | None = None
    total: float | None = None
    condition: Mapping[str, Any] = field(default_factory=dict)
    resumable = True

    @property
    def names(self) -> OutputNames:  # type: ignore[override]
        """Samples are laid out as the data were."""
        shape = self.data.get("sample_shape") or ()
        fits = bool(shape) and math.prod(shape) == math.prod(self.model.shape)
        return OutputNames(shape=tuple(shape) if fits else None, units=self.units)

    @property
    def units(self) -> tuple[int, int]:
        """Offset and gain of the data's file."""
        offset, gain = self.data.get("units") or (0, 1)
        return offset, gain

    @property
    def data(self) -> Mapping[str, Any]:
        """Facts of the model's data."""
        return self.model.config.get("data", {})

    def about(self, seed: int) -> Mapping[str, int]:
        """The seed, the largest count there can be, in the units of the data's file, and its offset and gain."""
        offset, gain = self.units
        camera = {} if self.units == (0, 1) else {"offset": offset, "gain": gain}
        return {"seed": seed, "max_count": self.model.process.max_count * gain + offset, **camera}

    def outputs(self, seed: int) -> Outputs | None:
        """An .h5ad, where the data came from AnnData."""
        if len(self.data.get("features") or ()) != math.prod(self.model.shape):
            return None
        given = self.condition.get("given") or {}
        return AnnotatedSamples(self.data, self.about(seed), given, self._latent)

    def _latent(self, counts: Tensor) -> Any:
        """Return features of counts [n, D], float32 [n, width], or None if the network has none."""
        if has_latent_features(self.model):
            return latent_features(self.model, counts).numpy()
        return None

    def compared_with(self, source: Source) -> Source:
        """The part of a dataset that is of the classes and covariates of the samples."""
        if self.known is not None or self.classes is None or not isinstance(source, CountData):
            return super().compared_with(source)
        for name in ("class_names", "covariates"):
            if (theirs := source.facts.get(name)) != (ours := self.data.get(name)):
                told = f"{name.replace('_', ' ')} of {source.name} are {theirs}, those of the model {ours}"
                raise UserError(f"evaluate=true: {told}: give dataset.labels and dataset.covariates as in training")
        return source.select_condition(self.classes)

    @property
    def batch_size(self) -> int:
        """Samples whose particles, if they have any, make up the sampler's batch."""
        number = particles_per_sample(self.sampler, self.model.process, self.known is not None)
        return max(1, self.sampler.batch_size // number)

    @property
    def steps(self) -> int:
        return self.sampler.num_steps

    @cached_property
    def nfe(self) -> int:
        return evaluations_per_sample(
            self.model,
            self.sampler,
            with_classes=self.classes is not None,
            with_known=self.known is not None,
        )

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """(indices [b], samples [b, *shape] with `indices` and, given classes, `classes`, int64 [b]), batch by batch.

        From particles also `log_normaliser` [b].
        """
        classes = None if self.classes is None else self.classes[indices % len(self.classes)]
        known = None if self.known is None else self.known.select(indices)
        conditions = Conditions(classes, known, self.total)

        def callback(k: int, xt: Tensor, prediction: Any) -> None:
            if watch is not None:
                watch(self.steps - k, self.steps, xt)

        return self.model.batches(
            indices, seed, batch_size, sampler=self.sampler, conditions=conditions, callback=callback
        )

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image:
        """A grid of images, with their classes, or a heat map of vectors, black at 0 and white at the largest count.

        Brightness is logarithmic where the largest count is far above the mean, and nearly all would be black; a bar
        below says what it means where counts are no 8-bit brightness.
        """
        from blackout.diffusion.plots import grid, heat_map, with_scale

        counts, largest = samples["samples"], self.model.process.max_count
        dark = largest > _DARK * float(self.model.mean.mean())
        if counts.ndim == 2:
            picture = with_scale(heat_map(counts, largest, dark), largest, dark)
            picture.info["Description"] = "A row is a sample, or one of its states in turn; a column is an element."
            return picture
        words, labels = self.data.get("class_names"), samples.get("classes") if columns is None else None
        if labels is not None:
            labels = decode_labels(labels, [len(values) for values in (self.data.get("covariates") or {}).values()])[0]
        named = [] if labels is None else [str(words[k] if words else k) for k in labels.tolist()]
        picture = grid(counts, largest, columns, dark, named)
        return with_scale(picture, largest, dark) if dark or largest > 255 else picture


def request_draw(model: BlackoutDiffusion, request: Mapping[str, Any]) -> Any:
    """The draw that the settings of `sample.py` ask for.

    Args:
        request: `sampler` (a description, or fields that replace the model's own), `classes`, `given`, `inpaint`,
            `num_samples`;
            `posterior` is a component whose `make_draw(model, sampler, request)` returns the draw instead.

    Raises:
        UserError: something the model cannot do, or another option.
    """
    refuse_unknown(request, "sampler", "classes", "given", "inpaint", "posterior", *_OF_POSTERIORS)
    if request.get("posterior"):
        return _posterior(model, request)
    for name in _OF_POSTERIORS:
        refuse(request.get(name), f"{name} is for posteriors: posterior=auto must be given")
    if not any(request.get(name) for name in ("sampler", "classes", "given", "inpaint")):
        return CountDraw(model, model.sampler, model.config.get("model", {}).get("sampler", {}))
    asked = {name: value for name, value in (request.get("sampler") or {}).items() if value is not None}
    few = request.get("inpaint") and len(model.shape) == 1 and isinstance(model.process, PureDeath)
    description = describe_sampler(_OF_VECTORS | asked if few else asked, model.config)
    sampler: Sampler = instantiate(description, "sampler")
    classes = parse_labels(model, request.get("classes"), request.get("given"))
    check_guidance(sampler, with_classes=classes is not None)
    inpaint, units = request.get("inpaint"), model.config.get("data", {}).get("units") or (0, 1)
    known: KnownElements | None = None
    if inpaint is not None:
        known = read_known(Path(str(inpaint)), model.shape, model.process.max_count, request["num_samples"], units)
    condition = {name: request[name] for name in ("classes", "given", "inpaint") if request.get(name)}
    condition |= {"guidance": sampler.guidance.scale} if sampler.guidance.scale != 1 else {}
    total = requested_total(model, request.get("given"))
    return CountDraw(model, sampler, description, classes, known, total, condition)


def _posterior(model: BlackoutDiffusion, request: Mapping[str, Any]) -> Any:
    """What the component that `posterior` names makes of it."""
    if given := [name for name in ("inpaint", "classes", "given") if request.get(name)]:
        raise UserError(f"{given[0]} is not for posteriors: leave out {given[0]} or posterior")
    sampler = model.sampler
    if request.get("sampler"):
        sampler = instantiate(describe_sampler(request["sampler"], model.config), "sampler")
    component = instantiate(request["posterior"], "posterior")
    refuse(not hasattr(component, "make_draw"), "posterior must be a way of sampling such as posterior=auto")
    return component.make_draw(model, sampler, request)


def describe_sampler(given: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """A whole description of a sampler: the model's own with other fields, completed with what its data decide.

    Args:
        given: fields to replace in the model's own; null fields are the model's, also those of correction and
            guidance. A description of another class than the model's replaces it.
        model: description of the model.
    """
    default = add_defaults(model.get("model", {}).get("sampler") or {}, "sampler")
    description = _merge(default, given, nested=("correction", "guidance"))
    return complete_description(description, add_data_ends(check_facts(model)), "sampler")


def _merge(default: Mapping[str, Any], given: Mapping[str, Any], nested: tuple[str, ...] = ()) -> dict[str, Any]:
    """Replace fields of a description by those that are given and not null, and in `nested` parts their fields."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.get("_target_", default.get("_target_")) != default.get("_target_"):
        return chosen
    for name in nested:
        if isinstance(chosen.get(name), Mapping):
            chosen[name] = _merge(default.get(name) or {}, chosen[name])
    return {**default, **chosen}
