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
    """A file has one machine, or one for each of its tables."""
    for path in page.RESULTS.glob("*.json"):
        results = json.loads(path.read_text())
        parts = [results] if "machine" in results else results.values()
        assert not any(part["machine"]["quick"] for part in parts), path.name


@pytest.mark.parametrize("name", RESULT_PAGES)
def test_pages_of_results_are_short(name):
    """At most 500 words without tables and code."""
    text = re.sub(r"```.*?```", "", page.MARKED.sub("", PAGES[name]), flags=re.DOTALL)
    words = [line for line in text.splitlines() if not line.startswith(("|", "!["))]
    assert len(" ".join(words).split()) <= 500


def test_a_number_with_an_error_has_one_home():
    """Outside generated tables and the outputs of commands, it is on one page only."""
    homes = {}
    for name, text in PAGES.items():
        text = re.sub(r"```.*?```", "", page.MARKED.sub("", text), flags=re.DOTALL)
        for number in re.findall(r"\d+\.\d+ ± \d+(?:\.\d+)?", text):
            homes.setdefault(number, set()).add(name)
    assert {number: names for number, names in homes.items() if len(names) > 1} == {}


def test_the_index_of_results_has_the_answer_of_every_page(tmp_path, monkeypatch):
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    (folder / "index.md").write_text("# Results\n")
    (folder / "a.md").write_text("# A\n\n**Answer.** It is 0.5 ± 0.1\nin all. More.\n")
    (folder / "b.md").write_text("# B\n\n**Answer, x.** Yes.\n\n**Answer, y.** No. More.\n")
    monkeypatch.setattr(page, "ROOT", tmp_path)
    lines = page.results_index().splitlines()
    assert lines[2:] == ["| [A](a.md) | It is 0.5 ± 0.1 in all. |", "| [B](b.md) | Yes. No. |"]


def test_added_trainings_have_their_own_command_and_machine():
    machine = {"device": "A", "threads": 1, "date": "2026-01-02"}
    results = {"command": "run", "machine": machine, "remark": "stopped early"}
    assert page.setup_line("x", results) == (
        "`run`, A, 1 thread, 2026-01-02 (stopped early), `benchmarks/results/x.json`"
    )
    results["added"] = [{"command": "run --add 1", "machine": {**machine, "device": "B"}}]
    assert "(stopped early), then `run --add 1`, B, 1 thread" in page.setup_line("x", results)


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
