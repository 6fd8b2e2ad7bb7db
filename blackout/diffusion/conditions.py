"""Conditions of samples: classes and values of covariates as users give them, as labels.

A label numbers a combination of a class and a level of every covariate, the last covariate fastest.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from blackout.data.labels import TOTAL, decode_labels, format_names
from blackout.diffusion.guidance import Guidance, check_classes
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.processes import Process, PureDeath
from blackout.errors import UserError, refuse
from blackout.representation import format_fields

INTERPOLATION_PARTS = 16  # samples among which the two levels around a value are divided
NUM_FREQUENCY_LABELS = 1024  # labels that represent the frequencies of unrequested conditions
SHUFFLE_SEED = 0


@dataclass(frozen=True)
class Conditions:
    """What samples are conditioned on; row k belongs to sample k.

    Args:
        labels: class of each sample, int64 [N]; None for all classes.
        known_elements: observed elements, for inpainting.
        total: total count of every sample, of a model with totals as a covariate.
    """

    labels: Tensor | None = None
    known_elements: KnownElements | None = None
    total: float | None = None

    __repr__ = format_fields

    def select(self, rows: Tensor, device: torch.device) -> Conditions:
        """Return the conditions of samples `rows`, int64 [B], with labels on `device`."""
        labels = None if self.labels is None else self.labels[rows].to(device)
        known_elements = self.known_elements
        if known_elements is not None:
            known_elements = known_elements.select(rows)
        return Conditions(labels, known_elements, self.total)


NO_CONDITIONS = Conditions()


def check_conditions(
    conditions: Conditions, num_samples: int, num_classes: int | None, guidance: Guidance
) -> None:
    """Raise ValueError unless a model can draw samples under these conditions.

    Args:
        conditions: of the samples.
        num_samples: N.
        num_classes: of the model; None without classes.
        guidance: of the sampler.
    """
    if conditions.labels is not None:
        check_classes(conditions.labels, num_samples, num_classes)
    elif guidance.scale != 1:
        raise ValueError("guidance needs classes to guide towards")


class ConditionalModel(Protocol):
    """The parts of a model that its conditions depend on, as `BlackoutDiffusion` has them."""

    process: Process

    @property
    def config(self) -> Mapping[str, Any]:
        """The description of the model."""

    @property
    def num_classes(self) -> int | None:
        """Combinations of a class and levels of covariates; None without."""


def parse_conditions(
    model: ConditionalModel,
    num_samples: int,
    classes: Tensor | Sequence[int | str] | None,
    values: Mapping[str, Any] | None,
    known_elements: KnownElements | None,
) -> Conditions:
    """Return the conditions of samples 0..num_samples - 1, which take the labels in turn.

    Args:
        model: for its names of classes and covariates.
        num_samples: N.
        classes: names or numbers; None for all.
        values: of classes and covariates by column, see `parse_labels`.
        known_elements: observed elements.

    Raises:
        UserError: see `parse_labels`.
    """
    plain_classes = None if classes is None else np.asarray(classes).tolist()
    labels = parse_labels(model, plain_classes, values)
    if labels is not None:
        labels = labels[torch.arange(num_samples) % len(labels)]
    return Conditions(labels, known_elements, requested_total(model, values))


def requested_total(model: ConditionalModel, values: Any) -> float | None:
    """Return the requested total count; None without a request or for other processes."""
    total = values.get(TOTAL) if isinstance(values, Mapping) else None
    if total is None or not isinstance(model.process, PureDeath):
        return None
    return float(total)


def all_labels(model: ConditionalModel) -> Tensor | None:
    """Return every label of a model with classes, int64 [num_classes]; None without classes.

    With covariates they are in an order that is random but always the same.
    """
    if model.num_classes is None:
        return None
    labels = torch.arange(model.num_classes)
    return _shuffle(labels) if model.config.get("data", {}).get("covariates") else labels


def parse_labels(model: ConditionalModel, classes: Any, values: Any) -> Tensor | None:
    """Return the labels that samples take in turn, for the requested classes and values.

    A value between two levels of a covariate takes both in turn, in such shares that their mean is
    the value. Classes and covariates without a request are as frequent as they are among training
    samples with the requested ones. Their order is random but always the same. If the model does
    not know how often they occurred, all are equally frequent.

    References: this project; checked in tests/diffusion/test_conditions.py.

    Args:
        model: with classes, and perhaps covariates.
        classes: names or numbers; None for all.
        values: by name: the number of a covariate, or one or more words of a covariate or values of
            a column that classes were made of.

    Returns:
        int64 [n], or None without a request.

    Warns:
        UserWarning: a class never had such a word of a covariate, or numbers as far out.

    Raises:
        UserError: a class, column or value that the model does not know, or a combination of values
            that training did not have.
    """
    if classes is None and not values:
        return None

    # 1. Names in the description of the model.
    num_plain, covariates = _covariates(model)
    data = model.config.get("data", {})
    columns: Mapping[str, Sequence[str]] = data.get("class_values") or {}
    requests = values or {}
    if not isinstance(requests, Mapping) or requests.keys() - covariates.keys() - columns.keys():
        names = ", ".join(map(repr, [*columns, *covariates])) or "none"
        raise UserError(
            f"condition must be values by name, such as {{total: 1000}}; this model's are {names}"
        )

    # 2. Classes, by name, number or the values of their columns.
    class_requests = {name: requests[name] for name in columns if name in requests}
    if class_requests:
        refuse(
            classes is not None,
            f"classes and condition.{next(iter(class_requests))} choose the same: leave out one",
        )
        classes = _find_classes(class_requests, columns)
    labels = _class_numbers(classes, num_plain, data.get("class_names") or ())

    # 3. Labels [classes, levels, ...] of all combinations, an axis for every covariate.
    for name, levels in covariates.items():
        labels = labels[..., None] * len(levels) + _level_numbers(name, requests.get(name), levels)

    # 4. Axes without a request take their labels as often as training did.
    counts = data.get("label_counts") or ()
    if len(counts) == model.num_classes:
        axis_requests = (classes, *map(requests.get, covariates))
        free_axes = [
            axis
            for axis, request in enumerate(axis_requests)
            if request is None and labels.shape[axis] > 1
        ]
        if free_axes:
            fixed_axes = [axis for axis in range(labels.ndim) if axis not in free_axes]
            table = labels.permute(*fixed_axes, *free_axes).flatten(len(fixed_axes))
            table = table.view(-1, table.shape[-1])
            labels = _repeat_by_frequency(table, torch.tensor(counts, dtype=torch.float64))
        label_counts = torch.tensor(counts).view(num_plain, *map(len, covariates.values()))
        _warn_of_extrapolation(labels.flatten(), label_counts, list(requests), covariates, data)
    return _shuffle(labels.flatten(1).T).flatten() if labels.ndim > 1 else labels


def _covariates(model: ConditionalModel) -> tuple[int, Mapping[str, Sequence[Any]]]:
    """Return the number of classes without covariates, and the levels of each covariate by name."""
    covariates: Mapping[str, Sequence[Any]] = model.config.get("data", {}).get("covariates") or {}
    if model.num_classes is None:
        raise UserError(
            "classes, condition: this model was trained without classes and covariates, "
            "with conditional=false: leave them out"
        )
    num_combinations = math.prod(map(len, covariates.values()))
    num_plain, remainder = divmod(model.num_classes, num_combinations)
    refuse(
        remainder or not num_plain,
        f"the model's {model.num_classes} classes are not combinations with its covariates",
    )
    return num_plain, covariates


def _find_classes(requests: Mapping[str, Any], columns: Mapping[str, Sequence[str]]) -> list[int]:
    """Return the classes with requested values of their columns, in the order of the values."""
    words = [_words(name, value, sorted(set(columns[name]))) for name, value in requests.items()]
    rows = list(zip(*(columns[name] for name in requests), strict=True))
    classes: list[int] = []
    for combination in itertools.product(*words):
        matches = [number for number, row in enumerate(rows) if row == combination]
        pairs = zip(requests, combination, strict=True)
        description = ", ".join(f"{name} {word}" for name, word in pairs)
        refuse(
            not matches,
            f"condition: no sample of training is {description}; "
            "columns of dataset.covariates go together freely",
        )
        classes += matches
    return classes


def _class_numbers(classes: Any, num_classes: int, names: Sequence[str]) -> Tensor:
    """Return numbers of classes, int64 [c], from names and numbers; all for None."""
    if classes is None:
        return torch.arange(num_classes)
    numbers: Any = [classes] if isinstance(classes, str) else classes
    if isinstance(numbers, list) and names:
        unknown = [name for name in numbers if isinstance(name, str) and name not in names]
        if unknown:
            raise UserError(
                f"classes: there is no class {unknown[0]!r}, only {format_names(names)}"
            )
        numbers = [names.index(name) if isinstance(name, str) else name for name in numbers]
    is_list = isinstance(numbers, list) and bool(numbers)
    if not is_list or any(type(number) is not int for number in numbers):
        example = names[0] if names else 3
        raise UserError(f"classes must be a list such as [{example}], not {numbers!r}")
    refuse(
        not all(0 <= number < num_classes for number in numbers),
        f"classes must be in 0..{num_classes - 1}, not {numbers}",
    )
    return torch.tensor(numbers)


def _level_numbers(name: str, value: Any, levels: Sequence[Any]) -> Tensor:
    """Return numbers of levels, int64 [l], for a number or for words; all for None.

    A number between two levels is represented by 16 levels, whose mean is closest to it.

    References: this project; checked in tests/diffusion/test_conditions.py.
    """
    if value is None:
        return torch.arange(len(levels))
    if isinstance(levels[0], str):
        return torch.tensor([levels.index(word) for word in _words(name, value, levels)])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not levels[0] <= value <= levels[-1]:
        raise UserError(
            f"condition.{name} must be a number in {levels[0]:g}..{levels[-1]:g}, "
            f"as in training: {value!r}"
        )
    upper = max(1, sum(level < value for level in levels)) if len(levels) > 1 else 0
    lower = max(0, upper - 1)
    width = levels[upper] - levels[lower]
    num_upper = round(INTERPOLATION_PARTS * (value - levels[lower]) / width) if width else 0
    generator = torch.Generator().manual_seed(SHUFFLE_SEED)
    order = torch.randperm(INTERPOLATION_PARTS, generator=generator)
    return torch.where(order < num_upper, upper, lower)


def _words(name: str, value: Any, choices: Sequence[str]) -> list[str]:
    """Return one or more words of a column as a list, all of which must be among the choices."""
    words = [str(word) for word in (value if isinstance(value, list) else [value])]
    unknown = [word for word in words if word not in choices]
    if unknown:
        raise UserError(
            f"condition.{name}: there is no {unknown[0]!r}, only {format_names(choices)}"
        )
    return words


def _repeat_by_frequency(labels: Tensor, counts: Tensor) -> Tensor:
    """Return labels [m * 1024] that take the rows of [m, n] in turn, each label by its frequency.

    All labels of a row that never occurred are equally frequent.

    References: this project; checked in tests/diffusion/test_conditions.py.
    """
    frequency = counts[labels]
    frequency[frequency.sum(1) == 0] = 1
    cumulative = (frequency.cumsum(1) / frequency.sum(1, keepdim=True)).contiguous()
    points = (torch.arange(NUM_FREQUENCY_LABELS) + 0.5) / NUM_FREQUENCY_LABELS
    points = points.expand(len(labels), NUM_FREQUENCY_LABELS).contiguous()
    columns = torch.searchsorted(cumulative, points.double()).clamp(max=labels.shape[1] - 1)
    return _shuffle(labels.gather(1, columns).T).flatten()


def _shuffle(labels: Tensor) -> Tensor:
    """Return labels [n, ...] in an order that is random but always the same."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SHUFFLE_SEED))
    return labels[order]


def _warn_of_extrapolation(
    labels: Tensor,
    label_counts: Tensor,
    requests: Sequence[str],
    covariates: Mapping[str, Sequence[Any]],
    data: Mapping[str, Any],
) -> None:
    """Warn of words of covariates that a class did not have in training, and of numbers beyond its.

    Args:
        labels: of samples, int64 [n].
        label_counts: training samples of every (class, level, ...).
        requests: names of the requested covariates.
        covariates: levels by name.
        data: facts of the data, for names of classes.
    """
    classes, *levels = decode_labels(labels, label_counts.shape[1:])
    class_names = data.get("class_names") or range(len(label_counts))
    for axis, (name, values) in enumerate(covariates.items(), 1):
        if name not in requests:
            continue
        # training samples of every (class, level of this covariate)
        counts = label_counts.movedim(axis, 1)
        counts = counts.flatten(2).sum(2) if counts.ndim > 2 else counts
        for number in classes.unique().tolist():
            training_levels = torch.nonzero(counts[number]).flatten()
            requested = levels[axis - 1][classes == number]
            training_values = [values[k] for k in training_levels.tolist()]
            if not training_values:
                continue
            if isinstance(training_values[0], str):
                is_beyond = ~torch.isin(requested, training_levels)
                description = ", ".join(training_values)
            else:
                is_beyond = (requested < training_levels.min()) | (
                    requested > training_levels.max()
                )
                description = f"{training_values[0]:g} to {training_values[-1]:g}"
            if is_beyond.any():
                warnings.warn(
                    f"condition.{name}: class {class_names[number]} had {name} {description} in "
                    "training: these samples are an extrapolation",
                    stacklevel=4,
                )
