"""Where a number comes from: code, versions, machine, data, time."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from blackout.family import Source
from blackout.version import __version__

_LIBRARIES = ("torch", "torchvision", "pytorch-lightning", "torchmetrics", "torch-fidelity", "numpy", "scipy")
_PATIENCE = 5.0


def provenance(device: torch.device, began: float, source: Source | None = None) -> dict[str, Any]:
    """How numbers were made, as plain values for metrics.json: `made_with`, `seconds` and, of a source, `data`.

    Args:
        device: that computed them.
        began: of `time.perf_counter`.
        source: the data they are of.
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
    known = {} if source is None else {"data": fingerprints(source)}
    return {"made_with": made_with, "seconds": round(time.perf_counter() - began, 3), **known}


def fingerprints(source: Source) -> Mapping[str, str]:
    """The name of a source and the hash of each split that it has."""
    splits = {"train_sha256": "train", "test_sha256": "test"}
    hashes = {key: source.fingerprint(split) for key, split in splits.items() if source.size(split)}  # type: ignore[arg-type]
    return {"name": source.name, **hashes}


def git_commit() -> str | None:
    """The commit of this code, with "-dirty" if it was changed since; None where it is in no repository of its own."""
    folder = Path(__file__).parent
    try:
        # not merely installed within somebody's repository
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
        return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, timeout=_PATIENCE, check=True)
    return done.stdout.strip()
