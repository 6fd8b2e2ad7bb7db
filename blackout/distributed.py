"""How processes share samples and gather results, by few collective operations, each a no-op in a single process."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning_utilities.core.rank_zero import rank_zero_only
from torch import Tensor

from blackout.counts import Shape
from blackout.errors import UserError, refuse
from blackout.files import memory

Result = TypeVar("Result")

_BLOCK = 1 << 24
"""Elements reduced at once, so that a large CPU buffer never needs as much device memory."""


def find_device(name: str) -> torch.device:
    """The device of that name; auto takes CUDA where there is one.

    Of an accelerator without a number each process of torchrun takes its own.

    Raises:
        UserError: there is no such device.
    """
    if name == "auto":
        return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={name} is not available: {str(error).splitlines()[0]}") from None
    accelerator = torch.accelerator.current_accelerator()
    if device.index is None and accelerator is not None and device.type == accelerator.type:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device(device.type, local_rank % torch.accelerator.device_count())
    return device


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 itself.

    CUDA devices below compute capability 8.0 only emulate it. A CPU always can, faster or slower than in float32. Of
    other accelerators it is not known, and they are taken to be without.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu"


def device_memory(device: torch.device) -> int | None:
    """Bytes of memory that this process may still take on a CPU, or that a CUDA device has in all; None of others."""
    if device.type == "cpu":
        return memory()
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return None


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Inside, the processes that torchrun started are one group, each with its own `device`."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    meet(device)
    try:
        yield
    finally:
        dist.destroy_process_group()


def meet(device: torch.device) -> None:
    """Make the processes that torchrun started one group, each with its own `device`.

    Its store outlives a group that it starts again, with the addresses of the dead: each has keys of its own. Of agents
    on several machines none knows how often the others have started theirs.
    """
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    at, where = os.environ, dict[str, Any]()
    if at.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and at.get("GROUP_WORLD_SIZE") == "1":
        store = dist.TCPStore(at["MASTER_ADDR"], int(at["MASTER_PORT"]), is_master=False)
        where = {"rank": int(at["RANK"]), "world_size": int(at["WORLD_SIZE"])}
        where["store"] = dist.PrefixStore(at["TORCHELASTIC_RESTART_COUNT"], store)
    dist.init_process_group(dist.get_default_backend_for_device(device), **where)


def world_size() -> int:
    """Number of processes, 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Index of this process, 0 without torch.distributed."""
    return dist.get_rank() if world_size() > 1 else 0


def is_first() -> bool:
    """Whether this is the first process of all, also before they are a group: it alone writes and reports."""
    return getattr(rank_zero_only, "rank", 0) == 0


def my_batches(samples: int | Tensor, size: int) -> tuple[Tensor, ...]:
    """This process's batches, every W-th of all of them: no batch, and so no rounding, depends on W.

    Args:
        samples: how many there are, or their numbers, int64 [n].
        size: samples per batch; the last may have fewer.

    Returns:
        Sample numbers, int64 [b] each.
    """
    indices = torch.arange(samples) if isinstance(samples, int) else samples
    return indices.split(size)[rank() :: world_size()]


def my_samples(num_samples: int) -> Tensor:
    """This process's samples, every W-th from its rank on, int64 [n]: even shares, whose batches depend on W."""
    return torch.arange(rank(), num_samples, world_size())


def writes_for_its_machine() -> bool:
    """Whether this process is the one of its machine that writes shared cache files."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def exchange_device(device: torch.device) -> torch.device:
    """Where a tensor on `device` has to be for a collective operation of the process group.

    A group with a backend for this kind of device takes the tensor as it is. A group of NCCL alone takes no CPU
    tensors; these travel through this process's accelerator.
    """
    kinds = [pair.split(":")[0] for pair in dist.get_backend_config().split(",")]
    if device.type in kinds:
        return device
    return torch.device("cpu") if "cpu" in kinds else torch.device(kinds[0], torch.accelerator.current_device_index())


def sum_over_processes(values: Tensor) -> Tensor:
    """Element-wise sum over processes, in place, of a contiguous CPU or device tensor of any shape."""
    if world_size() == 1:
        return values
    flat = values.view(-1)
    device = exchange_device(flat.device)
    for block in flat.split(_BLOCK):
        exchanged = block.to(device)
        dist.all_reduce(exchanged)
        if device != flat.device:
            block.copy_(exchanged)
    return values


def gathered(mine: Result) -> list[Result]:
    """What every process has, by rank, on process 0; nothing on the others."""
    if world_size() == 1:
        return [mine]
    everything: list[Any] | None = [None] * world_size() if rank() == 0 else None
    dist.gather_object(mine, everything)
    return everything or []


def agreed(mine: bool) -> bool:
    """True when every process says True."""
    return not bool(sum_over_processes(torch.tensor(int(not mine))))


def computed_once(compute: Callable[[], Result]) -> Result:
    """Result of `compute()` on process 0, given to all; a ValueError there is raised on all."""
    if world_size() == 1:
        return compute()
    outcome: list[object] = [None, None]
    if rank() == 0:
        try:
            outcome = [compute(), None]
        except ValueError as error:
            outcome = [None, str(error)]
    dist.broadcast_object_list(outcome, src=0)
    refuse(outcome[1] is not None, str(outcome[1]))
    return outcome[0]  # type: ignore[return-value]


@contextmanager
def first_process_first() -> Iterator[None]:
    """Process 0 runs the body before the others: it downloads or trains, the others find its files."""
    if rank() > 0:
        dist.barrier()
    try:
        yield
    finally:
        if rank() == 0 and world_size() > 1:
            dist.barrier()


class SampleRows:
    """One row for every sample, such as its features, in the order of the sample indices.

    The buffer is allocated at once (400 MB for 2048 features of 50,000 samples). Rows of other processes stay zero
    until `gather`.

    Args:
        shape: n, the number of samples, and the shape of a row.
        dtype: of the rows.
        device: where they are.

    Raises:
        UserError: the device has no memory for them.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        needed, available = math.prod(shape) * dtype.itemsize, device_memory(torch.device(device))
        told = f"{shape[0]:,} samples need {needed / 1e9:,.1f} GB of memory on {device}"
        refuse(available is not None and needed > available, f"{told}, where {(available or 0) / 1e9:,.1f} GB are left")
        self._rows = torch.zeros(shape, dtype=dtype, device=device)

    def update(self, rows: Tensor, indices: Tensor) -> None:
        """Store rows [B, ...] as those with the numbers `indices`, int64 [B]."""
        self._rows[indices.to(self._rows.device)] = rows.detach().to(self._rows)

    def gather(self) -> Tensor:
        """All rows [n, ...], on every process; leaves the own rows as they are."""
        return sum_over_processes(self._rows.clone()) if world_size() > 1 else self._rows

    def reset(self) -> None:
        """Forget all samples."""
        self._rows.zero_()
