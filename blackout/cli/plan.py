"""`train.py plan=true`: size, operations, memory and expected time of a run before it starts."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from blackout.cli.build_trainer import check_batch_size, is_scoring_samples, make_trainer
from blackout.cli.cost import (
    cost_per_sample,
    matmul_rate,
    memory_problem,
    num_parameters,
    si_number,
    training_state_bytes,
)
from blackout.cli.dry_run import dry_run
from blackout.component import Plain
from blackout.training.data_module import SourceDataModule
from blackout.training.family import ComponentFamily
from blackout.training.lightning_module import TrainingModule
from blackout.training.model import Model

NUM_PROBE_BATCHES = 8
NUM_WARM_UP_BATCHES = 3  # left out of the median
MAX_PROBE_SECONDS = 60.0  # after which the probe stops at the end of a batch
MAX_PROBE_CPU_SECONDS = 3.0  # on a CPU it stops within a batch after this processor time
MAX_CPU_FLOPS = 1e10  # of an evaluation of one sample, above which a CPU tries no components
DEFAULT_SCORED_SAMPLES = 1000  # as `blackout.training.callbacks.Scores` has it
BACKWARD_FACTOR = 3  # a training step costs about three forward passes


def plan(
    config: Plain, module: TrainingModule, data_module: SourceDataModule, family: ComponentFamily
) -> None:
    """Print parameters, operations, memory, data and expected time of a run; nothing is written.

    Operations and memory are those of tensors without storage, so that a large network costs no
    more than a small one. A batch that does not fit into this machine's memory is not an error
    here, because the run may be planned for another machine.

    Args:
        config: the settings.
        module: of the run.
        data_module: of the run.
        family: of the model.

    Raises:
        UserError: the trainer's settings are impossible, or components do not fit together.
    """
    model = module.model
    max_steps = config["trainer"]["max_steps"]
    batch_size = config["batch_size"]
    accumulate = config["trainer"].get("accumulate_grad_batches") or 1

    # 1. What an evaluation costs, and a few batches where that is affordable.
    probe = Probe()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = _probe_trainer(config, probe, scratch)
        check_batch_size(batch_size, trainer)
        device = trainer.strategy.root_device
        device_batch_size = batch_size // trainer.world_size
        flops, activations = cost_per_sample(model)
        training_flops = BACKWARD_FACTOR * flops
        problem = memory_problem(trainer, model, batch_size)
        is_cpu = device.type == "cpu"
        if not is_cpu or flops <= MAX_CPU_FLOPS:
            dry_run(config, model, family)
        is_affordable = not is_cpu or training_flops * device_batch_size <= 5 * MAX_CPU_FLOPS
        if problem is None and is_affordable:
            max_cpu_seconds = MAX_PROBE_CPU_SECONDS if is_cpu else math.inf
            probe.run(trainer, module, data_module, max_cpu_seconds)
    if not trainer.is_global_zero:
        return

    # 2. Seconds per batch: measured, or at best.
    durations = [end - start for start, end in pairwise(probe.times)]
    if durations:
        seconds = statistics.median(durations[NUM_WARM_UP_BATCHES:] or durations[-1:])
        method = f"median of {len(durations)} batches on {device}"
    else:
        rate = matmul_rate()
        seconds = training_flops * device_batch_size / rate
        speed = f"{si_number(rate)}FLOP/s of a matrix product on this processor"
        method = f"no batch was run; at best, at the {speed}"

    # 3. The table.
    nfe = family.draw(model, {}).nfe
    num_training_samples = max_steps * accumulate * batch_size
    training_time = timedelta(seconds=round(seconds * max_steps * accumulate))
    memory = (
        f"{si_number(training_state_bytes(model))}B for weights, gradients, moments and average, "
        f"and about {si_number(activations * device_batch_size)}B of activations per device of "
        f"{device_batch_size} samples (both in 32 bit)"
    )
    if probe.peak_bytes:
        memory += f"; the probe's peak was {si_number(probe.peak_bytes)}B"
    if problem:
        memory += f"; it does not fit here: {problem}"
    length = (
        f"{max_steps:,} steps of {accumulate * batch_size:,} samples on {trainer.world_size} "
        f"device(s): {num_training_samples:,} samples"
    )
    size = data_module.source.size("train")
    if size:
        length += f", {num_training_samples / size:,.1f} epochs"
    lines = {
        "parameters": f"{num_parameters(model):,}",
        "work": f"{si_number(flops)}FLOP per sample and network evaluation; "
        f"{si_number(training_flops)}FLOP per training sample, "
        f"{si_number(training_flops * num_training_samples)}FLOP in all; "
        f"{si_number(flops * nfe)}FLOP to draw a sample in {nfe} evaluations",
        "memory": memory,
        "data": str(data_module.source),
        "length": length,
        "time": f"{training_time} of training at {batch_size / seconds:,.1f} samples/s "
        f"({method}; validation, previews and scores come on top)",
    }
    if is_scoring_samples(config):
        total_flops = training_flops * num_training_samples
        lines["scores"] = describe_score_cost(config, model, family, flops, total_flops)
    for name, line in lines.items():
        print(f"{name + ':':<12} {line}")


def describe_score_cost(
    config: Plain, model: Model, family: ComponentFamily, flops: int, training_flops: int
) -> str:
    """Return what drawing the scored samples of a run costs, next to its training.

    Args:
        config: the settings.
        model: to be trained.
        family: of the model.
        flops: of one network evaluation of one sample.
        training_flops: of all of the training.
    """
    callback = config["callbacks"]["scores"]
    num_final = callback.get("num_samples", DEFAULT_SCORED_SAMPLES)
    every_n_steps = callback.get("every_n_steps")
    nfe = family.draw(model, {}).nfe
    parts = []
    if every_n_steps:
        num_samples = callback.get("num_samples_between") or num_final
        num_steps = callback.get("num_steps_between")
        between_nfe = nfe if num_steps is None else family.preview(model, 1, num_steps).nfe
        times = config["trainer"]["max_steps"] // every_n_steps
        between = times * num_samples * between_nfe * flops
        parts.append(
            f"{times:,} times {num_samples:,} samples of {between_nfe:,} evaluations during "
            f"training, {_share(between, training_flops)}"
        )
    final = num_final * nfe * flops
    parts.append(
        f"{num_final:,} samples of {nfe:,} evaluations at the end, {_share(final, training_flops)}"
    )
    return "; ".join(parts)


def _share(flops: int, training_flops: int) -> str:
    return f"{si_number(flops)}FLOP or {flops / max(1, training_flops):.0%} of the training"


def _probe_trainer(config: Plain, probe: Probe, scratch: str) -> pl.Trainer:
    """Return the configured Trainer for a few batches, which writes to a temporary folder."""
    settings = config["trainer"] | {
        "max_steps": NUM_PROBE_BATCHES,
        "limit_val_batches": 0,
        "enable_model_summary": False,
    }
    return make_trainer(
        settings,
        logger=False,
        callbacks=[probe],
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=scratch,
    )


class _TimeLimitReached(Exception):
    """Raised when the timing probe exceeds its time limit."""


class Probe(Callback):
    """Measures the duration of the first few batches."""

    def __init__(self) -> None:
        self.times: list[float] = []  # of the start and of the end of every batch, in seconds
        self.peak_bytes = 0  # largest memory in use on a GPU

    def run(
        self,
        trainer: pl.Trainer,
        module: TrainingModule,
        data_module: SourceDataModule,
        max_cpu_seconds: float,
    ) -> None:
        """Train until the time is up; the clock is read at every evaluation of a network."""
        end = time.process_time() + max_cpu_seconds

        def check_time(*_: Any) -> None:
            if time.process_time() > end:
                raise _TimeLimitReached

        try:
            with torch.nn.modules.module.register_module_forward_pre_hook(check_time):
                trainer.fit(module, data_module)
        except _TimeLimitReached:  # raised by `check_time` alone; every error of the model passes
            return

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self.times = [time.monotonic()]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Read the clock when the device has finished, and stop a probe that takes too long."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
            self.peak_bytes = torch.cuda.max_memory_allocated(pl_module.device)
        self.times.append(time.monotonic())
        elapsed = self.times[-1] - self.times[0]
        if elapsed > MAX_PROBE_SECONDS and trainer.world_size == 1:
            trainer.should_stop = True
