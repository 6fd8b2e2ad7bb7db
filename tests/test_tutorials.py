"""Every tutorial is run from its code blocks in an empty folder, and the numbers it shows are
checked.

A `text` block after a `bash` or `python` block has lines of its output. In `1.72 ± 0.05` the second
number is a tolerance; all other numbers and words must match. A comment `<!-- from FILE -->` names
the file of the run that the picture below is a copy of. `<!-- needs NAME -->` names a library, or
MNIST, which is then in the folder `data`. `python -m tests.test_tutorials digits` runs a page,
prints the output of its blocks, and updates its pictures.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from tests.data.conftest import real_data  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"```(bash|python)\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)
PICTURE = re.compile(r"<!-- from (\S+) -->\n!\[[^\]]*\]\(\.\./(pictures/\S+)\)")
FIGURE = re.compile(r"(-?[\d,]*\.?\d+) ± ([\d,]*\.?\d+)")
# the standard error after a printed value, which pages replace by a tolerance
STANDARD_ERROR = re.compile(r"^(\S+: +-?[\d.,]+) (?:\+-|±) [\d.]+", re.MULTILINE)

PIXELS = 900  # maximal width of a picture


def run_block(language, code, folder):
    """Run all commands of a block and return their output."""
    lines = code.replace("\\\n", " ").splitlines()
    commands = (
        [["python", "-c", code]]
        if language == "python"
        else [shlex.split(line, comments=True) for line in lines]
    )
    printed = ""
    for command in filter(None, commands):
        if command[0] == "blackout":
            command = ["python", "-m", *command]
        assert command[0] == "python"
        command = [
            sys.executable,
            str(ROOT / command[1]) if command[1] in ("train.py", "sample.py") else command[1],
            *command[2:],
        ]
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        process = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
        assert process.returncode == 0, (
            f"{shlex.join(command)}\n{process.stdout[-2000:]}\n{process.stderr[-2000:]}"
        )
        printed += process.stdout
    return printed


def matches(line, printed):
    """Return whether a line of a `text` block is in the output, within its tolerances."""
    texts = FIGURE.split(line)[::3]
    figures = FIGURE.findall(line)
    pattern = r"(-?[\d,]*\.?\d+)".join(
        re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(part)) for part in texts
    )
    printed = STANDARD_ERROR.sub(r"\1", printed)
    return any(
        all(
            abs(number(a) - number(b)) <= number(tolerance)
            for a, (b, tolerance) in zip(match.groups(), figures, strict=True)
        )
        for match in re.finditer(pattern, printed)
    )


def number(text):
    return float(text.replace(",", ""))


@pytest.mark.deep
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_tutorials_run_and_print_the_numbers_they_show(page, tmp_path, request):
    text = page.read_text()
    for name in re.findall(r"<!-- needs (\w+) -->", text):
        if name == "MNIST":
            (tmp_path / "data").symlink_to(request.getfixturevalue("real_data"))
        else:
            pytest.importorskip(name, reason="of the extra `science`")
    for language, code, documented in BLOCK.findall(text):
        printed = run_block(language, code, tmp_path)
        assert [
            line
            for line in documented.splitlines()
            if line != "..." and not matches(line.strip(), printed)
        ] == [], printed
    assert [name for name, _ in PICTURE.findall(text) if not (tmp_path / name).exists()] == []


def test_numbers_are_compared_within_their_tolerance():
    printed = "log_z:  15.518 (exact 15.5219)\nessential\n1,438 images"
    assert matches("log_z: 15.51 ± 0.01 (exact 15.5219)", printed) and matches(
        "1,400 ± 100 images", printed
    )
    assert matches(
        "log_z: 15.51 ± 0.01 (exact 15.5219)", "a\nlog_z: 15.5180 ± 0.0007 (exact 15.5219)"
    )
    assert not matches("log_z: 15.49 ± 0.01 (exact 15.5219)", printed) and not matches(
        "log_z: 15.51", "log_z: 15.52"
    )


def main(name):
    """Run a page, print its output, and update its pictures."""
    page = TUTORIALS / f"{name}.md"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").symlink_to(Path(os.environ.get("BLACKOUT_DATA", "data")).resolve())
        for language, code, _ in BLOCK.findall(page.read_text()):
            print(f"--- {code.strip()}\n{run_block(language, code, folder)}", flush=True)
        for source, target in PICTURE.findall(page.read_text()):
            with Image.open(Path(folder) / source) as picture:
                if getattr(picture, "n_frames", 1) > 1:
                    (ROOT / "docs" / target).write_bytes((Path(folder) / source).read_bytes())
                    continue
                picture.thumbnail((PIXELS, PIXELS))
                picture.convert("P", palette=Image.Palette.ADAPTIVE).save(
                    ROOT / "docs" / target, optimize=True
                )


if __name__ == "__main__":
    main(sys.argv[1])
