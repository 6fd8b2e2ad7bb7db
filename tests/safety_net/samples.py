"""Hashes of the output of every sampler, decoder, simulation and posterior method.

`train.py` trains a model for one step and exports it with fixed weights; `sample.py` then draws
from it in many ways. Hashes depend on the processor and the number of threads, so that only those
of one machine can be compared.
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

from tests.safety_net.cases import SAMPLE_OVERRIDES, TRAIN_OVERRIDES, Case, cases
from tests.safety_net.components import write_files
from tests.safety_net.programs import REFUSED, Result, run_program

HASH_LENGTH = 16  # hexadecimal digits


def samples(pattern: str = "") -> dict[str, Any]:
    """Run the cases whose names contain a pattern.

    Returns:
        By name: for training the loss of the first step, for sampling a hash of each array in the
        files. A string for a command that is refused or fails.
    """
    rows: dict[str, Any] = {}
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            paths = write_files(folder)
            for case in cases():
                if pattern in case.name:
                    rows |= _run_case(case, folder, paths)
    finally:
        torch.set_num_threads(num_threads)
    return rows


def outcomes(rows: Mapping[str, Any]) -> dict[str, str]:
    """Return whether each command succeeds ("drawn"), is refused or fails, without details."""
    return {name: outcome(row) for name, row in rows.items()}


def outcome(row: Any) -> str:
    """Return the outcome of a row: "drawn", "refused" or "failed"."""
    return row.partition(":")[0] if isinstance(row, str) else "drawn"


def _run_case(case: Case, folder: Path, paths: dict[str, str]) -> dict[str, Any]:
    """Train the model of a case and draw from it; add the model to `paths` for later cases."""
    rows: dict[str, Any] = {}
    run_id = re.sub(r"\W+", "-", case.name)
    model = folder / "models" / run_id / "model"
    checkpoint = []
    if case.train_overrides:
        losses = folder / f"{run_id}.json"
        arguments = [
            *TRAIN_OVERRIDES,
            *_insert_paths(case.train_overrides, paths),
            f"+callbacks.weights.file={losses}",
            f"runs_dir={folder}",
            f"run_id={run_id}",
        ]
        error = _describe_error(run_program("train", arguments, folder))
        rows[f"{case.name} | training"] = error or json.loads(losses.read_text())
        if error:
            return rows
        assert run_id not in paths, f"{case.name} is also the name of a file"
        paths[run_id] = str(model)
        checkpoint = [f"ckpt={model}"]
    for name, overrides in case.draws.items():
        choice, _, other_choices = name.partition(" ")
        if other_choices and outcome(rows.get(f"{case.name} | {choice}")) == "refused":
            continue  # with other choices it would be refused, too
        out = folder / "out"
        arguments = [
            *checkpoint,
            *SAMPLE_OVERRIDES,
            *_insert_paths(overrides, paths),
            f"out={out}",
        ]
        error = _describe_error(run_program("sample", arguments, folder))
        rows[f"{case.name} | {name}"] = error or hash_files(out)
        shutil.rmtree(out, ignore_errors=True)
    return rows


def _insert_paths(overrides: Sequence[str], paths: Mapping[str, str]) -> list[str]:
    return [override.format_map(paths) for override in overrides]


def _describe_error(result: Result) -> str:
    """Return "refused: ..." or "failed: ...", or nothing for exit code 0."""
    if not result.exit_code:
        return ""
    status = "refused" if result.exit_code == REFUSED else "failed"
    lines = result.errors.strip().splitlines() or [f"exit code {result.exit_code}"]
    return f"{status}: {lines[-1].removeprefix('error: ')}"


def hash_files(folder: Path) -> dict[str, str]:
    """Return a hash of every array in the files of a folder, and of the values in metrics.json.

    Durations are left out.
    """
    hashes = {}
    for file in sorted(folder.glob("*.npz")):
        if file.stem == "posterior":  # it has the duration
            continue
        with np.load(file) as arrays:
            for name in sorted(arrays.files):
                hashes[f"{file.stem}.{name}"] = hash_array(arrays[name])
    report = folder / "metrics.json"
    if report.exists():
        values = json.loads(report.read_text())["values"]
        values = {name: value for name, value in values.items() if "seconds" not in name}
        hashes["values"] = _hash(json.dumps(values, sort_keys=True).encode())
    return hashes


def hash_array(array: Any) -> str:
    """Return a hash of type, shape and values."""
    header = f"{array.dtype.str} {array.shape} ".encode()
    return _hash(header + np.ascontiguousarray(array).tobytes())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:HASH_LENGTH]
