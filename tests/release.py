"""`make release`: what must agree before a version gets its tag, and the files that go to the index.

It makes dist/ and the tag v<version>, and uploads nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from blackout.version import __version__

ROOT = Path(__file__).parents[1]


def disagreements(root: Path, version: str) -> Iterator[str]:
    """What keeps the files of a checkout from being this version's, in words."""
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is None or cited[1] != version:
        yield f"CITATION.cff is of version {cited and cited[1]}, not {version}"
    newest = re.search(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest is None or not re.fullmatch(re.escape(version) + r" \(20\d\d-\d\d-\d\d\)", newest[1]):
        yield f"CHANGELOG.md begins with {newest and newest[1]!r}, not with {version!r} and its date"


def _told(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Check, build, install the wheel and call it, and tag."""
    wrong = [*disagreements(ROOT, __version__)]
    if _told("git", "status", "--porcelain"):
        wrong.append("there are changes that are not committed")
    if _told("git", "tag", "--list", f"v{__version__}"):
        wrong.append(f"v{__version__} has its tag already")
    if wrong:
        sys.exit("no release: " + "; ".join(wrong))
    archive = "import setuptools.build_meta as made; made.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", archive], cwd=ROOT, check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", "dist", "."], cwd=ROOT, check=True
    )
    (wheel,) = (ROOT / "dist").glob(f"*-{__version__}-*.whl")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder], check=True)
        python = f"{folder}/bin/python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel], check=True)
        found = subprocess.run(
            [python, "-c", "import blackout; print(blackout.__version__)"], cwd=folder, capture_output=True, text=True
        )
        if found.stdout.strip() != __version__:
            sys.exit(f"no release: the wheel says {found.stdout.strip()!r}: {found.stderr}")
    _told("git", "tag", "--annotate", f"v{__version__}", "--message", f"blackout {__version__}")
    print(f"dist/ holds {__version__}, and v{__version__} is the tag of {_told('git', 'rev-parse', '--short', 'HEAD')}")


if __name__ == "__main__":
    main()
