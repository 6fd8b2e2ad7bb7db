"""Imports go down the layers of the package and never in a cycle."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# folders and files of blackout/, from the lowest layer up
LAYERS = (
    (
        "protocols",
        "random",
        "errors",
        "counts",
        "confidence_intervals",
        "component",
        "version",
        "comparisons",
        "representation",
    ),
    (
        "networks",
        "files",
        "results_folders",
        "sample_writer",
        "pictures",
        "safe_reading",
        "distributed",
    ),
    ("config",),
    ("data", "preemption"),
    ("evaluation",),
    ("training",),
    ("diffusion", "flows", "permutations"),
    ("verification", "posterior"),
    ("cli",),
    ("", "__main__"),
)
FAMILIES = (*LAYERS[6], "posterior")
# parts that must not depend on any family
SHARED = ("training", "cli", "protocols.py")
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(ROOT.glob("blackout/**/*.py"))
}
MODULES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def part(module: str) -> str:
    """Return the folder or file of blackout/ of a module; "" for the package itself."""
    return (module.split(".") + [""])[1]


def called_name(function: ast.expr) -> str:
    """Return the last word of a called expression."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def imported_modules(module: str) -> Iterator[str]:
    """Yield the package's modules that a module imports anywhere, also in functions and by name."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called_name(node.func) in (
            "import_module",
            "__import__",
        ):
            names = [literal.value for literal in node.args if isinstance(literal, ast.Constant)]
        else:
            continue
        for name in map(str, names):
            if name.split(".")[0] == "blackout":
                yield name if name in MODULES else name.rpartition(".")[0]


@cache
def import_graph() -> dict[str, set[str]]:
    """Return the imports of every module."""
    return {module: set(imported_modules(module)) - {module} for module in MODULES}


def layer(module: str) -> int:
    """Return the layer of a module."""
    return next(
        (number for number, names in enumerate(LAYERS) if part(module) in names), len(LAYERS)
    )


def find_cycles(imports: dict[str, set[str]]) -> list[str]:
    """Return the nodes of a graph that lie on or between cycles."""
    remaining = set(imports)
    while removable := {
        node
        for node in remaining
        if not imports[node] & remaining or not any(node in imports[source] for source in remaining)
    }:
        remaining -= removable
    return sorted(remaining)


def test_every_module_has_a_layer() -> None:
    names_of_layers = {name for names in LAYERS for name in names}
    assert {part(module) for module in MODULES} <= names_of_layers


@pytest.mark.deep
def test_imports_go_down_the_layers() -> None:
    pairs = [(module, target) for module, targets in import_graph().items() for target in targets]
    upward = [f"{module} -> {target}" for module, target in pairs if layer(target) > layer(module)]
    assert sorted(upward) == []


def test_programs_import_no_family() -> None:
    imports = [
        (module, target)
        for module in MODULES
        if part(module) == "cli"
        for target in import_graph()[module]
    ]
    assert [pair for pair in imports if part(pair[1]) in FAMILIES] == []


def test_imports_have_no_cycles() -> None:
    assert find_cycles(import_graph()) == []
    folders: dict[str, set[str]] = {part(module): set() for module in MODULES}
    for module, targets in import_graph().items():
        folders[part(module)] |= {part(target) for target in targets} - {part(module)}
    assert find_cycles(folders) == []


@pytest.mark.parametrize("folder", SHARED)
def test_shared_parts_name_no_family(folder: str) -> None:
    word = re.compile(r"BlackoutDiffusion|CountData|PureDeath|max_count")
    files = [
        path for path in MODULES.values() if path.relative_to(ROOT / "blackout").parts[0] == folder
    ]
    assert [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if (match := word.search(path.read_text()))
    ] == []


def test_names_imported_from_the_package_exist() -> None:
    """Moved names are found without running examples and benchmarks."""
    missing = []
    for path in (
        *ROOT.glob("benchmarks/**/*.py"),
        *ROOT.glob("examples/**/*.py"),
        *ROOT.glob("*.py"),
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "blackout":
                module = importlib.import_module(str(node.module))
                names = {
                    alias.name
                    for alias in node.names
                    if f"{node.module}.{alias.name}" not in MODULES
                }
                missing += [
                    f"{path.name}: {node.module}.{name}"
                    for name in names
                    if not hasattr(module, name)
                ]
    assert not missing


def locale_dependent(path: Path) -> Iterator[str]:
    """Calls that read or write text in the encoding of the locale, because they name none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or any(
            keyword.arg == "encoding" for keyword in node.keywords
        ):
            continue
        name, is_method = called_name(node.func), isinstance(node.func, ast.Attribute)
        place = 0 if is_method else 1  # of the mode among the arguments of `path.open` and `open`
        mode: object = "r"
        if len(node.args) > place:
            mode = node.args[place].value if isinstance(node.args[place], ast.Constant) else None
        is_text = isinstance(mode, str) and re.fullmatch("[rwxa][t+]*", mode)
        if (is_method and name in ("read_text", "write_text")) or (name == "open" and is_text):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_text_files_have_an_encoding() -> None:
    files = [
        *MODULES.values(),
        *ROOT.glob("benchmarks/**/*.py"),
        *ROOT.glob("examples/**/*.py"),
        *ROOT.glob("*.py"),
    ]
    assert [place for path in files for place in locale_dependent(path)] == []
