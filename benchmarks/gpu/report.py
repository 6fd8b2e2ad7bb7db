"""Setup and report of a part of `python -m benchmarks.gpu`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeAlias

import torch

from benchmarks.measure import interleaved

ROOT = Path(__file__).parents[2]
IMAGE_SIZE = 32  # pixels
MEMORY_FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
# Parts of messages after which a process can no longer use the GPU
DEVICE_ERRORS = ("CUDA error", "illegal memory access")

Row: TypeAlias = dict[str, Any]
"""A result: `part`, `case`, `passed` (None for a measurement), and figures."""


@dataclass(frozen=True)
class Setup:
    """Device, size and folder of a part.

    Args:
        device: where networks are evaluated.
        quick: use tiny sizes, to check that everything runs.
        folder: for all files.
        data: folder with CIFAR-10 in torchvision's layout, where there is one.
    """

    device: torch.device
    quick: bool
    folder: Path
    data: Path = Path("data")

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def time_call(self, function: Callable[[], Any], repetitions: int = 5) -> float:
        """Return the median seconds of a call, until the device has finished."""
        return median(interleaved({"call": function}, repetitions, self.device)["call"])

    def random_images(self, batch_size: int) -> torch.Tensor:
        """Return random images, uint8 [batch_size, 3, 32, 32]; the same on every device."""
        generator = torch.Generator().manual_seed(2)
        shape = (batch_size, 3, IMAGE_SIZE, IMAGE_SIZE)
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return images.to(self.device)


class Sender(Protocol):
    """The sending end of a connection."""

    def send(self, row: Row, /) -> None:
        """Send a result."""


class DeviceLostError(Exception):
    """The GPU no longer answers this process."""


class Report:
    """Sends the results of a part to the main process.

    Args:
        sender: connection to the main process.
        finished: cases that an earlier process of this part has reported.
    """

    def __init__(self, sender: Sender, finished: frozenset[str] = frozenset()) -> None:
        self._sender = sender
        self._finished = finished

    def is_finished(self, case: str) -> bool:
        """Whether an earlier process of this part has reported the case."""
        return case in self._finished

    def add(self, case: str, passed: bool | None = None, **figures: Any) -> None:
        """Report a check, or a measurement if `passed` is None."""
        passed = None if passed is None else bool(passed)
        values = {name: _to_json(value) for name, value in figures.items()}
        self._sender.send({"case": case, "passed": passed, **values})

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Report an exception inside as a failure of this case, so that the part continues.

        Raises:
            DeviceLostError: the GPU does not answer this process after the exception.
        """
        try:
            yield
        except Exception as error:  # any failure of the code that is checked is a result
            self.add(name, False, error=f"{type(error).__name__}: {str(error)[:300]}")
            if any(text in str(error) for text in DEVICE_ERRORS):
                raise DeviceLostError from error


def _to_json(value: Any) -> Any:
    """Round to four digits, and replace what JSON does not have."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _to_json(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value if isinstance(value, str | int | bool | None) else str(value)
