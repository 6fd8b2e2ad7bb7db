"""The public interface: exported names, settings of choices, and names of results."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import pkgutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.safety_net.choices import (
    GLOBAL_GROUPS,
    choices,
    flatten,
    groups,
    settings_of,
    to_json,
    with_defaults,
)
from tests.safety_net.programs import run_program

# What a family must be given before it can be trained
REQUIRED_OVERRIDES = {
    "shuffle": ["dataset=jigsaw_digits"],
    "codes": ["dataset=cycles"],
    "energy": ["target=ising", "target.size=2", "dataset=none"],
}
# Parts of metrics.json that depend on the machine, or describe the whole model
IGNORED_RESULTS = ("made_with", "model", "command")
BASELINES = "references"  # part of metrics.json: the names of baselines depend on the values


def interface() -> dict[str, Any]:
    """Return rows of exports, settings and results."""
    tables: dict[str, Mapping[str, Any]] = {
        "exports": exports(),
        "settings": settings(),
        "results": results(),
    }
    return {f"{kind} {name}": row for kind, table in tables.items() for name, row in table.items()}


# --- exports


def exports() -> dict[str, list[str]]:
    """Return the signatures of all names in `__all__` of packages, and of their public methods."""
    package = importlib.import_module("blackout")
    names = [
        module.name
        for module in pkgutil.walk_packages(package.__path__, "blackout.")
        if module.ispkg
    ]
    rows = {}
    for module in [package, *map(importlib.import_module, sorted(names))]:
        for name in sorted(getattr(module, "__all__", ())):
            rows[f"{module.__name__}.{name}"] = list(_describe(module, name))
    return rows


def _describe(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    if not inspect.isclass(value):
        yield format_signature(value) if callable(value) else type(value).__name__
        return
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    yield f"class({', '.join(bases)}){format_signature(value)}"
    for name, member in sorted(vars(value).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        yield f".{name}{format_signature(member) if inspect.isfunction(member) else ''}"


def format_signature(function: Any) -> str:
    """Return a signature with annotations as they are written in the code."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a class of C code has none
        return "(...)"
    parameters = list(signature.parameters.values())
    parts = []
    for parameter in parameters:
        is_keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        if is_keyword_only and not any(part.startswith("*") for part in parts):
            parts.append("*")
        parts.append(_format_parameter(parameter))
    return f"({', '.join(parts)}){_format_annotation(' -> ', signature.return_annotation)}"


def _format_parameter(parameter: inspect.Parameter) -> str:
    prefixes = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    prefix = prefixes.get(parameter.kind, "")
    default = ""
    if parameter.default is not parameter.empty:
        default = f" = {to_json(parameter.default)!r}"
    annotation = _format_annotation(": ", parameter.annotation)
    return f"{prefix}{parameter.name}{annotation}{default}"


def _format_annotation(separator: str, annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    if not isinstance(annotation, str):
        annotation = getattr(annotation, "__name__", str(annotation))
    return f"{separator}{annotation}"


# --- settings


def settings() -> dict[str, dict[str, Any]]:
    """Return the settings of every choice of every group, with the defaults of constructors."""
    rows = {}
    for group in groups():
        if group.partition("/")[0] in GLOBAL_GROUPS:
            continue
        for choice in choices(group):
            values = with_defaults(settings_of(group, choice))
            is_mapping = isinstance(values, Mapping)
            row = dict(sorted(flatten(values))) if is_mapping else {"": values}
            rows[f"{group}={choice}"] = row
    return rows


# --- results


def results() -> dict[str, dict[str, list[str]]]:
    """Return the names in metrics.csv and metrics.json of a short run of each family."""
    rows = {}
    for family in choices("family"):
        with tempfile.TemporaryDirectory() as folder:
            rows[family] = _results_of(family, Path(folder))
    return rows


def _results_of(family: str, folder: Path) -> dict[str, list[str]]:
    run_folder = folder / "family" / "run"
    _run(
        "train",
        [
            f"family={family}",
            *REQUIRED_OVERRIDES.get(family, []),
            "debug=fast",
            "run_id=run",
            "experiment_name=family",
            f"runs_dir={folder}",
            "callbacks.progress=null",
        ],
        folder,
    )
    _run(
        "sample",
        [
            f"ckpt={run_folder}",
            f"out={folder}/evaluated",
            "num_samples=64",
            "evaluate=true",
            "likelihood.images=8",
            "likelihood.repeats=1",
        ],
        folder,
    )
    with (run_folder / "metrics.csv").open() as file:
        columns = next(csv.reader(file))
    evaluated = folder / "evaluated" / "metrics.json"
    return {
        "metrics.csv": sorted(columns),
        "metrics.json": _names_in(run_folder / "metrics.json"),
        "metrics.json of sample.py evaluate=true": _names_in(evaluated),
    }


def _run(program: str, arguments: list[str], folder: Path) -> None:
    result = run_program(program, arguments, folder)
    if result.exit_code:
        message = result.errors.strip()[-500:]
        command = f"{program}.py {' '.join(arguments)}"
        raise RuntimeError(f"{command}: exit code {result.exit_code}: {message}")


def _names_in(file: Path) -> list[str]:
    report = json.loads(file.read_text())
    for name in IGNORED_RESULTS:
        report.pop(name, None)
    report[BASELINES] = dict.fromkeys(report.get(BASELINES, {}))
    return sorted(name for name, _ in flatten(report))
