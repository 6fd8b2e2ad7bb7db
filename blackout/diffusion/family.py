"""The family of diffusion models on counts: from settings and a dataset to a model, and back from its description."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blackout.component import component
from blackout.data import CountData
from blackout.data.moments import Sums, sums
from blackout.diffusion.assembly import asks_for_elements, elements_of, make_head, make_network
from blackout.diffusion.data_stats import checked_facts, with_ends
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.processes.finite import FiniteProcess
from blackout.diffusion.processes.generator import without_files
from blackout.diffusion.recipe import fitted, steps_for
from blackout.errors import UserError, error_context
from blackout.networks.inputs import Elements
from blackout.training.components import fill, find, make
from blackout.training.descriptions import make_dataset, pathless

# --- Whether a process on very many levels fits into memory, before any of its tables is made.

_BYTES, _ARRAYS = 8, 3
"""Of a number, and how many arrays [B, *shape, S] any training step holds at once: logits, probabilities, gradients.
Losses of rates hold about four times as many; what might fit is not refused."""


def check_memory(process: Mapping[str, Any], shape: Sequence[int], max_count: int, batch_size: int) -> None:
    """Refuse a process on finitely many states whose training step does not fit into this machine's memory.

    Args:
        process: its description.
        shape: of the data.
        max_count: the largest count.
        batch_size: of a step.

    Raises:
        UserError: how much memory it would need.
    """
    kind = find(process, "process")
    if not (isinstance(kind, type) and issubclass(kind, FiniteProcess)):
        return
    states, elements = max_count + 2, math.prod(shape)
    numbers = _ARRAYS * batch_size * elements * states + (batch_size * states**2 if kind.tables else 0)
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (need := _BYTES * numbers) > here:
        raise UserError(
            f"process: {kind.__name__} on {states:,} states of {elements:,} elements would need at least "
            f"{need / 1e9:,.0f} GB for batch_size={batch_size}, of {here / 1e9:,.0f} GB here; counts as large as "
            f"{max_count:,} are for process=blackout"
        )


_OF_CLASSES = ("num_classes", "class_names", "covariates", "covariate_levels")
"""Facts for conditional models alone."""
_LARGEST_MEANS = 1 << 24
"""Elements of the means of all classes, beyond which samples of all classes start from one mean."""
PARTS = ("network", "head", "process", "schedule", "loss", "sampler")


@component("family")
@dataclass(frozen=True)
class CountDiffusion:
    """Blackout Diffusion and its relatives: any Markov process on counts, reversed by a network.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str = "val/bits_per_dim"

    def source(
        self, settings: Mapping[str, Any], description: Mapping[str, Any] | None = None, trusted: tuple[str, ...] = ()
    ) -> CountData:
        """The dataset chosen in the settings, else the one in a model's description, which it must fit.

        Raises:
            UserError: there is none, it cannot be read, or it does not fit the model.
        """
        data = make_dataset(settings, description, trusted)
        if not isinstance(data, CountData):
            raise UserError(f"dataset: counts are needed, CountData, not {type(data).__name__}")
        if description is not None:
            _check_same_kind(data, description["data"])
        with error_context("dataset"):
            return replace(data, flip=bool(settings.get("flip", False)))

    def describe(self, settings: Mapping[str, Any], source: CountData) -> dict[str, Any]:
        """Every component with all its arguments, and the facts of the data they come from.

        Raises:
            UserError: a model with classes (`conditional`) of data without labels, or a component that does not exist.
        """
        of_data = _of_data(settings, source)
        parts: dict[str, Any] = {name: with_ends(fitted(settings[name], of_data), of_data) for name in PARTS}
        parts["process"] = without_files(parts["process"])
        facts = {name: fact for name, fact in source.facts.items() if name not in _OF_CLASSES}
        if settings.get("conditional", False):
            if source.num_classes is None:
                raise UserError(f"conditional=true: {source.name} has no labels")
            facts |= {name: fact for name, fact in source.facts.items() if name in _OF_CLASSES}
        filled = {name: fill(parts[name], facts, name) for name in ("process", "head")}
        check_memory(filled["process"], source.shape, source.max_count, settings.get("batch_size", 1))
        process = make(filled["process"], "process")
        _check_missing(source, process)
        outputs = make_head(filled["head"], process).outputs
        filled = {name: fill(part, {**facts, "outputs": outputs}, name) for name, part in parts.items()}
        return {
            "data": {"name": source.name, **facts},
            "dataset": pathless(settings.get("dataset") or {}),
            "metrics": pathless(settings.get("metrics")),
            "model": filled,
        }

    def length(self, settings: Mapping[str, Any], source: CountData) -> int:
        """Optimiser steps that suit the network, where `trainer.max_steps` is null."""
        return steps_for(fitted(settings["network"], _of_data(settings, source)))

    def tensors(self, source: CountData) -> dict[str, Tensor]:
        """`mean` and `concentration` per element, float32, of the data's shape, and `gain`; with labels `class_mean`.

        `mean` is E[X_0], `class_mean` E[X_0 | class], [num_classes, *shape].
        """
        mean, labels = mean_image(source.train, source.sums), source.train_labels
        measured = elements_of(source.train, mean, source.sums)
        known = {"mean": mean, "concentration": measured.concentration, "gain": measured.gain}
        if labels is None or source.num_classes is None or source.num_classes * mean.numel() > _LARGEST_MEANS:
            return known
        return known | {"class_mean": class_means(source.train, labels, source.num_classes, mean)}

    def build(
        self,
        description: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        settings: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> BlackoutDiffusion:
        """The module that `describe` describes.

        Args:
            description: what `describe` returned.
            tensors: what `tensors` returned.
            settings: where `label_dropout` and `validation_draws` of a model in training are.
            training: further arguments of `BlackoutDiffusion` (ema_decay, seed).

        Raises:
            UserError: a part is missing, a component refused its arguments, or tensors of another shape.
        """
        shape, described = _check_description(description)
        known: dict[str, Any] = _kept(
            tensors, shape, asks_for_elements(described), "num_classes" in description["data"]
        )
        elements = Elements(known["mean"], known["concentration"], known["gain"]) if "gain" in known else None
        parts = {name: make(described[name], name) for name in PARTS if name not in ("head", "network")}
        parts["network"] = make_network(described["network"], elements)
        parts["head"] = make_head(described["head"], parts["process"], elements)
        training |= {name: settings[name] for name in ("label_dropout", "validation_draws") if settings is not None}
        with error_context("model"):
            model = BlackoutDiffusion(**known, **parts, **training)
        model.config = dict(description)
        return model

    def card(self, description: Mapping[str, Any], parameters: int) -> str:
        """The README.md of an exported model."""
        data, model = description["data"], description["model"]
        shape = tuple(data["shape"])
        names = {part: _name(model[part]) for part in PARTS}
        loss = [names["loss"], *(str(model["loss"][key]) for key in ("kind", "weighting") if key in model["loss"])]
        weighted = " ".join(loss[:1]) + (f" ({', '.join(loss[1:])} weights)" if loss[1:] else "")
        return f"""# A diffusion model of {data["name"]}

- data: {data["name"]}, shape {shape}, counts 0..{data["max_count"]}
- process: {names["process"]}; what is predicted: {names["head"]}
- network: {_name(model["network"].get("body", model["network"]))}, {parameters:,} parameters (averaged weights)
- trained with blackout {description["blackout"]}, loss {weighted}

```python
from blackout import load_model

model = load_model("path/to/this/directory")
counts = model.sample(16, seed=0)  # integers [16, {", ".join(map(str, shape))}]
```

## Citation

Santos, Fox, Lubbers and Lin, [Blackout Diffusion: Generative Diffusion Models in Discrete-State
Spaces](https://proceedings.mlr.press/v202/santos23a.html), ICML 2023.
"""


def mean_image(counts: Tensor, known: Sums | None = None) -> Tensor:
    """E[X_0] per element, float32, without a floating-point copy of the data.

    One unit is added to each element's total: what never occurred in training must not be impossible.

    Args:
        counts: integers [N, *shape].
        known: their sums, where they were taken before.
    """
    return (((known or sums(counts)).element + 1).double() / (len(counts) + 1)).float()


def class_means(counts: Tensor, labels: Tensor, num_classes: int, mean: Tensor) -> Tensor:
    """E[X_0 | class] per element, float32 [num_classes, *shape], with the average image added to every class once.

    Args:
        counts: integers [N, *shape].
        labels: int64 [N].
        mean: of all, positive, [*shape].
    """
    means = torch.empty(num_classes, *mean.shape)
    for number in range(num_classes):
        members = counts[labels == number]
        means[number] = (members.sum(0, dtype=torch.int64).double() + mean.double()) / (len(members) + 1)
    return means


def _check_missing(data: CountData, process: Any) -> None:
    if data.train_seen is not None and not isinstance(process, PureDeath):
        raise UserError(f"missing entries need process=pure_death, not {type(process).__name__}")


def _kept(tensors: Mapping[str, Tensor], shape: list[int], measured: bool, with_classes: bool) -> dict[str, Tensor]:
    """What a model keeps of its data: `mean`, `concentration` and `gain` if they are used, `class_mean` if it is there.

    Raises:
        UserError: one is missing or of another shape.
    """
    shapes = {"mean": shape, **({"concentration": shape, "gain": []} if measured else {})}
    known = {
        name: tensors[name] for name, one in shapes.items() if name in tensors and list(tensors[name].shape) == one
    }
    # of models with classes alone, unless they are very many
    of_classes = tensors.get("class_mean") if with_classes else None
    if len(known) < len(shapes) or (of_classes is not None and list(of_classes.shape[1:]) != shape):
        raise UserError(f"the weights are not those of {shape}-shaped data")
    return known if of_classes is None else {**known, "class_mean": of_classes}


def _name(component: Mapping[str, Any]) -> str:
    return str(component["_target_"]).rsplit(".", 1)[-1]


def _of_data(settings: Mapping[str, Any], source: CountData) -> dict[str, Any]:
    """What recipes decide from; whether a vector is ordered, the settings of the network's body may say."""
    told = (settings["network"].get("body") or {}).get("ordered")
    return {**source.facts, "ordered": source.ordered if told is None else told}


def _check_same_kind(data: CountData, facts: Mapping[str, Any]) -> None:
    shape, largest = tuple(facts["shape"]), facts["max_count"]
    if data.shape != shape or data.max_count != largest:
        raise UserError(
            f"the model makes {shape}-shaped counts up to {largest}, but {data.name} has shape {data.shape} and counts "
            f"up to {data.max_count}"
        )


def _check_description(description: Mapping[str, Any]) -> tuple[list[int], Mapping[str, Any]]:
    """The shape of the data and the parts of a model, of a description that may come from a damaged file."""
    shape, model = checked_facts(description)["shape"], description.get("model")
    if not isinstance(model, Mapping):
        raise UserError("there is no description of a model")
    if missing := [part for part in PARTS if not isinstance(model.get(part), Mapping)]:
        raise UserError(f"there is no description of a whole model: {', '.join(missing)} missing")
    return shape, model
