"""Lightning's Trainer for a run: callbacks, loggers, strategy, and how processes are started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from blackout.cli.mirror import Mirror
from blackout.cli.report_page import LivePage
from blackout.cli.sweeps import is_sweep_job
from blackout.component import Plain
from blackout.config.instantiate import instantiate
from blackout.config.settings import is_overridden
from blackout.distributed import is_first, num_launched
from blackout.errors import WORLD_SIZE_OF_RANK, UserError, error_context, printable, refuse, summary
from blackout.training.checkpoint_callback import AtomicCheckpointIO
from blackout.training.data_module import check_sharding
from blackout.training.family import ComponentFamily
from blackout.training.loggers import MetricsCSV

MAX_PROCESSES_PER_CPU = 16  # more on one machine is a mistake
MAX_VALUE = 100  # characters of a setting that a message repeats


def is_scoring_samples(config: Plain) -> bool:
    """Return whether the run scores samples."""
    return bool(config["metrics"] and (config["callbacks"] or {}).get("scores"))


def build_callbacks(config: Plain, run: Path, family: ComponentFamily) -> list[pl.Callback]:
    """Return the configured callbacks of a run; they write nothing until training starts.

    Raises:
        UserError: arguments that a callback refuses, or scores at certain steps without metrics.
    """
    settings = {name: value for name, value in (config["callbacks"] or {}).items() if value}
    arguments: dict[str, dict[str, Any]] = {
        "checkpoints": {"directory": str(run / "checkpoints")},
        "samples": {"directory": str(run / "samples"), "preview": family.preview},
        "nonfinite": {"directory": str(run)},
    }
    if is_scoring_samples(config):
        scorer = instantiate(config["metrics"], "metrics")
        arguments["scores"] = {"scorer": scorer, "required": is_overridden("metrics")}
    elif settings.pop("scores", None) and is_overridden("callbacks.scores.every_n_steps"):
        raise UserError(
            "callbacks.scores has no metrics to compute: add metrics=counts, metrics=digits, "
            "metrics=inception or another choice of `blackout choices metrics`"
        )
    callbacks = []
    for name, value in settings.items():
        expected = "a callback of Lightning (a mapping with _target_)"
        problem = f"callbacks.{name} must be {expected}, not {printable(repr(value))[:MAX_VALUE]}"
        if isinstance(value, Mapping) and "_target_" not in value:
            problem += f"; callbacks=default has all of them, callbacks.{name}=null leaves one out"
        refuse(not isinstance(value, Mapping), problem)
        callback = instantiate(value, f"callbacks.{name}", **arguments.get(name, {}))
        refuse(not isinstance(callback, pl.Callback), problem)
        callbacks.append(callback)
    return callbacks


def build_trainer(
    config: Plain, run: Path, callbacks: list[pl.Callback], mirror: Mirror | None = None
) -> pl.Trainer:
    """Return the Trainer with these callbacks and the configured loggers, and metrics.csv.

    Raises:
        UserError: what is no logger; or as `make_trainer`.
    """
    loggers = [MetricsCSV(run / "metrics.csv", written=LivePage(run))]
    for name, logger in (config["logger"] or {}).items():
        expected = "a logger of Lightning (a mapping with _target_)"
        problem = f"logger.{name} must be {expected}, not {printable(str(logger))[:MAX_VALUE]}"
        refuse(not isinstance(logger, Mapping), problem)
        component = instantiate(logger, f"logger.{name}", save_dir=str(run))
        refuse(not isinstance(component, Logger), problem)
        loggers.append(component)

    after_save = () if mirror is None else (mirror.try_to_push,)
    return make_trainer(
        config["trainer"],
        logger=loggers,
        callbacks=callbacks,
        default_root_dir=str(run),
        plugins=[AtomicCheckpointIO(*after_save)],
        enable_progress_bar=bool((config["callbacks"] or {}).get("progress")),
    )


def make_trainer(trainer_settings: Plain, **arguments: Any) -> pl.Trainer:
    """Return a Trainer with the accelerator, strategy and number of processes of a run.

    Args:
        trainer_settings: the settings `trainer`.
        arguments: further arguments of the Trainer.

    Raises:
        UserError: arguments that Lightning refuses, or far more processes than processors.
    """
    # 1. Accelerator and number of processes.
    settings = dict(trainer_settings)
    settings["accelerator"] = choose_accelerator(settings.get("accelerator", "auto"))
    devices = settings.get("devices")
    num_cpus = os.cpu_count() or 1
    is_too_many = type(devices) is int and devices > MAX_PROCESSES_PER_CPU * num_cpus
    refuse(
        is_too_many,
        f"trainer.devices={devices} must be at most {MAX_PROCESSES_PER_CPU * num_cpus}: "
        f"this machine has {num_cpus} processors",
    )
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun decides how many processes there are
        world_size = int(os.environ["WORLD_SIZE"])
        num_local = int(os.environ["LOCAL_WORLD_SIZE"])
        settings |= {"devices": num_local, "num_nodes": world_size // num_local}
        if world_size > 1 and settings.get("strategy", "auto") == "auto":
            settings["strategy"] = "ddp"

    # 2. The Trainer, with its errors in one line.
    try:
        trainer: pl.Trainer = instantiate(
            settings | {"strategy": choose_strategy(settings)},
            "trainer",
            use_distributed_sampler=False,
            **arguments,
        )
    except (
        MisconfigurationException,
        AttributeError,  # of a number in place of a duration
        ImportError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        # These are how Lightning refuses arguments.
        raise UserError(f"trainer: {summary(error)}") from error
    except RuntimeError as error:
        # Lightning also refuses variables of SLURM by this type; elsewhere it is a bug.
        if "SLURM_NTASKS" not in os.environ:
            raise
        raise UserError(f"trainer: {printable(str(error))}") from error
    return trainer


def choose_accelerator(name: Any) -> Any:
    """Return the Trainer's accelerator, where `auto` is a CUDA device or the CPU.

    Lightning would also choose the GPU of a Mac, which has no numbers of 64 bits.

    Args:
        name: the setting.
    """
    is_mac_gpu = torch.backends.mps.is_available() and not torch.cuda.is_available()
    return "cpu" if name == "auto" and is_mac_gpu else name


def choose_strategy(settings: Plain) -> Any:
    """Return the Trainer's strategy: where it would be DDP, DDP that does not broadcast buffers.

    Buffers are constants, or the same function of the seed in every process. A strategy given as a
    component keeps its arguments.

    Raises:
        MisconfigurationException: Lightning finds no such devices.
    """
    strategy = settings.get("strategy", "auto")
    if strategy == "auto":
        names = ("accelerator", "devices", "num_nodes")
        automatic = pl.Trainer(
            **{name: settings[name] for name in names if name in settings},
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        ).strategy
        strategy = "ddp" if isinstance(automatic, DDPStrategy) else "auto"
    is_registered = isinstance(strategy, str) and strategy in StrategyRegistry
    entry = StrategyRegistry[strategy] if is_registered else {}
    if entry.get("strategy") is DDPStrategy:
        return DDPStrategy(**entry["init_params"], broadcast_buffers=False)
    return strategy


def unused_devices(settings: Plain) -> str:
    """Return a line about the GPUs that a run leaves idle; empty if there are none.

    Args:
        settings: of the trainer.
    """
    is_launched = bool({"WORLD_SIZE", "SLURM_NTASKS"} & os.environ.keys())
    uses_cpu = settings.get("accelerator", "auto") == "cpu"
    num_devices = 0 if uses_cpu or is_launched else torch.cuda.device_count()
    if settings.get("devices") != 1 or num_devices < 2:
        return ""
    names = ", ".join(
        f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(1, num_devices)
    )
    return f"1 of {num_devices} GPUs; trainer.devices={num_devices} also uses {names}"


def check_batch_size(batch_size: int, trainer: pl.Trainer) -> None:
    """Refuse a batch that the processes of a run cannot share evenly.

    Raises:
        UserError: the message has the nearest sizes that they can.
    """
    with error_context("batch_size"):
        check_sharding(batch_size, 0, trainer.world_size)


def check_launch(trainer: pl.Trainer) -> None:
    """Refuse ways of starting several processes that cannot work.

    Each process that a job of a sweep started would run the whole sweep, and each of several nodes
    without a common address would wait for the others for half an hour. Processes that the Trainer
    does not know of would all train the same model, and only the first would hold the run's lock.

    Raises:
        UserError: it is started in one of these ways.
    """
    num_processes = num_launched()
    if num_processes > 1 and trainer.world_size != num_processes:
        raise UserError(
            f"a launcher started {num_processes} processes, and the Trainer has "
            f"{trainer.world_size}: give trainer.devices=<processes on each node> "
            "trainer.num_nodes=<nodes> trainer.strategy=ddp, as examples/slurm.sbatch does, or "
            "start one process (srun --ntasks=1)"
        )
    refuse(
        trainer.world_size == 1 and not is_first(),
        "this is the only process of the run, but not number 0 by a variable that a launcher "
        f"has left: unset {', '.join(sorted(WORLD_SIZE_OF_RANK.keys() & os.environ.keys()))}",
    )
    environment = getattr(trainer.strategy.launcher, "cluster_environment", None)
    is_external = getattr(environment, "creates_processes_externally", True)
    if is_external:
        return
    refuse(
        is_sweep_job(),
        "a sweep on several devices needs processes started from outside: "
        "torchrun train.py -m ..., "
        "or hydra/launcher=submitit_slurm; or use trainer.devices=1",
    )
    if trainer.num_nodes > 1 and "MASTER_ADDR" not in os.environ:
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes} needs torchrun or srun on every node, "
            "or MASTER_ADDR"
        )
