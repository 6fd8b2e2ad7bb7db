"""One family, written once: settings -> description of every component -> model."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from blackout.comparisons import Baseline, SampleValues
from blackout.component import Plain
from blackout.config.allowed_components import component_from_file, remove_paths
from blackout.config.arguments import describe_annotation, matches_annotation
from blackout.config.descriptions import add_defaults, fill_statistics
from blackout.config.instantiate import instantiate, is_component
from blackout.errors import UserError, error_context, refuse
from blackout.protocols import Draw, Source, Watch
from blackout.training.model import Model


@dataclass(frozen=True)
class ComponentFamily(ABC):
    """How one kind of model is made from settings, and made again from the plain description saved with it.

    A family says which components there are (`parts`), completes their descriptions (`described_parts`), puts what is
    made of them together (`assemble`), says what `sample.py` can ask for (`draw`), and adds its own checks.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str
    parts: ClassVar[tuple[str, ...]]
    """Settings that describe components; their descriptions have the same names under `model`."""
    title: ClassVar[str]
    """First words of the model card."""
    usage: ClassVar[str]
    """How a loaded `model` is used, in Python."""
    closing: ClassVar[str] = ""
    """What else the card says, in Markdown."""
    values: ClassVar[Mapping[str, Any]] = {}
    """Dotted names of plain values that a description holds beside its parts -> annotations with which they agree."""

    @abstractmethod
    def source(self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()) -> Any:
        """What a model is to be trained on or compared with, a `Source`.

        Args:
            settings: of the program.
            description: of a trained model, which decides where the settings do not; the source must fit it.
            trusted: modules besides this package's that the description may name.

        Raises:
            UserError: it cannot be had, or does not fit.
        """

    def source_of(self, data: Any) -> Any:
        """Data in memory, as `blackout.from_data` gets them, as a source of this family: what is one already."""
        return data

    def divide(self, data: Any, validation: float) -> Any:
        """Data in memory that are not divided yet, with a share or number of them for validation: none are known.

        Raises:
            UserError: data that are divided already, or a number out of range.
        """
        raise UserError("validation: these data have validation data of their own; it divides arrays of counts")

    @abstractmethod
    def described_parts(self, settings: Plain, source: Any) -> dict[str, Any]:
        """Complete descriptions of all `parts`, and whatever else the model is made of, as plain values.

        Raises:
            UserError: settings that do not fit the source or each other.
        """

    @abstractmethod
    def assemble(self, description: Plain, tensors: Mapping[str, Tensor], **training: Any) -> Model:
        """The model of a description whose parts are all there.

        Raises:
            UserError: a component refused its arguments, or does not go with the others.
            ValueError: the same, of the model as a whole.
        """

    @abstractmethod
    def draw(self, model: Any, request: Plain) -> Draw:
        """The `Draw` that settings of `sample.py` ask for; with none, by the model's own sampler, as `model.sample`.

        Args:
            model: of this family.
            request: the family's own settings of `sample.py`, and `num_samples`.

        Raises:
            UserError: an option that the family does not have, or a value that the model does not support.
        """

    def data_of(self, settings: Plain, source: Any) -> dict[str, Any]:
        """What the description says of the source, by name: `data`, and whatever else."""
        return {}

    def describe(self, settings: Plain, source: Source) -> dict[str, Any]:
        """The complete plain description of a model, from which `build` makes it without source or settings.

        `dataset` and `metrics` name those of its training.

        Raises:
            UserError: settings that do not fit the source or each other.
        """
        for part in self.parts:
            if settings.get(part) is not None and not is_component(settings[part]):
                told = reprlib.repr(settings[part])
                raise UserError(f"{part} must be a component (a mapping with _target_), not {told}")
        model = self.described_parts(settings, source)
        chosen = {name: remove_paths(add_defaults(settings.get(name) or {}, name)) for name in ("dataset", "metrics")}
        return {**chosen, **self.data_of(settings, source), "model": model}

    def tensors(self, source: Any) -> dict[str, Tensor]:
        """What a model keeps of its source besides weights, exported with it: nothing."""
        return {}

    def training(self, settings: Plain) -> dict[str, Any]:
        """Arguments of a model in training, from the settings: none."""
        return {}

    def build(
        self, description: Plain, tensors: Mapping[str, Tensor], settings: Plain | None = None, **training: Any
    ) -> Any:
        """The model of a description, which may come from a damaged file.

        Args:
            description: what `describe` returned.
            tensors: what `tensors` returned.
            settings: of the program that trains it; None for a model that is only used.
            training: ema_decay and seed of a model that is to be trained.

        Raises:
            UserError: a part is missing, a component refused its arguments, or tensors of another shape.
        """
        self.check(description)
        if settings is not None:
            training |= self.training(settings)
        with error_context("model"):
            made = self.assemble(description, tensors, **training)
        made.config = description
        return made

    def check(self, description: Plain) -> None:
        """Refuse the description of no model of this family, by its parts and `values`, before anything of it is used.

        Raises:
            UserError: a part is missing, or a value is of another kind.
        """
        for name, kind in {**_VALUES, **self.values}.items():
            section, _, last = name.rpartition(".")
            value = ((description.get(section) or {}) if section else description).get(last)
            told = f"{name} must be {describe_annotation(kind)}, not {reprlib.repr(value)}"
            refuse(not matches_annotation(value, kind), f"the description of the model is damaged: {told}")
        if missing := [part for part in self.parts if not is_component(description["model"].get(part))]:
            raise UserError(f"there is no description of a whole model: {', '.join(missing)} missing")

    def made_parts(self, description: Plain, *names: str) -> dict[str, Any]:
        """What the descriptions of these parts stand for, by name."""
        return {name: instantiate(description["model"][name], name) for name in names}

    def preview(self, model: Any, num_samples: int, num_steps: int | None = None) -> Draw:
        """The `Draw` of the grids made during and after training, in `num_steps` steps if given: the model's own."""
        return self.draw(model, {})

    def dry_run(self, model: Any) -> None:
        """Run each component once on minimal input, before anything long starts: the model's own `try_once`.

        Raises:
            UserError: components that do not fit together.
        """
        model.try_once()

    def check_sampler(self, model: Any, scored: bool) -> None:  # noqa: B027  (few families refuse any)
        """Refuse a sampler that cannot draw what a run of this model draws, without evaluating a network.

        Args:
            model: to be trained.
            scored: whether samples are scored in the run, which have no classes and no other condition.

        Raises:
            UserError: it cannot.
        """

    def check_report(self, model: Any, settings: Plain) -> None:  # noqa: B027  (few families refuse any)
        """Refuse settings that `report` cannot use for this model, before samples are drawn: none.

        Raises:
            UserError: there is one.
        """

    def report(self, model: Any, source: Any, settings: Plain) -> dict[str, Any]:
        """What `evaluate=true` says besides the scores of samples: `values` by name, and their provenance; nothing.

        `sample_values`, which metrics.json does not hold, are `SampleValues` by name, to be compared with `baselines`.
        """
        return {"values": {}}

    def sample_values(
        self, model: Any, source: Any, name: str, index: Tensor, values: Tensor
    ) -> SampleValues | None:
        """Return the values of a test metric for the comparison with baselines, sample by sample.

        Called on every process.

        Args:
            model: that was tested.
            source: of the test samples.
            name: of the metric, `test/...`.
            index: numbers of the samples, int64 [n], rising.
            values: of the samples, float64 [n].

        Returns:
            The values with what they are, exact or bounds; None, as here, for a metric without such baselines.
        """
        return None

    def baselines(self, source: Any, size: int, settings: Plain) -> Mapping[str, Mapping[str, Baseline]]:
        """Return what simple models have that are fitted to training samples.

        Their own choices, such as a number of components, are made on validation samples.

        Args:
            source: of all samples.
            size: how many of the first test samples are needed.
            settings: of the program.

        Returns:
            For each value by name (`test/...`, or what `report` calls it) the baselines by name; here none.
        """
        return {}

    def codec(self, model: Any) -> Any:
        """Return the lossless codec of a model, as `blackout compress` uses it.

        Returns:
            An object with `encode(source, target, steps, batch_size)` and `decode(source, target)`.

        Raises:
            UserError: models of this family do not compress.
        """
        raise UserError("compression needs a model of pure death")

    def supports_restarts(self, model: Any) -> bool:
        """Whether samples can start from noised data, as in `restart` and `restoration_panels`."""
        return False

    def restart(
        self, draw: Any, x0: Tensor, fraction: float, index: Tensor, seed: int, callback: Watch
    ) -> Tensor:
        """Noise data, and sample from there.

        Args:
            draw: as `ComponentFamily.draw` returns it.
            x0: data [n, *shape], or [1, *shape] for the same data in every sample.
            fraction: of the sampler's steps that are taken.
            index: numbers of the samples, int64 [n].
            seed: of the samples.
            callback: called with (step, steps, state [n, *shape]), first for the noised data.

        Returns:
            Samples [n, *shape].

        Raises:
            UserError: the family does not support it.
        """
        raise UserError("samples of this model cannot start from noised data")

    def restoration_panels(
        self, draw: Any, x0: Tensor, survival: float, index: Tensor, seed: int
    ) -> Tensor:
        """Return data, what is left of it, and samples of what it may have been, [4 + n, *shape].

        Args:
            draw: as `ComponentFamily.draw` returns it.
            x0: one sample of the data, [1, *shape].
            survival: probability with which a unit is kept.
            index: numbers of the samples, int64 [n].
            seed: of the samples.

        Raises:
            UserError: the family does not support it.
        """
        raise UserError("samples of this model cannot start from noised data")

    def length(self, settings: Plain, source: Any) -> int:
        """Optimiser steps for a model of these settings and this source, where `trainer.max_steps` is null.

        Raises:
            UserError: the family chooses none.
        """
        raise UserError("trainer.max_steps must be a whole number of at least 1, not null")


_VALUES: dict[str, Any] = {"model": dict, "data": dict | None, "data.units": tuple[int, int] | None}
_VALUES |= dict.fromkeys(("dataset", "metrics", "truth"), dict | None)
"""What the descriptions of all families may hold beside the model."""


def make_dataset(settings: Mapping[str, Any], description: Mapping[str, Any] | None, trusted: tuple[str, ...]) -> Any:
    """The dataset chosen in the settings, else the one that a model's description names.

    Args:
        settings: `dataset`, if one is chosen, and `data_dir`.
        description: of a model; None in training.
        trusted: modules besides this package's that the description may name.

    Raises:
        UserError: there is none, or it cannot be made.
    """
    dataset = settings.get("dataset")
    if not dataset and description is not None and (dataset := description.get("dataset")):
        dataset = component_from_file(dataset, "dataset", settings["data_dir"], trusted)
    of_model = "the model does not say which dataset it is of: " if description is not None else ""
    refuse(not dataset, f"{of_model}dataset=... must be given")
    # a model's counts are in its own units, whatever another file of its kind looks like
    data = (description or {}).get("data")
    units = dict(zip(("offset", "gain"), data.get("units") or (0, 1), strict=True)) if data else {}
    return instantiate(fill_statistics(dataset, {"data_dir": settings["data_dir"], **units}, "dataset"), "dataset")
