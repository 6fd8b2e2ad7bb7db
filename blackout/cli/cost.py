"""What a model costs: operations and memory of a training step, and the speed of this processor."""

from __future__ import annotations

import math
import time
from dataclasses import is_dataclass
from functools import cache
from itertools import chain
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from blackout.distributed import device_memory
from blackout.errors import UserError
from blackout.training.model import Model

STATE_COPIES = 5  # of all parameters: weights, gradients, Adam's two moments, average
FLOAT_BYTES = 4  # of a float32
BFLOAT16_TRIALS = 4


def check_memory(trainer: pl.Trainer, model: Model, batch_size: int) -> None:
    """Refuse a batch whose training step does not fit into the memory of the device.

    Raises:
        UserError: how much memory it needs, and how much there is.
    """
    problem = memory_problem(trainer, model, batch_size)
    if problem is not None:
        raise UserError(
            f"batch_size={batch_size}: {problem}; "
            "use a smaller one with trainer.accumulate_grad_batches=2 or more"
        )


def memory_problem(trainer: pl.Trainer, model: Model, batch_size: int) -> str | None:
    """Return why a training step does not fit into the memory of the device; None if it may.

    Activations are those of `activation_bytes`, half as many in 16-bit precision. Processes on one
    CPU share its memory.
    """
    device = trainer.strategy.root_device
    available = device_memory(device)
    if available is None:
        return None
    num_sharing = trainer.world_size // trainer.num_nodes if device.type == "cpu" else 1
    activations = activation_bytes(model) * (batch_size // trainer.world_size)
    if "16" in str(trainer.precision):
        activations //= 2
    needed = num_sharing * (training_state_bytes(model) + activations)
    if needed <= available:
        return None
    return (
        f"a training step needs about {si_number(needed)}B of memory on {device}, "
        f"where {si_number(available)}B are free"
    )


def num_parameters(model: Model) -> int:
    """Return the number of parameters of a model's network."""
    return sum(parameter.numel() for parameter in model.network.parameters())


def training_state_bytes(model: Model) -> int:
    """Return the bytes of weights, gradients, Adam's moments and averaged weights, in float32."""
    return num_parameters(model) * FLOAT_BYTES * STATE_COPIES


def cost_per_sample(model: Model) -> tuple[int, int]:
    """Return what one network evaluation of one sample costs.

    Returns:
        Floating-point operations, two per multiply-add; `activation_bytes`.
    """
    with FlopCounterMode(display=False) as counter:
        activations = activation_bytes(model)
    return counter.get_total_flops(), activations


def activation_bytes(model: Model) -> int:
    """Return the bytes that the backward pass keeps of one sample, apart from weights, in float32.

    They are measured on tensors without storage. A network that reads values, or whose input is not
    a tensor, is evaluated with numbers instead.
    """
    example = model.example_inputs()
    if not any(map(is_dataclass, example)):  # a batch of graphs cannot be moved to "meta"
        try:
            return _saved_bytes(model, example, torch.device("meta"))
        except (RuntimeError, NotImplementedError):
            # Reading values without storage raises these. An error of the network itself is raised
            # again below.
            pass
    return _saved_bytes(model, example, model.device)


def _saved_bytes(model: Model, example: Any, device: torch.device) -> int:
    """Return the bytes that autograd saves in an evaluation on `device`, apart from weights."""
    named = chain(model.network.named_parameters(), model.network.named_buffers())
    weights = {
        name: value.detach().to(device).requires_grad_(value.requires_grad) for name, value in named
    }
    weight_storages = {value.untyped_storage() for value in weights.values()}
    storages: set[torch.UntypedStorage] = set()

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage not in weight_storages:
            storages.add(storage)
        return tensor

    with saved_tensors_hooks(record, lambda tensor: tensor):
        functional_call(model.network, weights, _move(example, device))
    return sum(storage.nbytes() for storage in storages)


def _move(value: Any, device: torch.device) -> Any:
    """Move the tensors in tuples, lists and mappings to a device; leave other objects."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(_move(part, device) for part in value)
    if isinstance(value, dict):
        return {name: _move(part, device) for name, part in value.items()}
    return value


def matmul_rate(size: int = 1024) -> float:
    """Return the float32 operations per second of this processor in a matrix product."""
    a = torch.ones(size, size)
    a @ a  # starts the threads
    start = time.perf_counter()
    a @ a
    return 2 * size**3 / (time.perf_counter() - start)


@cache
def bfloat16_ratio() -> float:
    """Return how long a convolution with its gradients takes in bfloat16, relative to float32.

    The shortest of four processor times each, taken in turns. It takes less than a fifth of a
    second, once for all jobs of a sweep.
    """
    x = torch.ones(8, 128, 16, 16)
    weight = torch.ones(128, 128, 3, 3)
    shortest = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for dtype in [torch.float32, torch.bfloat16] * BFLOAT16_TRIALS:
        inputs = [
            tensor.to(dtype, memory_format=torch.channels_last).requires_grad_()
            for tensor in (x, weight)
        ]
        start = time.process_time()
        torch.conv2d(inputs[0], inputs[1], padding=1).sum().backward()
        shortest[dtype] = min(shortest[dtype], time.process_time() - start)
    return shortest[torch.bfloat16] / shortest[torch.float32]


def si_number(number: float) -> str:
    """Return a number with three digits and an SI prefix, such as "1.23 M"."""
    prefixes = ["", "k", "M", "G", "T", "P", "E"]
    while number >= 999.5 and len(prefixes) > 1:
        number = number / 1000
        prefixes = prefixes[1:]
    return f"{number:.3g} {prefixes[0]}"
