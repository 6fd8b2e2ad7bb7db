"""Building a model from its description: heads, tensors of the data, and memory."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from blackout.component import Plain, leaves
from blackout.config.instantiate import find_target, instantiate
from blackout.diffusion.heads import Head
from blackout.diffusion.processes import FiniteProcess, Process
from blackout.errors import UserError
from blackout.networks.elements import Elements
from blackout.networks.inputs import CountInputs

BYTES_PER_NUMBER = 8  # float64
# Arrays [B, *shape, S] that any training step holds at once: logits, probabilities, gradients.
# Losses of rates hold about four times as many; what might fit is not refused.
NUM_STATE_ARRAYS = 3


def make_head(config: Plain, process: Process, elements: Elements | None = None) -> Head:
    """Return a head, with process and elements if its signature, or that of its base, has them.

    Args:
        config: its description.
        process: the forward process.
        elements: of the data; None if no component has them, or only `outputs` is needed.

    Raises:
        UserError: it cannot be made, or has no `outputs`.
    """
    parameters = inspect.signature(find_target(config, "head")).parameters
    placeholder = torch.ones(())
    available = {
        "process": process,
        "elements": elements or Elements(placeholder, placeholder, placeholder),
    }
    arguments = {name: value for name, value in available.items() if name in parameters}
    base = config.get("base")
    if isinstance(base, Mapping):
        arguments["base"] = make_head(base, process, elements)
        config = {name: value for name, value in config.items() if name != "base"}
    head: Head = instantiate(config, "head", **arguments)
    if not isinstance(getattr(head, "outputs", None), int):
        raise UserError(
            f"head: {type(head).__name__} does not say how many `outputs` of the network it reads"
        )
    return head


def needs_elements(network: object, head: Plain) -> bool:
    """Return whether inputs of the network, or a head, use the mean of every element."""
    kinds = [
        find_target({"_target_": kind}, "head")
        for name, kind in leaves(head)
        if name.endswith("_target_")
    ]
    if any("elements" in inspect.signature(kind).parameters for kind in kinds):
        return True
    if not isinstance(network, nn.Module):
        return False
    return any(isinstance(part, CountInputs) for part in network.modules())


def select_tensors(
    tensors: Mapping[str, Tensor], shape: list[int], *, with_elements: bool, with_classes: bool
) -> dict[str, Tensor]:
    """Return the tensors of the data that a model keeps, by name.

    Args:
        tensors: from a dataset or a file.
        shape: of the data.
        with_elements: whether `concentration` and `gain` are needed.
        with_classes: whether the model has classes, for `class_mean`, which is optional.

    Raises:
        UserError: a tensor is missing or of another shape.
    """
    shapes = {"data_mean": shape}
    if with_elements:
        shapes |= {"concentration": shape, "gain": []}
    selected = {
        name: tensors[name]
        for name, tensor_shape in shapes.items()
        if name in tensors and list(tensors[name].shape) == tensor_shape
    }
    complete = len(selected) == len(shapes)
    class_mean = tensors.get("class_mean") if with_classes else None
    if class_mean is not None:
        complete = complete and list(class_mean.shape[1:]) == shape
        selected["class_mean"] = class_mean
    if not complete:
        raise UserError(f"the weights are not those of {shape}-shaped data")
    return selected


def check_memory(process: Plain, shape: Sequence[int], max_count: int, batch_size: int) -> None:
    """Refuse a process on finitely many states whose training step cannot fit in memory.

    Its size is that of arrays [batch_size, *shape, S] and matrices [batch_size, S, S] of
    S = max_count + 2 states.

    References: this project; checked in tests/cli/test_counts.py.

    Args:
        process: its description.
        shape: of the data.
        max_count: the largest count.
        batch_size: of a step.

    Raises:
        UserError: how much memory it would need.
    """
    kind = find_target(process, "process")
    if not (isinstance(kind, type) and issubclass(kind, FiniteProcess)):
        return
    num_states = max_count + 2
    num_elements = math.prod(shape)
    size = NUM_STATE_ARRAYS * batch_size * num_elements * num_states
    if kind.tables:
        size += batch_size * num_states**2
    needed_bytes = BYTES_PER_NUMBER * size
    available_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes > available_bytes:
        raise UserError(
            f"process: {kind.__name__} on {num_states:,} states of {num_elements:,} elements would "
            f"need at least {needed_bytes / 1e9:,.0f} GB for batch_size={batch_size}, "
            f"of {available_bytes / 1e9:,.0f} GB here; counts as large as {max_count:,} are for "
            "process=blackout"
        )
