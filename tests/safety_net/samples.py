"""Hashes of what every sampler, decoder, simulation and posterior method draws.

A model is trained for one step by `train.py`, with its weights replaced by fixed ones; then
`sample.py` draws from it in many ways. Hashes differ between kinds of processors and numbers of
threads: compare those of one machine.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.safety_net.cases import DRAWING, TRAINING, Model, models
from tests.safety_net.components import write_files
from tests.safety_net.programs import REFUSED, run


def samples(only: str = "") -> dict[str, Any]:
    """What every case gives.

    Args:
        only: cases whose names contain this.

    Returns:
        By case: of a model the loss of its first step, of a draw a hash for each array in its
        files; or how it ended.
    """
    found: dict[str, Any] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            places = write_files(folder)
            for model in models():
                if only not in model.name:
                    continue
                found |= _drawn(model, folder, places)
    finally:
        torch.set_num_threads(threads)
    return found


def _drawn(model: Model, folder: Path, places: dict[str, str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    run_id = re.sub(r"\W+", "-", model.name)
    directory = folder / f"models/{run_id}"
    if model.words:
        losses = folder / f"{run_id}.json"
        words = [*TRAINING, f"+callbacks.weights.file={losses}", *_filled(model.words, places)]
        outcome = _ended(run("train", [*words, f"runs_dir={folder}", f"run_id={run_id}"], folder))
        results[f"{model.name} | training"] = outcome or json.loads(losses.read_text())
        if outcome:
            return results
        places[run_id] = str(directory / "model")
    for name, words in model.draws.items():
        first, _, more = name.partition(" ")
        if (
            more and results.get(f"{model.name} | {first}") == "refused"
        ):  # with more words it would be, too
            continue
        out = folder / "out"
        ckpt = [f"ckpt={directory / 'model'}"] if model.words else []
        outcome = _ended(
            run("sample", [*ckpt, *DRAWING, *_filled(words, places), f"out={out}"], folder)
        )
        results[f"{model.name} | {name}"] = outcome or hashes(out)
        shutil.rmtree(out, ignore_errors=True)
    return results


def _filled(words: Sequence[str], places: Mapping[str, str]) -> list[str]:
    return [word.format_map(places) for word in words]


def _ended(outcome: tuple[int, str]) -> str:
    """Empty for a program that did what it was asked for."""
    code, errors = outcome
    if code == REFUSED:
        return "refused"
    return f"exit code {code}: {errors.strip().splitlines()[-1]}" if code else ""


def hashes(out: Path) -> dict[str, str]:
    """A hash of every array in the files of a folder, and of the values in its metrics.json."""
    found = {}
    for file in sorted(out.glob("*.npz")):
        if file.stem == "posterior":  # holds seconds
            continue
        with np.load(file) as arrays:
            for name in sorted(arrays.files):
                found[f"{file.stem}.{name}"] = array_hash(arrays[name])
    scores = out / "metrics.json"
    if scores.exists():
        values = json.loads(scores.read_text())["values"]
        found["values"] = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[
            :16
        ]
    return found


def array_hash(array: Any) -> str:
    """A hash of type, shape and values."""
    description = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(description + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
