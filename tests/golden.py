"""The first losses and gradient norms of every family's default recipe, kept in tests/golden.json.

A commit that changes a number that training computes changes that file, and says why. `python -m tests.golden --renew`
writes it anew, of all families or of those that are named; without `--renew` what is computed is compared, and the exit
code is 1 where it differs.

In single precision on one thread of a CPU: the losses of the first 50 steps of the recipe as `train.py` takes it, and
the norms of the gradients of the first 20, before clipping. Where a recipe draws states or permutations by its own
outputs, rounding grows from step to step. On one machine with the kernels of AVX-512, of AVX2 and of neither (variables
ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS) a step's loss and norm agree to 4e-6, except for
graphs, and for shuffles, where fewer steps are kept: those that agree to 1e-5.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch.nn.utils import get_total_norm

from blackout.cli import train as program
from blackout.config.compose import compose

FILE = Path(__file__).with_suffix(".json")
RECIPES = {
    "blackout": [],
    "flow": ["experiment=flow_ising"],
    "graphs": ["experiment=dnfs/table1", "recipe=flow/sets"],
    "energy": [
        "experiment=dnfs/table4", "recipe=energy/couplings", "target.size=4", "start=zero", "trainer.max_steps=4400",
    ],
    "shuffle": ["family=shuffle", "dataset=jigsaw_digits"],
    "codes": ["family=codes", "dataset=cycles"],
}  # fmt: skip
"""What is typed after `python train.py`."""
STEPS = dict.fromkeys(RECIPES, (50, 20)) | {"graphs": (40, 12), "shuffle": (8, 2)}
"""Losses and norms that are kept."""
ALWAYS = (
    "trainer.accelerator=cpu", "trainer.devices=1", "trainer.precision=32-true", "trainer.limit_val_batches=0",
    "callbacks.progress=null", "callbacks.samples=null", "callbacks.scores=null",
    "+callbacks.golden._target_=tests.golden.Recorder", "+callbacks.golden.steps={}",
)  # fmt: skip


class Enough(Exception):
    """Carries what was recorded out of a run that needs no end."""

    def __init__(self, found: dict[str, list[float]]) -> None:
        super().__init__()
        self.found = found


class Recorder(Callback):
    """Notes losses and gradient norms, and leaves the run after so many steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._losses: list[float] = []
        self._norms: list[float] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
        self._norms.append(float(get_total_norm([p.grad for p in pl_module.parameters() if p.grad is not None])))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, *_: Any) -> None:
        self._losses.append(float(outputs["loss"]))
        if len(self._losses) == self._steps:
            raise Enough({"losses": self._losses, "gradient norms": self._norms})


def recorded(family: str, first: int | None = None) -> dict[str, list[float]]:
    """What a family's default recipe computes now, in its first few steps or in as many as are kept."""
    threads, (steps, norms) = torch.get_num_threads(), STEPS[family]
    steps = min(steps, first or steps)
    torch.set_num_threads(1)
    always = [word.format(steps) for word in ALWAYS]
    with tempfile.TemporaryDirectory() as folder:
        try:
            program.train(compose("train", [*RECIPES[family], *always, f"runs_dir={folder}"]))
        except Enough as enough:
            return {**enough.found, "gradient norms": enough.found["gradient norms"][:norms]}
        finally:
            torch.set_num_threads(threads)
    raise AssertionError(f"{family}: the recipe has fewer than {steps} steps")


def differences(stored: dict[str, list[float]], found: dict[str, list[float]], relative: float = 1e-5) -> list[str]:
    """What differs, in words: of losses and of norms the first. What was not found is not compared."""
    told = []
    for kind in stored:
        for step, (old, new) in enumerate(zip(stored[kind], found[kind], strict=False), 1):
            if not math.isclose(old, new, rel_tol=relative):
                told.append(f"{kind}: {old:.8g} of step {step} is now {new:.8g}")
                break
    return told


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="family", help=f"of {', '.join(RECIPES)}; none: all of them")
    parser.add_argument("--renew", action="store_true", help="write what is computed now")
    parser.add_argument("--first", type=int, help="steps to compare; none: all that are kept")
    options = parser.parse_args(argv)
    if options.renew and options.first:
        parser.error("all steps are kept: --renew without --first")
    stored: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    moved = False
    for family in options.families or RECIPES:
        found = recorded(family, options.first)
        told = differences(stored[family], found) if family in stored else ["not stored yet"]
        print(f"{family}: {'; '.join(told) or 'as stored'}")
        stored[family], moved = found, moved or bool(told)
    if options.renew:
        ordered = {name: stored[name] for name in RECIPES if name in stored}
        FILE.write_text(json.dumps(ordered, indent=1) + "\n")
    return int(moved and not options.renew)


if __name__ == "__main__":
    from tests import golden  # whose `Enough` the callback raises

    sys.exit(golden.main())
