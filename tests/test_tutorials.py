"""Every tutorial is executed from its blocks, in a fresh folder, and the figures that it shows hold.

A `text` block after a `bash` or `python` block has lines of what that prints. `1.72 +- .05` says how far a figure may
be off; all other numbers and words are as printed. A comment `<!-- from FILE -->` names the file of the run that the
picture below it is a copy of, `<!-- needs NAME -->` a library, or MNIST, which is in the folder `data` then.
`python -m tests.test_tutorials digits` runs a page, prints what its blocks print, and renews its pictures.
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
FIGURE = re.compile(r"(-?[\d,]*\.?\d+) \+- ([\d,]*\.?\d+)")
BEHIND = re.compile(r"^(\S+: +-?[\d.,]+) (?:\+-|±) [\d.]+", re.MULTILINE)
"""The standard error behind a printed value, in whose place pages have their tolerance."""
PIXELS = 900
"""Pictures are at most so wide."""


def executed(language, code, folder):
    """What a block prints, all of its commands run one after another."""
    lines = code.replace("\\\n", " ").splitlines()
    commands = (
        [["python", "-c", code]] if language == "python" else [shlex.split(line, comments=True) for line in lines]
    )
    printed = ""
    for words in filter(None, commands):
        if words[0] == "blackout":
            words = ["python", "-m", *words]
        assert words[0] == "python"
        words = [
            sys.executable,
            str(ROOT / words[1]) if words[1] in ("train.py", "sample.py") else words[1],
            *words[2:],
        ]
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed += done.stdout
    return printed


def holds(line, printed):
    """Whether a line of a `text` block is in what was printed, each of its figures within its tolerance."""
    words, figures = FIGURE.split(line)[::3], FIGURE.findall(line)
    pattern = r"(-?[\d,]*\.?\d+)".join(re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(part)) for part in words)
    printed = BEHIND.sub(r"\1", printed)
    return any(
        all(abs(number(a) - number(b)) <= number(off) for a, (b, off) in zip(found.groups(), figures, strict=True))
        for found in re.finditer(pattern, printed)
    )


def number(text):
    return float(text.replace(",", ""))


@pytest.mark.deep
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_runs_and_its_figures_hold(page, tmp_path, request):
    text = page.read_text()
    for name in re.findall(r"<!-- needs (\w+) -->", text):
        if name == "MNIST":
            (tmp_path / "data").symlink_to(request.getfixturevalue("real_data"))
        else:
            pytest.importorskip(name, reason="of the extra `science`")
    for language, code, shown in BLOCK.findall(text):
        printed = executed(language, code, tmp_path)
        assert [line for line in shown.splitlines() if line != "..." and not holds(line.strip(), printed)] == [], (
            printed
        )
    assert [name for name, _ in PICTURE.findall(text) if not (tmp_path / name).exists()] == []


def test_figures_are_compared_within_their_tolerance():
    printed = "log_z:  15.518 (exact 15.5219)\nessential\n1,438 images"
    assert holds("log_z: 15.51 +- .01 (exact 15.5219)", printed) and holds("1,400 +- 100 images", printed)
    assert holds("log_z: 15.51 +- .01 (exact 15.5219)", "a\nlog_z: 15.5180 +- 0.0007 (exact 15.5219)")
    assert not holds("log_z: 15.49 +- .01 (exact 15.5219)", printed) and not holds("log_z: 15.51", "log_z: 15.52")


def main(name):
    page = TUTORIALS / f"{name}.md"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").symlink_to(Path(os.environ.get("BLACKOUT_DATA", "data")).resolve())
        for language, code, _ in BLOCK.findall(page.read_text()):
            print(f"--- {code.strip()}\n{executed(language, code, folder)}", flush=True)
        for made, shown in PICTURE.findall(page.read_text()):
            with Image.open(Path(folder) / made) as picture:
                if getattr(picture, "n_frames", 1) > 1:
                    (ROOT / "docs" / shown).write_bytes((Path(folder) / made).read_bytes())
                    continue
                picture.thumbnail((PIXELS, PIXELS))
                picture.convert("P", palette=Image.Palette.ADAPTIVE).save(ROOT / "docs" / shown, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
