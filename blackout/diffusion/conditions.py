"""What is asked of a conditional model: classes by name or number, or a design, columns by value."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from blackout.data.labels import TOTAL, divided, few
from blackout.diffusion.guidance import Guidance, check_classes
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.processes import Process, PureDeath
from blackout.errors import UserError, refuse

_SHARES = 16
"""Parts of a whole in which the two levels about a value are taken, so that their mean is that value."""
_DRAWN = 1024
"""Labels that stand for the frequencies of what was not asked for."""
_SEED = 0


@dataclass(frozen=True)
class Conditions:
    """What samples are conditioned on; row k belongs to sample k.

    Args:
        labels: class of each sample, int64 [N]; None for all classes.
        known: observed elements, for inpainting.
        total: total count of every sample, of a model with totals as a covariate.
    """

    labels: Tensor | None = None
    known: KnownElements | None = None
    total: float | None = None

    def select(self, rows: Tensor, device: torch.device) -> Conditions:
        """Select the conditions of samples `rows`, int64 [B], with labels on `device`."""
        labels = None if self.labels is None else self.labels[rows].to(device)
        known = None if self.known is None else self.known.select(rows)
        return Conditions(labels, known, self.total)


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


class Conditioned(Protocol):
    """What is asked of a model, `blackout.diffusion.BlackoutDiffusion`."""

    process: Process

    @property
    def config(self) -> Mapping[str, Any]:
        """The description of the model."""

    @property
    def num_classes(self) -> int | None:
        """Combinations of a class and levels of covariates; None without."""


def requested_total(model: Conditioned, design: Any) -> float | None:
    """The total count that samples are to have, where one was asked for and means are predicted."""
    value = design.get(TOTAL) if isinstance(design, Mapping) else None
    return float(value) if value is not None and isinstance(model.process, PureDeath) else None


def all_labels(model: Conditioned) -> Tensor | None:
    """Every label of a model with classes, in turn; with covariates in an order that is random but always the same."""
    if model.num_classes is None:
        return None
    labels = torch.arange(model.num_classes)
    return _shuffled(labels) if model.config.get("data", {}).get("covariates") else labels


def _shuffled(labels: Tensor) -> Tensor:
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SEED))]


def parse_labels(model: Conditioned, classes: Any, design: Any) -> Tensor | None:
    """The labels of samples, taken in turn: those of the classes and values that were asked for.

    A value between two levels of a covariate takes both in turn, in such shares that their mean is the value. Classes
    and covariates that were not asked for are as frequent as in training among samples of what was asked for, in an
    order that is random but always the same; all values are, where the model does not know how often they occur.
    Ours (tests/diffusion/test_conditions.py).

    Args:
        model: with classes, and perhaps covariates.
        classes: names or numbers; None for all.
        design: by name, the number that a covariate is to have, or one or more words of a covariate or values of a
            column that classes were made of.

    Returns:
        int64 [n], or None where nothing was asked.

    Warns:
        UserWarning: a class never had such a word of a covariate, or numbers as far out.

    Raises:
        UserError: a class, column or value that the model does not know, or that training did not have together.
    """
    if classes is None and not design:
        return None
    alone, known = _known(model)
    data = model.config.get("data", {})
    columns: Mapping[str, Sequence[str]] = data.get("class_values") or {}
    asked = design or {}
    if not isinstance(asked, Mapping) or asked.keys() - known.keys() - columns.keys():
        shown = ", ".join(map(repr, [*columns, *known])) or "none"
        raise UserError(f"given must be values by name, such as {{total: 1000}}; this model's are {shown}")
    if of_classes := {name: asked[name] for name in columns if name in asked}:
        refuse(classes is not None, f"classes and given.{next(iter(of_classes))} choose the same: leave out one")
        classes = _combined(of_classes, columns)
    labels = _classes(classes, alone, data.get("class_names") or ())
    for name, values in known.items():
        labels = labels[..., None] * len(values) + _levels(name, asked.get(name), values)
    asked_for = (classes, *map(asked.get, known))
    free = [axis for axis, one in enumerate(asked_for) if one is None and labels.shape[axis] > 1]
    counts = data.get("label_counts") or ()
    if len(counts) == model.num_classes:
        if free:
            given = [axis for axis in range(labels.ndim) if axis not in free]
            rows = labels.permute(*given, *free).flatten(len(given))
            labels = _in_proportion(rows.view(-1, rows.shape[-1]), torch.tensor(counts, dtype=torch.float64))
        seen = torch.tensor(counts).view(alone, *map(len, known.values()))
        _warn_beyond(labels.flatten(), seen, list(asked), known, data)
    return _shuffled(labels.flatten(1).T).flatten() if labels.ndim > 1 else labels


def _combined(asked: Mapping[str, Any], columns: Mapping[str, Sequence[str]]) -> list[int]:
    """The classes of one or more values of some of the columns that they were made of, in the order of the values."""
    wanted = [_words(name, value, sorted(set(columns[name]))) for name, value in asked.items()]
    chosen: list[int] = []
    rows = list(zip(*(columns[name] for name in asked), strict=True))
    for together in itertools.product(*wanted):
        found = [number for number, row in enumerate(rows) if row == together]
        told = ", ".join(f"{name} {word}" for name, word in zip(asked, together, strict=True))
        refuse(not found, f"given: no sample of training is {told}; columns of dataset.covariates go together freely")
        chosen += found
    return chosen


def _words(name: str, value: Any, known: Sequence[str]) -> list[str]:
    """One or more words of a column, which has these."""
    words = [str(one) for one in (value if isinstance(value, list) else [value])]
    if unknown := [word for word in words if word not in known]:
        raise UserError(f"given.{name}: there is no {unknown[0]!r}, only {few(known)}")
    return words


def _warn_beyond(
    labels: Tensor, seen: Tensor, asked: Sequence[str], known: Mapping[str, Sequence[Any]], data: Mapping[str, Any]
) -> None:
    """Warn of words of covariates that their class did not have in training, and of numbers beyond those that it had.

    Args:
        labels: of samples, [n].
        seen: how often every (class, level, ...) was.
        asked: covariates.
    """
    kinds, *levels = divided(labels, seen.shape[1:])
    names = data.get("class_names") or range(len(seen))
    for axis, (name, values) in enumerate(known.items(), 1):
        of_class = seen.movedim(axis, 1).flatten(2).sum(2) if seen.ndim > 2 else seen
        for kind in kinds.unique().tolist() if name in asked else ():
            there, wanted = torch.nonzero(of_class[kind]).flatten(), levels[axis - 1][kinds == kind]
            had = [values[k] for k in there.tolist()]
            if had and isinstance(had[0], str):
                beyond, told = ~torch.isin(wanted, there), ", ".join(had)
            elif had:
                beyond, told = (wanted < there.min()) | (wanted > there.max()), f"{had[0]:g} to {had[-1]:g}"
            if had and beyond.any():
                said = f"class {names[kind]} had {name} {told} in training"
                warnings.warn(f"given.{name}: {said}: these samples are an extrapolation", stacklevel=4)


def _in_proportion(labels: Tensor, counts: Tensor) -> Tensor:
    """Labels [m _DRAWN] that take the m rows of [m, n] in turn, each label of a row as often as by its count.

    Ours (tests/diffusion/test_conditions.py).

    Where none of a row ever occurred, all are equally frequent.
    """
    frequency = counts[labels]
    frequency[frequency.sum(1) == 0] = 1
    cumulative = (frequency.cumsum(1) / frequency.sum(1, keepdim=True)).contiguous()
    places = ((torch.arange(_DRAWN) + 0.5) / _DRAWN).expand(len(labels), _DRAWN).contiguous()
    drawn = labels.gather(1, torch.searchsorted(cumulative, places.double()).clamp(max=labels.shape[1] - 1))
    return _shuffled(drawn.T).flatten()


def _known(model: Conditioned) -> tuple[int, Mapping[str, Sequence[Any]]]:
    """Number of classes without covariates, and the values of the levels of each covariate."""
    known: Mapping[str, Sequence[Any]] = model.config.get("data", {}).get("covariates") or {}
    if model.num_classes is None:
        raise UserError("classes, given: this model was trained without classes and covariates, with conditional=false")
    alone, rest = divmod(model.num_classes, math.prod(map(len, known.values())))
    refuse(rest or not alone, f"the model's {model.num_classes} classes are not combinations with its covariates")
    return alone, known


def _levels(name: str, value: Any, values: Sequence[Any]) -> Tensor:
    """The levels that stand for a number, or for one or more words, or all.

    Ours (tests/diffusion/test_conditions.py).
    """
    if value is None:
        return torch.arange(len(values))
    if isinstance(values[0], str):
        return torch.tensor([values.index(word) for word in _words(name, value, values)])
    if isinstance(value, bool) or not isinstance(value, int | float) or not values[0] <= value <= values[-1]:
        raise UserError(f"given.{name} must be a number in {values[0]:g}..{values[-1]:g}, as in training: {value!r}")
    upper = max(1, sum(one < value for one in values)) if len(values) > 1 else 0
    lower = max(0, upper - 1)
    width = values[upper] - values[lower]
    share = round(_SHARES * (value - values[lower]) / width) if width else 0
    order = torch.randperm(_SHARES, generator=torch.Generator().manual_seed(_SEED))
    return torch.where(order < share, upper, lower)


def _classes(classes: Any, number: int, names: Sequence[str]) -> Tensor:
    """The numbers of classes, which are given by name or number, or of one by its name; all of None."""
    if classes is None:
        return torch.arange(number)
    classes = [classes] if isinstance(classes, str) else classes
    if isinstance(classes, list) and names:
        if unknown := [one for one in classes if isinstance(one, str) and one not in names]:
            raise UserError(f"classes: there is no class {unknown[0]!r}, only {few(names)}")
        classes = [names.index(one) if isinstance(one, str) else one for one in classes]
    if not isinstance(classes, list) or not classes or any(type(one) is not int for one in classes):
        raise UserError(f"classes must be a list such as [{names[0] if names else 3}], not {classes!r}")
    refuse(not all(0 <= one < number for one in classes), f"classes must be in 0..{number - 1}, not {classes}")
    return torch.tensor(classes)
