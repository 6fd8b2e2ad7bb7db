"""`train.py`: from a configuration to a trained, sampled and exported model in its run directory."""

from __future__ import annotations

import json
import logging
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from blackout.data import CountData, DataModule
from blackout.diffusion.module import BlackoutDiffusion
from blackout.diffusion.processes import PureDeath
from blackout.errors import UserError
from blackout.files import replacing
from blackout.random import fold_seed
from blackout.training.build import MODEL_PARTS, build_model, instantiate, model_config, reason, refusals
from blackout.training.checkpoint_files import AtomicCheckpointIO, find_checkpoint, read_checkpoint
from blackout.training.checkpoints import check_fits
from blackout.training.export import export_model
from blackout.training.images import save_grid
from blackout.training.loggers import KeepWandbRun, continue_run, dashboards, log_results
from blackout.training.metrics_csv import MetricsCSV
from blackout.training.plan import plan
from blackout.training.preemption import signals
from blackout.training.run_directory import open_run
from blackout.training.sample_file import save_samples
from blackout.training.scoring import Scores
from blackout.training.sweeps import sweeping

_INITIALISATION = 1000
_CLOSING_SAMPLES = 64
_PILOT_SAMPLES = 64
_PILOT_STEPS = 20, 200
SETTINGS = frozenset(
    (*MODEL_PARTS, "optimizer", "trainer", "callbacks", "logger", "metrics", "dataset", "seed", "batch_size", "flip")
    + ("ema_decay", "conditional", "label_dropout", "validation_draws", "data_on_device", "compile", "on_nonfinite")
    + ("plan", "data_dir", "runs_dir", "experiment_name", "run_id")
)


_KINDS = {
    **dict.fromkeys(("seed", "batch_size", "num_samples", "validation_draws"), int),
    **dict.fromkeys(("flip", "plan", "trajectory", "conditional", "data_on_device", "compile"), bool),
    **dict.fromkeys(("ema_decay", "label_dropout"), float),
    "device": str,
    "trusted": list,
}
_KIND_NAMES = {int: "a whole number", bool: "true or false", float: "a number", str: "a name", list: "a list"}


_PATHS = ("ckpt", "out", "samples", "inpaint", "data_dir", "runs_dir")


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
    for name in _PATHS:
        if isinstance(config.get(name), dict | list):
            raise UserError(f"{name} must be the name of a file or directory, not {config[name]!r}")
        if config.get(name) is not None:
            config[name] = str(config[name])  # a directory may be called 17
    return config


def train(cfg: DictConfig) -> Path:
    """Train the configured model, or continue it, and leave model, samples and scores in the run directory.

    Everything that a wrong setting or file can break is done before the first long step.

    Raises:
        UserError: a setting, a file or the output directory is not usable.
    """
    with signals.caught():
        return _train(resolve(cfg, SETTINGS))


def _train(config: dict[str, Any]) -> Path:
    quieten()
    steps = config["trainer"]["max_steps"]
    if type(steps) is not int or steps < 1:
        raise UserError(f"trainer.max_steps must be a whole number of at least 1, not {steps}")
    data = instantiate(config["dataset"], "dataset")
    module = make_module(config, data)
    with refusals("dataset"):
        data_module = DataModule(data, config["batch_size"], config["seed"], config["flip"], config["data_on_device"])
    with refusals("sampler"):  # one small sample: does the head predict what the kernel needs?
        module.sample(1, sampler=replace(module.sampler, num_steps=2))
    if config["plan"]:
        plan(config, data, module, data_module)
        return Path(config["runs_dir"])
    run = open_run(config, data.name)
    trainer = make_trainer(config, run)
    check_launch(trainer)
    last = find_checkpoint(run / "checkpoints")
    if last is not None:
        checkpoint = read_checkpoint(last)
        check_fits(checkpoint, module, last)
        continue_run(trainer.loggers, checkpoint)
    print_summary(module, data, config, run, resumed=last is not None)
    if config["compile"]:
        module.compile_networks()
    with dashboards(trainer.loggers, config):
        fit(trainer, module, data_module, last)
        finish(trainer, module, data_module, run)
    return run


def check_launch(trainer: pl.Trainer) -> None:
    """Refuse a sweep whose jobs would start further processes: each of those would run the whole sweep.

    Raises:
        UserError: it is one.
    """
    launcher = trainer.strategy.launcher
    outside = getattr(getattr(launcher, "cluster_environment", None), "creates_processes_externally", True)
    if sweeping() and not outside:
        raise UserError(
            "a sweep on several devices needs processes from outside: torchrun train.py -m ..., or "
            "hydra/launcher=submitit_slurm; or trainer.devices=1"
        )


def fit(trainer: pl.Trainer, module: BlackoutDiffusion, data_module: DataModule, last: Path | None) -> None:
    """Train from the start or from a checkpoint.

    Raises:
        UserError: what the checkpoint holds cannot be restored, or cannot be saved any more.
        Preempted: a signal asked the run to leave; it is saved.
    """
    began = Began()
    trainer.callbacks.insert(0, began)  # type: ignore[attr-defined]
    try:
        with signals.listening():
            trainer.fit(module, data_module, ckpt_path=None if last is None else str(last), weights_only=True)
    except Exception as error:
        if began.yes or isinstance(error, UserError):
            raise
        what = "training cannot start" if last is None else f"{last} cannot be continued"
        raise UserError(f"{what}: {reason(error)}") from error


class Began(pl.Callback):
    """Knows whether training has begun, so that what goes wrong before is known to come from the checkpoint."""

    yes = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.yes = True


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
            validation_draws=config["validation_draws"],
        )


def mean_image(counts: Tensor) -> Tensor:
    """E[X_0] per element, float32, without a floating-point copy of the data.

    One unit is added to each element's total: what never occurred in training must not be impossible.
    """
    return ((counts.sum(0, dtype=torch.int64) + 1).double() / (len(counts) + 1)).float()


def make_trainer(config: dict[str, Any], run: Path) -> pl.Trainer:
    """Lightning's trainer with the configured callbacks and loggers; metrics.csv is always written."""
    loggers = [MetricsCSV(run / "metrics.csv")]
    if config["logger"]:
        loggers.append(instantiate(config["logger"], "logger", save_dir=str(run)))
    folders = {"checkpoints": run / "checkpoints", "samples": run / "samples", "nonfinite": run}
    given = {name: {"directory": str(folder)} for name, folder in folders.items()}
    chosen = {name: callback for name, callback in (config["callbacks"] or {}).items() if callback}
    if "scores" in chosen and config["metrics"]:
        given["scores"] = {"scorer": instantiate(config["metrics"], "metrics")}
    else:
        chosen.pop("scores", None)
    callbacks = [instantiate(callback, f"callbacks.{name}", **given.get(name, {})) for name, callback in chosen.items()]
    callbacks.append(KeepWandbRun())
    return instantiate(
        config["trainer"], "trainer", logger=loggers, callbacks=callbacks, default_root_dir=str(run),
        use_distributed_sampler=False, plugins=[AtomicCheckpointIO()],
        enable_progress_bar=bool((config["callbacks"] or {}).get("progress")),
    )  # fmt: skip


def finish(trainer: pl.Trainer, module: BlackoutDiffusion, data_module: DataModule, run: Path) -> None:
    """Score the final model, export it, and draw the closing samples.

    None of these evaluates the network on more images than training did, so that a run of three steps of a large
    network does not end in an hour of sampling.
    """
    budget = trainer.global_step * trainer.accumulate_grad_batches * data_module.batch_size
    allowed = max(1, budget // (data_module.batch_size * module.validation_draws))
    if allowed < trainer.limit_val_batches or isinstance(trainer.limit_val_batches, float):
        trainer.limit_val_batches = min(allowed, len(data_module.val_dataloader()))
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    scorers = [callback for callback in callbacks if isinstance(callback, Scores)]
    evaluations = module.evaluations(module.sampler)
    affordable = [scorer for scorer in scorers if scorer.num_samples * evaluations <= budget]
    for scorer in scorers:
        if scorer not in affordable:
            callbacks.remove(scorer)
    values = {name: float(value) for name, value in trainer.validate(module, data_module, verbose=False)[0].items()}
    if not trainer.is_global_zero:
        return
    if isinstance(module.process, PureDeath) and budget // _PILOT_SAMPLES >= _PILOT_STEPS[0]:
        module.config["pilot"] = module.pilot(_PILOT_SAMPLES, min(budget // _PILOT_SAMPLES, _PILOT_STEPS[1]))
    export_model(module, run / "model")
    wanted = module.sampler.num_steps
    steps = min(wanted, max(10, wanted * budget // (evaluations * _CLOSING_SAMPLES)))
    sampler, classes = replace(module.sampler, num_steps=steps), module.classes_in_turn(_CLOSING_SAMPLES)
    counts = module.sample(_CLOSING_SAMPLES, sampler=sampler, classes=classes)
    save_grid(counts, module.process.max_count, run / "samples" / "final.png")
    save_samples(counts, run / "samples" / "final.npz")
    report: dict[str, Any] = {"values": values, "training_steps": trainer.global_step, "closing_grid_steps": steps}
    if affordable:
        values |= affordable[0].values
        report |= affordable[0].passport | {"sampler": module.config["model"]["sampler"]}
    write_json(report, run / "metrics.json")
    log_results(trainer.loggers, values, trainer.global_step, run)
    for name, value in values.items():
        if not name.startswith("share_"):
            print(f"{name}: {value:.4f}")
    print(f"samples: {run / 'samples' / 'final.png'}\nmodel:   {run / 'model'}")


def write_json(content: Any, path: Path) -> None:
    """Write JSON whole or not at all; numbers that JSON does not have become null."""
    with replacing(path) as part:
        part.write_text(json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


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
