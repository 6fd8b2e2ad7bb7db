"""Settings and scores in a run directory, and the cards that show scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blackout.cli.metrics_file import IDEAL, label
from blackout.comparisons import is_comparison
from blackout.errors import refuse
from blackout.safe_reading import read_mapping

MAX_FILE_BYTES = 4_000_000  # of a file of settings or scores
# names of reference values that a score cannot surpass except by chance
TARGETS = ("held_out_data", "exact", "optimum", "ceiling", IDEAL)
MAX_CARDS = 12  # scores that are shown large
MAX_PLACE = 1.14  # a card's marker lies at most this far right, and 0.14 left, of its two ends
BETTER_IN_WORDS = {
    "lower": "lower is better",
    "higher": "higher is better",
    "reference": "closest to the reference is best",
}
ERROR_DIGITS = 2  # significant digits of an error
VALUE_DIGITS = 4  # significant digits of a value without an error
MAX_DECIMALS = 6
# parts of metrics.json that pages read as mappings
MAPPINGS = (
    "values",
    "references",
    "comparisons",
    "condition",
    "sampler",
    "made_with",
    "data",
    "metric_descriptions",
)
# parts of metrics.json that pages read as lists of text and numbers
LISTS = ("warnings", "seeds")
MAX_LISTED = 1000  # entries of such a list that are shown
MAX_RUN_FILES = 1000  # files of scores of one run that are read
ERROR_SUFFIXES = ("error", "std", "low", "high")


def read_settings(run: Path) -> Mapping[str, Any]:
    """Return the content of a run's config.yaml.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = run / "config.yaml"
    refuse(not path.exists(), f"{run} is not a run directory: it has no config.yaml")
    return read_mapping(path, run, MAX_FILE_BYTES)


def read_scores(run: Path) -> dict[str, dict[str, Any]]:
    """Return the contents of metrics.json of a run and of its folders of samples, by place.

    Results of the run at shorter lengths, which are in the same file, have places of their own.
    """
    paths = [run / "metrics.json", *sorted(run.glob("*/metrics.json"))]
    paths += sorted(run.glob("*/*/metrics.json"))
    refuse(
        len(paths) > MAX_RUN_FILES,
        f"{run} has {len(paths):,} files metrics.json, and a page shows at most {MAX_RUN_FILES:,}",
    )
    contents = {
        str(path.relative_to(run)): read_mapping(path, run, MAX_FILE_BYTES)
        for path in paths
        if path.exists()
    }
    earlier = contents.get("metrics.json", {}).get("earlier")
    for number, content in enumerate(earlier if isinstance(earlier, list) else (), 1):
        if isinstance(content, dict):
            step = content.get("training_steps")
            contents[f"earlier results {number} (step {step})/metrics.json"] = content
    for content in contents.values():
        _normalise_types(content)
    return contents


def read_part(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a file that must be a mapping; an empty one if it is something else."""
    part = content.get(name)
    return part if isinstance(part, Mapping) else {}


def _normalise_types(content: dict[str, Any]) -> None:
    """Replace parts of a metrics.json that have another type than pages read, in place.

    Such parts and entries become empty or are removed. Numbers that are not finite become text.
    """
    for name in MAPPINGS:
        content[name] = read_part(content, name)
    for name in LISTS:
        values = content.get(name)
        entries = values[:MAX_LISTED] if isinstance(values, list) else []
        content[name] = [value for value in entries if isinstance(value, int | float | str)]
    content["values"] = {name: _finite_or_text(value) for name, value in content["values"].items()}
    content["references"] = {
        name: {key: value for key, value in values.items() if _is_finite(value)}
        for name, values in content["references"].items()
        if isinstance(values, Mapping)
    }
    content["metric_descriptions"] = {
        name: description
        for name, description in content["metric_descriptions"].items()
        if isinstance(description, Mapping)
    }
    content["comparisons"] = {
        name: comparison
        for name, comparison in content["comparisons"].items()
        if is_comparison(comparison)
    }


def _finite_or_text(value: Any) -> Any:
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _finite_numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the values that are finite numbers."""
    for name, value in values.items():
        if _is_finite(value):
            yield name, float(value)


def place_label(place: str, content: Mapping[str, Any]) -> str:
    """Return the place of a metrics.json, with the condition of its samples where they have one."""
    condition = content.get("condition") or {}
    if not condition:
        return place
    return f"{place}, given " + ", ".join(f"{name} {value}" for name, value in condition.items())


def target_value(references: Mapping[str, Any]) -> float | None:
    """Return the reference value that a score cannot surpass except by chance, if there is one."""
    for name in TARGETS:
        value = references.get(name)
        if _is_finite(value):
            return float(value)  # type: ignore[arg-type]
    return None


def score_cards(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return cards of the scores of one metrics.json, those with reference values first.

    Returns:
        For each score its name, value, standard error or else standard deviation over parts of
        the samples, unit, better direction, reference values, and its place between the target (0)
        and the last baseline (1), where both are known.
    """
    references = content.get("references") or {}
    descriptions = content.get("metric_descriptions") or {}
    numbers = dict(_finite_numbers(content.get("values") or {}))
    hidden: set[str] = set()
    for name in numbers:
        hidden |= {f"{name}_{suffix}" for suffix in (*ERROR_SUFFIXES, *references.get(name, ()))}
    names = [name for name in numbers if name not in hidden and not name.startswith("class_share_")]
    names.sort(key=lambda name: name not in references)

    cards = []
    for name in names[:MAX_CARDS]:
        score_references = dict(_finite_numbers(references.get(name) or {}))
        value = numbers[name]
        error = numbers.get(f"{name}_error")
        std = numbers.get(f"{name}_std")
        decimals = num_decimals(value, error or std, score_references.values())
        description = descriptions.get(name, {})
        cards.append(
            {
                "name": name,
                "value": round_to(value, decimals),
                "error": _round_error(error),
                "std": _round_error(std),
                "unit": description.get("unit", ""),
                "better": BETTER_IN_WORDS.get(str(description.get("better")), ""),
                "place": _place(value, score_references),
                "references": [
                    (label(key), round_to(reference, decimals))
                    for key, reference in score_references.items()
                ],
            }
        )
    return cards


def _round_error(error: float | None) -> float | None:
    """Return an error with `ERROR_DIGITS` significant digits; None or 0 as it is."""
    return error and float(f"{error:.{ERROR_DIGITS}g}")


def num_decimals(
    value: float, error: float | None, other_values: Iterable[float] = ()
) -> int | None:
    """Return how many decimals of a value to show; None for `VALUE_DIGITS` significant digits.

    They are as many as two significant digits of its error have. Without an error they are as many
    as show the difference from the nearest of other values.

    Args:
        value: to be shown.
        error: its standard error; None or 0 if unknown.
        other_values: values that are shown next to it, and should not read the same.
    """
    differences = [abs(other_value - value) for other_value in other_values]
    scale = error or min((gap for gap in differences if gap > 0), default=0.0)
    if not math.isfinite(scale) or scale <= 0 or not math.isfinite(value):
        return None
    decimals = min(MAX_DECIMALS, max(0, ERROR_DIGITS - 1 - math.floor(math.log10(scale))))
    if not error:
        size = math.floor(math.log10(abs(value))) if value else 0
        return max(decimals, VALUE_DIGITS - 1 - size) if size < VALUE_DIGITS else decimals
    return decimals


def format_number(value: float, decimals: int | None) -> str:
    """Return a value as text with so many decimals; None for `VALUE_DIGITS` significant digits."""
    return f"{value:.{VALUE_DIGITS}g}" if decimals is None else f"{value:.{decimals}f}"


def best_row(
    values: Sequence[Any], references: Mapping[str, Any], description: Mapping[str, Any]
) -> int | None:
    """Return the index of the best value of a score; None if no value is better than all others.

    The best value is the closest to the target where one is known, else the smallest or the
    largest, as the score's description says.

    Args:
        values: of the score.
        references: its reference values.
        description: its unit and better direction; empty if unknown.
    """
    numbers = {
        index: value
        for index, value in enumerate(values)
        if isinstance(value, int | float) and math.isfinite(value)
    }
    if len(set(numbers.values())) < 2:
        return None
    target = target_value(references)
    if target is not None:
        return min(numbers, key=lambda index: abs(numbers[index] - target))
    if description.get("better") == "lower":
        return min(numbers, key=numbers.__getitem__)
    if description.get("better") == "higher":
        return max(numbers, key=numbers.__getitem__)
    return None


def mean_and_error(values: Iterable[float]) -> tuple[float | None, float | None]:
    """Return the mean of a score over seeds, and its standard error.

    Returns:
        None for the mean of no values; None for the error of fewer than two.
    """
    numbers = np.array(list(values), float)
    if len(numbers) == 0:
        return None, None
    with np.errstate(all="ignore"):  # squares of large scores may overflow
        mean = float(numbers.mean())
        if len(numbers) == 1:
            return mean, None
        return mean, float(numbers.std(ddof=1)) / math.sqrt(len(numbers))


def round_to(value: float, decimals: int | None) -> float:
    """Return a value rounded to decimals; None for `VALUE_DIGITS` significant digits."""
    rounded = float(f"{value:.{VALUE_DIGITS}g}") if decimals is None else round(value, decimals)
    return rounded + 0.0  # -0.0 would be shown as -0


def _place(value: float, references: Mapping[str, float]) -> float | None:
    """Return the place of a score between target (0) and the last baseline (1); None if unknown."""
    target = target_value(references)
    baselines = [value for name, value in references.items() if name not in TARGETS]
    if target is None or not baselines or baselines[-1] == target:
        return None
    place = (value - target) / (baselines[-1] - target)
    if math.isnan(place):  # the differences are beyond the largest number
        return None
    return min(MAX_PLACE, max(1 - MAX_PLACE, place))
