"""What a module loads, in a process that has torch and nothing else of weight."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"pytorch_lightning", "torchmetrics", "torchvision", "torch_fidelity", "matplotlib", "scipy", "sklearn"}
MODULES = (
    "blackout.data", "blackout.training.export", "blackout.diffusion", "blackout.diffusion.family",
    "blackout.programs.sample", "blackout.permutations", "blackout.permutations.coded",
)  # fmt: skip
CODE = """
import importlib, os, sys, torch, numpy
for module in sys.argv[1:]:
    if not os.fork():
        importlib.import_module(module)
        print(module, *{name.split(".")[0] for name in sys.modules}, flush=True)
        os._exit(0)
    os.wait()
"""


def test_nothing_heavy_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", CODE, *MODULES], capture_output=True, text=True, check=True)
    loaded = {line.split()[0]: set(line.split()[1:]) for line in done.stdout.splitlines()}
    assert loaded.keys() == set(MODULES)
    assert {module: HEAVY & names for module, names in loaded.items() if HEAVY & names} == {}
    assert "hydra" not in loaded["blackout.diffusion"]
