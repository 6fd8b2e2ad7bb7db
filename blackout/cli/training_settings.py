"""Settings of a run that need more than a type check: length, precision, Trainer arguments."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch

from blackout.cli.cost import bfloat16_ratio
from blackout.cli.run_directory import read_setting
from blackout.component import Plain
from blackout.config.arguments import check_arguments
from blackout.config.instantiate import find_target
from blackout.config.settings import is_overridden
from blackout.distributed import has_bfloat16, is_first
from blackout.errors import UserError, refuse
from blackout.protocols import Source
from blackout.training.family import ComponentFamily

# argument of the Trainer that this program sets itself -> what to type instead
PROGRAM_ARGUMENTS = {
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
COUNT_ARGUMENTS = (
    "accumulate_grad_batches",
    "log_every_n_steps",
    "max_steps",
    "num_nodes",
    "val_check_interval",
)
MAX_COUNT = 10**10  # no run could take more steps
# argument of the Trainer in epochs -> the one in steps
STEP_ARGUMENTS = {
    "max_epochs": "max_steps",
    "min_epochs": "max_steps",
    "check_val_every_n_epoch": "val_check_interval",
}
MAX_BFLOAT16_RATIO = 0.75  # a convolution must be this much faster for a whole step to be faster


def check_trainer_settings(settings: Plain) -> None:
    """Refuse what cannot be an argument of the Trainer.

    Raises:
        UserError: the message says what to type instead.
    """
    arguments = {name: value for name, value in settings.items() if not name.startswith("_")}
    for name in arguments.keys() & PROGRAM_ARGUMENTS.keys():
        instead = f"; use {PROGRAM_ARGUMENTS[name]}" if PROGRAM_ARGUMENTS[name] else ""
        raise UserError(f"trainer.{name} is set by the program{instead}")
    for name in COUNT_ARGUMENTS:
        value = arguments.get(name)
        is_count = type(value) is int and 1 <= value <= MAX_COUNT
        if value is not None and not is_count:
            raise UserError(
                f"trainer.{name} must be a whole number from 1 to {MAX_COUNT:,}, not {value}"
            )
    num_checked = arguments.get("num_sanity_val_steps", 0)
    if type(num_checked) is not int or num_checked < -1:
        raise UserError(
            "trainer.num_sanity_val_steps must be a whole number of validation batches, or -1 for "
            f"all, not {num_checked}"
        )
    check_arguments(find_target(settings, "trainer"), arguments, "trainer", is_partial=True)
    max_norm = arguments.get("gradient_clip_val")
    if max_norm is not None and not (
        isinstance(max_norm, int | float) and 0 <= max_norm < math.inf
    ):
        raise UserError(
            f"trainer.gradient_clip_val must be finite and at least 0 (no clipping), not {max_norm}"
        )


def refuse_epochs(config: Plain, source: Source) -> None:
    """Refuse lengths in epochs: training batches are an endless stream, counted in steps.

    Raises:
        UserError: the message gives the length in steps.
    """
    settings = config["trainer"]
    num_samples = source.size("train")
    step_size = config["batch_size"] * (settings.get("accumulate_grad_batches") or 1)
    for name, instead in STEP_ARGUMENTS.items():
        epochs = settings.get(name)
        if epochs is None:
            continue
        message = f"trainer.{name}={epochs}: lengths are in optimiser steps"
        if num_samples and isinstance(epochs, int) and epochs > 0:
            steps = math.ceil(epochs * num_samples / step_size)
            message += f"; trainer.{instead}={steps} is as many epochs of {source.name}"
        raise UserError(message)


def check_validation_data(config: Plain, source: Source) -> None:
    """Refuse to choose the best checkpoint without validation data.

    Raises:
        UserError: `restore_best`, early stopping, or a monitor on the command line, for a source
            without such data.
    """
    if source.size("val") != 0:
        return
    checkpoints = (config["callbacks"] or {}).get("checkpoints") or {}
    problem = f"the best checkpoint is chosen on validation data, and {source.name} has none"
    remedy = "dataset.validation=0.1 takes some from the training data"
    refuse(
        checkpoints.get("restore_best"),
        f"{problem}; {remedy}, or use callbacks.checkpoints.restore_best=false",
    )
    refuse(
        (config["callbacks"] or {}).get("early_stopping"),
        f"{problem}; {remedy}, or use callbacks.early_stopping=null",
    )
    refuse(
        is_overridden("callbacks.checkpoints.monitor"),
        f"{problem}; {remedy}, or omit callbacks.checkpoints.monitor",
    )


def choose_length(
    config: dict[str, Any], family: ComponentFamily, source: Source
) -> dict[str, Any]:
    """Return the settings with the family's number of steps if `trainer.max_steps` is null.

    A decay of the learning rate then takes as many steps.

    Raises:
        UserError: it is null, and the family chooses none.
    """
    if config["trainer"]["max_steps"] is not None:
        return config
    steps = family.default_steps(config, source)
    optimizer = config["optimizer"]
    decays = "decay_steps" in optimizer and optimizer["decay_steps"] is None
    if decays and not is_overridden("optimizer.decay_steps"):
        optimizer = optimizer | {"decay_steps": steps}
    trainer = config["trainer"] | {"max_steps": steps}
    return config | {"trainer": trainer, "optimizer": optimizer}


def apply_precision(config: dict[str, Any], run: Path) -> dict[str, Any]:
    """Return the settings with a precision in place of `auto`.

    If it turns out to be float32, a recipe's sampler does not use bfloat16 either.
    """
    settings = config["trainer"]
    if settings.get("precision") != "auto":
        return config
    precision, reason = choose_precision(settings, run)
    if is_first():
        print(f"precision: {precision}, {reason}")
    sampler = config.get("sampler") or {}
    is_recipe_choice = sampler.get("bfloat16") and not is_overridden("sampler.bfloat16")
    if precision == "32-true" and is_recipe_choice:
        config = config | {"sampler": sampler | {"bfloat16": False}}
    return config | {"trainer": settings | {"precision": precision}}


def choose_precision(settings: Plain, run: Path) -> tuple[str, str]:
    """Return the Trainer's precision for this machine, and the reason in words.

    A run that continues keeps its precision. An accelerator uses bfloat16 if it has it. A single
    CPU process uses what a short trial finds faster; several must agree, and use float32.
    """
    earlier = read_setting(run, "trainer", "precision")
    if earlier is not None:
        return earlier, "as in the run so far"
    if settings.get("accelerator", "auto") != "cpu":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is not None and has_bfloat16(accelerator):
            return "bf16-mixed", "on an accelerator"
        if accelerator is not None:
            return "32-true", "on an accelerator that is not known to have bfloat16"
    is_launched = bool({"WORLD_SIZE", "SLURM_NTASKS"} & os.environ.keys())
    if is_launched or settings.get("devices", "auto") not in (1, "auto"):
        return "32-true", "in several processes"
    ratio = bfloat16_ratio()
    precision = "bf16-mixed" if ratio < MAX_BFLOAT16_RATIO else "32-true"
    return precision, f"bfloat16 takes {ratio:.2f} times as long as float32 here, in a short trial"
