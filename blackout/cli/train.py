"""`train.py`: from settings to a trained, sampled, scored (if that is affordable) and exported model in its directory.

`train` reads as a run goes: everything that can fail because of a wrong setting or file, the model it starts from,
Lightning's Trainer, and what is left at the end. The end takes no more network evaluations than training did, so that
three steps of a large network are not followed by an hour of sampling.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blackout.cli.dry_run import dry_run
from blackout.cli.finished_runs import (
    check_not_shorter,
    has_ended,
    mark_finished,
    mark_unfinished,
    with_earlier,
)
from blackout.cli.from_data import make_model
from blackout.cli.pictures import Trajectory, show_in_words
from blackout.cli.plan import bfloat16_ratio, check_memory, plan
from blackout.cli.run_directory import (
    Mirror,
    check_run,
    kept_setting,
    mirror_of,
    run_directory,
    running,
    write_settings,
)
from blackout.cli.score import save_figure
from blackout.cli.sweeps import claim, sweeping
from blackout.comparisons import SampleValues, compared_with_baselines, num_compared
from blackout.component import Plain
from blackout.config.arguments import check_arguments
from blackout.config.instantiate import find_target, instantiate
from blackout.config.settings import configure_libraries, is_overridden, optional_path, resolve_settings
from blackout.distributed import has_bfloat16, is_first, meet
from blackout.errors import UserError, error_context, refuse, summary
from blackout.files import sample_file, save_picture
from blackout.preemption import signals
from blackout.protocols import Draw, Source, Split
from blackout.report import LivingPage, command, provenance, save_report, write_scores
from blackout.training.callbacks import Scores, draw_first
from blackout.training.checkpoint_callback import AtomicCheckpointIO, Checkpoints
from blackout.training.checkpoint_files import PREVIOUS, check_fits, find_checkpoint, read_checkpoint, set_damaged_aside
from blackout.training.data_module import SourceDataModule
from blackout.training.export import check_loadable, export_model, start_from
from blackout.training.family import ComponentFamily
from blackout.training.lightning_module import TrainingModule, test_name
from blackout.training.loggers import MetricsCSV, continue_run, dashboards, log_results
from blackout.training.model import Model, evaluating
from blackout.training.optimization import Optimization

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
_COUNTS = {"max_steps", "val_check_interval", "accumulate_grad_batches", "num_nodes", "log_every_n_steps"}
_MOST = 10**10
"""Whole numbers, and how large they may be: of more steps no clock could say how long they take."""
_IN_EPOCHS = {"max_epochs": "max_steps", "min_epochs": "max_steps", "check_val_every_n_epoch": "val_check_interval"}
_MOST_PER_PROCESSOR = 16
_SAMPLES, _FEWER, _SHOWN = 64, 8, 4
"""Samples at the end of a run, of one that has seen fewer than that, and those of them whose way there is shown."""
_FEWEST_STEPS = 10
"""Of the closing samples, whatever the budget."""
_WORTH_IT = 0.75
"""Of single precision's time: where a convolution in bfloat16 takes less, a step with all its conversions does too."""
_SAID = frozenset(
    ("experiment", "recipe", "process", "head", "loss", "objective", "schedule", "sampler", "target", "energy")
    + ("shuffle", "reverse", "network", "rates", "simulation", "refine", "negative", "baseline")
)
"""Groups whose choices the first lines of a run name."""


@signals.caught()
def train(cfg: DictConfig) -> Path:
    """Train the configured model, or continue it, and leave model, samples and scores in the run directory.

    Whatever can fail because of a wrong setting or file is done before anything long starts.

    Raises:
        UserError: a setting, a file or the output directory is not usable.
    """
    config = resolve_settings(cfg)
    configure_libraries()
    check_trainer(config["trainer"])
    find_target(config["optimizer"], "optimizer")
    instantiate(config["optimizer"], "optimizer")  # refused before the data are read
    family: ComponentFamily = instantiate(config["family"], "family")
    source = family.source(config)
    check_length(config, source)
    check_best(config, source)
    config = with_length(config, family, source)
    run = run_directory(config, source.name)
    mirror = None if config["plan"] else mirror_of(config, run)
    config = with_precision(config, run) | {"run_id": run.name}
    if not config["plan"]:
        if sweeping() and is_first():
            claim(run)
        check_run(run, config)
        if has_ended(run, config, source):
            return run
    optimization: Optimization = instantiate(config["optimizer"], "optimizer")
    model = make_model(family, config, source)
    check_loadable(model.config)
    with error_context("dataset"):
        data_module = SourceDataModule(source, config["batch_size"], config["seed"], config["data_on_device"])
    with error_context("optimizer"):
        optimization.configure(model.parameter_groups(optimization.lr))
    module = TrainingModule(model, optimization)
    family.check_sampler(model, scored=scores_samples(config))
    callbacks = make_callbacks(config, run, family)
    if config["plan"]:
        plan(config, module, data_module, family)
        return run.parent
    with running(run) as directory:
        last, checkpoint = continued(directory, optional_path(config, "ckpt_path"))
        if last is None and config["init_from"] is not None:
            start_from(model, str(optional_path(config, "init_from")))
        dry_run(config, model, family)
        trainer = make_trainer(config, directory, callbacks, mirror)
        check_launch(trainer)
        check_memory(trainer, model, config["batch_size"])
        if last is not None and checkpoint is not None:
            check_fits(checkpoint, model, last)
            trained = directory if last.is_relative_to(directory) else last
            check_not_shorter(config["trainer"]["max_steps"], checkpoint["global_step"], trained)
            if last.is_relative_to(directory):
                continue_run(trainer.loggers, checkpoint)
        print_summary(model, source, config, directory, resumed=last is not None)
        left_out = out_of_reach(trainer, family.draw(model, {}).nfe, config["batch_size"], directory)
        model.compile_networks(config["compile"])
        if is_first():
            mark_unfinished(directory)
        write_settings(directory, config)
        if mirror is not None:
            mirror.push()  # which finds out whether the address takes files
        with dashboards(trainer.loggers, config):
            fit(trainer, module, data_module, last)
            if trainer.is_global_zero and not isinstance(trainer.profiler, PassThroughProfiler):  # type: ignore[attr-defined]
                print(trainer.profiler.summary(), flush=True)  # type: ignore[attr-defined]  # Lightning would only log it
            close(trainer, module, directory, family, left_out)
        if mirror is not None:
            mirror.push()
        if is_first():  # what was killed before this line is repeated by the next start
            mark_finished(directory, source)
            save_report(directory)
        if mirror is not None:
            mirror.push()
    return directory


def check_trainer(settings: Plain) -> None:
    """Refuse what cannot be an argument of the Trainer, and a length that is none.

    Raises:
        UserError: the message says what to give instead.
    """
    given = {name: value for name, value in settings.items() if not name.startswith("_")}
    for name in given.keys() & _OURS.keys():
        instead = f": say {_OURS[name]}" if _OURS[name] else ""
        raise UserError(f"trainer.{name} is set by the program{instead}")
    for name in sorted(_COUNTS & given.keys()):
        if given[name] is not None and (type(given[name]) is not int or not 1 <= given[name] <= _MOST):
            raise UserError(f"trainer.{name} must be a whole number in 1..{_MOST:,}, not {given[name]}")
    check_arguments(find_target(settings, "trainer"), given, "trainer", is_partial=True)
    norm = given.get("gradient_clip_val")
    if norm is not None and not (isinstance(norm, int | float) and 0 <= norm < math.inf):
        raise UserError(f"trainer.gradient_clip_val must be at least 0 (no clipping) and finite, not {norm}")


def with_length(config: dict[str, Any], family: ComponentFamily, source: Source) -> dict[str, Any]:
    """The settings with a number of steps: where it is null the family's, over which the learning rate decays too.

    Raises:
        UserError: it is null, and the family chooses none.
    """
    if config["trainer"]["max_steps"] is not None:
        return config
    steps, optimizer = family.length(config, source), config["optimizer"]
    follows = optimizer.get("decay_steps", steps) is None and not is_overridden("optimizer.decay_steps")
    decay = {"decay_steps": steps} if follows else {}
    return config | {"trainer": config["trainer"] | {"max_steps": steps}, "optimizer": optimizer | decay}


def with_precision(config: dict[str, Any], run: Path) -> dict[str, Any]:
    """The settings with a precision in place of `auto`: that of the run so far; else, on one processor, the quicker
    one, which is measured; on several, which must agree, single precision; and on accelerators bfloat16,
    where they have it.

    A recipe's sampler in bfloat16 is in single precision where that is chosen.
    """
    settings, sampler = config["trainer"], config.get("sampler") or {}
    if settings.get("precision") != "auto":
        return config
    on_processor = settings.get("accelerator", "auto") == "cpu"
    accelerator = None if on_processor else torch.accelerator.current_accelerator(check_available=True)
    if (chosen := kept_setting(run, "trainer", "precision")) is not None:
        why = "as the run so far"
    elif accelerator is not None and has_bfloat16(accelerator):
        chosen, why = "bf16-mixed", "on an accelerator"
    elif accelerator is not None:
        chosen, why = "32-true", "on an accelerator that is not known to have bfloat16"
    elif settings.get("devices", "auto") not in (1, "auto") or {"WORLD_SIZE", "SLURM_NTASKS"} & os.environ.keys():
        chosen, why = "32-true", "on several processors"
    else:
        ratio = bfloat16_ratio()
        chosen = "bf16-mixed" if ratio < _WORTH_IT else "32-true"
        why = f"bfloat16 takes {ratio:.2f} of the time in single precision here, in a short trial"
    if is_first():
        print(f"numbers: {chosen}, {why}")
    if chosen == "32-true" and sampler.get("bfloat16") and not is_overridden("sampler.bfloat16"):
        config = config | {"sampler": sampler | {"bfloat16": False}}
    return config | {"trainer": settings | {"precision": chosen}}


def check_length(config: Plain, source: Source) -> None:
    """Refuse a length in epochs, which the endless stream of batches does not have, and say what it is in steps.

    Raises:
        UserError: there is one.
    """
    settings, size = config["trainer"], source.size("train")
    images = config["batch_size"] * (settings.get("accumulate_grad_batches") or 1)
    for name, steps in _IN_EPOCHS.items():
        if (epochs := settings.get(name)) is not None:
            told = f"trainer.{name}={epochs}: lengths are in steps here"
            if size and isinstance(epochs, int) and epochs > 0:
                told += f", trainer.{steps}={math.ceil(epochs * size / images)} is as many epochs of {source.name}"
            raise UserError(told)


def check_best(config: Plain, source: Source) -> None:
    """Refuse to choose the best checkpoint without validation data.

    Raises:
        UserError: `restore_best`, or a monitor on the command line, for a source that has none.
    """
    checkpoints = (config["callbacks"] or {}).get("checkpoints") or {}
    if source.size("val") != 0:
        return
    told = f"the best checkpoint is chosen by validation data, and {source.name} has none"
    ways = "dataset.validation=0.1 takes some from the training data"
    refuse(checkpoints.get("restore_best"), f"{told}: {ways}, or callbacks.checkpoints.restore_best=false")
    monitors = is_overridden("callbacks.checkpoints.monitor")
    refuse(monitors, f"{told}: {ways}, or leave out callbacks.checkpoints.monitor")


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
        refuse(last is None, f"ckpt_path={other}: there is no checkpoint")
    if last is None:
        return None, None
    checkpoint = read_checkpoint(last)
    if last.name == PREVIOUS and last.is_relative_to(directory) and is_first():
        set_damaged_aside(last.parent)
    return last, checkpoint


def scores_samples(config: Plain) -> bool:
    """Whether the run scores samples."""
    return bool(config["metrics"] and (config["callbacks"] or {}).get("scores"))


def make_callbacks(config: Plain, run: Path, family: ComponentFamily) -> list[pl.Callback]:
    """The configured callbacks of a run in a directory, which they leave as it is until training starts.

    Raises:
        UserError: arguments that one of them refuses, or scores at certain steps without metrics.
    """
    folders = {"checkpoints": run / "checkpoints", "samples": run / "samples", "nonfinite": run}
    given: dict[str, dict[str, Any]] = {name: {"directory": str(folder)} for name, folder in folders.items()}
    given["samples"]["preview"] = family.preview
    chosen = {name: callback for name, callback in (config["callbacks"] or {}).items() if callback}
    if scores_samples(config):
        given["scores"] = {"scorer": instantiate(config["metrics"], "metrics"), "required": is_overridden("metrics")}
    elif chosen.pop("scores", None) and is_overridden("callbacks.scores.every_n_steps"):
        raise UserError("callbacks.scores needs scores: metrics=counts, digits, inception or another")
    for name, callback in chosen.items():
        told = f"callbacks.{name} must be a callback (a mapping with _target_), not {callback!r}"
        refuse(not isinstance(callback, Mapping), told)
    return [instantiate(callback, f"callbacks.{name}", **given.get(name, {})) for name, callback in chosen.items()]


def make_trainer(
    config: Plain, run: Path, callbacks: list[pl.Callback], mirror: Mirror | None = None
) -> pl.Trainer:
    """Lightning's trainer with these callbacks and the configured loggers; metrics.csv is always written.

    Raises:
        UserError: arguments that Lightning refuses, or far more processes than processors.
    """
    devices, processors = config["trainer"].get("devices"), os.cpu_count() or 1
    if type(devices) is int and devices > _MOST_PER_PROCESSOR * processors:
        raise UserError(f"trainer.devices={devices}: this machine has {processors} processors")
    more = (
        instantiate(logger, f"logger.{name}", save_dir=str(run))
        for name, logger in (config["logger"] or {}).items()
    )
    loggers = [MetricsCSV(run / "metrics.csv", written=LivingPage(run)), *more]
    settings = dict(config["trainer"])
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun knows how many processes there are, and it may change
        world, here = (int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        settings |= {"devices": here, "num_nodes": world // here}
        settings |= {"strategy": "ddp"} if world > 1 and settings.get("strategy", "auto") == "auto" else {}
    try:
        trainer: pl.Trainer = instantiate(
            settings | {"strategy": choose_strategy(settings)},
            "trainer",
            logger=loggers,
            callbacks=callbacks,
            default_root_dir=str(run),
            use_distributed_sampler=False,
            plugins=[AtomicCheckpointIO(*(() if mirror is None else (mirror.try_to_push,)))],
            enable_progress_bar=bool((config["callbacks"] or {}).get("progress")),
        )
    except (MisconfigurationException, ImportError, TypeError, ValueError) as error:  # as Lightning refuses arguments
        raise UserError(f"trainer: {summary(error)}") from error
    return trainer


def choose_strategy(settings: Plain) -> Any:
    """Return the Trainer's strategy: DDP that broadcasts no buffers where Lightning would take one that does.

    Buffers are constants, or the same function of the seed in every process. A strategy that is a component has the
    arguments it was given.

    Raises:
        MisconfigurationException: as Lightning refuses devices that are not there.
    """
    strategy = settings.get("strategy", "auto")
    if strategy == "auto":
        names = ("accelerator", "devices", "num_nodes")
        devices = {name: settings[name] for name in names if name in settings}
        automatic = pl.Trainer(
            **devices,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        ).strategy
        strategy = "ddp" if isinstance(automatic, DDPStrategy) else "auto"
    entry = StrategyRegistry[strategy] if isinstance(strategy, str) and strategy in StrategyRegistry else {}
    if entry.get("strategy") is DDPStrategy:
        return DDPStrategy(**entry["init_params"], broadcast_buffers=False)
    return strategy


def check_launch(trainer: pl.Trainer) -> None:
    """Refuse a sweep whose jobs would start further processes, each of which would run the whole sweep, and several
    nodes of which nobody says where they are: each would wait for the others for half an hour.

    Raises:
        UserError: this is one of these.
    """
    launcher = trainer.strategy.launcher
    outside = getattr(getattr(launcher, "cluster_environment", None), "creates_processes_externally", True)
    ways = "torchrun train.py -m ..., or hydra/launcher=submitit_slurm; or trainer.devices=1"
    refuse(sweeping() and not outside, f"a sweep on several devices needs processes from outside: {ways}")
    if trainer.num_nodes > 1 and not outside and "MASTER_ADDR" not in os.environ:
        raise UserError(f"trainer.num_nodes={trainer.num_nodes} needs torchrun or srun on every node, or MASTER_ADDR")


def fit(trainer: pl.Trainer, module: TrainingModule, data_module: SourceDataModule, last: Path | None) -> None:
    """Train from the start or from a checkpoint.

    Raises:
        UserError: what the checkpoint holds cannot be restored, or cannot be saved any more.
        Preempted: a signal asked the run to leave; it is saved.
    """
    started = list[int]()  # step at which training has started; empty before
    watch = pl.callbacks.LambdaCallback(on_train_start=lambda *_: started.append(trainer.global_step))
    trainer.callbacks.insert(0, watch)  # type: ignore[attr-defined]
    try:
        with signals.listening():
            if trainer.world_size > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
                meet(trainer.strategy.root_device)
            trainer.fit(module, data_module, ckpt_path=None if last is None else str(last), weights_only=True)
    except MisconfigurationException as error:  # as Lightning refuses settings that do not fit the data or the model
        raise UserError(f"training cannot start: {summary(error)}") from error
    except UserError:
        raise
    except Exception as error:
        # Until training starts, Lightning restores the checkpoint; what a file holds can make that fail in any way.
        if started or last is None:
            raise
        raise UserError(f"{last} cannot be continued: {summary(error)}") from error
    module.to(trainer.strategy.root_device)  # Lightning moves it to the CPU when it has trained


@rank_zero_only
def print_summary(model: Model, source: Source, config: Plain, run: Path, resumed: bool) -> None:
    """Print data, model and run directory, one line each."""
    parameters = sum(p.numel() for p in model.network.parameters())
    steps, batch = config["trainer"]["max_steps"], config["batch_size"]
    network = type(getattr(model.network, "body", model.network)).__name__
    print(f"data:    {source}")
    print(f"model:   {network}, {parameters:,} parameters; {steps:,} steps of {batch}")
    if HydraConfig.initialized():
        chosen = HydraConfig.get().runtime.choices.items()
        said = (f"{group}={choice}" for group, choice in chosen if choice and group.split("@")[0] in _SAID)
        print(f"chosen:  {' '.join(said)}")
    print(f"scores:  {scores_in_words(config)}")
    print(f"run:     {run}{' (continued)' if resumed else ''}", flush=True)


def scores_in_words(config: Plain) -> str:
    """Which scores a run takes, of how many samples and when."""
    plan = (config["callbacks"] or {}).get("scores")
    if not plan or not config["metrics"]:
        return "none of samples; metrics=... takes some"
    kinds = ", ".join(config["metrics"].get("scores", ())) or str(config["metrics"]["_target_"]).rsplit(".", 1)[-1]
    number, every = plan.get("num_samples", 1000), plan.get("every_n_steps")
    between = plan.get("num_samples_between") or number
    often = f"of {between:,} samples every {every:,} steps, " if every else ""
    return f"{kinds}, {often}of {number:,} samples at the end"


def out_of_reach(trainer: pl.Trainer, nfe: int, batch_size: int, run: Path) -> list[str]:
    """Leave out scores that no one asked for, are due at the end alone and would cost more than the run: then neither
    their networks nor their references are loaded."""
    left_out = list[str]()
    due = [callback.every_n_steps for callback in trainer.callbacks if isinstance(callback, Scores)]  # type: ignore[attr-defined]
    if not is_overridden("metrics") and all(every is None or every > trainer.max_steps for every in due):
        budget = trainer.max_steps * trainer.accumulate_grad_batches * batch_size
        keep_affordable_scorer(trainer, nfe, budget, run, left_out)
    return left_out


def close(trainer: pl.Trainer, module: TrainingModule, run: Path, family: ComponentFamily, left_out: list[str]) -> None:
    """Choose the final model by validation data, test it once, export it, draw samples and write metrics.json."""
    model, data, began = module.model, trainer.datamodule, time.perf_counter()  # type: ignore[attr-defined]
    trainer.loggers[0].close(trainer.global_step)  # type: ignore[attr-defined]  # which is of metrics.csv
    budget = trainer.global_step * trainer.accumulate_grad_batches * data.batch_size
    scorer = keep_affordable_scorer(trainer, nfe := family.draw(model, {}).nfe, budget, run, left_out)
    validated = validate(trainer, module, budget, left_out)
    for keeper in [kept for kept in trainer.callbacks if isinstance(kept, Checkpoints)]:  # type: ignore[attr-defined]
        if (step := keeper.restore_best(module, validated)) is not None:
            last, validated = validated, validate(trainer, module, budget, [])
            told = ", ".join(f"{name} {validated[name]:.4f} ({last[name]:.4f} at the end)" for name in model.means)
            left_out.append(f"what training did after step {step:,}, where validation data say it is best: {told}")
    tested = test(trainer, module, budget, left_out)
    samples = sample_values(module, data.source, family)
    values = tested | {name: value for name, value in validated.items() if name not in tested}
    scores, beside = ({}, {}) if scorer is None else (scorer.values, scorer.beside(data.source, model.device))
    if not trainer.is_global_zero:
        return
    export_model(model, run / "model", values | scores)
    number = _SAMPLES if budget >= _SAMPLES else _FEWER
    draw = family.preview(model, number)  # in fewer steps where the budget demands it
    steps = min(draw.steps, max(_FEWEST_STEPS, draw.steps * budget // (max(1, nfe) * number)))
    draw = draw if steps == draw.steps else family.preview(model, number, steps)
    more = draw_samples(draw, run / "samples", number)
    values |= more.pop("values", {}) | scores
    report: dict[str, Any] = {"values": values, "training_steps": trainer.global_step, "closing_grid_steps": draw.steps}
    report |= {"command": command(), "sampler": dict(family.draw(model, {}).description), **more}
    report |= {} if scorer is None else scorer.provenance | beside
    size = data.source.size("train") or 0
    few = {"few": budget} if budget < size else {}
    baselines = family.baselines(data.source, num_compared(samples), few)
    report |= compared_with_baselines(samples, baselines)
    if few and baselines and not any(baselines.values()):
        left_out.append(f"baselines: of {size:,} training samples the run has seen {budget:,}")
    for line in left_out:
        print(f"left out: {line}")
    report |= {"left_out": left_out, **provenance(model.device, began, data.source)}
    write_scores(with_earlier(report, run), run / "metrics.json", draw.references)
    if scorer is not None:
        save_figure(scorer.accumulated, run / "samples" / "final")
    page = save_report(run)
    log_results(trainer, values, run)
    show_in_words(run, data.source.facts.get("shape", ()))
    print(f"samples: {run / 'samples' / 'final.png'}\nmodel:   {run / 'model'}\nreport:  {page}")


def keep_affordable_scorer(trainer: pl.Trainer, nfe: int, budget: int, run: Path, left_out: list[str]) -> Scores | None:
    """Leave out the scoring of samples where it would exceed the budget of network evaluations, and say so in words."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for scorer in [callback for callback in callbacks if isinstance(callback, Scores)]:
        if scorer.missing is None and scorer.num_samples * nfe <= budget:
            return scorer
        callbacks.remove(scorer)
        cost = f"{scorer.num_samples:,} samples of {nfe} network evaluations would cost more than the training, of"
        ways = f"{budget:,}: sample.py ckpt={run} num_samples={scorer.num_samples} evaluate=true"
        ways += f", or callbacks.scores.num_samples={budget // nfe}" if budget >= 2 * nfe else ""
        left_out.append(f"scores of samples: {scorer.missing or f'{cost} {ways}'}")
    return None


def validate(trainer: pl.Trainer, module: TrainingModule, budget: int, left_out: list[str]) -> dict[str, float]:
    """Metrics `val/...` of the model on validation data, as far as the budget allows; none without such data."""
    module.model.calibrate(budget)
    data: SourceDataModule = trainer.datamodule  # type: ignore[attr-defined]
    num_batches = len(data.val_dataloader())
    if num_batches == 0 or trainer.limit_val_batches == 0:
        return {}
    trainer.limit_val_batches = affordable_batches(
        "val", trainer.limit_val_batches, num_batches, max_batches(module, data, budget), left_out
    )
    (metrics,) = trainer.validate(module, data, verbose=False) or [{}]
    module.to(trainer.strategy.root_device)  # Lightning moves it to the CPU when it has validated
    return with_errors(metrics, {name: name for name in module.model.means}, module)


def test(trainer: pl.Trainer, module: TrainingModule, budget: int, left_out: list[str]) -> dict[str, float]:
    """Metrics `test/...` of the final model on test data, as far as the budget allows, and scores of its samples."""
    data: SourceDataModule = trainer.datamodule  # type: ignore[attr-defined]
    trainer.limit_test_batches = affordable_batches(
        "test",
        trainer.limit_test_batches,
        len(data.test_dataloader()),
        max_batches(module, data, budget),
        left_out,
    )
    (metrics,) = trainer.test(module, data, verbose=False) or [{}]
    module.to(trainer.strategy.root_device)  # Lightning moves it to the CPU when it has tested
    return with_errors(metrics, {test_name(name): name for name in module.model.means}, module)


def sample_values(module: TrainingModule, source: Source, family: ComponentFamily) -> dict[str, SampleValues]:
    """Values of single test samples by the names of metrics that can be compared with baselines; on every process."""
    model = module.model
    by_name = dict[str, SampleValues]()
    with torch.no_grad(), evaluating(model.averaged):
        for name in model.means:
            index, values = module.mean(name).samples
            samples = family.sample_values(model, source, test_name(name), index, values) if len(index) else None
            if samples is not None:
                by_name[test_name(name)] = samples
    return by_name


def max_batches(module: TrainingModule, data: SourceDataModule, budget: int) -> int:
    """How many held-out batches cost at most as many network evaluations as training did; at least one."""
    return max(1, budget // (data.batch_size * module.model.validation_cost))


def affordable_batches(split: Split, limit: int | float, num_batches: int, allowed: int, left_out: list[str]) -> int:
    """Number of held-out batches that are evaluated at the end.

    Args:
        split: "val" or "test".
        limit: the trainer's: a number of batches, or a share of them.
        num_batches: of the split.
        allowed: as many as the budget allows.
        left_out: a line is added where the budget leaves batches out.
    """
    wanted = min(limit, num_batches) if isinstance(limit, int) else int(limit * num_batches)
    if allowed < wanted:
        told = f"{split}/ metrics are of {allowed} of {num_batches} batches"
        left_out.append(f"{told}: all would cost more than the training; sample.py evaluate=true takes more")
    return min(wanted, allowed)


def with_errors(metrics: Mapping[str, float], means: Mapping[str, str], module: TrainingModule) -> dict[str, float]:
    """Metrics as plain numbers, with standard errors `<name>_error` of bits, whose samples are independent.

    Args:
        metrics: by the names under which they were logged.
        means: name under which a mean was logged -> its name in the module.
        module: that has computed them.
    """
    values = {name: float(value) for name, value in metrics.items()}
    errors = {f"{name}_error": module.mean(of).error for name, of in means.items() if name in values and "bits" in name}
    return values | {name: error for name, error in errors.items() if math.isfinite(error)}


def draw_samples(draw: Draw, directory: Path, number: int) -> dict[str, Any]:
    """Write the closing samples to final.npz and, where the family has pictures, final.png and the way there.

    That, and what else the family makes of samples, is in the folder `final`: `sample.py` has files of these names.
    """
    trajectory, more = Trajectory(_SHOWN), directory / "final"
    samples = draw_first(draw, number, seed=0, watch=trajectory.add)
    trajectory.save(draw, more)
    save_picture(draw.picture(samples), directory / "final.png")
    with sample_file(directory / "final.npz", number, draw.names, draw.about(seed=0)) as write:
        write(samples)
    if (outputs := draw.outputs(seed=0)) is None:
        return {}
    outputs.update(samples, torch.arange(number))
    more.mkdir(exist_ok=True)
    return outputs.write(more)
