"""The code in the documentation runs; its table of settings is up to date (`python -m tests.test_documentation`)."""

import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from blackout.programs.settings import markdown

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CODE = [
    (page, code)
    for page in ("python.md", "processes.md", "permutations.md", "posterior.md", "science.md")
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
]
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]
TABLE = re.compile(
    r"(?<=<!-- settings: made by `python -m tests\.test_documentation` -->\n)(.*?)(?=<!-- end of)", re.DOTALL
)


def with_settings(page):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        defaults = OmegaConf.to_container(compose("train"), resolve=False)
    return TABLE.sub(lambda _: f"{markdown(defaults)}\n", page)


@pytest.mark.parametrize("page, code", CODE, ids=[f"{page}-{i}" for i, (page, _) in enumerate(CODE)])
def test_examples_run(page, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_table_of_settings_is_up_to_date():
    page = (DOCS / "survival.md").read_text()
    assert "| `trainer` |" in page and with_settings(page) == page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_links_that_are_named_exist(page):
    text = page.read_text()
    named = [ROOT / name for name in re.findall(r"`((?:blackout|tests|conf|benchmarks|examples|docs)/[\w/.]*)`", text)]
    linked = [page.parent / name for name in re.findall(r"\]\(([\w/.]+)\)", text)]
    assert [path for path in [*named, *linked] if not path.exists()] == []


if __name__ == "__main__":
    survival = DOCS / "survival.md"
    survival.write_text(with_settings(survival.read_text()))
