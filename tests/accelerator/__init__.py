"""A torch device called `simulated`, for tests on machines without an accelerator.

It uses PyTorch's public interface for devices of other vendors. Its tensors live in host memory,
but as on CUDA they cannot be mixed with CPU tensors, and as with NCCL its process group takes no
CPU tensors. It finds tensors that are made on the wrong device; it tests neither kernels nor speed.
"""

from __future__ import annotations

import types
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

NAME = "simulated"


def install() -> None:
    """Build the device, which takes a minute the first time, and register it with PyTorch."""
    source = Path(__file__).with_name("simulated.cpp")
    built = cpp_extension.load("blackout_simulated_device", [str(source)], extra_cflags=["-O1"])
    torch.utils.rename_privateuse1_backend(NAME)
    # PyTorch's guide to devices of other vendors uses this private function as well
    torch._register_device_module(NAME, device_module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

    def collectives(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        return built.collectives(rank, size, dist.ProcessGroupGloo(store, rank, size, timeout))

    dist.Backend.register_backend(NAME, collectives, devices=[NAME])


def device_module() -> types.ModuleType:
    """Return the module `torch.simulated`: one device, which draws from the CPU's generator."""
    module: Any = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.synchronize = lambda device=None: None
    module.manual_seed = lambda seed: None
    module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module
