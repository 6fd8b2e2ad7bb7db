"""Comparisons of a model with baselines on the same test samples: differences, errors, verdicts.

The value of a model, such as bits per sample, is compared with that of every baseline sample by
sample. The mean of the differences has a standard error, and a difference below two of them decides
nothing. If the computed value is only an upper or a lower bound of the value of the model, it is
compared and named as such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor

from blackout.confidence_intervals import spread, unseen_share
from blackout.errors import ensure
from blackout.representation import format_fields

Kind: TypeAlias = Literal["exact", "upper bound", "lower bound"]
Verdict: TypeAlias = Literal["better", "worse", "undecided"]

STANDARD_ERRORS = 2.0  # below so many standard errors a difference decides nothing
RESOLUTION = 1e-5  # relative difference of two values that rounding in single precision may make
_KIND_IN_WORDS: dict[Kind, str] = {
    "exact": "",
    "upper bound": "at most ",
    "lower bound": "at least ",
}
_KIND_WITH_ARTICLE: dict[Kind, str] = {
    "upper bound": "an upper bound",
    "lower bound": "a lower bound",
}
_VERDICT_IN_WORDS: dict[Verdict, str] = {
    "better": "this model is better than the strongest baseline",
    "worse": "this model is worse than the strongest baseline",
    "undecided": "undecided",
}


@dataclass(frozen=True, eq=False)
class SampleValues:
    """Values of a model for individual test samples, such as bits; lower is better.

    Args:
        index: numbers of the samples in the test split, int64 [n].
        values: of the samples, float64 [n].
        kind: whether the values are exact, or bounds in the mean.
        shared_error: standard error of a term that all values share, such as an estimate of log Z.
        place: where on an even grid each value was drawn, float64 [n], as for
            `blackout.confidence_intervals.spread`; None without a grid.

    Raises:
        ValueError: as many numbers as values are needed.
    """

    index: Tensor
    values: Tensor
    kind: Kind = "exact"
    shared_error: float = 0.0
    place: Tensor | None = None

    __repr__ = format_fields

    def __post_init__(self) -> None:
        values_shape = list(self.values.shape)
        index_shape = list(self.index.shape)
        has_one_each = len(values_shape) == 1 and values_shape == index_shape
        ensure(
            has_one_each,
            f"one value of each sample is needed, not {values_shape} of {index_shape}",
        )


@dataclass(frozen=True, eq=False)
class Baseline:
    """Exact values of a simple model, fitted to the training samples, for test samples.

    Args:
        values: of the first N test samples, float64 [N].
        validation: the mean over validation samples, by which the strongest baseline is chosen;
            None without them.
        covers_samples: whether the values are of complete samples; those of some of their elements
            cannot be compared.
        parameters: what was fitted, as plain values for baselines.json; empty for nothing to tell.
    """

    values: Tensor
    validation: float | None = None
    covers_samples: bool = True
    parameters: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = format_fields

    @classmethod
    def from_values(
        cls,
        values: Tensor,
        num_validation: int,
        covers_samples: bool = True,
        parameters: Mapping[str, Any] | None = None,
    ) -> Baseline:
        """Return the baseline with values of M validation and N test samples, float64 [M + N]."""
        validation = float(values[:num_validation].mean()) if num_validation else None
        return cls(values[num_validation:], validation, covers_samples, parameters or {})


def compare(model: SampleValues, baselines: Mapping[str, Baseline]) -> dict[str, Any] | None:
    """Compare a model with baselines on the same test samples.

    Baselines whose values are not finite, or not of complete samples, are left out.

    Args:
        model: values of the model.
        baselines: by name, each with values of these samples.

    Returns:
        For metrics.json: `kind`, `value` and `samples` of the model; `strongest`, the baseline with
        the least mean on validation samples (where there are none, on the same test samples, which
        favours the baseline); its `verdict`; and for each of `baselines` its `value`, the
        `difference` (model less baseline), the `error` of the difference and the `verdict`. None
        where nothing can be compared.
    """
    rows = {
        name: _difference(model, baseline)
        for name, baseline in baselines.items()
        if baseline.covers_samples
    }
    comparable = {name: row for name, row in rows.items() if row is not None}
    if not comparable:
        return None

    def validation(name: str) -> float:
        mean = baselines[name].validation
        return math.inf if mean is None or math.isnan(mean) else mean

    strongest = min(comparable, key=validation)
    if validation(strongest) == math.inf:
        strongest = min(comparable, key=lambda name: float(comparable[name]["value"]))
    return {
        "kind": model.kind,
        "value": float(model.values.mean()),
        "samples": len(model.values),
        "strongest": strongest,
        "verdict": comparable[strongest]["verdict"],
        "baselines": comparable,
    }


def _difference(model: SampleValues, baseline: Baseline) -> dict[str, Any] | None:
    """Return the mean difference with its error and verdict; None where the error is not finite."""
    values = model.values.double().cpu()
    baseline_values = baseline.values.double().cpu()[model.index.cpu()]
    number = len(values)
    if number < 2 or not bool((values - baseline_values).isfinite().all()):
        return None
    difference = values - baseline_values
    scale = max(abs(float(values.mean())), abs(float(baseline_values.mean())))
    sampling_error = spread(difference, model.place) / math.sqrt(number)
    if float(difference.max() - difference.min()) <= RESOLUTION * scale:
        sampling_error = max(sampling_error, _error_of_equal_values(difference))
    error = math.hypot(sampling_error, model.shared_error)
    if not math.isfinite(error):
        return None
    verdict = decide(float(difference.mean()), error, number, model.kind, RESOLUTION * scale)
    return {
        "value": float(baseline_values.mean()),
        "difference": float(difference.mean()),
        "error": error,
        "verdict": verdict,
    }


def _error_of_equal_values(difference: Tensor) -> float:
    """Return the standard error of the mean of equal differences, float64 [n]; it is above 0.

    Others may differ from them by the mean, or by 1 if that is more, in the largest share of
    samples that n of them may lack (`unseen_share`).

    References: this project; checked in tests/test_comparisons.py.
    """
    size = max(1.0, abs(float(difference.mean())))
    return unseen_share(len(difference)) * size / STANDARD_ERRORS


def num_compared_samples(values: Mapping[str, SampleValues]) -> int:
    """Return how many leading test samples contain all samples that have values."""
    return max((int(samples.index.max()) + 1 for samples in values.values()), default=0)


def compare_with_baselines(
    values: Mapping[str, SampleValues], baselines: Mapping[str, Mapping[str, Baseline]]
) -> dict[str, Any]:
    """Compare values with baselines by name, for metrics.json.

    Returns:
        `baselines`, the means of the baselines, and `comparisons`, results of `compare`.
    """
    means = {
        name: {
            key: float(baseline.values.mean())
            for key, baseline in fitted.items()
            if len(baseline.values)
        }
        for name, fitted in baselines.items()
    }
    comparisons: dict[str, Any] = {}
    for name in values.keys() & baselines.keys():
        comparison = compare(values[name], baselines[name])
        if comparison is not None:
            comparisons[name] = comparison
    return {"baselines": means, "comparisons": dict(sorted(comparisons.items()))}


def decide(
    difference: float,
    error: float,
    samples: int,
    kind: Kind = "exact",
    resolution: float = 0.0,
) -> Verdict:
    """Return the verdict of a significance test on a mean difference, model minus baseline.

    A difference decides from two standard errors on; of few samples from the quantile of Student's
    t that is as likely (2.1 standard errors of 20 samples, 2.9 of 5). An upper bound can only show
    that a model is better, a lower bound only that it is worse.

    Args:
        difference: mean over samples.
        error: its standard error.
        samples: number of samples, at least 2.
        kind: whether the values of the model are exact.
        resolution: a difference up to this does not count.
    """
    from scipy.special import ndtr, stdtrit  # imported here: only scores need SciPy

    quantile = float(stdtrit(samples - 1, ndtr(STANDARD_ERRORS)))
    if abs(difference) <= max(quantile * error, resolution):
        return "undecided"
    if difference < 0:
        return "undecided" if kind == "lower bound" else "better"
    return "undecided" if kind == "upper bound" else "worse"


_NUMBERS = ("value", "difference", "error")


def is_comparison(content: Any) -> bool:
    """Return whether the content of a file is valid as a result of `compare`."""
    if not isinstance(content, Mapping) or not isinstance(content.get("baselines"), Mapping):
        return False
    rows = content["baselines"]
    return (
        content.get("kind") in list(_KIND_IN_WORDS)
        and isinstance(content.get("value"), int | float)
        and content.get("strongest") in list(rows)
        and all(
            isinstance(name, str)
            and isinstance(row, Mapping)
            and all(isinstance(row.get(key), int | float) for key in _NUMBERS)
            and row.get("verdict") in list(_VERDICT_IN_WORDS)
            for name, row in rows.items()
        )
    )


def describe_comparison(name: str, comparison: Mapping[str, Any]) -> str:
    """Return one line with the verdict on a model and its strongest baseline, and their values.

    It adds that the model is at chance if it is not better than the uniform distribution.

    Args:
        name: of the value.
        comparison: as `compare` returns it.
    """
    strongest = comparison["strongest"]
    kind = comparison["kind"]
    row = comparison["baselines"][strongest]
    qualifier = _KIND_IN_WORDS[kind]
    verdict = _VERDICT_IN_WORDS[row["verdict"]]
    line = (
        f"verdict: {verdict}: {name} is {qualifier}{comparison['value']:.4f} of this model "
        f"and {row['value']:.4f} of {strongest.replace('_', ' ')}, {_format_difference(row)}"
    )
    is_significant = abs(row["difference"]) > STANDARD_ERRORS * row["error"]
    if row["verdict"] == "undecided" and is_significant and kind != "exact":
        side = "worse" if kind == "upper bound" else "better"
        line += f"; {_KIND_WITH_ARTICLE[kind]} cannot show that the model is {side}"
    uniform = comparison["baselines"].get("uniform")
    if uniform is not None and uniform["verdict"] != "better":
        if strongest != "uniform":
            line += f"; {uniform['value']:.4f} of uniform, {_format_difference(uniform)}"
        line += "; at chance: nothing shows that this model is better than uniform"
    return line


def _format_difference(row: Mapping[str, Any]) -> str:
    """Return the difference from a baseline with its error."""
    return f"difference {row['difference']:+.4f} ± {row['error']:.4f}"
