"""Statistics and facts of the data: means of elements and classes, and checks of recorded facts.

Facts are the plain values that the description of a model records about its data. Components ask
for them by name, so a description from a file is checked before anything is built from it.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blackout.component import Plain
from blackout.counts import LARGEST_COUNT
from blackout.data.count_statistics import Sums, compute_sums, iterate_chunks
from blackout.data.labels import Level
from blackout.data.on_disk import DiskCounts
from blackout.errors import UserError
from blackout.networks.elements import Elements, estimate_concentration, estimate_gain

MAX_DIMENSIONS = 4  # of a sample: volumes [C, D, H, W]
PROPORTIONAL_FITTING_ROUNDS = 20  # it converges in fewer
SHRINKAGE_ROUNDS = 20  # of empirical Bayes, which converges in fewer
MIN_CLASS_SIZE = 0.5  # samples of an empty class: its error is large but finite
COOLING = 0.25  # factor per round on the variance of means that share the base; it ends near 0
MIN_SHARE = 0.01  # of the means on the base, and of those off it
MIN_WEIGHT = 1e-6  # of the means off the base; avoids 0 / 0


def _is_positive_integer(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def _is_non_negative_integer(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_finite_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_non_negative_number(value: Any) -> bool:
    return _is_finite_number(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(accepts(item) for item in value)


def _is_positive_integer_list(value: Any) -> bool:
    return _is_list(value, _is_positive_integer)


def _is_non_negative_integer_list(value: Any) -> bool:
    return _is_list(value, _is_non_negative_integer)


def _is_text_list(value: Any) -> bool:
    return _is_list(value, _is_text)


def _is_shape(value: Any) -> bool:
    return _is_positive_integer_list(value) and 1 <= len(value) <= MAX_DIMENSIONS


def _is_levels(value: Any) -> bool:
    return bool(value) and (_is_list(value, _is_finite_number) or _is_text_list(value))


def _is_covariates(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_levels(levels) for levels in value.values())


def _is_text_lists_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text_list(names) for names in value.values())


def _is_units(value: Any) -> bool:
    is_pair = _is_non_negative_integer_list(value) and len(value) == 2
    return is_pair and _is_positive_integer(value[1])


@dataclass(frozen=True)
class FactCheck:
    """Check of one fact.

    Args:
        accepts: whether a value is allowed.
        requirement: what a value must be, for messages.
    """

    accepts: Callable[[Any], bool]
    requirement: str


POSITIVE_INTEGER = FactCheck(_is_positive_integer, "a whole number of at least 1")
NON_NEGATIVE = FactCheck(_is_non_negative_number, "a finite number of at least 0")
TEXT = FactCheck(_is_text, "text")
POSITIVE_INTEGERS = FactCheck(_is_positive_integer_list, "a list of whole numbers of at least 1")
TEXTS = FactCheck(_is_text_list, "a list of text")

FACT_CHECKS: dict[str, FactCheck] = {
    "shape": FactCheck(_is_shape, f"a list of 1 to {MAX_DIMENSIONS} whole numbers of at least 1"),
    "max_count": POSITIVE_INTEGER,
    "mean": NON_NEGATIVE,
    "std": NON_NEGATIVE,
    "total_dispersion": NON_NEGATIVE,
    "covariance_excess": NON_NEGATIVE,
    "num_classes": POSITIVE_INTEGER,
    "covariates": FactCheck(_is_covariates, "lists of finite numbers or of text, by name"),
    "covariate_levels": POSITIVE_INTEGERS,
    "label_counts": FactCheck(
        _is_non_negative_integer_list, "a list of whole numbers of at least 0"
    ),
    "sample_shape": POSITIVE_INTEGERS,
    "features": TEXTS,
    "class_names": TEXTS,
    "class_values": FactCheck(_is_text_lists_by_name, "lists of text, by name"),
    "units": FactCheck(_is_units, "offset and gain, two whole numbers, the gain at least 1"),
    "name": TEXT,
    "layer": TEXT,
}


def check_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """Check the facts of a model's description, and return those that components may use.

    Args:
        description: of a model, perhaps from a damaged file.

    Raises:
        UserError: a fact is missing, has a value that is not allowed, or is not one of
            `FACT_CHECKS`.
    """
    facts = description.get("data") or {}
    for name in ("shape", "max_count", *facts):
        check = FACT_CHECKS.get(name)
        if check is None:
            allowed = ", ".join(FACT_CHECKS)
            raise UserError(
                f"data.{name} is not a fact of the data: remove it; facts are {allowed}"
            )
        value = facts.get(name)
        if not check.accepts(value):
            raise UserError(
                f"{name} of the data must be {check.requirement}, not {reprlib.repr(value)}"
            )
    return {name: fact for name, fact in facts.items() if name != "name"}


def mean_image(counts: Tensor | DiskCounts, sums: Sums | None = None) -> Tensor:
    """Return the smoothed mean E[X_0] of every element, float32 [*shape].

    One count is added to the total of every element, and one sample to their number. Counts that
    never occurred in training are then not impossible.

    Args:
        counts: integers [N, *shape].
        sums: of the counts, if they are known.

    References: this project; checked in tests/diffusion/test_class_means.py.
    """
    sums = sums or compute_sums(counts)
    return ((sums.element + 1).double() / (len(counts) + 1)).float()


def class_means(
    counts: Tensor | DiskCounts,
    labels: Tensor,
    num_classes: int,
    mean: Tensor,
    covariates: Sequence[Sequence[Level]] = (),
) -> Tensor:
    """Return the smoothed means E[X_0 | class] of every element, float32 [num_classes, *shape].

    The average sample is added to every class once.

    With covariates some combinations have no samples. The mean is then a product of a factor of
    the class and a factor of every covariate's level, which reproduces the totals of each: a
    Poisson regression, fitted by iterative proportional fitting. Covariates whose levels are
    numbers have no factor. As many average samples as there are classes and levels are spread
    over all combinations.

    Args:
        counts: integers [N, *shape].
        labels: int64 [N].
        num_classes: combinations of a class and a level of every covariate.
        mean: of all samples, positive, [*shape].
        covariates: levels of each.

    References: Deming et al. 1940.
    """
    # 1. Totals and sizes of every combination.
    totals = torch.zeros(num_classes, *mean.shape, dtype=torch.int64)
    for first, chunk in iterate_chunks(counts):
        totals.index_add_(0, labels[first : first + len(chunk)], chunk.long())
    sizes = labels.bincount(minlength=num_classes).view(-1, *(1 for _ in mean.shape))
    if not covariates:
        return ((totals.double() + mean.double()) / (sizes + 1)).float()

    # 2. One axis for the classes and for every covariate, with the average samples added.
    num_levels = [len(levels) for levels in covariates]
    table_shape = [num_classes // math.prod(num_levels), *num_levels]
    pseudo_count = sum(table_shape) / num_classes  # average samples of every combination
    total_table = (totals.double() + pseudo_count * mean).view(*table_shape, *mean.shape)
    size_table = (sizes.double() + pseudo_count).view(*table_shape, *sizes.shape[1:])

    # 3. Fit the factors of one axis after the other.
    text_axes = [k for k, levels in enumerate(covariates, 1) if isinstance(levels[0], str)]
    rates = mean.double().expand(total_table.shape)
    for axis in [0, *text_axes] * PROPORTIONAL_FITTING_ROUNDS:
        other_axes = [k for k in range(len(table_shape)) if k != axis]
        observed = total_table.sum(other_axes, keepdim=True)
        expected = (size_table * rates).sum(other_axes, keepdim=True)
        rates = rates * observed / expected
    return rates.reshape(totals.shape).float()


def class_log_ratios(facts: Plain, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return log E[X_0 | class] - log E[X_0] of every class, and 0 for the null class.

    Args:
        facts: of the data.
        tensors: statistics of the data, `data_mean` [*shape] and `class_mean` [num_classes,
            *shape].

    Returns:
        float32 [num_classes + 1, *shape]; None without covariates or without means of classes.

    References: this project; checked in tests/diffusion/test_class_means.py.
    """
    if "covariates" not in facts or "class_mean" not in tensors:
        return None
    return torch.log(append_null_class(tensors["class_mean"] / tensors["data_mean"]))


def append_null_class(ratios: Tensor) -> Tensor:
    """Append a ratio of 1 for the null class to ratios [num_classes, *shape].

    Returns:
        [num_classes + 1, *shape].
    """
    return torch.cat([ratios, torch.ones_like(ratios[:1])])


def shrink_class_means(means: Tensor, sizes: Tensor, concentration: Tensor) -> Tensor:
    """Shrink the means of classes towards a base that they share, where samples are few.

    This is adaptive shrinkage of logarithms with known standard errors. The log mean of an
    element in a class either equals the base of the element, or deviates from it by a normal
    number. The share and the variance of these deviations, and the base of every element, are
    fitted to all means by expectation maximisation (empirical Bayes).

    Args:
        means: of every class, positive, [K, D].
        sizes: number of samples of every class, [K].
        concentration: of every element within classes, [D].

    Returns:
        float32 [K, D].

    References: Stephens 2017; for means of counts: this project, checked in
        tests/diffusion/test_class_means.py.
    """
    log_mean = torch.log(means.double())
    num_samples = sizes.double().clamp(min=MIN_CLASS_SIZE)[:, None]
    base = log_mean.median(0).values
    base_share = torch.tensor(0.5).double()
    slab_variance = torch.tensor(1.0).double()  # of deviations from the base
    for k in range(SHRINKAGE_ROUNDS):
        # 1. Squared errors of the log means, whose counts are negative binomial.
        inverse_mean = torch.exp(-torch.maximum(log_mean, base))
        error = (inverse_mean + 1 / concentration) / num_samples

        # 2. Posterior probability that a mean is on the base.
        deviation = log_mean - base
        off_variance = error + slab_variance
        on_variance = error + slab_variance * COOLING**k
        log_odds = (
            torch.logit(base_share)
            - torch.log(on_variance / off_variance) / 2
            - deviation.square() * (1 / on_variance - 1 / off_variance) / 2
        )
        on_base = torch.sigmoid(log_odds)

        # 3. Base, share and variance that maximise the expected likelihood.
        weight = on_base / on_variance + (1 - on_base) / off_variance
        base = (weight * log_mean).sum(0) / weight.sum(0)
        posterior_mean = deviation * slab_variance / off_variance
        second_moment = posterior_mean.square() + error * slab_variance / off_variance
        total_weight = (1 - on_base).sum().clamp(min=MIN_WEIGHT)
        base_share = on_base.mean().clamp(MIN_SHARE, 1 - MIN_SHARE)
        slab_variance = ((1 - on_base) * second_moment).sum() / total_weight
    shrinkage = (1 - on_base) * (log_mean - base) * slab_variance / (error + slab_variance)
    return torch.exp(base + shrinkage).float()


def estimate_elements(
    counts: Tensor | DiskCounts, mean: Tensor, sums: Sums | None = None
) -> Elements:
    """Estimate concentrations and gain by moments, float32; see `blackout.networks.elements`.

    Args:
        counts: integers [N, *shape].
        mean: of every element, positive, [*shape].
        sums: of the counts, if they are known.
    """
    sums = sums or compute_sums(counts)
    sample_mean = sums.element.double() / len(sums.sample)
    variance = sums.variance
    gain = estimate_gain(sums.sample.var(correction=0), sample_mean, variance)
    concentration = estimate_concentration(mean.double(), variance)
    return Elements(mean, concentration.float(), gain.float())
