"""What a run starts from: a fresh model, another one's weights, or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blackout.errors import UserError
from blackout.family import Family, Source
from blackout.random import fold_seed
from blackout.training.checkpoint_files import PREVIOUS, find_checkpoint, read_checkpoint, set_damaged_aside
from blackout.training.model import INITIALISATION, Model


def make_model(family: Family, config: Mapping[str, Any], source: Source) -> Model:
    """The untrained model for `source`, initialised from the seed."""
    description = {"family": config["family"], **family.describe(config, source)}
    torch.manual_seed(fold_seed(config["seed"], INITIALISATION))
    model: Model = family.build(
        description, family.tensors(source), settings=config, ema_decay=ema_decay(config), seed=config["seed"]
    )
    model.source = lambda: source
    return model


def ema_decay(config: Mapping[str, Any]) -> float | None:
    """The decay of the averaged weights per optimiser step: `ema_decay`, or from `ema_half_life` in images.

    Returns:
        None for no average: a decay of 0 or null.

    Raises:
        UserError: a half-life that is not positive.
    """
    half_life = config["ema_half_life"]
    if half_life is None:
        return float(config["ema_decay"]) if config["ema_decay"] else None
    if isinstance(half_life, bool) or not isinstance(half_life, int | float) or not half_life > 0:
        raise UserError(f"ema_half_life must be a positive number of images, or null, not {half_life!r}")
    images = config["batch_size"] * (config["trainer"].get("accumulate_grad_batches") or 1)
    return float(0.5 ** (images / half_life))


def continued(directory: Path, other: str | None) -> tuple[Path | None, dict[str, Any] | None]:
    """The checkpoint from which the run in a directory continues, with its contents.

    Args:
        directory: of the run.
        other: a checkpoint, or the directory of a run, from which a run that has none of its own goes on.

    Raises:
        UserError: there is no such checkpoint, or it is damaged.
    """
    last = find_checkpoint(directory / "checkpoints")
    if last is None and other is not None:
        given = Path(other).expanduser()
        last = given if given.is_file() else find_checkpoint(given / "checkpoints") or find_checkpoint(given)
        if last is None:
            raise UserError(f"ckpt_path={other}: there is no checkpoint")
    if last is None:
        return None, None
    checkpoint = read_checkpoint(last)
    if last.name == PREVIOUS and last.is_relative_to(directory) and getattr(rank_zero_only, "rank", 0) == 0:
        set_damaged_aside(last.parent)
    return last, checkpoint
