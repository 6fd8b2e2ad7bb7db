"""metrics.json: scores with their reference values, which are also printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blackout.comparisons import Baseline, describe_comparison, is_comparison
from blackout.component import Plain
from blackout.files import write_json
from blackout.protocols import References

IDEAL = "ideal"  # name of the reference value of a perfect model
# reference values whose names in words have a hyphen or a capital letter
LABELS = {"held_out_data": "held-out data", "gaussian_copula": "Gaussian copula"}


def write_scores(report: Plain, path: Path, references: References = References()) -> None:
    """Write metrics.json and print its scores with their errors and reference values.

    An error is the standard error, after ±, or else the standard deviation over parts of the
    samples.

    Args:
        report: content of the file, with `values`.
        path: of the file.
        references: the reference values that the scores have.
    """
    values = report["values"]
    reference_values = collect_references(report, references)
    descriptions = describe_metrics(report, references)
    content = {**report, "references": reference_values, "metric_descriptions": descriptions}
    write_json(content, path)

    hidden = {f"{name}_{suffix}" for name in values for suffix in ("error", "std")}
    for name, score_references in reference_values.items():
        hidden |= {f"{name}_{reference}" for reference in score_references}
    for name, value in values.items():
        if not isinstance(value, int | float) or name.startswith("class_share_") or name in hidden:
            continue
        line = f"{name}: {_four_decimals(value)}"
        if f"{name}_error" in values:
            line += f" ± {values[f'{name}_error']:.4f}"
        elif f"{name}_std" in values:
            line += f", std {values[f'{name}_std']:.4f}"
        score_references = reference_values.get(name, {})
        if score_references:
            numbers = [
                f"{label(reference)} {_four_decimals(number)}"
                for reference, number in score_references.items()
            ]
            line += f" ({', '.join(numbers)})"
        print(line)
    for name, comparison in report.get("comparisons", {}).items():
        print(describe_comparison(name, comparison))


def collect_references(
    report: Plain, references: References = References()
) -> dict[str, dict[str, float]]:
    """Return the reference values of a report's scores, by score and name of the reference.

    These are the values in `references` of the report itself, `x_<suffix>` for a score `x`, the
    score of held-out data, and that of the strongest baseline. A score without any of them has the
    value of a perfect model, where the family knows it.

    Args:
        report: content of metrics.json, with `values`.
        references: the reference values that the scores have.
    """
    values = report["values"]
    held_out = (report.get("held_out_data") or {}).get("values", {})
    fitted = report.get("baseline") or {}
    collected: dict[str, dict[str, float]] = {}
    for name in values:
        plain_name = remove_split(name)
        base = references.bounds.get(plain_name, plain_name)
        candidates: dict[str, Any] = {
            suffix: values.get(f"{base}_{suffix}") for suffix in references.suffixes
        }
        candidates["held_out_data"] = held_out.get(name)
        if "name" in fitted:
            candidates[fitted["name"]] = fitted.get("values", {}).get(name)
        strongest = _strongest_baseline(report, name)
        if strongest is not None:
            candidates[strongest] = report["baselines"][name][strongest]

        score_references = dict(report.get("references", {}).get(name, {}))
        score_references |= {key: value for key, value in candidates.items() if value is not None}
        if not score_references and plain_name in references.ideal:
            score_references = {IDEAL: references.ideal[plain_name]}
        if score_references:
            collected[name] = score_references
    return collected


def write_baselines(
    baselines: Mapping[str, Mapping[str, Baseline]], comparisons: Plain, folder: Path
) -> None:
    """Write baselines.json: `verdicts` by compared value, and fitted `parameters` by baseline.

    Args:
        baselines: by name of the compared value, and by their own.
        comparisons: as `compare_with_baselines` returns them. Nothing is written if there are
            none, and no baseline has parameters to tell.
        folder: of the file.
    """
    verdicts = {
        name: describe_comparison(name, comparison).removeprefix("verdict: ")
        for name, comparison in comparisons.items()
    }
    parameters: dict[str, Any] = {}
    for fitted in baselines.values():
        for name, baseline in fitted.items():
            if baseline.parameters:
                parameters[name] = dict(baseline.parameters)
    if parameters or verdicts:
        content = {"verdicts": verdicts, "parameters": parameters}
        write_json(content, folder / "baselines.json")


def describe_metrics(report: Plain, references: References = References()) -> dict[str, Any]:
    """Return unit and better direction of a report's values, by name, as far as they are known.

    Args:
        report: content of metrics.json, with `values`, and perhaps descriptions of its own.
        references: of the draw, with descriptions by name without `val/` or `test/`.
    """
    descriptions: dict[str, Any] = {}
    for name in report["values"]:
        description = references.metrics.get(remove_split(name))
        if description is not None:
            descriptions[name] = asdict(description)
        own_descriptions = report.get("metric_descriptions", {})
        if name in own_descriptions:
            descriptions[name] = own_descriptions[name]
    return descriptions


def merge_reports(*reports: Plain) -> dict[str, Any]:
    """Return one report with the values and descriptions of all; of other entries the last."""
    merged: dict[str, Any] = {}
    for report in reports:
        mappings = {
            name: {**merged.get(name, {}), **report[name]}
            for name in ("values", "metric_descriptions")
            if name in report
        }
        merged |= {**report, **mappings}
    return merged


def remove_split(name: str) -> str:
    """Return the name of a metric without `val/` or `test/`."""
    return re.sub("^(val|test)/", "", name)


def label(name: str) -> str:
    """Return the name of a reference value in words."""
    return LABELS.get(name, name.replace("_", " "))


def comparison_rows(
    scores: Mapping[str, Mapping[str, Any]],
) -> list[tuple[str, str, list[tuple[Any, ...]]]]:
    """Return the comparisons with baselines of a run, as its page shows them.

    Args:
        scores: contents of metrics.json by place; comparisons in another form are left out.

    Returns:
        For each comparison the place, the line with its verdict, and a row for each baseline: name,
        value, difference, error and verdict.
    """
    comparisons = []
    for place, content in scores.items():
        for name, comparison in content["comparisons"].items():
            if not is_comparison(comparison):
                continue
            baselines = comparison["baselines"].items()
            rows = [
                (baseline, row["value"], row["difference"], row["error"], row["verdict"])
                for baseline, row in sorted(baselines, key=lambda item: item[1]["value"])
            ]
            comparisons.append((place, describe_comparison(name, comparison), rows))
    return comparisons


def _four_decimals(value: float) -> str:
    """Return a number with four decimals, and zero without a sign."""
    return f"{round(value, 4) + 0.0:.4f}"


def _strongest_baseline(report: Plain, name: str) -> str | None:
    """Return the baseline that the comparison of a score names, else the lowest."""
    comparison = report.get("comparisons", {}).get(name, {})
    if "strongest" in comparison:
        return str(comparison["strongest"])
    baselines = report.get("baselines", {}).get(name, {})
    return min(baselines, key=baselines.__getitem__, default=None)
