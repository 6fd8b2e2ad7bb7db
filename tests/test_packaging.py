"""The two lists of dependencies say the same, and the pair that must match does."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_conda_and_pip_users_get_the_same_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    assert pip == project["dependencies"]
    assert f"python{project['requires-python']}" in entries


def test_the_installed_torchvision_fits_the_installed_torch():
    """An unmatched pair fails here with "operator torchvision::nms does not exist"."""
    import torch
    from torchvision.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    assert nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 2]
