"""Copies of a checkpoint in host memory, which training does not wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

HOST_MEMORY = ("cpu", "mps")  # devices whose tensors lie in the host's memory


@dataclass(frozen=True)
class HostCopy:
    """A copy of tensors and plain containers, complete once `wait` has returned.

    Args:
        content: as it was when it was copied, with all tensors on the CPU.
        events: of the devices, after their copies.
    """

    content: dict[str, Any]
    events: tuple[torch.Event, ...]

    def wait(self) -> None:
        """Wait until the devices have copied everything."""
        for event in self.events:
            event.synchronize()


def copy_to_host(content: dict[str, Any]) -> HostCopy:
    """Copy tensors and plain containers to the host.

    Tensors of an accelerator are copied into pinned memory by its current stream. The host does not
    wait, and later steps on that stream change them only afterwards. PyTorch keeps the pinned
    memory for the next copy.

    Args:
        content: of a checkpoint.
    """
    devices: set[torch.device] = set()

    def copy(x: Tensor) -> Tensor:
        x = x.detach()
        if x.device.type in HOST_MEMORY:
            return x.to("cpu", copy=True)
        devices.add(x.device)
        pinned = torch.empty_like(x, device="cpu", pin_memory=True)
        return pinned.copy_(x, non_blocking=True)

    copied = apply_to_collection(content, Tensor, copy)
    events = []
    for device in devices:
        event = torch.Event(device)
        event.record(torch.accelerator.current_stream(device))
        events.append(event)
    return HostCopy(copied, tuple(events))
