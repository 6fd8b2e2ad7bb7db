"""The house stands: imports go down its floors and never in a circle."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = (
    ("protocols", "random", "errors", "counts", "confidence_intervals", "component", "version", "comparisons"),
    ("networks", "files", "safe_reading", "distributed"),
    ("config",),
    ("data", "preemption"),
    ("evaluation",),
    ("training",),
    ("diffusion", "flows", "permutations"),
    ("verification", "posterior"),
    ("cli",),
    ("", "__main__"),
)
"""Folders and files of blackout/, from the ground floor up."""
FAMILIES = (*FLOORS[6], "posterior")
SHARED = ("training", "cli", "protocols.py")
"""What knows no family."""
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.glob("blackout/**/*.py"))}
MODULES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def part(module: str) -> str:
    """The folder or file of blackout/ to which a module belongs; "" for the package itself."""
    return (module.split(".") + [""])[1]


def called(function: ast.expr) -> str:
    """The last word of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def imported(module: str) -> Iterator[str]:
    """The package's modules that a module imports anywhere: at the top, in functions, for type checking, by name."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(node.func) in ("import_module", "__import__"):
            names = [literal.value for literal in node.args if isinstance(literal, ast.Constant)]
        else:
            continue
        for name in map(str, names):
            if name.split(".")[0] == "blackout":
                yield name if name in MODULES else name.rpartition(".")[0]


@cache
def arrows() -> dict[str, set[str]]:
    """What every module imports."""
    return {module: set(imported(module)) - {module} for module in MODULES}


def floor(module: str) -> int:
    return next((number for number, names in enumerate(FLOORS) if part(module) in names), len(FLOORS))


def circle(imports: dict[str, set[str]]) -> list[str]:
    """What remains of a graph without circles when nodes that nothing enters or leaves are taken away: nothing."""
    left = set(imports)
    while ends := {
        node for node in left if not imports[node] & left or not any(node in imports[other] for other in left)
    }:
        left -= ends
    return sorted(left)


def test_every_module_has_a_floor() -> None:
    known = {name for names in FLOORS for name in names}
    assert {part(module) for module in MODULES} <= known


@pytest.mark.deep
def test_imports_go_down() -> None:
    pairs = [(module, target) for module, targets in arrows().items() for target in targets]
    upward = [f"{module} -> {target}" for module, target in pairs if floor(target) > floor(module)]
    assert sorted(upward) == []


def test_programs_import_no_family() -> None:
    chosen = [(module, target) for module in MODULES if part(module) == "cli" for target in arrows()[module]]
    assert [pair for pair in chosen if part(pair[1]) in FAMILIES] == []


def test_nothing_imports_in_a_circle() -> None:
    assert circle(arrows()) == []
    folders: dict[str, set[str]] = {part(module): set() for module in MODULES}
    for module, targets in arrows().items():
        folders[part(module)] |= {part(target) for target in targets} - {part(module)}
    assert circle(folders) == []


@pytest.mark.parametrize("where", SHARED)
def test_what_is_shared_names_no_family(where: str) -> None:
    word = re.compile(r"BlackoutDiffusion|CountData|PureDeath|max_count")
    files = [path for path in MODULES.values() if path.relative_to(ROOT / "blackout").parts[0] == where]
    assert [f"{path.relative_to(ROOT)}: {found[0]}" for path in files if (found := word.search(path.read_text()))] == []


def test_what_is_imported_from_here_is_there() -> None:
    """Examples and benchmarks are not all run; a name that has moved is found without running them."""
    missing = []
    for path in (*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/**/*.py"), *ROOT.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "blackout":
                module = importlib.import_module(str(node.module))
                here = {alias.name for alias in node.names if f"{node.module}.{alias.name}" not in MODULES}
                missing += [f"{path.name}: {node.module}.{name}" for name in here if not hasattr(module, name)]
    assert not missing


def locale_dependent(path: Path) -> Iterator[str]:
    """Calls that read or write text in the encoding of the locale, because they name none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        name, is_method = called(node.func), isinstance(node.func, ast.Attribute)
        place = 0 if is_method else 1  # of the mode among the arguments of `path.open` and `open`
        mode: object = "r"
        if len(node.args) > place:
            mode = node.args[place].value if isinstance(node.args[place], ast.Constant) else None
        is_text = isinstance(mode, str) and re.fullmatch("[rwxa][t+]*", mode)
        if (is_method and name in ("read_text", "write_text")) or (name == "open" and is_text):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_text_files_have_an_encoding() -> None:
    files = [*MODULES.values(), *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/**/*.py"), *ROOT.glob("*.py")]
    assert [place for path in files for place in locale_dependent(path)] == []
