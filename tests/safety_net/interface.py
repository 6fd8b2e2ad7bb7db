"""What users' scripts rely on: exported names, settings of choices, names of results."""

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
    flattened,
    groups,
    settings_of,
    with_defaults,
    written,
)
from tests.safety_net.programs import run

NEEDED = {
    "shuffle": ["dataset=jigsaw_digits"],
    "codes": ["dataset=cycles"],
    "energy": ["target=ising", "target.size=2", "dataset=none"],
}
"""What a family has to be given before it can be trained."""
NOT_COMPARED = (
    "made_with",
    "model",
    "command",
)  # of metrics.json: packages of the machine, the whole description
VALUES_DECIDE = "beside"  # which baseline stands next to a value in metrics.json


def interface() -> dict[str, Any]:
    """All of it, by kind."""
    return {"exports": exports(), "settings": settings(), "results": results()}


def exports() -> dict[str, list[str]]:
    """Signatures of all names in `__all__` of the packages, and of public methods of classes."""
    package = importlib.import_module("blackout")
    inner = (
        found.name for found in pkgutil.walk_packages(package.__path__, "blackout.") if found.ispkg
    )
    modules = [package, *map(importlib.import_module, sorted(inner))]
    described = {}
    for module in modules:
        for name in sorted(getattr(module, "__all__", ())):
            described[f"{module.__name__}.{name}"] = list(_described(module, name))
    return described


def _described(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    if not inspect.isclass(value):
        yield signature(value) if callable(value) else type(value).__name__
        return
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    yield f"class({', '.join(bases)}){signature(value)}"
    for member, method in sorted(vars(value).items()):
        if not member.startswith("_"):
            method = method.__func__ if isinstance(method, classmethod | staticmethod) else method
            yield f".{member}{signature(method) if inspect.isfunction(method) else ''}"


def signature(function: Any) -> str:
    """A signature as text, with annotations as they are written in the code."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):  # of a class of C code
        return "(...)"
    parts = []
    for name, parameter in found.parameters.items():
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = (
            "" if parameter.default is parameter.empty else f" = {written(parameter.default)!r}"
        )
        parts.append(f"{stars}{name}{_annotated(': ', parameter.annotation)}{default}")
        parts += ["*"] if _last_positional(parameter, list(found.parameters.values())) else []
    return f"({', '.join(parts)}){_annotated(' -> ', found.return_annotation)}"


def _last_positional(parameter: inspect.Parameter, parameters: list[inspect.Parameter]) -> bool:
    following = parameters[parameters.index(parameter) + 1 :]
    positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return positional and bool(following) and following[0].kind is following[0].KEYWORD_ONLY


def _annotated(mark: str, annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    text = (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )
    return f"{mark}{text}"


def settings() -> dict[str, dict[str, Any]]:
    """The settings of every choice of every group, with the defaults of what YAML leaves out."""
    names = [group for group in groups() if group.partition("/")[0] not in GLOBAL_GROUPS]
    return {
        f"{group}={choice}": _settings(group, choice)
        for group in names
        for choice in choices(group)
    }


def _settings(group: str, choice: str) -> dict[str, Any]:
    part = with_defaults(settings_of(group, choice))
    return dict(sorted(flattened(part))) if isinstance(part, Mapping) else {}


def results() -> dict[str, dict[str, list[str]]]:
    """The names in metrics.csv and metrics.json of a short run of each family, and of samples."""
    found = {}
    for family in choices("family"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            words = [
                f"family={family}",
                *NEEDED.get(family, []),
                "debug=fast",
                "run_id=run",
                "experiment_name=family",
            ]
            _finish("train", [*words, f"runs_dir={folder}", "callbacks.progress=null"], folder)
            directory = folder / "family/run"
            evaluated = [
                f"ckpt={directory}",
                f"out={folder}/evaluated",
                "num_samples=64",
                "evaluate=true",
            ]
            _finish("sample", [*evaluated, "likelihood.images=8", "likelihood.repeats=1"], folder)
            with (directory / "metrics.csv").open() as table:
                columns = next(csv.reader(table))
            found[family] = {
                "metrics.csv": sorted(columns),
                "metrics.json": _keys(directory / "metrics.json"),
                "metrics.json of sample.py evaluate=true": _keys(folder / "evaluated/metrics.json"),
            }
    return found


def _finish(program: str, words: list[str], folder: Path) -> None:
    code, errors = run(program, words, folder)
    if code:
        raise RuntimeError(
            f"{program}.py {' '.join(words)} ended with exit code {code}: {errors.strip()[-500:]}"
        )


def _keys(file: Path) -> list[str]:
    report = {
        name: value
        for name, value in json.loads(file.read_text()).items()
        if name not in NOT_COMPARED
    }
    report[VALUES_DECIDE] = dict.fromkeys(report.get(VALUES_DECIDE, {}))
    return sorted(name for name, _ in flattened(report))
