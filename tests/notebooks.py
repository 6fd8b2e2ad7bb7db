"""Execute notebooks of examples/ and write their outputs: `python -m tests.notebooks [FILE ...]`.

Cells run in this process, without a kernel. The last expression of a cell is its result, as in
Jupyter; figures and pictures become PNGs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

EXAMPLES = Path(__file__).parents[1] / "examples"
RESOLUTION = 80  # dots per inch of figures


def code_cells(notebook: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the cells that hold code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(
    cells: Sequence[Mapping[str, Any]], scope: dict[str, Any]
) -> list[list[dict[str, Any]]]:
    """Run code cells one after another in a scope; return the outputs of each."""
    return [_execute_cell("".join(cell["source"]), cell["id"], scope) for cell in cells]


def _execute_cell(code: str, name: str, scope: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the code of a cell; return its outputs in the notebook's format."""
    tree = ast.parse(code, name)
    result = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        body = tree.body[:-1] if last is not None else tree.body
        exec(compile(ast.Module(body, []), name, "exec"), scope)
        if last is not None:
            result = eval(compile(ast.Expression(last.value), name, "eval"), scope)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if result is not None:
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": None,
                "metadata": {},
                "data": _represent(result),
            }
        )
    return outputs


def _represent(result: Any) -> dict[str, Any]:
    """Return a result by media type."""
    file = io.BytesIO()
    if isinstance(result, Figure):
        result.savefig(file, dpi=RESOLUTION, metadata={"Software": None})
        return {"image/png": _encode(file), "text/plain": ["Figure"]}
    if isinstance(result, Image.Image):
        result.save(file, "png")
        return {"image/png": _encode(file), "text/plain": ["Image"]}
    data = {"text/plain": repr(result).splitlines(keepends=True)}
    if hasattr(result, "_repr_html_"):
        data["text/html"] = result._repr_html_().splitlines(keepends=True)
    return data


def _encode(file: io.BytesIO) -> str:
    return base64.b64encode(file.getvalue()).decode() + "\n"


def write_outputs(path: Path) -> None:
    """Execute a notebook in an empty folder, and replace the outputs in its file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = code_cells(notebook)
    working_folder = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            outputs = execute(cells, {"__name__": "__main__"})
        finally:
            os.chdir(working_folder)
    for number, (cell, cell_outputs) in enumerate(zip(cells, outputs, strict=True), 1):
        cell["execution_count"] = number
        cell["outputs"] = cell_outputs
        for output in cell_outputs:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    paths = [Path(word) for word in sys.argv[1:]] or sorted(EXAMPLES.glob("*.ipynb"))
    for notebook_path in paths:
        write_outputs(notebook_path.absolute())
