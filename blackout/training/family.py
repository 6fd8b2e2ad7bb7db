"""Base class of families of models: settings -> description of every component -> model."""

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
    """Base class of families: builds models from settings, or from the description saved with them.

    A family names its components (`parts`), completes their descriptions (`describe_parts`), builds
    a model of them (`assemble`), reads the requests of `sample.py` (`draw`), and adds its own
    checks.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str
    # settings that describe components; the descriptions have the same names under `model`
    parts: ClassVar[tuple[str, ...]]
    title: ClassVar[str]  # first words of the model card
    usage: ClassVar[str]  # example of the model card: Python that uses a loaded `model`
    closing: ClassVar[str] = ""  # last section of the text of the model card, in Markdown
    # plain values of a description next to its parts: dotted name -> annotation
    values: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def source(
        self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()
    ) -> Any:
        """Return the data a model is trained on or compared with, a `Source`.

        Args:
            settings: of the program.
            description: of a trained model, whose source is used where the settings choose none;
                the source must fit it.
            trusted: prefixes of modules outside this package that the description may name.

        Raises:
            UserError: the source cannot be loaded, or does not fit.
        """

    def to_source(self, data: Any) -> Any:
        """Convert data in memory, the argument of `blackout.from_data`, to a source of this family.

        A source is returned as it is.
        """
        return data

    def divide(self, data: Any, validation: float) -> Any:
        """Divide data in memory into training and validation data; by default no data can be.

        Args:
            data: without validation data.
            validation: fraction or number of samples for validation.

        Raises:
            UserError: the data are divided already, or `validation` is out of range.
        """
        raise UserError(
            "validation: these data have validation data of their own; leave validation out, "
            "which is for arrays of counts"
        )

    @abstractmethod
    def describe_parts(self, settings: Plain, source: Any) -> dict[str, Any]:
        """Return complete descriptions of all `parts`, and other plain values of the model.

        Raises:
            UserError: settings that do not fit the source or each other.
        """

    @abstractmethod
    def assemble(self, description: Plain, tensors: Mapping[str, Tensor], **training: Any) -> Model:
        """Build the model of a description that has all parts.

        Args:
            description: as returned by `describe`.
            tensors: as returned by `tensors`.
            training: arguments of a model in training.

        Raises:
            UserError: a component refuses its arguments, or does not fit the others.
            ValueError: the arguments of the model do not fit.
        """

    @abstractmethod
    def draw(self, model: Any, request: Plain) -> Draw:
        """Return the `Draw` of a request of `sample.py`; an empty one draws as `model.sample`.

        Args:
            model: of this family.
            request: the family's settings of `sample.py`, and `num_samples`.

        Raises:
            UserError: an option that the family does not have, or a value that the model does not
                support.
        """

    def describe_data(self, settings: Plain, source: Any) -> dict[str, Any]:
        """Return what the description contains about the source, such as `data`; here nothing."""
        return {}

    def describe(self, settings: Plain, source: Source) -> dict[str, Any]:
        """Return the complete plain description of a model.

        `build` needs nothing else: neither source nor settings. Its `dataset` and `metrics` are
        those of the training.

        Raises:
            UserError: settings that do not fit the source or each other.
        """
        for part in self.parts:
            if settings.get(part) is not None and not is_component(settings[part]):
                value = reprlib.repr(settings[part])
                raise UserError(
                    f"{part} must be a component (a mapping with _target_), not {value}"
                )
        model = self.describe_parts(settings, source)
        description = {}
        for name in ("dataset", "metrics"):
            description[name] = remove_paths(add_defaults(settings.get(name) or {}, name))
        return {**description, **self.describe_data(settings, source), "model": model}

    def tensors(self, source: Any) -> dict[str, Tensor]:
        """Return tensors of the source that belong to the model and are exported; here none."""
        return {}

    def training_arguments(self, settings: Plain) -> dict[str, Any]:
        """Return more arguments of a model in training, from the settings; here none."""
        return {}

    def build(
        self,
        description: Plain,
        tensors: Mapping[str, Tensor],
        settings: Plain | None = None,
        **training: Any,
    ) -> Any:
        """Build the model of a description, which may come from a damaged file.

        Args:
            description: as returned by `describe`.
            tensors: as returned by `tensors`.
            settings: of the program that trains the model; None for a model that is only used.
            training: ema_decay and seed of a model in training.

        Raises:
            UserError: a part is missing, a component refuses its arguments, or a tensor has
                another shape.
        """
        self.check(description)
        if settings is not None:
            training |= self.training_arguments(settings)
        with error_context("model"):
            model = self.assemble(description, tensors, **training)
        model.config = description
        return model

    def check(self, description: Plain) -> None:
        """Check the parts and the plain values of a description, before any of it is used.

        Raises:
            UserError: a part is missing, or a value has another type.
        """
        for name, annotation in {**COMMON_VALUES, **self.values}.items():
            section, _, key = name.rpartition(".")
            values = (description.get(section) or {}) if section else description
            value = values.get(key)
            refuse(
                not matches_annotation(value, annotation),
                f"the description of the model is damaged: {name} must be "
                f"{describe_annotation(annotation)}, not {reprlib.repr(value)}",
            )
        missing = [part for part in self.parts if not is_component(description["model"].get(part))]
        if missing:
            raise UserError(
                f"the description of the model is incomplete: {', '.join(missing)} missing"
            )

    def build_parts(self, description: Plain, *names: str) -> dict[str, Any]:
        """Build the components of these names, and return them by name."""
        return {name: instantiate(description["model"][name], name) for name in names}

    def preview(self, model: Any, num_samples: int, num_steps: int | None = None) -> Draw:
        """Return the `Draw` of the grids made during and after training; by default the model's.

        Args:
            model: in training.
            num_samples: of a grid.
            num_steps: steps of the sampler; None for the sampler's own number.
        """
        return self.draw(model, {})

    def dry_run(self, model: Any) -> None:
        """Run each component once on minimal input, before training; by default `model.try_once`.

        Raises:
            UserError: components that do not fit together.
        """
        model.try_once()

    # Most families accept every sampler and have nothing to check here.
    def check_sampler(self, model: Any, scored: bool) -> None:  # noqa: B027
        """Check that the sampler can draw the samples of a run, without evaluating a network.

        Args:
            model: to be trained.
            scored: whether the run scores samples, which have no classes or other conditions.

        Raises:
            UserError: it cannot.
        """

    # Most families accept all settings and have nothing to check here.
    def check_report(self, model: Any, settings: Plain) -> None:  # noqa: B027
        """Check the settings of `report` for this model, before samples are drawn.

        Raises:
            UserError: a setting that `report` cannot use.
        """

    def report(self, model: Any, source: Any, settings: Plain) -> dict[str, Any]:
        """Return the results of `evaluate=true` other than scores of samples; here none.

        Returns:
            `values` by name, and their provenance. `sample_values`, which metrics.json does not
            contain, are `SampleValues` by name, to be compared with `baselines`.
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
            The values, and whether they are exact or bounds; None, as here, for a metric without
            such baselines.
        """
        return None

    def baselines(
        self, source: Any, size: int, settings: Plain
    ) -> Mapping[str, Mapping[str, Baseline]]:
        """Return the values of simple models that are fitted to training samples.

        Their own choices, such as a number of components, are made on validation samples.

        Args:
            source: of all samples.
            size: how many of the first test samples are needed.
            settings: of the program.

        Returns:
            Baselines by name, for each value by its name `test/...` or in `report`; here none.
        """
        return {}

    def codec(self, model: Any) -> Any:
        """Return the lossless codec of a model, as `blackout compress` uses it.

        Returns:
            An object with `encode(source, target, steps, batch_size)` and `decode(source, target)`.

        Raises:
            UserError: models of this family do not compress.
        """
        raise UserError("compression needs a model with process=pure_death")

    def supports_restarts(self, model: Any) -> bool:
        """Return whether samples can start from noised data, as in `restart`."""
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
        raise UserError(
            "samples of this model cannot start from noised data: use one of process=pure_death"
        )

    def restoration_panels(
        self, draw: Any, x0: Tensor, survival: float, index: Tensor, seed: int
    ) -> Tensor:
        """Return data, its thinned counts, and samples of the data given these, [4 + n, *shape].

        Args:
            draw: as `ComponentFamily.draw` returns it.
            x0: one sample of the data, [1, *shape].
            survival: probability with which a unit is kept.
            index: numbers of the samples, int64 [n].
            seed: of the samples.

        Raises:
            UserError: the family does not support it.
        """
        raise UserError(
            "samples of this model cannot start from noised data: use one of process=pure_death"
        )

    def default_steps(self, settings: Plain, source: Any) -> int:
        """Return the number of optimiser steps if `trainer.max_steps` is null.

        Raises:
            UserError: the family has no default.
        """
        raise UserError("trainer.max_steps must be a whole number of at least 1, not null")


# Plain values of the descriptions of all families: dotted name -> annotation.
COMMON_VALUES: Mapping[str, Any] = {
    "model": dict,
    "data": dict | None,
    "data.units": tuple[int, int] | None,
    "dataset": dict | None,
    "metrics": dict | None,
    "truth": dict | None,
}


def make_dataset(
    settings: Mapping[str, Any],
    description: Mapping[str, Any] | None,
    trusted: tuple[str, ...],
) -> Any:
    """Load the dataset of the settings; without one, that of a model's description.

    Args:
        settings: `data_dir`, and `dataset` if one is chosen.
        description: of a model; None in training.
        trusted: prefixes of modules outside this package that the description may name.

    Raises:
        UserError: there is no dataset, or it cannot be loaded.
    """
    # 1. Choose the dataset.
    dataset = settings.get("dataset")
    if not dataset and description is not None:
        dataset = description.get("dataset")
        if dataset:
            dataset = component_from_file(dataset, "dataset", settings["data_dir"], trusted)
    if not dataset:
        is_training = description is None
        reason = "" if is_training else "the model does not name its dataset: "
        raise UserError(f"{reason}dataset=... must be given")

    # 2. Read its counts in the units of the model, which another file cannot tell.
    statistics = {"data_dir": settings["data_dir"]}
    data = (description or {}).get("data")
    if data:
        offset, gain = data.get("units") or (0, 1)
        statistics["offset"] = offset
        statistics["gain"] = gain
    return instantiate(fill_statistics(dataset, statistics, "dataset"), "dataset")
