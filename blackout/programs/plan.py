"""`train.py plan=true`: size, FLOPs, memory and expected time of a run, before it starts."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from blackout.training.components import make
from blackout.training.data_module import SourceDataModule
from blackout.training.lightning_module import TrainingModule
from blackout.training.model import Model

_PROBED = 8
_WARM_UP = 3
_SECONDS = 60.0
"""The probe stops after so many steps, or after the first that ends later than this."""


def plan(config: dict[str, Any], module: TrainingModule, data_module: SourceDataModule, nfe: int) -> None:
    """Print parameters, FLOPs, memory, data and expected time of a run; nothing is written.

    Args:
        config: the settings.
        module, data_module: of the run.
        nfe: network evaluations of a sample.

    Raises:
        UserError: the trainer's settings are impossible.
    """
    probe, model = Probe(), module.model
    trainer = _probe(config, module, data_module, probe)
    if not trainer.is_global_zero:
        return
    steps, accumulate = config["trainer"]["max_steps"], config["trainer"].get("accumulate_grad_batches") or 1
    batch, devices = config["batch_size"], trainer.world_size
    images, share = steps * accumulate * batch, batch // devices
    parameters = sum(p.numel() for p in model.network.parameters())
    flops = flops_per_sample(model)
    state = parameters * 4 * 5  # weights, gradients, Adam's two moments, average
    second = statistics.median(probe.seconds[_WARM_UP:] or probe.seconds[-1:])
    size = data_module.source.size("train")
    lines = {
        "parameters": f"{parameters:,}",
        "work": f"{_si(flops)}FLOP per image and network evaluation; {_si(3 * flops)}FLOP per image of training, "
        f"{_si(3 * flops * images)}FLOP in all; {_si(flops * nfe)}FLOP per sample of {nfe} evaluations",
        "memory": f"{_si(state)}B for weights, gradients, moments and average, and about "
        f"{_si(activation_bytes(model) * share)}B of activations per device of {share} images (both in 32 bit)"
        + (f"; the probe's peak was {_si(probe.peak)}B" if probe.peak else ""),
        "data": str(data_module.source),
        "length": f"{steps:,} steps of {accumulate * batch:,} images on {devices} device(s): {images:,} images"
        + (f", {images / size:,.1f} epochs" if size else ""),
        "time": f"{_duration(second * steps * accumulate)} of training at {batch / second:,.1f} images/s (median of "
        f"{len(probe.seconds)} batches on {trainer.strategy.root_device}; validation, previews and scores come on top)",
    }
    for name, line in lines.items():
        print(f"{name + ':':<12} {line}")


def _probe(config: dict[str, Any], module: TrainingModule, data_module: SourceDataModule, probe: Probe) -> pl.Trainer:
    """Train for a few batches, in a temporary directory."""
    options = config["trainer"] | {"max_steps": _PROBED, "limit_val_batches": 0, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as scratch:
        trainer: pl.Trainer = make(
            options, "trainer", logger=False, callbacks=[probe], enable_checkpointing=False, enable_progress_bar=False,
            default_root_dir=scratch, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(module, data_module)
    return trainer


class Probe(Callback):
    """Times the first few batches."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.peak = 0
        self._began = self._start = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the whole probe."""
        self._start = time.monotonic()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Start the clock of a batch."""
        self._began = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Stop it when the device is done, and the probe when it has taken too long."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
            self.peak = torch.cuda.max_memory_allocated(pl_module.device)
        self.seconds.append(time.monotonic() - self._began)
        if time.monotonic() - self._start > _SECONDS and trainer.world_size == 1:
            trainer.should_stop = True


def flops_per_sample(model: Model) -> int:
    """Floating-point operations (two per multiply-add) of one network evaluation of one sample."""
    with FlopCounterMode(display=False) as counter:
        model.network(*model.example())
    return counter.get_total_flops()


def activation_bytes(model: Model) -> int:
    """Bytes that the backward pass of one sample keeps, apart from the weights, in 32 bit."""
    network = copy.deepcopy(model.network)
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(*model.example())
    return sum(kept.values())


def _si(number: float) -> str:
    units = ["", "k", "M", "G", "T", "P", "E"]
    while number >= 999.5 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.3g} {units[0]}"


def _duration(seconds: float) -> str:
    for unit, size in {"days": 86400, "hours": 3600, "minutes": 60}.items():
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
