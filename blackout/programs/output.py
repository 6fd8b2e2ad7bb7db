"""Output directories and devices of the programs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import torch
from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from blackout.errors import UserError
from blackout.files import refuse_links, remove_parts

_FORGOTTEN = 7 * 86400.0
"""Seconds after which nobody goes on with samples that were not finished."""


def default_output(ckpt: Path, folder: str = "samples") -> Path:
    """`folder` in the run directory a checkpoint or model belongs to, or beside the model; in a sweep the job's own."""
    if sweeping():
        return job_folder() / folder
    parent = ckpt.parent
    if ckpt.is_dir() and not (ckpt / "config.json").exists():
        parent = ckpt
    elif parent.name == "checkpoints":
        parent = parent.parent
    refuse_links(parent, folder.split("/")[0])
    return parent / folder


def open_output(out: Path) -> Path:
    """Make the output directory and find out now, not after an hour of sampling, whether it can be written.

    Raises:
        UserError: it cannot, or another job of the sweep writes there.
    """
    if sweeping():
        claim(out, "out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
        remove_parts(out, older_than=_FORGOTTEN)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from None
    return out


def sweeping() -> bool:
    """Whether this process runs a job of a multirun."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def job_folder() -> Path:
    """The folder of a job of a multirun."""
    job = HydraConfig.get()
    return Path(job.sweep.dir) / job.sweep.subdir


def claim(folder: Path, setting: str) -> None:
    """Keep a folder for this job of the sweep, on whatever machine the others are.

    Args:
        folder: what the job writes to.
        setting: that names it.

    Raises:
        UserError: another job of the sweep has it.
    """
    settings = HydraConfig.get()
    number = str(settings.job.num)
    mark = Path(settings.sweep.dir) / ".runs" / hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    mark.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(mark.with_suffix(".lock")):
        if mark.exists() and mark.read_text() != number:
            what = f"job {mark.read_text()} of this sweep has {folder}"
            raise UserError(f"{what}: leave out {setting}=, or vary it too")
        mark.write_text(number)


def find_device(name: str) -> torch.device:
    """The device of that name; auto takes CUDA where there is one, each process of torchrun its own.

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
    return device
