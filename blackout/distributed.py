"""Devices, and processes that share samples and gather results.

Every collective operation does nothing in a single process.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning_utilities.core.rank_zero import rank_zero_only
from torch import Tensor

from blackout.counts import Shape
from blackout.errors import WORLD_SIZE_OF_RANK, UserError, refuse
from blackout.safe_reading import available_memory

Result = TypeVar("Result")

START_TIMEOUT = timedelta(minutes=5)  # in which all processes of a group must have started
AGENT_TIMEOUT = timedelta(seconds=60)  # in which torchrun's agent, which runs already, answers
_group_numbers = itertools.count()  # of the groups that this process has joined
REDUCTION_BLOCK = 1 << 24  # elements, so that a large CPU buffer never needs as much GPU memory


def find_device(name: str) -> torch.device:
    """Return the torch device of a name; "auto" is CUDA if there is one, else the CPU.

    For an accelerator without a number, each process of torchrun receives its own.

    Raises:
        UserError: there is no such device.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device such as `meta` has no values
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device={name} is not available, use device=cpu: {reason}") from None
    accelerator = torch.accelerator.current_accelerator()
    if device.index is None and accelerator is not None and device.type == accelerator.type:
        return torch.device(device.type, local_rank % torch.accelerator.device_count())
    return device


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device computes in bfloat16 natively.

    CUDA devices below compute capability 8.0 only emulate it. A CPU always can, faster or slower
    than in float32. Other accelerators are assumed not to.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu"


def device_memory(device: torch.device) -> int | None:
    """Return the memory of a device in bytes: free memory of a CPU, all memory of a CUDA device.

    None for other devices, whose memory is not known.
    """
    if device.type == "cpu":
        return available_memory()
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return None


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started to a group within the block.

    Raises:
        UserError: the processes were started by srun, without torchrun.
    """
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    refuse(
        num_processes == 1 and num_launched() > 1,
        f"srun started {num_launched()} tasks, and each of them would draw all samples: "
        "start one with --ntasks=1, which can start several by torchrun",
    )
    if num_processes == 1:
        yield
        return
    with destroy_group_at_end():
        join_process_group(device)
        yield


def join_process_group(device: torch.device) -> None:
    """Join the processes that torchrun started to a process group.

    Every job of a sweep forms a group of its own. Addresses of earlier groups stay in the store,
    so each group has keys of its own.

    Args:
        device: of this process.

    Raises:
        UserError: the other processes do not answer.
    """
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    environment = os.environ
    has_agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        process_rank = int(environment["RANK"])
        num_processes = int(environment["WORLD_SIZE"])
        store = _open_store(
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            None if has_agent_store else num_processes,
            is_master=process_rank == 0 and not has_agent_store,
        )
        dist.init_process_group(
            dist.get_default_backend_for_device(device),
            rank=process_rank,
            world_size=num_processes,
            store=dist.PrefixStore(f"{_start_key()}/{next(_group_numbers)}", store),
        )
    except (RuntimeError, ValueError) as error:
        raise _group_error(error) from error


@cache
def _open_store(host: str, port: int, num_processes: int | None, *, is_master: bool) -> dist.Store:
    """Return this process's connection to the store, through which processes find each other.

    Without an agent of torchrun, process 0 serves the store. It does so until it ends, because the
    others may come to the next meeting before it has left the last one.

    Args:
        host: address of the store.
        port: of the store.
        num_processes: that meet there; None where torchrun's agent serves the store.
        is_master: whether this process serves it.
    """
    timeout = AGENT_TIMEOUT if num_processes is None else START_TIMEOUT
    return dist.TCPStore(host, port, num_processes, is_master=is_master, timeout=timeout)


def _start_key() -> str:
    """Return a key of this start of the group, equal on all its processes.

    The store of torchrun's single agent outlives a group that it restarts. Several agents have a
    new store for each start, and do not know how often the others have restarted theirs.
    """
    has_one_agent = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if has_one_agent else "0"


@contextmanager
def destroy_group_at_end() -> Iterator[None]:
    """Destroy a process group that is created within the block, also after an error.

    Lightning does so only for NCCL. A thread of gloo that still runs when the interpreter shuts
    down can abort the process, and processes that wait for one with an error would wait on.
    """
    is_inside_another = dist.is_available() and dist.is_initialized()
    try:
        yield
    finally:
        if not is_inside_another and dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def _group_error(error: Exception) -> UserError:
    """Return the error of processes that do not form a group."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return UserError(
        f"the processes of WORLD_SIZE={os.environ.get('WORLD_SIZE')} do not meet at {place} "
        f"({reason}): start them with torchrun, or unset the variables that a launcher has left"
    )


def num_launched() -> int:
    """Return the number of processes that a launcher started, by its environment variables; else 1.

    SLURM sets the number of tasks in a batch script as well, in which it starts a single process.
    """
    environment = os.environ
    num_processes = int(environment.get("WORLD_SIZE", "1"))
    is_step = "SLURM_STEP_ID" in environment or int(environment.get("SLURM_PROCID", "0")) > 0
    num_tasks = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1"))
    return max(num_processes, int(num_tasks) if is_step else 1)


def world_size() -> int:
    """Return the number of processes, 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the index of this process, 0 without torch.distributed."""
    return dist.get_rank() if world_size() > 1 else 0


def is_first() -> bool:
    """Return whether this is process 0, which alone writes files and reports.

    It also holds before the processes are a group, and before Lightning is imported, which sets
    the attribute.
    """
    process_rank = getattr(rank_zero_only, "rank", None)
    if process_rank is None:
        variables = [name for name in WORLD_SIZE_OF_RANK if name in os.environ]
        process_rank = int(os.environ[variables[0]]) if variables else 0
    return process_rank == 0


def my_batches(samples: int | Tensor, size: int) -> tuple[Tensor, ...]:
    """Return the batches of this process: every W-th of all, for W processes.

    No batch depends on the number W of processes, and so no rounding does.

    Args:
        samples: number of samples, or their numbers, int64 [n].
        size: of a batch; the last may have fewer samples.

    Returns:
        Sample numbers, int64 [b] each.
    """
    indices = torch.arange(samples) if isinstance(samples, int) else samples
    return indices.split(size)[rank() :: world_size()]


def my_samples(num_samples: int) -> Tensor:
    """Return the sample numbers of this process: every W-th from its rank on, int64 [n].

    The shares are even, but batches of them depend on the number W of processes.
    """
    return torch.arange(rank(), num_samples, world_size())


def writes_for_its_machine() -> bool:
    """Return whether this process has local rank 0, which writes the cache files of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def exchange_device(device: torch.device) -> torch.device:
    """Return the device to which a tensor must move for a collective operation.

    A group with a backend for this type of device takes the tensor as it is. A group of NCCL alone
    takes no CPU tensors; they are copied to this process's accelerator.
    """
    device_types = [pair.split(":")[0] for pair in dist.get_backend_config().split(",")]
    if device.type in device_types:
        return device
    if "cpu" in device_types:
        return torch.device("cpu")
    return torch.device(device_types[0], torch.accelerator.current_device_index())


def sum_over_processes(values: Tensor) -> Tensor:
    """Sum a contiguous tensor of any shape element by element over processes, in place."""
    if world_size() == 1:
        return values
    flat = values.view(-1)
    device = exchange_device(flat.device)
    for block in flat.split(REDUCTION_BLOCK):
        exchanged = block.to(device)
        dist.all_reduce(exchanged)
        if device != flat.device:
            block.copy_(exchanged)
    return values


def gather_values(value: Result) -> list[Result]:
    """Gather the values of all processes on process 0, by rank; the others get an empty list."""
    if world_size() == 1:
        return [value]
    values: list[Any] | None = [None] * world_size() if rank() == 0 else None
    dist.gather_object(value, values)
    return values or []


def all_true(condition: bool) -> bool:
    """Return whether a condition holds on every process."""
    return not bool(sum_over_processes(torch.tensor(int(not condition))))


def compute_once(compute: Callable[[], Result]) -> Result:
    """Call `compute()` on process 0, and return its result on all processes.

    Raises:
        UserError: it raised a ValueError there.
    """
    if world_size() == 1:
        return compute()
    result_and_error: list[object] = [None, None]
    if rank() == 0:
        try:
            result_and_error = [compute(), None]
        except ValueError as error:
            result_and_error = [None, str(error)]
    dist.broadcast_object_list(result_and_error, src=0)
    result, error_text = result_and_error
    refuse(error_text is not None, str(error_text))
    return result  # type: ignore[return-value]


@contextmanager
def first_process_first() -> Iterator[None]:
    """Run the block on process 0 before the others, so that these find the files it writes."""
    if rank() > 0:
        dist.barrier()
    try:
        yield
    finally:
        if rank() == 0 and world_size() > 1:
            dist.barrier()


class SampleRows:
    """Buffer with one row per sample, such as features, filled by several processes.

    The buffer is allocated at once (400 MB for 2048 features of 50,000 samples). Rows of other
    processes stay zero until `gather`.

    Args:
        shape: the number of samples n and the shape of a row, (n, ...).
        dtype: of the rows.
        device: of the rows.

    Raises:
        UserError: the device does not have the memory.
    """

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        needed = math.prod(shape) * dtype.itemsize
        available = device_memory(torch.device(device))
        if available is not None and needed > available:
            raise UserError(
                f"{shape[0]:,} samples need {needed / 1e9:,.1f} GB of memory on {device}, "
                f"where {available / 1e9:,.1f} GB are free"
            )
        self._rows = torch.zeros(shape, dtype=dtype, device=device)

    def update(self, rows: Tensor, indices: Tensor) -> None:
        """Store rows [B, ...] under the sample numbers `indices`, int64 [B]."""
        self._rows[indices.to(self._rows.device)] = rows.detach().to(self._rows)

    def gather(self) -> Tensor:
        """Return all rows [n, ...] on every process; the rows of this process stay as they are."""
        return sum_over_processes(self._rows.clone()) if world_size() > 1 else self._rows

    def reset(self) -> None:
        """Set all rows to zero."""
        self._rows.zero_()
