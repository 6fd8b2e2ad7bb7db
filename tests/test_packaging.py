"""Lists of dependencies agree, and torch and torchvision match."""

import re
import shutil
import tomllib
from pathlib import Path

import yaml
from packaging.version import Version

from tests import release

ROOT = Path(__file__).parents[1]
TEXT = {"capture_output": True, "text": True}


def test_the_conda_environment_has_what_the_programs_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    extras = {
        name: needs
        for name, needs in project["optional-dependencies"].items()
        if name not in ("test", "docs", "peers")
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
