"""`train.py`: from a configuration to a trained, sampled and exported model in its run directory."""

from __future__ import annotations

import json
import logging
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from blackout.data import CountData, DataModule
from blackout.diffusion.module import BlackoutDiffusion
from blackout.diffusion.streams import fold_seed
from blackout.errors import UserError
from blackout.training.build import MODEL_PARTS, build_model, instantiate, model_config, refusals
from blackout.training.export import export_model, read_checkpoint
from blackout.training.images import save_grid
from blackout.training.metrics_csv import MetricsCSV
from blackout.training.run_directory import open_run

_INITIALISATION = 1000
_CLOSING_SAMPLES = 64
_PILOT_SAMPLES = 64
_PILOT_STEPS = 20, 200
SETTINGS = frozenset(
    (*MODEL_PARTS, "optimizer", "trainer", "callbacks", "logger", "metrics", "dataset", "seed", "batch_size", "flip")
    + ("ema_decay", "conditional", "label_dropout", "data_dir", "runs_dir", "experiment_name", "run_id")
)


_KINDS = {
    **dict.fromkeys(("seed", "batch_size", "num_samples"), int),
    **dict.fromkeys(("flip", "trajectory", "conditional"), bool),
    **dict.fromkeys(("ema_decay", "label_dropout"), float),
}
_KIND_NAMES = {int: "a whole number", bool: "true or false", float: "a number"}


def resolve(cfg: DictConfig, settings: frozenset[str]) -> dict[str, Any]:
    """The configuration as plain containers.

    Raises:
        UserError: a setting this program does not know (an addition with +), or one it needs and was taken away.
    """
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    for name in sorted(config.keys() ^ settings):
        raise UserError(f"{name}: no such option" if name in config else f"{name} must be given")
    for name, kind in _KINDS.items():
        if name in config and type(config[name]) is not kind:
            raise UserError(f"{name} must be {_KIND_NAMES[kind]}, not {config[name]!r}")
    return config


def train(cfg: DictConfig) -> Path:
    """Train the configured model, or continue it, and leave model, samples and scores in the run directory.

    Everything that a wrong setting or file can break is done before the first long step.

    Raises:
        UserError: a setting, a file or the output directory is not usable.
    """
    config = resolve(cfg, SETTINGS)
    quieten()
    data = instantiate(config["dataset"], "dataset")
    module = make_module(config, data)
    if config["trainer"]["max_steps"] < 1:
        raise UserError(f"trainer.max_steps must be at least 1, not {config['trainer']['max_steps']}")
    with refusals("dataset"):
        data_module = DataModule(data, config["batch_size"], config["seed"], config["flip"])
    with refusals("sampler"):  # one small sample: does the head predict what the kernel needs?
        module.sample(1, sampler=replace(module.sampler, num_steps=2))
    run = open_run(config, data.name)
    trainer = make_trainer(config, run)
    last = run / "checkpoints" / "last.ckpt"
    if last.exists():
        read_checkpoint(last)
    print_summary(module, data, config, run, resumed=last.exists())
    trainer.fit(module, data_module, ckpt_path=str(last) if last.exists() else None, weights_only=True)
    finish(trainer, module, data_module, run)
    return run


def make_module(config: dict[str, Any], data: CountData) -> BlackoutDiffusion:
    """The untrained module for `data`, initialised from the seed."""
    description = model_config(config, data)
    torch.manual_seed(fold_seed(config["seed"], _INITIALISATION))
    optimization = instantiate(config["optimizer"], "optimizer")
    with refusals("model"):
        return build_model(
            description,
            mean=mean_image(data.train),
            optimization=optimization,
            ema_decay=config["ema_decay"],
            seed=config["seed"],
            label_dropout=config["label_dropout"],
        )


def mean_image(counts: Tensor) -> Tensor:
    """E[X_0] per element, float32, without a floating-point copy of the data."""
    return (counts.sum(0, dtype=torch.int64).double() / len(counts)).float()


def make_trainer(config: dict[str, Any], run: Path) -> pl.Trainer:
    """Lightning's trainer with the configured callbacks and loggers; metrics.csv is always written."""
    loggers = [MetricsCSV(run / "metrics.csv")]
    if config["logger"]:
        loggers.append(instantiate(config["logger"], "logger", save_dir=str(run)))
    folders = {"checkpoints": run / "checkpoints", "samples": run / "samples"}
    callbacks = [
        instantiate(callback, f"callbacks.{name}", **({"directory": str(folders[name])} if name in folders else {}))
        for name, callback in (config["callbacks"] or {}).items()
        if callback
    ]
    return instantiate(
        config["trainer"], "trainer", logger=loggers, callbacks=callbacks, default_root_dir=str(run),
        use_distributed_sampler=False,
        enable_progress_bar=bool((config["callbacks"] or {}).get("progress")),
    )  # fmt: skip


def finish(trainer: pl.Trainer, module: BlackoutDiffusion, data_module: DataModule, run: Path) -> None:
    """Score the final model, export it, and draw the closing samples.

    Neither scoring nor drawing evaluates the network on more images than training did, so that a run of three steps
    of a large network does not end in an hour of sampling.
    """
    budget = trainer.global_step * trainer.accumulate_grad_batches * data_module.batch_size
    allowed = max(1, budget // data_module.batch_size)
    if allowed < trainer.limit_val_batches or isinstance(trainer.limit_val_batches, float):
        trainer.limit_val_batches = min(allowed, len(data_module.val_dataloader()))
    scores = dict(trainer.validate(module, data_module, verbose=False)[0])
    if not trainer.is_global_zero:
        return
    if budget // _PILOT_SAMPLES >= _PILOT_STEPS[0]:
        module.config["pilot"] = module.pilot(_PILOT_SAMPLES, min(budget // _PILOT_SAMPLES, _PILOT_STEPS[1]))
    export_model(module, run / "model")
    steps = min(module.sampler.num_steps, max(10, budget // _CLOSING_SAMPLES))
    counts = module.sample(_CLOSING_SAMPLES, sampler=replace(module.sampler, num_steps=steps))
    save_grid(counts, module.process.max_count, run / "samples" / "final.png")
    save_samples(counts, run / "samples" / "final.npz")
    scores.update({"steps": trainer.global_step, "sampling_steps": steps})
    (run / "metrics.json").write_text(json.dumps(scores, indent=2) + "\n")
    print(f"held-out bits per dimension (upper bound): {scores['val/bits_per_dim']:.4f}")
    print(f"samples: {run / 'samples' / 'final.png'}\nmodel:   {run / 'model'}")


def save_samples(counts: Tensor, path: Path) -> None:
    """Write counts as `samples` in an .npz, images channels last; the file appears whole or not at all."""
    channels_last = counts.permute(0, 2, 3, 1).contiguous() if counts.ndim == 4 else counts
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        np.savez_compressed(file, samples=channels_last.numpy())
    os.replace(part, path)


def quieten() -> None:
    """Silence what Lightning says about choices that are deliberate here."""
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    deliberate = ("does not have many workers", "in eval mode at the start of training", "treespec, LeafSpec")
    for message in deliberate:
        warnings.filterwarnings("ignore", f".*{message}")


@pl.utilities.rank_zero_only
def print_summary(module: BlackoutDiffusion, data: CountData, config: dict[str, Any], run: Path, resumed: bool) -> None:
    """What is about to be trained, in three lines."""
    parameters = sum(p.numel() for p in module.network.parameters())
    steps, batch = config["trainer"]["max_steps"], config["batch_size"]
    sizes = f"{len(data.train):,} + {len(data.test):,} held out"
    print(f"data:    {data.name}, {sizes}, shape {data.shape}, counts 0..{data.max_count}")
    print(f"model:   {type(module.network.body).__name__}, {parameters:,} parameters; {steps:,} steps of {batch}")
    print(f"run:     {run}{' (continued)' if resumed else ''}", flush=True)
