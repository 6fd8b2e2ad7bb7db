"""Before a run starts: its size, FLOPs, memory and expected time (`train.py plan=true`), and whether bfloat16 pays."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from dataclasses import is_dataclass
from datetime import timedelta
from functools import cache
from itertools import chain, pairwise
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from blackout.cli.dry_run import dry_run
from blackout.component import Plain
from blackout.config.instantiate import instantiate
from blackout.distributed import device_memory
from blackout.errors import UserError
from blackout.training.data_module import SourceDataModule
from blackout.training.family import ComponentFamily
from blackout.training.lightning_module import TrainingModule
from blackout.training.model import Model

_PROBED = 8
_WARM_UP = 3
_SECONDS = 60.0
"""On an accelerator the probe stops after the first batch that ends later than this."""
_PROCESSOR_SECONDS = 3.0
"""Without one the probe stops in the midst of a batch, after so many seconds of the processor."""
_STATE_COPIES = 5  # of all parameters: weights, gradients, Adam's two moments, average
_BYTES = 4  # of a number in 32 bit
_FLOPS = 1e10
"""Without an accelerator components are tried where an evaluation is less work, and batches where one is less than five
times as much."""


def plan(config: Plain, module: TrainingModule, data_module: SourceDataModule, family: ComponentFamily) -> None:
    """Print parameters, FLOPs, memory, data and expected time of a run; nothing is written.

    FLOPs and memory are of tensors without storage, so that a large network costs no more than a small one. A batch
    that does not fit into this machine's memory is no error here, as the run may be planned for another one.

    Args:
        config: the settings.
        module, data_module: of the run.
        family: of the model.

    Raises:
        UserError: the trainer's settings are impossible, or components do not fit together.
    """
    probe, model = Probe(), module.model
    with tempfile.TemporaryDirectory() as scratch:
        options = config["trainer"] | {"max_steps": _PROBED, "limit_val_batches": 0, "enable_model_summary": False}
        trainer: pl.Trainer = instantiate(  # which leaves what it writes in a temporary directory
            options, "trainer", logger=False, callbacks=[probe], enable_checkpointing=False, enable_progress_bar=False,
            default_root_dir=scratch, use_distributed_sampler=False,
        )  # fmt: skip
        steps, accumulate = config["trainer"]["max_steps"], config["trainer"].get("accumulate_grad_batches") or 1
        batch, devices = config["batch_size"], trainer.world_size
        images, share = steps * accumulate * batch, batch // devices
        flops, activations = cost_per_sample(model)
        on_processor = trainer.strategy.root_device.type == "cpu"
        excess = memory_excess(trainer, model, batch)
        if not (on_processor and flops > _FLOPS):
            dry_run(config, model, family)
        if excess is None and not (on_processor and 3 * flops * share > 5 * _FLOPS):
            probe.run(trainer, module, data_module, _PROCESSOR_SECONDS if on_processor else math.inf)
    if not trainer.is_global_zero:
        return
    parameters, nfe = sum(p.numel() for p in model.network.parameters()), family.draw(model, {}).nfe
    state = parameters * _BYTES * _STATE_COPIES
    if seconds := [end - start for start, end in pairwise(probe.times)]:
        second = statistics.median(seconds[_WARM_UP:] or seconds[-1:])
        how = f"median of {len(seconds)} batches on {trainer.strategy.root_device}"
    else:
        rate = product_rate()
        second = 3 * flops * share / rate
        how = f"no batch was run: at best, at the {_si(rate)}FLOP/s of a matrix product on this processor"
    size = data_module.source.size("train")
    lines = {
        "parameters": f"{parameters:,}",
        "work": f"{_si(flops)}FLOP per image and network evaluation; {_si(3 * flops)}FLOP per image of training, "
        f"{_si(3 * flops * images)}FLOP in all; {_si(flops * nfe)}FLOP per sample of {nfe} evaluations",
        "memory": f"{_si(state)}B for weights, gradients, moments and average, and about "
        f"{_si(activations * share)}B of activations per device of {share} images (both in 32 bit)"
        + (f"; the probe's peak was {_si(probe.peak)}B" if probe.peak else "")
        + (f"; it does not fit here: {excess}" if excess else ""),
        "data": str(data_module.source),
        "length": f"{steps:,} steps of {accumulate * batch:,} images on {devices} device(s): {images:,} images"
        + (f", {images / size:,.1f} epochs" if size else ""),
        "time": f"{timedelta(seconds=round(second * steps * accumulate))} of training at {batch / second:,.1f} images/s"
        f" ({how}; validation, previews and scores come on top)",
    }
    for name, line in lines.items():
        print(f"{name + ':':<12} {line}")


class _TooLong(Exception):
    """The probe has used its time."""


class Probe(Callback):
    """Times the first few batches."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.peak = 0

    def run(self, trainer: pl.Trainer, module: TrainingModule, data_module: SourceDataModule, most: float) -> None:
        """Train until time is up, at `most` so many seconds of the processor; whatever a step does, it evaluates
        networks, where the clock is looked at."""
        end = time.process_time() + most

        def check(*_: Any) -> None:
            if time.process_time() > end:
                raise _TooLong

        try:
            with torch.nn.modules.module.register_module_forward_pre_hook(check):
                trainer.fit(module, data_module)
        except _TooLong:  # raised by `check` alone; every error of the model goes through
            return

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self.times = [time.monotonic()]

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Look at it when the device is done, and stop the probe when it has taken too long."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
            self.peak = torch.cuda.max_memory_allocated(pl_module.device)
        self.times.append(time.monotonic())
        if self.times[-1] - self.times[0] > _SECONDS and trainer.world_size == 1:
            trainer.should_stop = True


def check_memory(trainer: pl.Trainer, model: Model, batch_size: int) -> None:
    """Refuse a batch whose training step does not fit into the memory of the device.

    Raises:
        UserError: how much memory it needs, and how much there is.
    """
    if excess := memory_excess(trainer, model, batch_size):
        raise UserError(f"batch_size={batch_size}: {excess}; see trainer.accumulate_grad_batches")


def memory_excess(trainer: pl.Trainer, model: Model, batch_size: int) -> str | None:
    """Why a training step does not fit into the memory of the device, in words; None where it may.

    Activations are those of `activation_bytes`, half as many in 16-bit precision. Processes on one CPU share its
    memory.
    """
    device = trainer.strategy.root_device
    if (available := device_memory(device)) is None:
        return None
    processes = trainer.world_size // trainer.num_nodes if device.type == "cpu" else 1
    state = sum(p.numel() for p in model.network.parameters()) * _BYTES * _STATE_COPIES
    activations = activation_bytes(model) * (batch_size // trainer.world_size)
    if "16" in str(trainer.precision):
        activations //= 2
    needed = processes * (state + activations)
    if needed <= available:
        return None
    return f"a training step needs about {_si(needed)}B of memory on {device}, where {_si(available)}B are left"


def activation_bytes(model: Model) -> int:
    """Bytes that the backward pass of one network evaluation keeps of one sample, apart from the weights, in 32 bit.

    They are measured on tensors without storage. A network that reads values, or whose input is no tensor, is evaluated
    with numbers instead.
    """
    example = model.example()
    if not any(map(is_dataclass, example)):  # a batch of graphs is an object that stays where it is
        try:
            return _kept_bytes(model, example, torch.device("meta"))
        except (RuntimeError, NotImplementedError):
            # Reading values without storage raises these. An error of the network itself is raised again below.
            pass
    return _kept_bytes(model, example, model.device)


def _kept_bytes(model: Model, example: Any, device: torch.device) -> int:
    named = chain(model.network.named_parameters(), model.network.named_buffers())
    empty = {name: value.detach().to(device).requires_grad_(value.requires_grad) for name, value in named}
    weights = {value.untyped_storage() for value in empty.values()}  # equal only to itself
    kept: set[torch.UntypedStorage] = set()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage not in weights:
            kept.add(storage)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        functional_call(model.network, empty, _to(example, device))
    return sum(storage.nbytes() for storage in kept)


def _to(value: Any, device: torch.device) -> Any:
    """Move the tensors in tuples, lists and mappings to a device; other objects stay where they are."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(_to(part, device) for part in value)
    if isinstance(value, dict):
        return {name: _to(part, device) for name, part in value.items()}
    return value


def cost_per_sample(model: Model) -> tuple[int, int]:
    """What one network evaluation of one sample costs.

    Returns:
        floating-point operations, two per multiply-add; `activation_bytes`.
    """
    with FlopCounterMode(display=False) as counter:
        activations = activation_bytes(model)
    return counter.get_total_flops(), activations


def product_rate(size: int = 1024) -> float:
    """Floating-point operations per second of a product of float32 matrices [size, size] on this processor, a float."""
    a = torch.ones(size, size)
    a @ a  # the first one also makes threads
    began = time.perf_counter()
    a @ a
    return 2 * size**3 / (time.perf_counter() - began)


@cache
def bfloat16_ratio() -> float:
    """How long a convolution and its gradients take on this processor in bfloat16, relative to single precision.

    The least of four processor times each, taken in turns: less than a fifth of a second, once for all jobs of a sweep.
    """
    x, weight = torch.ones(8, 128, 16, 16), torch.ones(128, 128, 3, 3)
    least = dict.fromkeys((torch.float32, torch.bfloat16), math.inf)
    for dtype in (*least,) * 4:
        given = [one.to(dtype, memory_format=torch.channels_last).requires_grad_() for one in (x, weight)]
        began = time.process_time()
        torch.conv2d(given[0], given[1], padding=1).sum().backward()
        least[dtype] = min(least[dtype], time.process_time() - began)
    return least[torch.bfloat16] / least[torch.float32]


def _si(number: float) -> str:
    units = ["", "k", "M", "G", "T", "P", "E"]
    while number >= 999.5 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.3g} {units[0]}"
