"""Real samples that generated samples with given labels are compared with: a condition.

`matching_rows` selects them, and `describe_condition` names the labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from blackout.data.labels import Level, decode_labels

MIN_CONDITION_SAMPLES = 10  # of training and of test data that are compared under a condition


def describe_condition(
    labels: Tensor, class_names: Sequence[str], covariates: Mapping[str, Sequence[Level]]
) -> dict[str, Any]:
    """Return the classes and the covariates of labels by name, as plain values.

    Covariates that are texts are listed; of numbers, the smallest and the largest are.

    Args:
        labels: int64 [c].
        class_names: one for every class, where classes have names.
        covariates: levels of each covariate by name.
    """
    sizes = [len(values) for values in covariates.values()]
    classes, *levels = decode_labels(labels, sizes)
    numbers = classes.unique().tolist()
    classes_or_numbers = [
        class_names[number] if number < len(class_names) else number for number in numbers
    ]
    condition: dict[str, Any] = {"classes": classes_or_numbers}
    for (name, values), level in zip(covariates.items(), levels, strict=True):
        selected = [values[k] for k in level.unique().tolist()]
        is_text = isinstance(selected[0], str)
        condition[name] = selected if is_text else [selected[0], selected[-1]]
    return condition


def matching_rows(
    requested: Tensor,
    labels: Tensor,
    covariates: Mapping[str, Sequence[Level]],
) -> Tensor:
    """Return the numbers of the samples with labels [N] that match requested labels.

    See `CountData.select_condition`.

    Returns:
        int64 [n], increasing.
    """
    sizes = [len(values) for values in covariates.values()]
    requested_classes, *requested_levels = decode_labels(requested, sizes)
    classes, *levels = decode_labels(labels, sizes)

    # 1. Samples whose covariates match.
    is_match = torch.ones_like(labels, dtype=torch.bool)
    for values, level, requested_level in zip(
        covariates.values(), levels, requested_levels, strict=True
    ):
        if isinstance(values[0], str):
            is_match &= torch.isin(level, requested_level)
        else:
            is_match &= (level >= requested_level.min()) & (level <= requested_level.max())

    # 2. The largest total for which every class has its requested fraction, to half a sample.
    class_numbers, frequencies = requested_classes.unique(return_counts=True)
    fractions = (frequencies / frequencies.sum()).tolist()
    members = [torch.nonzero(is_match & (classes == k)).flatten() for k in class_numbers]
    totals = [
        (len(rows) + 0.5) / fraction for rows, fraction in zip(members, fractions, strict=True)
    ]
    total = min(totals)

    # 3. Evenly spaced samples of every class.
    selected = []
    for rows, fraction in zip(members, fractions, strict=True):
        num_samples = min(len(rows), round(fraction * total))
        spaced = torch.arange(num_samples) * len(rows) // max(num_samples, 1)
        selected.append(rows[spaced])
    return torch.cat(selected).sort().values
