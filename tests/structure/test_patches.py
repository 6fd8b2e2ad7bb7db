"""No module replaces parts of another package or uses its private names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [*sorted(ROOT.glob("blackout/**/*.py")), ROOT / "train.py", ROOT / "sample.py"]
SETTINGS = ("torch.backends.",)  # documented as assignable attributes
# `blackout train ...` passes its arguments to Hydra, which reads them only from `sys.argv`
COMMAND_LINE = ("blackout/cli/main.py", "sys.argv =")


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a name with attributes, "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def is_private(name: str) -> bool:
    """Return whether a part of a dotted name starts with one underscore."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def foreign_names(tree: ast.Module) -> set[str]:
    """Return the names that modules, classes and functions of other packages have in a module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] != "blackout":
            names |= {alias.asname or alias.name for alias in node.names}
    return names - {"blackout"}


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that a statement assigns to or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        expressions = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
        expressions = [node.target]
    elif isinstance(node, ast.withitem):
        expressions = [] if node.optional_vars is None else [node.optional_vars]
    else:
        expressions = []
    for target in expressions:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def patches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, replaced object) for foreign attributes, `__class__` and `sys.modules`."""
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        for target in targets(node):
            name = dotted(target)
            if isinstance(target, ast.Attribute) and target.attr == "__class__":
                yield target.lineno, f"{name} ="
            elif isinstance(target, ast.Attribute) and name.split(".")[0] in foreign:
                if not name.startswith(SETTINGS):
                    yield target.lineno, f"{name} ="
            elif isinstance(target, ast.Subscript) and dotted(target.value) == "sys.modules":
                yield target.lineno, "sys.modules[...] ="
        if isinstance(node, ast.Call) and dotted(node.func) in ("setattr", "delattr"):
            name = dotted(node.args[0])
            if name.split(".")[0] in foreign:
                yield node.lineno, f"{dotted(node.func)}({name}, ...)"


def private_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of private names imported from other packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] != "blackout" and is_private(name):
                yield node.lineno, name


@pytest.mark.deep
@pytest.mark.parametrize("find", [patches, private_imports])
def test_other_packages_are_neither_patched_nor_used_by_private_names(find) -> None:
    violations = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        places = find(ast.parse(path.read_text()))
        violations += [
            f"{name}:{line}: {expression}"
            for line, expression in places
            if (name, expression) != COMMAND_LINE
        ]
    assert violations == []


@pytest.mark.parametrize(
    "line",
    [
        "import sys; sys.stdout = None",
        "import sys; sys.modules['x'] = None",
        "x.__class__ = int",
        "from argparse import ArgumentParser as A; A.error = None",
        "import torch; torch.nn.Module.train = None",
        "import yaml; setattr(yaml, 'SafeLoader', None)",
        "import sys as s; s.stdin, x = 1, 2",
        "import os; del os.path",
    ],
)
def test_patches_are_detected(line: str) -> None:
    assert len(list(patches(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line", ["from hydra._internal.hydra import Hydra", "import torch._dynamo", "from a import _b"]
)
def test_private_imports_are_detected(line: str) -> None:
    assert len(list(private_imports(ast.parse(line)))) == 1
    assert not list(
        private_imports(ast.parse("from __future__ import annotations; from blackout.a import _b"))
    )


def test_settings_and_attributes_of_this_package_are_not_patches() -> None:
    code = (
        "import torch; torch.backends.cudnn.allow_tf32 = False; "
        "self.x = 1; from blackout import a; a.b = 1"
    )
    assert not list(patches(ast.parse(code)))
