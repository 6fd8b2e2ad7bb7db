"""Generated tables: every page has what its result files give, and every file is shown."""

import json
import re

import pytest

from benchmarks import page

PAGES = {path.relative_to(page.ROOT).as_posix(): path.read_text() for path in page.pages()}
MARKED_PAGES = [name for name, text in PAGES.items() if page.MARKER.search(text)]
RESULT_PAGES = [name for name in PAGES if name.startswith("docs/results/")]


@pytest.mark.parametrize("name", MARKED_PAGES)
def test_tables_are_those_of_the_result_files(name):
    assert page.update(PAGES[name]) == PAGES[name]


def test_every_table_and_every_result_file_is_on_a_page():
    shown = [match[1] for text in PAGES.values() for match in page.MARKED.findall(text)]
    assert sorted(shown) == sorted(page.TABLES)  # each once
    files = {file for table in page.TABLES.values() for file in table.files}
    assert files == {path.stem for path in page.RESULTS.glob("*.json")}


def test_results_are_not_of_a_quick_check():
    results = {path.name: json.loads(path.read_text()) for path in page.RESULTS.glob("*.json")}
    assert [name for name, result in results.items() if result["machine"]["quick"]] == []


@pytest.mark.parametrize("name", RESULT_PAGES)
def test_pages_of_results_are_short(name):
    """At most 500 words without tables and code."""
    text = re.sub(r"```.*?```", "", page.MARKED.sub("", PAGES[name]), flags=re.DOTALL)
    words = [line for line in text.splitlines() if not line.startswith(("|", "!["))]
    assert len(" ".join(words).split()) <= 500


def test_an_outdated_table_is_found_and_written(tmp_path, monkeypatch, capsys):
    path = tmp_path / "README.md"
    path.write_text("# Title\n\n<!-- table: headline -->\nold\n<!-- end of table -->\n\nText.\n")
    monkeypatch.setattr(page, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as ended:
        page.main(["--check"])
    assert ended.value.code == 1 and "old" in path.read_text()
    page.main([])
    assert capsys.readouterr().out == "README.md\nREADME.md\n"
    assert page.markdown("headline") in path.read_text() and "old" not in path.read_text()
    page.main(["--check"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text, message",
    [
        ("<!-- table: headline -->\n", "end of table"),
        ("<!-- table: headlines -->\n<!-- end of table -->\n", "no table is called 'headlines'"),
        ("<!-- table: head lines -->\n<!-- end of table -->\n", "end of table"),
    ],
)
def test_wrong_markers_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        page.update(text)
