"""Pipes, links and checkpoints in the place of files of a run."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.graph_methods import read_table
from blackout.cli.comparison_page import save_comparison
from blackout.cli.report_page import save_report
from blackout.data import counts
from blackout.data.formats import load_array
from blackout.evaluation import reference
from blackout.flows.graphs.files import READERS, read_graphs
from blackout.flows.targets.base import read_arrays
from blackout.posterior.parameter_maps import to_tensor
from blackout.safe_reading import read_rows
from blackout.training.checkpoint_files import read_checkpoint
from tests.data.hostile_files.writing import (
    Case,
    Read,
    deflated,
    overwrite,
    sparse_file,
)

CASES: dict[str, Case] = {}


def pipe(name: str, read: Callable[[Path], object], folder: Path) -> Read:
    os.mkfifo(folder / name)
    return partial(read, folder / name)


def run(
    change: Callable[[Path], object], name: str, read: Callable[[Path], object], folder: Path
) -> Read:
    """A run's directory in which one file is something else."""
    run_directory = folder / "runs" / "a"
    (run_directory / "model").mkdir(parents=True)
    (run_directory / "samples").mkdir()
    (run_directory / "config.yaml").write_text("seed: 0\n")
    (run_directory / "model/config.json").write_text("{}")
    (run_directory / "model/model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (run_directory / name).unlink(missing_ok=True)
    change(run_directory / name)
    return partial(read, run_directory)


def link_outside(path: Path) -> None:
    target = path.parents[2 if path.parent.name == "a" else 3] / "elsewhere"
    target.write_text("a: 1\n")
    path.symlink_to(target)


def comparison(run_directory: Path) -> object:
    return save_comparison([run_directory], run_directory / "compare.html")


for suffix in ("npy", "npz", "csv", "tsv", "parquet", "h5ad", "h5", "hdf5", "tif", "zarr"):
    CASES[f"pipe: x.{suffix}"] = partial(pipe, f"x.{suffix}", counts)
for suffix in READERS:
    CASES[f"pipe: graph{suffix}"] = partial(pipe, f"x{suffix}", read_graphs)
for word, read in {
    "exposure": lambda path: to_tensor(str(path), "exposure"),
    "array": load_array,
    "target": read_arrays,
    "checkpoint": read_checkpoint,
    "metrics": read_rows,
    "reference": lambda path: reference.file_reference(path, None),
    "table": lambda path: read_table(path.parent),
}.items():
    CASES[f"pipe: {word}"] = partial(pipe, "table.csv", read)
for name, read in {
    "config.yaml": save_report,
    "metrics.json": save_report,
    "samples/metrics.json": save_report,
    "model/config.json": save_report,
    "model/model.safetensors": save_report,
    "metrics.csv": comparison,
}.items():
    for word, change in {
        "a pipe": os.mkfifo,
        "a link out": link_outside,
        "a folder": Path.mkdir,
    }.items():
        CASES[f"run: {name} is {word}"] = partial(run, change, name, read)
CASES["run: config.yaml is 1 GB"] = partial(
    run, lambda path: (path.touch(), os.truncate(path, 1 << 30)), "config.yaml", save_report
)


def checkpoint(method: int, size: int, folder: Path) -> Read:
    """An archive as torch writes it, but for one tensor that says it is larger."""
    with zipfile.ZipFile(folder / "x.ckpt", "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps({}, 2))
        file.writestr("archive/data/0", deflated(1 << 26) if method else bytes(99))
    content = bytearray((folder / "x.ckpt").read_bytes())
    overwrite(b"PK\1\2", 10, struct.pack("<H", method))(content)
    overwrite(b"PK\1\2", 24, struct.pack("<I", size))(content)
    (folder / "x.ckpt").write_bytes(content)
    return partial(read_checkpoint, folder / "x.ckpt")


CASES["graph: a hole of 1 GB"] = partial(sparse_file, "x.txt", b"0 1\n", 1 << 29, read_graphs)
CASES["checkpoint: compressed"] = partial(checkpoint, zipfile.ZIP_DEFLATED, 1 << 26)
CASES["checkpoint: says 4 GB"] = partial(checkpoint, zipfile.ZIP_STORED, 2**32 - 2)
