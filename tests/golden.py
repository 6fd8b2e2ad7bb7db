"""The first losses and gradient norms of every family's default recipe, stored in
tests/golden.json.

A commit that changes a number computed in training changes that file, and explains why. `python -m
tests.golden --renew` rewrites it, for all families or for the named ones. Without `--renew`,
current values are compared, and the exit code is 1 if they differ.

Values are computed in single precision on one CPU thread: the losses of the first 50 steps of the
recipe with the settings of `train.py`, and the norms of the gradients of the first 20, before
clipping. If a recipe samples states or permutations from its own outputs, rounding errors grow from
step to step. On one machine with the kernels of AVX-512, of AVX2 and of neither (variables
ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS), losses and norms agree to
4e-6. The exceptions are graphs and shuffles, for which only the steps that agree to 1e-5 are
stored.
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
# arguments of `train.py`
RECIPES = {
    "blackout": [],
    "flow": ["experiment=flow_ising"],
    "graphs": ["experiment=dnfs/table1", "recipe=flow/sets"],
    "energy": [
        "experiment=dnfs/table4",
        "recipe=energy/couplings",
        "target.size=4",
        "start=zero",
        "trainer.max_steps=4400",
    ],
    "shuffle": ["family=shuffle", "dataset=jigsaw_digits"],
    "codes": ["family=codes", "dataset=cycles"],
}
# numbers of stored losses and gradient norms
STEPS = dict.fromkeys(RECIPES, (50, 20)) | {"graphs": (40, 12), "shuffle": (8, 2)}
COMMON_SETTINGS = (
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.precision=32-true",
    "trainer.limit_val_batches=0",
    "callbacks.progress=null",
    "callbacks.samples=null",
    "callbacks.scores=null",
    "+callbacks.golden._target_=tests.golden.Recorder",
    "+callbacks.golden.steps={}",
)


class RecordingFinished(Exception):
    """Ends a run and carries the recorded values."""

    def __init__(self, values: dict[str, list[float]]) -> None:
        super().__init__()
        self.values = values


class Recorder(Callback):
    """Records losses and gradient norms, and ends the run after a number of steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._losses: list[float] = []
        self._norms: list[float] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
        self._norms.append(
            float(get_total_norm([p.grad for p in pl_module.parameters() if p.grad is not None]))
        )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, *_: Any
    ) -> None:
        self._losses.append(float(outputs["loss"]))
        if len(self._losses) == self._steps:
            raise RecordingFinished({"losses": self._losses, "gradient norms": self._norms})


def record_recipe(family: str, first: int | None = None) -> dict[str, list[float]]:
    """Return what a family's default recipe computes in its first steps, by default in all stored
    ones."""
    threads = torch.get_num_threads()
    (steps, norms) = STEPS[family]
    steps = min(steps, first or steps)
    torch.set_num_threads(1)
    common_settings = [setting.format(steps) for setting in COMMON_SETTINGS]
    with tempfile.TemporaryDirectory() as folder:
        try:
            program.train(
                compose("train", [*RECIPES[family], *common_settings, f"runs_dir={folder}"])
            )
        except RecordingFinished as finished:
            return {**finished.values, "gradient norms": finished.values["gradient norms"][:norms]}
        finally:
            torch.set_num_threads(threads)
    raise AssertionError(f"{family}: the recipe has fewer than {steps} steps")


def differences(
    stored: dict[str, list[float]], actual: dict[str, list[float]], relative: float = 1e-5
) -> list[str]:
    """Describe the first differing loss and the first differing norm.

    Values that were not recorded are not compared.
    """
    messages = []
    for kind in stored:
        for step, (old, new) in enumerate(zip(stored[kind], actual[kind], strict=False), 1):
            if not math.isclose(old, new, rel_tol=relative):
                messages.append(f"{kind}: {old:.8g} of step {step} is now {new:.8g}")
                break
    return messages


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "families", nargs="*", metavar="family", help=f"of {', '.join(RECIPES)}; none: all of them"
    )
    parser.add_argument("--renew", action="store_true", help="write what is computed now")
    parser.add_argument("--first", type=int, help="steps to compare; none: all that are kept")
    options = parser.parse_args(argv)
    if options.renew and options.first:
        parser.error("all steps are kept: --renew without --first")
    stored: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    changed = False
    for family in options.families or RECIPES:
        actual = record_recipe(family, options.first)
        messages = differences(stored[family], actual) if family in stored else ["not stored yet"]
        print(f"{family}: {'; '.join(messages) or 'as stored'}")
        stored[family] = actual
        changed = changed or bool(messages)
    if options.renew:
        ordered = {name: stored[name] for name in RECIPES if name in stored}
        FILE.write_text(json.dumps(ordered, indent=1) + "\n")
    return int(changed and not options.renew)


if __name__ == "__main__":
    from tests import golden  # the module whose exception the callback raises

    sys.exit(golden.main())
