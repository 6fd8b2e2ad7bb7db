"""What a module loads, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"pytorch_lightning", "torchmetrics", "torchvision", "torch_fidelity", "matplotlib", "scipy", "sklearn"}


MODULES = (
    "blackout.data",
    "blackout.training.export",
    "blackout.diffusion.family",
    "blackout.programs.sample",
    "blackout.permutations",
)


@pytest.mark.parametrize("module", MODULES)
def test_loads_nothing_heavy(module: str) -> None:
    command = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert HEAVY & set(loaded.split()) == set()
