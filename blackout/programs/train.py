"""`train.py`: from settings to a trained, sampled and exported model in its run directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from pytorch_lightning.strategies import DDPStrategy, Strategy
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blackout.errors import UserError, mendable, naming, summary
from blackout.family import Family, Source
from blackout.programs.closing import close
from blackout.programs.output import claim, sweeping
from blackout.programs.plan import plan
from blackout.programs.run_directory import open_run, run_directory, running
from blackout.programs.settings import resolve, set_libraries
from blackout.programs.starting import continued, make_model
from blackout.programs.trainers import check_batch, check_length, check_trainer, describe_profile, with_length
from blackout.programs.values import path
from blackout.training.checkpoints import AtomicCheckpointIO, check_fits
from blackout.training.components import make
from blackout.training.export import start_from
from blackout.training.feed import Feed
from blackout.training.loggers import KeepWandbRun, continue_run, dashboards
from blackout.training.metrics_csv import MetricsCSV
from blackout.training.model import Model
from blackout.training.module import TrainingModule
from blackout.training.optimization import Optimization
from blackout.training.preemption import signals

_MOST_PER_PROCESSOR = 16


def train(cfg: DictConfig) -> Path:
    """Train the configured model, or continue it, and leave model, samples and scores in the run directory.

    Whatever can fail because of a wrong setting or file is done before anything long starts.

    Raises:
        UserError: a setting, a file or the output directory is not usable.
    """
    with signals.caught():
        return _train(resolve(cfg))


def _train(config: dict[str, Any]) -> Path:
    set_libraries()
    check_trainer(config["trainer"])
    make(config["optimizer"], "optimizer")  # refused before the data are read
    family: Family = make(config["family"], "family")
    source = family.source(config)
    check_length(config, source)
    check_batch(config, source)
    config = with_length(config, family, source)
    optimization: Optimization = make(config["optimizer"], "optimizer")
    model = make_model(family, config, source)
    with naming("dataset"):
        feed = Feed(source, config["batch_size"], config["seed"], config["data_on_device"])
    with naming("optimizer"):
        optimization.configure(model.parameter_groups(optimization.lr))
    module = TrainingModule(model, optimization)
    if config["plan"]:
        model.rehearse()
        plan(config, module, feed)
        return Path(config["runs_dir"])
    if sweeping() and getattr(rank_zero_only, "rank", 0) == 0:
        claim(run_directory(config, source.name), "run_id")
    with running(run_directory(config, source.name)) as directory:
        last, checkpoint = continued(directory, path(config, "ckpt_path"))
        if last is None and config["init_from"] is not None:
            start_from(model, str(path(config, "init_from")))
        model.rehearse()
        trainer = make_trainer(config, open_run(config, source.name))
        check_launch(trainer)
        if last is not None and checkpoint is not None:
            check_fits(checkpoint, model, last)
            if last.is_relative_to(directory):
                continue_run(trainer.loggers, checkpoint)
        print_summary(model, source, config, directory, resumed=last is not None)
        model.compile_networks(config["compile"])
        with dashboards(trainer.loggers, config):
            fit(trainer, module, feed, last)
            describe_profile(trainer)
            close(trainer, module, feed, directory)
    return directory


def make_trainer(config: Mapping[str, Any], run: Path) -> pl.Trainer:
    """Lightning's trainer with the configured callbacks and loggers; metrics.csv is always written.

    Raises:
        UserError: arguments that Lightning refuses, or far more processes than processors.
    """
    _check_devices(config["trainer"].get("devices"))
    loggers = [MetricsCSV(run / "metrics.csv")]
    for name, logger in (config["logger"] or {}).items():
        loggers.append(make(logger, f"logger.{name}", save_dir=str(run)))
    folders = {"checkpoints": run / "checkpoints", "samples": run / "samples", "nonfinite": run}
    given = {name: {"directory": str(folder)} for name, folder in folders.items()}
    chosen = {name: callback for name, callback in (config["callbacks"] or {}).items() if callback}
    if "scores" in chosen and config["metrics"]:
        given["scores"] = {"scorer": make(config["metrics"], "metrics")}
    else:
        chosen.pop("scores", None)
    callbacks = [make(callback, f"callbacks.{name}", **given.get(name, {})) for name, callback in chosen.items()]
    trainer: pl.Trainer = make(
        config["trainer"], "trainer", logger=loggers, callbacks=[*callbacks, KeepWandbRun()], default_root_dir=str(run),
        use_distributed_sampler=False, plugins=[AtomicCheckpointIO()],
        enable_progress_bar=bool((config["callbacks"] or {}).get("progress")),
    )  # fmt: skip
    _keep_buffers(trainer.strategy)
    return trainer


def _keep_buffers(strategy: Strategy) -> None:
    """No broadcast of buffers at every step: they are constants, or the same function of the seed everywhere."""
    if isinstance(strategy, DDPStrategy):
        strategy._ddp_kwargs.setdefault("broadcast_buffers", False)


def _check_devices(devices: Any) -> None:
    processors = os.cpu_count() or 1
    if type(devices) is int and devices > _MOST_PER_PROCESSOR * processors:
        raise UserError(f"trainer.devices={devices}: this machine has {processors} processors")


def check_launch(trainer: pl.Trainer) -> None:
    """Refuse a sweep whose jobs would start further processes, each of which would run the whole sweep, and several
    nodes of which nobody says where they are: each would wait for the others for half an hour.

    Raises:
        UserError: this is one of these.
    """
    launcher = trainer.strategy.launcher
    outside = getattr(getattr(launcher, "cluster_environment", None), "creates_processes_externally", True)
    if sweeping() and not outside:
        ways = "torchrun train.py -m ..., or hydra/launcher=submitit_slurm; or trainer.devices=1"
        raise UserError(f"a sweep on several devices needs processes from outside: {ways}")
    if trainer.num_nodes > 1 and not outside and "MASTER_ADDR" not in os.environ:
        raise UserError(f"trainer.num_nodes={trainer.num_nodes} needs torchrun or srun on every node, or MASTER_ADDR")


def fit(trainer: pl.Trainer, module: TrainingModule, feed: Feed, last: Path | None) -> None:
    """Train from the start or from a checkpoint.

    Raises:
        UserError: what the checkpoint holds cannot be restored, or cannot be saved any more.
        Preempted: a signal asked the run to leave; it is saved.
    """
    began: list[bool] = []  # an error before training begins comes from the checkpoint
    watch = pl.callbacks.LambdaCallback(on_train_start=lambda *_: began.append(True))
    trainer.callbacks.insert(0, watch)  # type: ignore[attr-defined]
    try:
        with signals.listening():
            trainer.fit(module, feed, ckpt_path=None if last is None else str(last), weights_only=True)
    except Exception as error:
        if isinstance(error, UserError) or began or (last is None and not mendable(error)):
            raise
        what = "training cannot start" if last is None else f"{last} cannot be continued"
        raise UserError(f"{what}: {summary(error)}") from error


@rank_zero_only
def print_summary(model: Model, source: Source, config: Mapping[str, Any], run: Path, resumed: bool) -> None:
    """Print data, model and run directory, one line each."""
    parameters = sum(p.numel() for p in model.network.parameters())
    steps, batch = config["trainer"]["max_steps"], config["batch_size"]
    network = type(getattr(model.network, "body", model.network)).__name__
    print(f"data:    {source}")
    print(f"model:   {network}, {parameters:,} parameters; {steps:,} steps of {batch}")
    print(f"run:     {run}{' (continued)' if resumed else ''}", flush=True)
