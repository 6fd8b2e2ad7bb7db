"""What a module loads, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"pytorch_lightning", "torchmetrics", "torchvision", "torch_fidelity", "matplotlib", "scipy", "sklearn"}


@pytest.mark.parametrize("module", ["blackout.data", "blackout.training.stream"])
def test_loads_nothing_heavy(module: str) -> None:
    command = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert HEAVY & set(loaded.split()) == set()
