"""Run a command on the device `simulated`: `python -m tests.accelerator.program train SETTINGS`.

The last line of output lists the devices on which networks were evaluated, in order, such as
`evaluated on: cpu, simulated`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from pytorch_lightning.accelerators import AcceleratorRegistry, CPUAccelerator
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tests import accelerator

DEVICE = f"{accelerator.NAME}:0"
SETTINGS = {
    "train": (f"trainer.accelerator={accelerator.NAME}", "trainer.precision=32-true"),
    "sample": (f"device={accelerator.NAME}",),
}
# Lightning would choose strategies of CUDA for an unknown accelerator
STRATEGY = "pytorch_lightning.strategies.SingleDeviceStrategy"
ONE_PROCESS = (
    "trainer.devices=1",
    f"trainer.strategy={{_target_: {STRATEGY}, device: '{DEVICE}'}}",
)
SEVERAL_PROCESSES = ("trainer.strategy={_target_: tests.accelerator.program.DDPWithoutStreams}",)


class SimulatedAccelerator(CPUAccelerator):
    """Lightning's view of the device."""

    def setup_device(self, device: torch.device) -> None:
        """Accept the device, which needs nothing."""

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """Return the numbers of the devices, which are all device 0."""
        return [0] * (devices if isinstance(devices, int) else 1)

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """Return the device of each number."""
        return [torch.device(DEVICE)] * len(devices)

    @staticmethod
    def auto_device_count() -> int:
        """Return the number of devices."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Return whether the device exists."""
        return True

    @staticmethod
    def name() -> str:
        """What `trainer.accelerator=` calls it."""
        return accelerator.NAME


class DDPWithoutStreams(DDPStrategy):
    """Lightning makes a CUDA stream where DDP is told device ids, which only CUDA needs."""

    def determine_ddp_device_ids(self) -> None:
        """Tell it none."""


def main(program: str, words: list[str]) -> None:
    """Run a program and print where networks were evaluated."""
    accelerator.install()
    AcceleratorRegistry.register(accelerator.NAME, SimulatedAccelerator)
    devices: list[str] = []

    def note(module: nn.Module, _: Any) -> None:
        for weight in module.parameters(recurse=False):
            if devices[-1:] != [weight.device.type]:
                devices.append(weight.device.type)

    strategy = SEVERAL_PROCESSES if "WORLD_SIZE" in os.environ else ONE_PROCESS
    sys.argv = [
        f"{program}.py",
        *SETTINGS[program],
        *(strategy if program == "train" else ()),
        *words,
    ]
    from blackout.cli import programs

    with register_module_forward_pre_hook(note):
        try:
            programs.run({"train": programs.train, "sample": programs.sample}[program], program)
        finally:
            print(f"evaluated on: {', '.join(devices)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
