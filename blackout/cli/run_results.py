"""Settings and scores in a run directory, and the cards that show scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blackout.cli.metrics_file import IDEAL, label
from blackout.errors import refuse
from blackout.safe_reading import read_mapping

MAX_FILE_BYTES = 4_000_000  # of a file of settings or scores
TARGETS = ("held_out_data", "exact", "optimum", "ceiling", IDEAL)
"""Names of reference values that a score cannot surpass except by chance."""
MAX_CARDS = 12  # scores that are shown large
MAX_PLACE = 1.14  # a card's marker lies at most this far right, and 0.14 left, of its two ends
MAPPINGS = ("values", "references", "comparisons", "condition", "sampler", "made_with", "data")
"""Parts of metrics.json that pages read as mappings."""
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
        for name in MAPPINGS:  # others are not shown
            if not isinstance(content.get(name), Mapping):
                content[name] = {}
        content["references"] = {
            name: known
            for name, known in content["references"].items()
            if isinstance(known, Mapping)
        }
    return contents


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
        if isinstance(value, int | float):
            return value
    return None


def score_cards(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return cards of the scores of one metrics.json, those with reference values first.

    Returns:
        For each score its name, value, error, reference values, and its place between the target
        (0) and the last baseline (1), where both are known.
    """
    references = content.get("references") or {}
    numbers = {
        name: value
        for name, value in content.get("values", {}).items()
        if isinstance(value, int | float)
    }
    hidden: set[str] = set()
    for name in numbers:
        hidden |= {f"{name}_{suffix}" for suffix in (*ERROR_SUFFIXES, *references.get(name, ()))}
    names = [name for name in numbers if name not in hidden and not name.startswith("class_share_")]
    names.sort(key=lambda name: name not in references)

    cards = []
    for name in names[:MAX_CARDS]:
        known = {
            key: value
            for key, value in references.get(name, {}).items()
            if isinstance(value, int | float)
        }
        error = numbers.get(f"{name}_error", numbers.get(f"{name}_std"))
        cards.append(
            {
                "name": name,
                "value": float(f"{numbers[name]:.4g}"),
                "error": error and float(f"{error:.2g}"),
                "place": _place(numbers[name], known),
                "references": [(label(key), float(f"{value:.4g}")) for key, value in known.items()],
            }
        )
    return cards


def _place(value: float, references: Mapping[str, float]) -> float | None:
    """Return the place of a score between target (0) and the last baseline (1); None if unknown."""
    target = target_value(references)
    baselines = [value for name, value in references.items() if name not in TARGETS]
    if target is None or not baselines or baselines[-1] == target:
        return None
    place = (value - target) / (baselines[-1] - target)
    return min(MAX_PLACE, max(1 - MAX_PLACE, place))
