"""Every file and command of the pages on user components and projects works as printed."""

import re
import shlex

import pytest

from tests.cli.conftest import ROOT, forget_modules

PAGES = "\n".join(
    (ROOT / "docs/howto" / name).read_text() for name in ("extending.md", "own_project.md")
)
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGES, re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's `mine/`, from where the commands are run."""
    folder = tmp_path_factory.mktemp("extending")
    for kind, text in BLOCKS:
        if kind in ("python", "yaml"):
            path = folder / re.match(r"# (mine/\S+)\n", text)[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.partition("\n")[2])  # without the name of the file
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder


def test_the_page_has_commands_for_every_kind_of_component():
    titles = re.findall(r"^## (.*)", PAGES, re.MULTILINE)
    assert titles == [
        "A dataset",
        "A network",
        "A process",
        "A kernel",
        "A schedule",
        "A head",
        "A loss",
        "An operator",
        "A target",
        "A score",
        "A callback",
        "An experiment",
        "A family",
    ]
    assert len(COMMANDS) == 17


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(run, folder, monkeypatch, command):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    python, program, *arguments = shlex.split(command)
    assert python == "python"
    arguments = [argument.replace("file://", f"file://{folder}/") for argument in arguments]
    outcome = run(program.removesuffix(".py"), *arguments)
    assert outcome.code == 0, outcome.err
    forget_modules("mine")
