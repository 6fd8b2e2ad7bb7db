"""How numbers were computed: versions, device, commit, time, data and command line."""

from __future__ import annotations

import platform
import shlex
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig

from blackout.protocols import Source, Split
from blackout.version import __version__

LIBRARIES = (
    "torch",
    "torchvision",
    "pytorch-lightning",
    "torchmetrics",
    "torch-fidelity",
    "numpy",
    "scipy",
)
SPLITS: tuple[Split, ...] = ("train", "val", "test")
GIT_SECONDS = 5.0  # time limit of a git command


def provenance(device: torch.device, start: float, source: Source | None = None) -> dict[str, Any]:
    """Return `made_with`, `seconds`, `date` and `data` of numbers, for metrics.json.

    Args:
        device: the device that computed them.
        start: `time.perf_counter()` before.
        source: the data, whose splits are identified by hashes; None leaves out `data`.
    """
    if device.type == "cuda":
        processor = torch.cuda.get_device_name(device)
    else:
        processor = platform.processor() or platform.machine()
    made_with = {
        "versions": {"blackout": __version__, **{name: version(name) for name in LIBRARIES}},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": f"{device} ({processor})",
        "threads": torch.get_num_threads(),
        "git_commit": git_commit(),
    }
    content: dict[str, Any] = {
        "made_with": made_with,
        "seconds": round(time.perf_counter() - start, 3),
    }
    if source is not None:
        content["data"] = {"name": source.name, **data_hashes(source)}
    content["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    return content


def data_hashes(source: Source) -> dict[str, str]:
    """Return hashes of the splits of a source, as `<split>_sha256`."""
    return {f"{split}_sha256": source.fingerprint(split) for split in SPLITS if source.size(split)}


def git_commit() -> str | None:
    """Return the commit of this code, with "-dirty" after changes; None outside its repository."""
    directory = Path(__file__).parent

    def git(*words: str) -> str:
        result = subprocess.run(
            ["git", *words],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=True,
        )
        return result.stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):  # without git or a repository: None
        # an installed package may lie within another repository, which does not track this file
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return None


def command_line() -> str | None:
    """Return the command line of this process, quoted for a shell; None outside Hydra."""
    if not HydraConfig.initialized():
        return None
    job = HydraConfig.get()
    return shlex.join(["blackout", job.job.name, *job.overrides.task])
