"""Lists of dependencies agree, torch and torchvision match, and a wheel is complete."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from tests import release
from tests.cli.conftest import TINY

ROOT = Path(__file__).parents[1]
TEXT = {"capture_output": True, "text": True}


def test_the_conda_environment_has_all_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    extras = {
        name: needs
        for name, needs in project["optional-dependencies"].items()
        if name not in ("test", "docs")
    }
    assert pip == project["dependencies"] + [
        requirement for needs in extras.values() for requirement in needs
    ]
    assert f"python{project['requires-python']}" in entries


def test_the_oldest_tested_versions_are_the_lower_bounds():
    """All test requirements except linters; torch and torchvision are named in the Makefile."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["test"]
    bounds = dict(
        re.match(r"([\w-]+)(?:>=([\d.]+))?", requirement).groups() for requirement in requirements
    )
    lines = (ROOT / "requirements-oldest.lock").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    makefile = (ROOT / "Makefile").read_text()
    for name in ("torch", "torchvision"):
        pins[name] = re.search(rf"^{name.upper()} \?= (\S+)$", makefile, re.MULTILINE)[1]
    assert bounds.keys() - pins.keys() == {"ruff", "mypy", "types-PyYAML"}
    for name, version in pins.items():  # 2.0 and 2.0.0 are one version
        assert Version(version) == Version(bounds[name]), name


def test_a_release_needs_the_same_version_everywhere(tmp_path):
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    for heading, number in (
        ("0.1.0 (not yet released)", 1),
        ("0.1.0 (2027-01-31)", 0),
        ("0.2.0 (2027-01-31)", 1),
    ):
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n")
        assert len([*release.disagreements(tmp_path, "0.1.0")]) == number
    assert any("CITATION.cff" in problem for problem in release.disagreements(tmp_path, "0.3.0"))


def test_the_installed_torchvision_matches_torch():
    """An unmatched pair fails here with "operator torchvision::nms does not exist"."""
    import torch
    from torchvision.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    assert nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 2]


@pytest.mark.deep
def test_a_wheel_trains_in_another_folder(tmp_path):
    """Like `pip install .`: built, installed and used outside the repository, without a network."""
    source = tmp_path / "source"
    home = tmp_path / "home"
    work = tmp_path / "work"
    work.mkdir()
    for name in ("blackout", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "wheel", *offline, "--no-build-isolation", "-w", tmp_path, source], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    options = ["--ignore-installed", "--no-warn-script-location", "--prefix", home]
    subprocess.run([*pip, "install", *offline, *options, wheel], check=True)
    library = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    assert (Path(library) / "blackout" / "py.typed").exists()
    environment = {**os.environ, "PYTHONPATH": library, "OMP_NUM_THREADS": "1"}
    command = [home / "bin" / "blackout", "train", *TINY, "trainer.max_steps=2", "run_id=a"]
    trained = subprocess.run(command, cwd=work, env=environment, **TEXT)
    assert trained.returncode == 0, trained.stderr
    assert (work / "runs" / "digits" / "a" / "report.html").exists()
    refused = subprocess.run(
        [home / "bin" / "blackout", "sample", "num_sample=3"], cwd=work, env=environment, **TEXT
    )
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: num_sample: no such option (did you mean num_samples?)\n",
    )
    verify_help = subprocess.run(
        [home / "bin" / "blackout", "verify", "--help"], cwd=work, env=environment, **TEXT
    )
    assert verify_help.returncode == 0 and "--process" in verify_help.stdout
