"""The two lists of dependencies say the same, and the pair that must match does."""

import tomllib
from importlib.metadata import requires
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_conda_and_pip_users_get_the_same_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    assert pip == project["dependencies"]
    assert f"python{project['requires-python']}" in entries


def test_the_installed_torchvision_was_built_for_the_installed_torch():
    import torch

    wanted = next(line for line in requires("torchvision") or [] if line.startswith("torch=="))
    assert wanted.split(";")[0].strip() == f"torch=={torch.__version__.split('+')[0]}"
