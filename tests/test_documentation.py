"""The code in the documentation runs, and what it says of settings is complete."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from blackout.cli.run_directory import CHANGEABLE_SETTINGS, FIXED_SETTINGS, UNRELATED_SETTINGS
from blackout.config.choices import PROGRAMS, describe_choice, list_choices, list_groups
from blackout.files import CONF
from docs import choices_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HOWTO = DOCS / "howto"
# pages whose code runs in other tests: `tests/cli/test_extending.py`, `tests/test_tutorials.py`
TESTED_ELSEWHERE = {
    HOWTO / "extending.md",
    HOWTO / "own_project.md",
    *(DOCS / "tutorials").glob("*.md"),
}
CODE = [
    (page.relative_to(DOCS).as_posix(), code)
    for page in sorted(DOCS.rglob("*.md"))
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    if page not in TESTED_ELSEWHERE
]
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
]


@pytest.mark.parametrize(
    "page, code", CODE, ids=[f"{page}-{i}" for i, (page, _) in enumerate(CODE)]
)
def test_code_examples_run(page, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    "name, settings",
    [
        ("unrelated", UNRELATED_SETTINGS),
        ("changeable", CHANGEABLE_SETTINGS - UNRELATED_SETTINGS),
        ("fixed", FIXED_SETTINGS),
    ],
)
def test_settings_of_a_run_that_continues_are_listed(name, settings):
    page = (DOCS / "reference" / "settings.md").read_text()
    (listed,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert sorted(re.findall(r"`([\w.]+)`", listed)) == sorted(settings)


def test_every_setting_and_choice_has_a_comment():
    """The page of all settings is generated from these comments."""
    undescribed = [
        f"{program}.yaml: {setting.name}"
        for program in PROGRAMS
        for setting in choices_page.read_settings(CONF / f"{program}.yaml")
        if not setting.comment
    ]
    for group in list_groups():
        for choice in list_choices(group):
            if not describe_choice(group, choice):
                undescribed.append(f"{group}={choice}")
            if group not in choices_page.COLLECTIONS:
                undescribed += [
                    f"{group}={choice}: {setting.name}"
                    for setting in choices_page.choice_settings(group, choice)
                    if not setting.comment
                ]
    assert undescribed == []


def test_the_page_of_settings_has_every_choice_and_default():
    page = choices_page.page()
    assert page.count("\n## ") == len(list_groups()) + len(PROGRAMS)
    assert "| `holdout` | `0.1` | share of the samples for the test" in page
    assert "a run is in &lt;runs_dir>/" in page  # not a tag of HTML
    assert "| `guidance.scale` | `1.0` |" in page or "| `sampler.guidance.scale` | `1.0` |" in page
    assert all(
        f"| `{choice}` |" in page for group in list_groups() for choice in list_choices(group)
    )


def test_terms_of_the_glossary_are_used_elsewhere_and_sorted():
    glossary = (DOCS / "glossary.md").read_text()
    heads = re.findall(r"^- \*\*(.+?)\*\*", glossary, re.MULTILINE)
    assert heads == sorted(heads, key=str.lower) and len(heads) > 40
    pages = [page for page in PAGES if page.name not in ("glossary.md", "references.md")]
    text = " ".join(page.read_text() for page in pages).lower()
    terms = [term.strip().lower() for head in heads for term in head.split(",")]
    assert [term for term in terms if not re.search(rf"\b{re.escape(term)}", text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_and_links_exist(page):
    text = page.read_text()
    paths = [
        ROOT / name
        for name in re.findall(
            r"`((?:blackout|tests|conf|benchmarks|examples|docs)/[\w/.]*)`", text
        )
    ]
    links = [page.parent / name for name in re.findall(r"(?:\]\(|src=\")([\w/.]+)[)\"]", text)]
    assert [path for path in [*paths, *links] if not path.exists()] == []


def test_claims_on_the_page_of_limits_exist():
    """Quoted claims are in a folder `verification`, named tests in tests/verification."""
    page = (DOCS / "explanation" / "limits.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "verification").glob("*.py"))
    sources = tests + "".join(
        path.read_text() for path in (ROOT / "blackout" / "verification").glob("*.py")
    )
    claims = re.findall(r'"([^"\n]+)"', page)
    test_names = re.findall(r"`(test_\w+)`", page)
    assert len(claims) > 20 and [claim for claim in claims if claim not in sources] == []
    assert (
        len(test_names) >= 2 and [name for name in test_names if f"def {name}(" not in tests] == []
    )


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*.md")), ids=lambda page: page.name)
def test_how_to_pages_are_short_without_dates_machines_and_timings(page):
    """At most 600 words and 25 rows of tables."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert len(text.split()) <= 600 and len(re.findall(r"^\|", text, re.MULTILINE)) <= 25
    assert re.findall(r"20\d\d-\d\d-\d\d|CPU s\b|\bEPYC\b|\bXeon\b", text) == []


@pytest.mark.deep
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in TESTED_ELSEWHERE], ids=lambda page: page.name
)
def test_settings_in_commands_exist(page):
    """Every `python train.py` and `python sample.py` in a bash block composes."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)).replace(
        "\\\n", " "
    )
    commands = [shlex.split(line, comments=True) for line in blocks.splitlines()]
    for _, program, *arguments in (
        words for words in commands if words[:1] == ["python"] and words[1].endswith(".py")
    ):
        if (
            program in ("train.py", "sample.py")
            and "-m" not in arguments
            and "$" not in "".join(arguments)
        ):
            with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
                compose(
                    program[:-3],
                    [re.sub("<[^>]*>", "run", word) for word in arguments if word[0] != "-"],
                )


def test_citations_and_references_agree():
    name = r"[A-Z][A-Za-z-]+(?: [A-Z][a-z]+)?(?: and [A-Z][a-z]+)? (?:19|20)\d\d"
    key = re.compile(rf"[\[;] ?(?:after |cf\. )?({name})(?=[,;\]])")
    listed = set(
        re.findall(
            r"^- \*\*(.+?)\.\*\*", (DOCS / "reference" / "references.md").read_text(), re.MULTILINE
        )
    )
    code = [path for folder in ("blackout", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    cited = {citation for path in code for citation in key.findall(path.read_text())}
    # "Bayer and Diaconis 1992" cites [Bayer 1992], unless it is listed under both names
    cited = {
        citation if citation in listed else re.sub(r" and [A-Z][a-z]+(?= )", "", citation)
        for citation in cited
    }
    # "References: Santos et al. 2023, eq. 12; Anderson and Mattingly 2011." cites [Santos 2023] and
    # [Anderson 2011]
    author = re.compile(r"([A-Z][A-Za-z-]+)(?: et al\.| and [A-Z][A-Za-z-]+)? ((?:19|20)\d\d)")
    for path in code:
        for block in re.findall(r"References: (.*?)(?:\n\n|\"\"\")", path.read_text(), re.DOTALL):
            text = " ".join(block.split())
            cited |= {" ".join(match) for match in author.findall(text)} & listed
            # "Barabasi and Albert 1999" and "Del Moral et al. 2006" are listed under these names
            cited |= set(re.findall(name, text.replace(" et al.", ""))) & listed
    assert len(cited) > 80 and sorted(cited - listed) == [] and sorted(listed - cited) == []
