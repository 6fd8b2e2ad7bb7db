"""The family of diffusion models on counts: from settings and a dataset to a model, and back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from blackout.comparisons import Baseline, SampleValues
from blackout.component import Plain, component
from blackout.config.descriptions import complete_description
from blackout.config.instantiate import instantiate
from blackout.data import CountData
from blackout.data.count_data import split_array
from blackout.data.count_statistics import compute_sums, is_underdispersed
from blackout.diffusion.building import check_memory, make_head, needs_elements, select_tensors
from blackout.diffusion.checks import check_guidance, check_training_times, try_sampler
from blackout.diffusion.conditions import all_labels
from blackout.diffusion.data_stats import (
    append_null_class,
    check_facts,
    class_log_ratios,
    class_means,
    estimate_elements,
    mean_image,
    shrink_class_means,
)
from blackout.diffusion.draw import CountDraw, request_draw
from blackout.diffusion.grid_ends import add_grid_ends
from blackout.diffusion.heads import BinnedHead
from blackout.diffusion.likelihood_report import (
    baseline_values,
    bound_test_samples,
    check_likelihood_settings,
    report_likelihood,
)
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.predictions import mismatch_error
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.processes.generator import embed_matrix
from blackout.diffusion.restarts import restart, restoration_panels, time_at
from blackout.errors import UserError, error_context, refuse
from blackout.networks.elements import Elements, estimate_concentration
from blackout.networks.inputs import set_elements
from blackout.protocols import Draw, Watch
from blackout.training.family import ComponentFamily, make_dataset
from blackout.training.model import evaluating

if TYPE_CHECKING:
    from blackout.diffusion.compression import Codec

# facts of the data that only conditional models have
CLASS_FACTS = (
    "num_classes",
    "class_names",
    "class_values",
    "covariates",
    "covariate_levels",
    "label_counts",
)
MAX_CLASS_MEANS = 1 << 24  # elements of all class means; beyond, all classes start from one mean
MLP_STEPS = 2500  # default training length of an MLP, whose steps cost a quarter of a U-Net's
UNET_STEPS = 1000
MAX_EPOCHS = 100  # of an MLP, which memorises small data sets beyond
MIN_STEPS = 50  # of an MLP, which learns little from fewer, however small the data set


@component("family")
@dataclass(frozen=True)
class CountDiffusion(ComponentFamily):
    """Blackout Diffusion and its relatives: any Markov process on counts, reversed by a network.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str = "val/bits_per_dim"
    parts = ("network", "head", "process", "schedule", "loss", "sampler")
    title = "A diffusion model"
    model_class: ClassVar[type[BlackoutDiffusion]] = BlackoutDiffusion
    usage = "counts = model.sample(16, seed=0)  # integers [16, *shape]"
    closing = """
## Citation

Santos, Fox, Lubbers and Lin, [Blackout Diffusion: Generative Diffusion Models in Discrete-State
Spaces](https://proceedings.mlr.press/v202/santos23a.html), ICML 2023.
"""

    # --- data

    def source(
        self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()
    ) -> CountData:
        """Return the dataset that the settings name, after checking that it fits the model.

        Raises:
            UserError: there is none, it cannot be read, or it does not fit the model.
        """
        data = make_dataset(settings, description, trusted)
        refuse(
            not isinstance(data, CountData),
            f"dataset: counts are needed, CountData, not {type(data).__name__}",
        )
        if description is not None:
            facts = description["data"]
            model_counts = f"counts of shape {tuple(facts['shape'])} up to {facts['max_count']}"
            data_counts = f"counts of shape {tuple(data.shape)} up to {data.max_count}"
            refuse(
                data_counts != model_counts,
                f"the model makes {model_counts}, but {data.name} has {data_counts}",
            )
        with error_context("dataset"):
            return replace(data, flip=bool(settings.get("flip", False)))

    def to_source(self, data: Any) -> CountData:
        """Return an array of counts as `CountData`; a `CountData` stays as it is."""
        return data if isinstance(data, CountData) else CountData.from_array(data)

    def divide(self, data: Any, validation: float) -> CountData:
        """Divide an array into training and validation data; see `split_array`."""
        return split_array(data, validation)

    def describe_data(self, settings: Plain, source: CountData) -> dict[str, Any]:
        """Return the facts of the data that a model records; those of classes only if conditional.

        Raises:
            UserError: a model with classes (`conditional`) of data without labels.
        """
        conditional = settings.get("conditional", False)
        refuse(
            conditional and source.num_classes is None,
            f"conditional=true: {source.name} has no labels",
        )
        facts = {
            name: fact
            for name, fact in source.facts.items()
            if conditional or name not in CLASS_FACTS
        }
        return {"data": {"name": source.name, **facts}}

    def tensors(self, source: CountData) -> dict[str, Tensor]:
        """Return the statistics of the training data that a model stores as buffers, float32.

        Returns:
            data_mean: E[X_0] of every element, [*shape].
            concentration: of every element, [*shape].
            gain: concentration of the gain that all elements share, [].
            class_mean: E[X_0 | class], [num_classes, *shape], with labels. Those of vectors are
                shrunk towards each other (`shrink_class_means`).
            plain_mean: class means of vectors without shrinkage, relative to which a network is
                trained.
        """
        # 1. Elements.
        count_sums = source.sums or compute_sums(source.train)
        data_mean = mean_image(source.train, count_sums)
        elements = estimate_elements(source.train, data_mean, count_sums)
        tensors = {
            "data_mean": data_mean,
            "concentration": elements.concentration,
            "gain": elements.gain,
        }

        # 2. Classes, unless they are very many.
        labels = source.train_labels
        num_classes = source.num_classes
        if labels is None or num_classes is None:
            return tensors
        if num_classes * data_mean.numel() > MAX_CLASS_MEANS:
            return tensors
        covariates = [*source.covariates.values()]
        plain_mean = class_means(source.train, labels, num_classes, data_mean, covariates)
        if data_mean.ndim > 1 or covariates:
            return tensors | {"class_mean": plain_mean}

        # 3. Class means of vectors are shrunk by the variance within classes.
        sizes = labels.bincount(minlength=num_classes)
        # sums of every class, without the average sample that `class_means` adds
        class_sums = (sizes[:, None] + 1) * plain_mean.double() - data_mean
        between_classes = (class_sums.square() / sizes.clamp(min=1)[:, None]).sum(0)
        within_classes = count_sums.square - between_classes
        degrees_of_freedom = (len(labels) - (sizes > 0).sum()).clamp(min=1)
        r = estimate_concentration(data_mean.double(), within_classes / degrees_of_freedom)
        class_mean = shrink_class_means(plain_mean, sizes, r)
        return tensors | {"class_mean": class_mean, "plain_mean": plain_mean}

    # --- building

    def describe_parts(self, settings: Plain, source: CountData) -> dict[str, Any]:
        """Return the description of every component with all its arguments.

        Process and head come first, since they decide the network's outputs.

        Raises:
            UserError: a component that does not exist, or does not fit the data.
        """
        facts = self.describe_data(settings, source)["data"]
        facts = {name: fact for name, fact in facts.items() if name != "name"}
        stats = _component_stats(settings, source, facts)
        refuse(
            "process" not in settings,
            "process=... must be one of the choices that --help lists",
        )
        parts = {
            "process": complete_description(embed_matrix(settings["process"]), stats, "process"),
            "head": complete_description(settings["head"], stats, "head"),
        }
        batch_size = settings.get("batch_size", 1)
        check_memory(parts["process"], source.shape, source.max_count, batch_size)
        process = instantiate(parts["process"], "process")
        if source.train_observed is not None and not isinstance(process, PureDeath):
            raise UserError(
                f"missing entries need process=pure_death, not {type(process).__name__}"
            )
        head = make_head(parts["head"], process)
        stats["outputs"] = head.outputs
        # bins of `BinnedHead` serve the mean only
        stats["predicts_distribution"] = head.outputs > 1 and not isinstance(head, BinnedHead)
        return {
            name: parts[name]
            if name in parts
            else complete_description(settings[name], stats, name)
            for name in self.parts
        }

    def default_steps(self, settings: Plain, source: CountData) -> int:
        """Return the number of optimiser steps if `trainer.max_steps` is null.

        References: this project; checked in tests/cli/test_configs.py.
        """
        stats = _component_stats(settings, source, source.facts)
        body = complete_description(settings["network"], stats, "network").get("body")
        is_mlp = isinstance(body, Mapping) and str(body.get("_target_")).endswith("MLP")
        if not is_mlp:
            return UNET_STEPS
        epochs_steps = MAX_EPOCHS * source.size("train") // settings["batch_size"]
        return min(MLP_STEPS, max(MIN_STEPS, epochs_steps))

    def training_arguments(self, settings: Plain) -> dict[str, Any]:
        """Return the settings that the model's constructor takes: label dropout and draws.

        Warns:
            UserWarning: scores during training are of samples without a class, which are never
                learnt.
        """
        if (
            settings.get("conditional")
            and settings["label_dropout"] == 0
            and settings.get("metrics")
        ):
            warnings.warn(
                "label_dropout=0: scores while training are of samples without a class, which such "
                "a model never learns: label_dropout=0.1, or metrics=none",
                stacklevel=2,
            )
        return {name: settings[name] for name in ("label_dropout", "validation_draws")}

    def assemble(
        self, description: Plain, tensors: Mapping[str, Tensor], **training: Any
    ) -> BlackoutDiffusion:
        """Return the model of a description, with the statistics of its data."""
        # 1. Components that need no data.
        shape = check_facts(description)["shape"]
        configs = description["model"]
        parts = self.build_parts(description, "process", "schedule", "loss", "sampler")
        network = instantiate(configs["network"], "network")

        # 2. Statistics of the data, for inputs that measure counts by them.
        statistics: dict[str, Any] = select_tensors(
            tensors,
            shape,
            with_elements=needs_elements(network, configs["head"]),
            with_classes="num_classes" in description["data"],
        )
        elements = None
        if "gain" in statistics:
            elements = Elements(
                statistics["data_mean"], statistics["concentration"], statistics["gain"]
            )
        if elements is not None and isinstance(network, nn.Module):
            plain_mean = tensors.get("plain_mean")
            class_mean = statistics.get("class_mean")
            learnt = None
            if plain_mean is not None and class_mean is not None:
                learnt = torch.log(append_null_class(plain_mean / class_mean))
            ratios = class_log_ratios(description["data"], statistics)
            set_elements(network, elements, ratios, learnt)

        # 3. The model.
        head = make_head(configs["head"], parts["process"], elements)
        return self.model_class(network=network, head=head, **statistics, **parts, **training)

    # --- sampling

    def draw(self, model: BlackoutDiffusion, request: Plain) -> Draw:
        """Return the `Draw` of a request of `sample.py`, after a trial of its sampler.

        See `blackout.diffusion.draw.request_draw`.
        """
        draw: Any = request_draw(model, request)
        if draw.sampler is not model.sampler:
            try_sampler(model, draw.sampler)
        return draw

    def preview(
        self, model: BlackoutDiffusion, num_samples: int, num_steps: int | None = None
    ) -> CountDraw:
        """Return the `Draw` of previews: with the model's sampler, all classes in turn."""
        sampler = model.sampler
        if num_steps is not None:
            sampler = replace(sampler, num_steps=num_steps)
        return CountDraw(model, sampler, {}, all_labels(model))

    def supports_restarts(self, model: BlackoutDiffusion) -> bool:
        """Return whether samples can start from noised data; only pure death supports it."""
        return isinstance(model.process, PureDeath)

    def restart(
        self,
        draw: CountDraw,
        x0: Tensor,
        fraction: float,
        index: Tensor,
        seed: int,
        callback: Watch,
    ) -> Tensor:
        """Return samples that start from noised data, see `ComponentFamily.restart`."""
        return restart(draw, x0, time_at(draw, fraction), index, seed, callback)

    def restoration_panels(
        self, draw: CountDraw, x0: Tensor, survival: float, index: Tensor, seed: int
    ) -> Tensor:
        """Return panels with data and restorations, see `blackout.diffusion.restarts`."""
        return restoration_panels(draw, x0, survival, index, seed)

    def codec(self, model: BlackoutDiffusion) -> Codec:
        """Return the lossless codec of a model of pure death."""
        from blackout.diffusion.compression import Codec  # imports scipy

        return Codec(model)

    # --- checks before anything long starts

    def check_sampler(self, model: BlackoutDiffusion, scored: bool) -> None:
        """Check schedule, sampler and guidance before training, with trial steps.

        Raises:
            UserError: process, times, kernel, grid or guidance do not fit, or scored samples would
                be guided.
        """
        check_training_times(model)
        try_sampler(model, model.sampler)
        check_guidance(model.sampler, with_classes=model.num_classes is not None)
        if scored and model.sampler.guidance.scale != 1:
            raise UserError(
                "sampler.guidance.scale: samples that are scored in a run have no class to guide "
                "towards: metrics=none, and give it to sample.py with classes=..."
            )

    def dry_run(self, model: BlackoutDiffusion) -> None:
        """Run process, network, head and loss once on an empty sample, to find what does not fit.

        Raises:
            UserError: which component refuses, and why; or what it returns has the wrong shape.
        """
        x0 = torch.zeros(1, *model.shape, dtype=torch.uint8)
        check_training_times(model)
        with error_context("schedule"):
            s, t = model.schedule.intervals(torch.full((1,), 0.5, dtype=torch.float64))
        with error_context("process"):
            xt, target = model.process.observe(x0, t, torch.Generator().manual_seed(0))
        with error_context("network"), torch.no_grad(), evaluating(model.network):
            raw = model.network(xt, t)
        expected_shape = (1, model.head.outputs, *model.shape)
        if raw.shape != expected_shape:
            raise UserError(
                f"network: its output is {list(raw.shape)}, "
                f"where the head reads {list(expected_shape)}"
            )
        with error_context("head"):
            prediction = model.head(raw, xt, t)
        with error_context("loss"):
            losses = model.loss(prediction, target, s, t)
            if not isinstance(losses, Tensor):
                result = type(losses).__name__
            elif losses.shape != x0.shape:
                result = str(list(losses.shape))
            else:
                return
            requirement = f"to return one value per element, not {result}"
            raise mismatch_error(model.loss, model.process, requirement)

    def check_report(self, model: BlackoutDiffusion, settings: Plain) -> None:
        """Check the likelihood settings of a report; see `check_likelihood_settings`."""
        check_likelihood_settings(model, settings["likelihood"])

    # --- scores

    def report(
        self, model: BlackoutDiffusion, source: CountData, settings: Plain
    ) -> dict[str, Any]:
        """Return bits per dimension on both splits; see `report_likelihood`."""
        return report_likelihood(model, source, settings["likelihood"])

    def sample_values(
        self, model: BlackoutDiffusion, source: CountData, name: str, index: Tensor, values: Tensor
    ) -> SampleValues | None:
        """Return upper bounds on the bits per dimension of each test sample; None if unknown.

        See `bound_test_samples`.
        """
        return bound_test_samples(model, source, name, index, values)

    def baselines(
        self, source: CountData, size: int, settings: Plain
    ) -> dict[str, dict[str, Baseline]]:
        """Return bits per dimension of models of independent counts; see `baseline_values`."""
        return baseline_values(source, size, settings)


def _component_stats(settings: Plain, source: CountData, facts: Plain) -> dict[str, Any]:
    """Return the facts by which components choose their arguments.

    Whether a vector is ordered, the settings of the network's body may say.
    """
    ordered = (settings["network"].get("body") or {}).get("ordered")
    if ordered is None:
        ordered = source.is_series
    return {**add_grid_ends(facts), "ordered": ordered, "narrow": is_underdispersed(source.train)}
