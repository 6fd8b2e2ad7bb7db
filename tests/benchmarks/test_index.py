"""The index of the benchmarks lists every program and every stored result."""

import importlib
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
INDEX = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
# the first word in backticks: "`table NAME`" names the program `table`
NAMES = {words.split()[0] for words in re.findall(r"`([^`\n]+)`", INDEX)}
PROGRAMS = sorted(
    path.stem for path in BENCHMARKS.glob("*.py") if "\ndef main(" in path.read_text("utf-8")
)


def test_every_program_and_no_other_is_listed():
    programs = {path.stem for path in BENCHMARKS.glob("*.py")} - {"__init__"}
    programs |= {path.parent.name for path in BENCHMARKS.glob("*/__init__.py")}
    assert programs <= NAMES, programs - NAMES
    in_tables = set(re.findall(r"^\| `(\w+)", INDEX, re.MULTILINE))
    assert in_tables <= programs, in_tables - programs


def test_every_stored_result_is_listed():
    for path in (BENCHMARKS / "results").glob("*.json"):
        assert any(fnmatch(path.name, name) for name in NAMES), path.name


@pytest.mark.deep
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_help_of_a_program_is_its_docstring(name, capsys, monkeypatch):
    program = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as exit_info:
        program.main()
    assert exit_info.value.code == 0
    assert program.__doc__.strip() in capsys.readouterr().out
