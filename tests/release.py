"""`make release`: check a version, build its files and tag it.

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
    """Describe the files of a checkout that do not match a version."""
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is None or cited[1] != version:
        yield f"CITATION.cff is of version {cited and cited[1]}, not {version}"
    newest = re.search(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest is None or not re.fullmatch(re.escape(version) + r" \(20\d\d-\d\d-\d\d\)", newest[1]):
        heading = newest and newest[1]
        yield f"CHANGELOG.md begins with {heading!r}, not with {version!r} and its date"


def _run_command(*command: str) -> str:
    """Return the output of a command."""
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    """Check, build, install and try the wheel, and tag."""
    problems = [*disagreements(ROOT, __version__)]
    if _run_command("git", "status", "--porcelain"):
        problems.append("there are changes that are not committed")
    if _run_command("git", "tag", "--list", f"v{__version__}"):
        problems.append(f"v{__version__} has its tag already")
    if problems:
        sys.exit("no release: " + "; ".join(problems))
    archive = "import setuptools.build_meta as backend; backend.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", archive], cwd=ROOT, check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", "dist", "."],
        cwd=ROOT,
        check=True,
    )
    (wheel,) = (ROOT / "dist").glob(f"*-{__version__}-*.whl")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder], check=True)
        python = f"{folder}/bin/python"
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel],
            check=True,
        )
        process = subprocess.run(
            [python, "-c", "import blackout; print(blackout.__version__)"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if process.stdout.strip() != __version__:
            sys.exit(f"no release: the wheel says {process.stdout.strip()!r}: {process.stderr}")
    commit = _run_command("git", "rev-parse", "--short", "HEAD")
    _run_command(
        "git", "tag", "--annotate", f"v{__version__}", "--message", f"blackout {__version__}"
    )
    print(f"dist/ holds {__version__}, and v{__version__} is the tag of {commit}")


if __name__ == "__main__":
    main()
