"""`train.py`: from settings to a trained, sampled, scored and exported model in its run directory.

`train` is the table of contents of a run. Everything that can fail because of a wrong setting or
file is done before training starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blackout.cli.after_training import drop_unaffordable_scores, finish_run
from blackout.cli.build_trainer import (
    build_callbacks,
    build_trainer,
    check_batch_size,
    check_launch,
    is_scoring_samples,
    unused_devices,
)
from blackout.cli.cost import check_memory
from blackout.cli.dry_run import dry_run
from blackout.cli.finished_runs import (
    check_not_shorter,
    has_ended,
    mark_finished,
    mark_unfinished,
)
from blackout.cli.from_data import make_model
from blackout.cli.mirror import open_mirror
from blackout.cli.plan import plan
from blackout.cli.report_page import LivePage
from blackout.cli.run_directory import (
    check_run,
    locked_run,
    run_directory,
    write_settings,
)
from blackout.cli.run_log import run_log
from blackout.cli.sweeps import claim_folder, is_sweep_job
from blackout.cli.training_settings import (
    apply_precision,
    check_trainer_settings,
    check_validation_data,
    choose_length,
    refuse_epochs,
)
from blackout.component import Plain
from blackout.config.instantiate import find_target, instantiate
from blackout.config.settings import configure_libraries, optional_path, resolve_settings
from blackout.distributed import destroy_group_at_end, is_first, join_process_group
from blackout.errors import UserError, error_context, escaped, refuse, summary
from blackout.preemption import signals
from blackout.protocols import Source
from blackout.training.checkpoint_files import (
    PREVIOUS,
    check_fits,
    find_checkpoint,
    read_checkpoint,
    rename_damaged_checkpoint,
)
from blackout.training.data_module import SourceDataModule
from blackout.training.export import check_loadable
from blackout.training.family import ComponentFamily
from blackout.training.lightning_module import TrainingModule
from blackout.training.loading import start_from
from blackout.training.loggers import continue_run, dashboards
from blackout.training.model import Model
from blackout.training.optimization import Optimization

# groups whose choices the first lines of a run print
PRINTED_GROUPS = frozenset(
    [
        "experiment",
        "recipe",
        "lr_schedule",
        "process",
        "head",
        "loss",
        "objective",
        "schedule",
        "sampler",
        "target",
        "energy",
        "shuffle",
        "reverse",
        "network",
        "rates",
        "simulation",
        "refine",
        "negative",
        "baseline",
    ]
)
MAX_WARMUP_SHARE = 0.1  # of a run's steps; a longer rise of the learning rate is pointed out


@signals.caught()
@destroy_group_at_end()
def train(cfg: DictConfig) -> Path:
    """Train the configured model, or continue it; leave model, samples and scores in its directory.

    Returns:
        The run directory; with `plan=true`, which writes nothing, its parent.

    Raises:
        UserError: a setting, a file or the output directory is not usable.
    """
    # 1. Settings.
    config = resolve_settings(cfg)
    configure_libraries(config["tf32"])
    check_trainer_settings(config["trainer"])
    find_target(config["optimizer"], "optimizer")
    instantiate(config["optimizer"], "optimizer")  # refused before the data are read

    # 2. Data, and what depends on their size.
    family: ComponentFamily = instantiate(config["family"], "family")
    source = family.source(config)
    refuse_epochs(config, source)
    check_validation_data(config, source)
    config = choose_length(config, family, source)

    # 3. The run directory; a run that has ended is left as it is.
    run = run_directory(config, source.name)
    mirror = None if config["plan"] else open_mirror(config, run)
    config = apply_precision(config, run) | {"run_id": run.name}
    if not config["plan"]:
        if is_sweep_job() and is_first():
            claim_folder(run)
        check_run(run, config)
        if has_ended(run, config, source):
            return run

    # 4. Model, data loaders and callbacks.
    optimization: Optimization = instantiate(config["optimizer"], "optimizer")
    model = make_model(family, config, source)
    check_loadable(model.config)
    with error_context("dataset"):
        data_module = SourceDataModule(
            source, config["batch_size"], config["seed"], config["data_on_device"]
        )
    with error_context("optimizer"):
        optimization.configure(model.parameter_groups(optimization.lr))
    module = TrainingModule(model, optimization)
    family.check_sampler(model, scored=is_scoring_samples(config))
    callbacks = build_callbacks(config, run, family)
    if config["plan"]:
        plan(config, module, data_module, family)
        return run.parent

    with locked_run(run) as directory:
        # 5. The weights it starts from, and one trial of everything the run will do.
        checkpoint_path, checkpoint = find_start(directory, optional_path(config, "ckpt_path"))
        if checkpoint_path is None and config["init_from"] is not None:
            start_from(model, str(optional_path(config, "init_from")))
        dry_run(config, model, family)
        trainer = build_trainer(config, directory, callbacks, mirror)
        check_launch(trainer)
        check_batch_size(config["batch_size"], trainer)
        check_memory(trainer, model, config["batch_size"])
        if checkpoint_path is not None and checkpoint is not None:
            check_fits(checkpoint, model, checkpoint_path)
            is_own_checkpoint = checkpoint_path.is_relative_to(directory)
            trained = directory if is_own_checkpoint else checkpoint_path
            check_not_shorter(config["trainer"]["max_steps"], checkpoint["global_step"], trained)
            if is_own_checkpoint:
                continue_run(trainer.loggers, checkpoint)

        # 6. From here on the run changes what is in its directory.
        if is_first():
            mark_unfinished(directory)
        write_settings(directory, config)
        with run_log(directory):
            print_summary(
                model, source, config, directory, is_continued=checkpoint_path is not None
            )
            warn_of_long_warmup(optimization, config["trainer"]["max_steps"])
            nfe = family.draw(model, {}).nfe
            left_out = drop_unaffordable_scores(trainer, nfe, config["batch_size"], directory)
            model.compile_networks(config["compile"])
            if mirror is not None:
                mirror.push()  # which finds out whether the address takes files

            # 7. Training, then the final model: chosen, tested, exported and sampled.
            with dashboards(trainer.loggers, config):
                fit(trainer, module, data_module, checkpoint_path)
                print_profile(trainer)
                finish_run(trainer, module, directory, family, left_out)

        # 8. The record that the run is complete; a run that is killed before it repeats step 7.
        if mirror is not None:
            mirror.push()
        if is_first():
            mark_finished(directory, source)
            LivePage(directory).finish()
        if mirror is not None:
            mirror.push()
    return directory


def find_start(directory: Path, ckpt_path: str | None) -> tuple[Path | None, dict[str, Any] | None]:
    """Return the checkpoint from which a run continues, with its content; None for a new run.

    Args:
        directory: of the run.
        ckpt_path: a checkpoint, or the directory of a run, from which a run without checkpoints of
            its own continues.

    Raises:
        UserError: there is no such checkpoint, or it is damaged.
    """
    path = find_checkpoint(directory / "checkpoints")
    if path is None and ckpt_path is not None:
        other_path = Path(ckpt_path).expanduser()
        if other_path.is_file():
            path = other_path
        else:
            path = find_checkpoint(other_path / "checkpoints") or find_checkpoint(other_path)
        refuse(
            path is None,
            f"ckpt_path={ckpt_path} has no checkpoint: give a .ckpt file or a run with one",
        )
    if path is None:
        return None, None
    checkpoint = read_checkpoint(path)
    if path.name == PREVIOUS and path.is_relative_to(directory) and is_first():
        rename_damaged_checkpoint(path.parent)
    return path, checkpoint


def fit(
    trainer: pl.Trainer,
    module: TrainingModule,
    data_module: SourceDataModule,
    checkpoint_path: Path | None,
) -> None:
    """Train from the start or from a checkpoint.

    Raises:
        UserError: the checkpoint cannot be restored, or can no longer be saved.
        Preempted: a signal asked the run to stop; it is saved.
    """
    ckpt_path = None if checkpoint_path is None else str(checkpoint_path)
    try:
        with signals.listening():
            if trainer.world_size > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
                join_process_group(trainer.strategy.root_device)
            trainer.fit(module, data_module, ckpt_path=ckpt_path, weights_only=True)
    except MisconfigurationException as error:
        # Lightning refuses settings that do not fit the data or the model.
        raise UserError(f"training cannot start: {summary(error)}") from error
    except UserError:
        raise
    except Exception as error:
        # What a file contains can make restoring fail with any error; others are bugs.
        if not module.is_restoring:
            raise
        raise UserError(f"{checkpoint_path} cannot be continued: {summary(error)}") from error
    module.to(trainer.strategy.root_device)  # Lightning moves it to the CPU after training


def print_profile(trainer: pl.Trainer) -> None:
    """Print the summary of `trainer.profiler`, which Lightning would only log."""
    profiler = trainer.profiler  # type: ignore[attr-defined]
    if trainer.is_global_zero and not isinstance(profiler, PassThroughProfiler):
        print(profiler.summary(), flush=True)


@rank_zero_only
def print_summary(
    model: Model, source: Source, config: Plain, run: Path, *, is_continued: bool
) -> None:
    """Print data, model, choices, scores and run directory, a line each."""
    num_parameters = sum(parameter.numel() for parameter in model.network.parameters())
    network = type(getattr(model.network, "body", model.network)).__name__
    length = f"{config['trainer']['max_steps']:,} steps of {config['batch_size']}"
    print(f"data:    {source}")
    print(f"model:   {network}, {num_parameters:,} parameters; {length}")
    if HydraConfig.initialized():
        choices = [
            f"{group}={choice}"
            for group, choice in HydraConfig.get().runtime.choices.items()
            if choice and group.split("@")[0] in PRINTED_GROUPS
        ]
        print(f"chosen:  {' '.join(choices)}")
    print(f"scores:  {describe_scores(config)}")
    idle_devices = unused_devices(config["trainer"])
    if idle_devices:
        print(f"devices: {idle_devices}")
    print(f"run:     {escaped(run)}{' (continued)' if is_continued else ''}", flush=True)


@rank_zero_only
def warn_of_long_warmup(optimization: Optimization, max_steps: int) -> None:
    """Print a line if the learning rate rises for more than `MAX_WARMUP_SHARE` of the run.

    Args:
        optimization: with the length of the rise.
        max_steps: of the run.
    """
    warmup_steps = optimization.warmup_steps
    if warmup_steps <= MAX_WARMUP_SHARE * max_steps:
        return
    highest = optimization.lr * max(map(optimization.lr_factor, range(max_steps)))
    print(
        f"warm-up: the learning rate rises for {warmup_steps:,} of {max_steps:,} steps, to at most "
        f"{highest:.2g}; a shorter one is optimizer.warmup_steps={max_steps // 10}",
        flush=True,
    )


def describe_scores(config: Plain) -> str:
    """Return which scores a run computes, of how many samples and when."""
    callback = (config["callbacks"] or {}).get("scores")
    metrics = config["metrics"]
    if not callback or not metrics:
        return "none of samples (metrics=<name> chooses some)"
    names = ", ".join(metrics.get("scores", ()))
    if not names:
        names = str(metrics["_target_"]).rpartition(".")[2]
    num_final = callback.get("num_samples", 1000)
    every_n_steps = callback.get("every_n_steps")
    during_training = ""
    if every_n_steps:
        num_samples = callback.get("num_samples_between") or num_final
        steps = callback.get("num_steps_between")
        in_steps = f" in {steps:,} steps each" if steps else ""
        during_training = f"of {num_samples:,} samples{in_steps} every {every_n_steps:,} steps, "
    return f"{names}, {during_training}of {num_final:,} samples at the end"
