"""The results of a finished run as hashes that must not depend on how often it was killed."""

from __future__ import annotations

import csv
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from blackout.training.checkpoint_files import read_checkpoint


def result(run: Path) -> dict[str, str]:
    """Return the hash of each part of a finished run."""
    last = read_checkpoint(run / "checkpoints/last.ckpt")
    best = read_checkpoint(run / "checkpoints/best.ckpt")
    weights = last["state_dict"]
    loops = last["loops"]["fit_loop"]
    report = json.loads((run / "metrics.json").read_text())
    parts: dict[str, Any] = {
        "weights": {name: value for name, value in weights.items() if not name.startswith("ema.")},
        "average": {name: value for name, value in weights.items() if name.startswith("ema.")},
        "optimiser": last["optimizer_states"],
        "learning rate": last["lr_schedulers"],
        "order of the data, best score": last["callbacks"],
        "steps": [
            last["global_step"],
            loops["epoch_loop.state_dict"],
            loops["epoch_loop.batch_progress"]["total"],
        ],
        "best weights": best["state_dict"],
        "exported": (run / "model/model.safetensors").read_bytes(),
        "samples": sorted(
            (name, array.tobytes()) for name, array in arrays(run / "samples/final.npz").items()
        ),
        "previews": [
            (path.name, path.read_bytes()) for path in sorted((run / "samples").rglob("*.png"))
        ],
        "metrics": [
            sorted(timeless(row).items()) for row in csv.DictReader((run / "metrics.csv").open())
        ],
        "scores": {
            name: value
            for name, value in report.items()
            if name not in ("date", "seconds", "command", "left_out")
        },
        "leftovers": sorted(
            str(path.relative_to(run)) for path in run.rglob("*.part*") if _is_stale(path)
        ),
    }
    return {name: hashlib.sha256(_bytes(part)).hexdigest() for name, part in parts.items()}


def _is_stale(part: Path) -> bool:
    """Return whether the next start removes a file: files that `sample.py` may be writing stay for
    a minute."""
    return part.parent.name != "samples" or time.time() - part.stat().st_mtime > 60


def arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return all arrays of an .npz file."""
    with np.load(path) as loaded:
        return {name: loaded[name] for name in loaded.files}


def timeless(row: dict[str, str]) -> dict[str, str]:
    """Return a row of metrics.csv without timings."""
    return {name: value for name, value in row.items() if value and "per_second" not in name}


def assert_whole(run: Path) -> None:
    """Assert that every visible file of a killed run is complete."""
    for path in run.rglob("*"):
        if path.is_dir() or any(part.startswith(".") for part in path.relative_to(run).parts):
            continue
        match path.suffix:
            case ".ckpt":
                read_checkpoint(path)
            case ".npz":
                arrays(path)
            case ".png":
                Image.open(path).load()
            case ".csv":
                rows = list(csv.reader(path.open()))
                assert len({len(row) for row in rows}) == 1, path
            case ".json":
                json.loads(path.read_text())
            case ".yaml":
                assert yaml.safe_load(path.read_text()), path
            case ".safetensors":
                from safetensors.torch import load_file

                load_file(path)


def _bytes(part: Any) -> bytes:
    if isinstance(part, torch.Tensor):
        return (
            repr((part.dtype, tuple(part.shape))).encode()
            + part.contiguous().view(torch.uint8).numpy().tobytes()
            if part.ndim
            else repr((part.dtype, part.item())).encode()
        )
    if isinstance(part, dict):
        return (
            b"{"
            + b",".join(_bytes(key) + b":" + _bytes(part[key]) for key in sorted(part, key=repr))
            + b"}"
        )
    if isinstance(part, list | tuple):
        return b"[" + b",".join(map(_bytes, part)) + b"]"
    return part if isinstance(part, bytes) else repr(part).encode()
