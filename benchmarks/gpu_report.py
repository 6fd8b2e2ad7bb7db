"""What the parts of `python -m benchmarks.gpu` share: where they run, and how they report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.measure import interleaved

ROOT = Path(__file__).parents[1]
SIDE = 32  # pixels of an image
FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


class Sender(Protocol):
    """Where results go."""

    def send(self, row: dict[str, Any], /) -> None:
        """Take one result."""


class DeviceLost(Exception):
    """The device answers no more after an error: this process cannot go on."""


class Report:
    """Sends results to the command, and turns the failure of a case into a result.

    Args:
        sender: where results go.
        done: cases that an earlier process of this part has reported.
    """

    def __init__(self, sender: Sender, done: set[str]) -> None:
        self._sender = sender
        self._done = done

    def add(self, case: str, passed: bool | None = None, **figures: Any) -> None:
        """Report a check, or with `passed` None a measurement."""
        row = {name: _plain(value) for name, value in figures.items()}
        mark = None if passed is None else bool(passed)
        self._sender.send({"case": case, "passed": mark, **row})

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Whatever fails inside is reported as a failure of this case, and the part goes on.

        Raises:
            DeviceLost: an error after which the device answers no more.
        """
        try:
            yield
        except Exception as error:  # what is tried here may fail in any way: that is the result
            self.add(name, False, error=f"{type(error).__name__}: {str(error)[:300]}")
            if "CUDA error" in str(error):
                raise DeviceLost from error

    def is_done(self, name: str) -> bool:
        """Whether a case was reported before."""
        return name in self._done


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


class Setup:
    """Where a part runs, and at which size.

    Args:
        device: cuda or cpu.
        quick: in miniature.
        folder: for all files.
    """

    def __init__(self, device: str, quick: bool, folder: str) -> None:
        self.device = torch.device(device)
        self.quick = quick
        self.folder = Path(folder)

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def seconds(self, run: Callable[[], Any], repetitions: int = 5) -> float:
        """Seconds of one call, the median, until the device is done."""
        times = interleaved({"case": run}, repetitions, self.device)["case"]
        return sorted(times)[len(times) // 2]


def image_batch(device: torch.device, size: int) -> dict[str, Any]:
    """A batch of random images, as a training step gets it."""
    generator = torch.Generator().manual_seed(2)
    shape = (size, 3, SIDE, SIDE)
    x0 = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)
    position = torch.arange(size, device=device)
    return {"x0": x0, "position": position, "batch": 3, "batch_size": size}
