"""What is known of the data: means of elements and of classes, measured; the facts that a description says, checked."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from blackout.component import Plain
from blackout.counts import LARGEST_COUNT
from blackout.data.count_statistics import Sums, compute_sums, iterate_chunks
from blackout.data.labels import Level
from blackout.data.on_disk import DiskCounts
from blackout.errors import refuse
from blackout.networks.elements import Elements, estimate_concentration, estimate_gain

_ROUNDS = 20
"""Of an iteration that settles in fewer."""


def _whole(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _each(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is a list of such."""
    return lambda value: isinstance(value, list) and all(map(fits, value))


_NOT_NEGATIVE = (lambda v: _number(v) and v >= 0), "a number that is finite and not negative"
_WHOLE, _WORD = (_whole, "a whole number of at least 1"), (_word, "text")
_WHOLES, _WORDS = (_each(_whole), "a list of whole numbers"), (_each(_word), "a list of text")
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "shape": (lambda v: _WHOLES[0](v) and 1 <= len(v) <= 4, _WHOLES[1]),
    "max_count": _WHOLE,
    "mean": _NOT_NEGATIVE,
    "std": _NOT_NEGATIVE,
    "total_dispersion": _NOT_NEGATIVE,
    "covariance_excess": _NOT_NEGATIVE,
    "num_classes": _WHOLE,
    "covariates": (
        lambda v: isinstance(v, dict) and all(x and (_each(_number)(x) or _WORDS[0](x)) for x in v.values()),
        "lists of finite numbers or of words by name",
    ),
    "covariate_levels": _WHOLES,
    "label_counts": (_each(_count), _WHOLES[1]),
    "sample_shape": _WHOLES,
    "features": _WORDS,
    "class_names": _WORDS,
    "class_values": (lambda v: isinstance(v, dict) and all(map(_each(_word), v.values())), "lists of text by name"),
    "units": (lambda v: _each(_count)(v) and len(v) == 2 and _whole(v[1]), "offset and gain, two whole numbers"),
    "name": _WORD,
    "layer": _WORD,
}


def checked_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that components of a model may ask for by name.

    Args:
        description: of a model, perhaps from a damaged file.

    Raises:
        UserError: a fact is missing, of another kind, or none of a diffusion model's.
    """
    data = description.get("data") or {}
    for name in ("shape", "max_count", *data):
        fits, kind = _KINDS.get(name, (lambda _: False, "left out: there is no such fact"))
        refuse(not fits(data.get(name)), f"{name} of the data must be {kind}, not {reprlib.repr(data.get(name))}")
    return {name: fact for name, fact in data.items() if name != "name"}


def mean_image(counts: Tensor | DiskCounts, known: Sums | None = None) -> Tensor:
    """E[X_0] per element, float32, without a floating-point copy of the data.

    One unit is added to each element's total: what never occurred in training must not be impossible.
    Ours (tests/diffusion/test_class_starts.py).

    Args:
        counts: integers [N, *shape].
        known: their sums, where they were taken before.
    """
    return (((known or compute_sums(counts)).element + 1).double() / (len(counts) + 1)).float()


def class_means(
    counts: Tensor | DiskCounts,
    labels: Tensor,
    num_classes: int,
    mean: Tensor,
    covariates: Sequence[Sequence[Level]] = (),
) -> Tensor:
    """E[X_0 | class] per element, float32 [num_classes, *shape], with the average image added to every class once.

    With covariates some combinations have no samples. It is then a product of a factor of the class and one of every
    covariate's word, with the totals of each: Poisson regression, by iterative proportional fitting [Deming 1940]. As
    many average images as there are classes and levels are spread over all combinations.

    Args:
        counts: integers [N, *shape].
        labels: int64 [N].
        mean: of all, positive, [*shape].
        covariates: levels of each.
    """
    totals = torch.zeros(num_classes, *mean.shape, dtype=torch.int64)
    for first, part in iterate_chunks(counts):
        totals.index_add_(0, labels[first : first + len(part)], part.long())
    sizes = labels.bincount(minlength=num_classes).view(-1, *(1 for _ in mean.shape))
    if not covariates:
        return ((totals.double() + mean.double()) / (sizes + 1)).float()
    sides = [num_classes // math.prod(map(len, covariates)), *map(len, covariates)]
    spread = sum(sides) / num_classes
    of = (totals.double() + spread * mean).view(*sides, *mean.shape)
    many = (sizes.double() + spread).view(*sides, *sizes.shape[1:])
    rates = mean.double().expand(of.shape)
    for axis in [0, *(k for k, levels in enumerate(covariates, 1) if isinstance(levels[0], str))] * _ROUNDS:
        others = [k for k in range(len(sides)) if k != axis]
        rates = rates * of.sum(others, keepdim=True) / (many * rates).sum(others, keepdim=True)
    return rates.reshape(totals.shape).float()


def shifts(data: Plain, known: Mapping[str, Tensor]) -> Tensor | None:
    """log E[X_0 | class] - log E[X_0] of every class and of none, float32 [num_classes + 1, *shape], with covariates.

    Ours (tests/diffusion/test_class_starts.py).
    """
    if "covariates" not in data or "class_mean" not in known:
        return None
    return torch.log(with_none(known["class_mean"] / known["mean"]))


def with_none(ratio: Tensor) -> Tensor:
    """Ratios of every class and, 1, of none, [num_classes + 1, *shape]."""
    return torch.cat([ratio, torch.ones_like(ratio[:1])])


def shrunk_means(means: Tensor, sizes: Tensor, concentration: Tensor) -> Tensor:
    """Means of classes drawn towards a base that they share, float32 [K, D]: what few samples of one would miss. Ours.

    Adaptive shrinkage [Stephens 2017] of logarithms, whose errors are known: an element of a class lies on the base, or
    beside it by a normal number. Share and variance of those, and the base of every element, are fitted to all
    (empirical Bayes); its law, that errors become smaller, is tested in `tests/diffusion/test_class_starts.py`.

    Args:
        means: of every class, positive, [K, D].
        sizes: samples of every class, [K].
        concentration: of every element within classes, [D].
    """
    log_mean, n = torch.log(means.double()), sizes.double().clamp(min=0.5)[:, None]
    base, share, slab = log_mean.median(0).values, torch.tensor(0.5).double(), torch.tensor(1.0).double()
    for k in range(_ROUNDS):
        error = (torch.exp(-torch.maximum(log_mean, base)) + 1 / concentration) / n
        beside, wide, near = log_mean - base, error + slab, error + slab * 0.25**k
        log_odds = torch.logit(share) - torch.log(near / wide) / 2 - beside.square() * (1 / near - 1 / wide) / 2
        on = torch.sigmoid(log_odds)
        weight = on / near + (1 - on) / wide
        base = (weight * log_mean).sum(0) / weight.sum(0)
        square = (beside * slab / wide).square() + error * slab / wide
        share, slab = on.mean().clamp(0.01, 0.99), ((1 - on) * square).sum() / (1 - on).sum().clamp(min=1e-6)
    return torch.exp(base + (1 - on) * (log_mean - base) * slab / (error + slab)).float()


def elements_of(counts: Tensor | DiskCounts, mean: Tensor, known: Sums | None = None) -> Elements:
    """Estimate mean, concentration and gain by moments, float32; see `blackout.networks.elements`.

    Args:
        counts: integers [N, *shape].
        mean: of every element, positive, [*shape].
        known: sums of the counts, where they were taken before.
    """
    found = known or compute_sums(counts)
    own, variance = found.element.double() / len(found.sample), found.variance
    shared = estimate_gain(found.sample.var(correction=0), own, variance)
    return Elements(mean, estimate_concentration(mean.double(), variance).float(), shared.float())
