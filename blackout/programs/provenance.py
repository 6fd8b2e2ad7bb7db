"""Where a number comes from: code, versions, machine, data, time."""

from __future__ import annotations

import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from blackout.family import Source, Split
from blackout.version import __version__

_LIBRARIES = ("torch", "torchvision", "pytorch-lightning", "torchmetrics", "torch-fidelity", "numpy", "scipy")
_SPLITS: tuple[Split, ...] = ("train", "test")


def provenance(device: torch.device, began: float, source: Source | None = None) -> dict[str, Any]:
    """How numbers were made, as plain values for metrics.json: `made_with`, `seconds`, `date` and, of a source, `data`.

    Args:
        device: that computed them.
        began: of `time.perf_counter`.
        source: the data they are of; each of its splits is told by its hash.
    """
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    made_with: dict[str, Any] = {
        "versions": {"blackout": __version__, **{name: version(name) for name in _LIBRARIES}},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": f"{device} ({on})",
        "threads": torch.get_num_threads(),
        "git_commit": git_commit(),
    }
    known = {"made_with": made_with, "seconds": round(time.perf_counter() - began, 3)}
    if source is not None:
        hashes = {f"{split}_sha256": source.fingerprint(split) for split in _SPLITS if source.size(split)}
        known["data"] = {"name": source.name, **hashes}
    return {**known, "date": datetime.now(UTC).isoformat(timespec="seconds")}


def git_commit() -> str | None:
    """The commit of this code, with "-dirty" if it was changed since; None where it is in no repository of its own."""

    def git(*command: str) -> str:
        options: dict[str, Any] = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "timeout": 5.0}
        return subprocess.run(["git", *command], check=True, **options).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not merely installed within somebody's repository
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
