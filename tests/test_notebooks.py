"""The notebooks of examples/ run, are legible, and are linked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import EXAMPLES, code_cells, execute

ROOT = EXAMPLES.parent
# of each notebook the text of its code that is made smaller, and what replaces it
SMALLER = {
    "counts": ("STEPS = 300", "STEPS = 10"),
    "posterior": ("STEPS = 300", "STEPS = 10"),
    "energy": ("steps=60", "steps=5"),
    "rankings": ("(300, 200)", "(300, 200)"),
}
MAX_BYTES = 200_000  # of a notebook with its pictures
MAX_LINES = 12  # of the output of a cell
MAX_COLUMNS = 250  # of a line of output: the description of a model
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    return content


def text_of(output: dict[str, Any]) -> str:
    return "".join(output.get("text") or output["data"]["text/plain"])


@pytest.mark.parametrize("name", SMALLER)
def test_a_notebook_is_executed_small_and_legible(name: str) -> None:
    path = EXAMPLES / f"{name}.ipynb"
    assert path.stat().st_size < MAX_BYTES
    cells = code_cells(read(name))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert max(len(line.rstrip()) for line in cell["source"]) <= 120, cell["id"]
        for output in cell["outputs"]:
            lines = text_of(output).splitlines()
            assert len(lines) <= MAX_LINES, cell["id"]
            assert max(map(len, lines), default=0) <= MAX_COLUMNS, cell["id"]
            assert " object at 0x" not in text_of(output) and "/" + "home" not in text_of(output)
    assert any(
        "image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"]
    )


@pytest.mark.parametrize("name", SMALLER)
def test_a_notebook_is_linked_from_the_page_and_begins_with_a_title(name: str) -> None:
    assert f"../../examples/{name}.ipynb" in (ROOT / "docs/howto/notebooks.md").read_text()
    first = read(name)["cells"][0]
    assert first["cell_type"] == "markdown" and first["source"][0].startswith("# ")
    text = "".join("".join(cell["source"]) for cell in read(name)["cells"])
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (EXAMPLES / target).exists(), target


@pytest.mark.deep
@pytest.mark.parametrize("name", SMALLER)
def test_a_notebook_runs_and_prints_its_stored_outputs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text is compared without its numbers, which depend on the length of the training."""
    monkeypatch.chdir(tmp_path)
    cells = code_cells(read(name))
    full, small = SMALLER[name]
    assert full in "".join("".join(cell["source"]) for cell in cells)
    smaller = [cell | {"source": ["".join(cell["source"]).replace(full, small)]} for cell in cells]
    outputs = execute(smaller, {"__name__": "__main__"})
    for cell, new_outputs in zip(cells, outputs, strict=True):
        assert len(new_outputs) == len(cell["outputs"]), cell["id"]
        for new, old in zip(new_outputs, cell["outputs"], strict=True):
            assert new.get("data", {}).keys() == old.get("data", {}).keys(), cell["id"]
            if new["output_type"] == "stream":
                assert _without_numbers(text_of(new)) == _without_numbers(text_of(old)), cell["id"]


def _without_numbers(text: str) -> str:
    return " ".join(NUMBER.sub("#", text).split())
