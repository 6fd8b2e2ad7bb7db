"""The code in the documentation runs."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
CODE = [
    (page, code)
    for page in ("processes.md", "permutations.md")
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
]


@pytest.mark.parametrize("page, code", CODE, ids=[f"{page}-{i}" for i, (page, _) in enumerate(CODE)])
def test_examples_run(page, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})
    assert capsys.readouterr().out.strip()
