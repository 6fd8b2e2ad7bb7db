"""Lightning's Trainer: arguments that are checked before anything is made, and the table of its profiler."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.profilers import PassThroughProfiler

from blackout.errors import UserError
from blackout.family import ChoosesLength, Family, Source
from blackout.programs.words import asked_for
from blackout.training.components import check_arguments, find

_OURS = {
    "logger": "logger=none, tensorboard, wandb or [tensorboard,wandb]",
    "callbacks": "+callbacks.<name>={_target_: ...}",
    "default_root_dir": "runs_dir=...",
    "enable_progress_bar": "callbacks.progress=null",
    "enable_checkpointing": "callbacks.checkpoints.every_n_steps=...",
    "fast_dev_run": "debug=fast",
    "plugins": None,
    "use_distributed_sampler": None,
    "reload_dataloaders_every_n_epochs": None,
}
"""Arguments that this program gives itself, and what to say instead."""
_COUNTS = {"max_steps", "val_check_interval", "accumulate_grad_batches", "num_nodes"}
_IN_EPOCHS = ("max_epochs", "min_epochs", "check_val_every_n_epoch")


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Refuse what cannot be an argument of the Trainer, and a length that is none.

    Raises:
        UserError: the message says what to give instead.
    """
    given = {name: value for name, value in settings.items() if not name.startswith("_")}
    for name in given.keys() & _OURS.keys():
        instead = f": say {_OURS[name]}" if _OURS[name] else ""
        raise UserError(f"trainer.{name} is set by the program{instead}")
    check_arguments(find(settings, "trainer"), given, "trainer", partial=True)
    _check_numbers(given)


def _check_numbers(given: Mapping[str, Any]) -> None:
    for name in sorted(_COUNTS & given.keys()):
        if given[name] is not None and (type(given[name]) is not int or given[name] < 1):
            raise UserError(f"trainer.{name} must be a whole number of at least 1, not {given[name]}")
    norm = given.get("gradient_clip_val")
    if norm is not None and not (isinstance(norm, int | float) and 0 <= norm < math.inf):
        raise UserError(f"trainer.gradient_clip_val must be at least 0 (no clipping) and finite, not {norm}")


def with_length(config: dict[str, Any], family: Family, source: Source) -> dict[str, Any]:
    """The settings with a number of steps: where it is null the family's, over which the learning rate decays too.

    Raises:
        UserError: it is null, and the family chooses none.
    """
    if config["trainer"]["max_steps"] is not None:
        return config
    if not isinstance(family, ChoosesLength):
        raise UserError("trainer.max_steps must be a whole number of at least 1, not null")
    steps, optimizer = family.length(config, source), config["optimizer"]
    follows = optimizer.get("decay_steps", steps) is None and not asked_for("optimizer.decay_steps")
    decay = {"decay_steps": steps} if follows else {}
    return config | {"trainer": config["trainer"] | {"max_steps": steps}, "optimizer": optimizer | decay}


def check_length(config: Mapping[str, Any], source: Source) -> None:
    """Refuse a length in epochs, which the endless stream of batches does not have, and say what it is in steps.

    Raises:
        UserError: there is one.
    """
    settings, size = config["trainer"], source.size("train")
    images = config["batch_size"] * (settings.get("accumulate_grad_batches") or 1)
    for name in _IN_EPOCHS:
        epochs, steps = settings.get(name), "max_steps" if name != "check_val_every_n_epoch" else "val_check_interval"
        if epochs is None:
            continue
        told = f"trainer.{name}={epochs}: lengths are in steps here"
        if size and isinstance(epochs, int) and epochs > 0:
            told += f", trainer.{steps}={math.ceil(epochs * size / images)} is as many epochs of {source.name}"
        raise UserError(told)


def check_batch(config: Mapping[str, Any], source: Source) -> None:
    """Refuse a batch of which three copies as float32 are more than this machine's memory: any step holds more.

    Raises:
        UserError: how much memory it would need.
    """
    need = 3 * 4 * config["batch_size"] * math.prod(source.facts.get("shape", ()))
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > here:
        told = f"would need at least {need / 1e9:,.0f} GB, of {here / 1e9:,.0f} GB here"
        raise UserError(f"batch_size={config['batch_size']}: a step {told}; see trainer.accumulate_grad_batches")


def describe_profile(trainer: pl.Trainer) -> None:
    """Print the table of `trainer.profiler`, which Lightning would log where nobody sees it."""
    if trainer.is_global_zero and not isinstance(trainer.profiler, PassThroughProfiler):  # type: ignore[attr-defined]
        print(trainer.profiler.summary(), flush=True)  # type: ignore[attr-defined]
