"""Folders for results of `sample.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from blackout.cli.sweeps import is_sweep_job, job_folder
from blackout.distributed import compute_once
from blackout.errors import refuse
from blackout.files import numbered_paths, refuse_links
from blackout.results_folders import results_folder

# suffixes that no folder of results has
FILE_SUFFIXES = (".csv", ".h5ad", ".json", ".npy", ".npz", ".png", ".tif", ".tiff")


def output_folders(out: str | None, ckpt: Path, name: str = "samples") -> Iterator[Path]:
    """Yield folders for results: `out` alone, or `name`, `name-2`, ... in the run directory.

    The run directory is that of the checkpoint or model, or the folder that contains the model; in
    a sweep it is the job's own.

    Raises:
        UserError: a link leads out of the run directory, or `out` is the name of a file.
    """
    if out is not None:
        is_file_name = Path(out).suffix.lower() in FILE_SUFFIXES and not Path(out).is_dir()
        refuse(
            is_file_name,
            f"out={out} must be a folder for samples.npz and other files: omit the suffix",
        )
        yield Path(out)
        return
    is_model = (ckpt / "config.json").exists()
    run = ckpt if ckpt.is_dir() and not is_model else ckpt.parent
    if run.name == "checkpoints":
        run = run.parent
    parent = job_folder() if is_sweep_job() else run
    for folder in numbered_paths(parent / name):
        refuse_links(parent, name.split("/")[0], str(folder.relative_to(parent)))
        yield folder


def folders_of_target(ckpt: Path | None, name: str) -> Iterator[Path]:
    """Yield folders for results without a network, `name`, `name-2`, ...

    They are in the run directory whose target is sampled, whose report shows them; in `runs` if
    there is none.
    """
    is_run = ckpt is not None and (ckpt / "config.yaml").exists()
    parent = ckpt if ckpt is not None and is_run else Path("runs")
    yield from numbered_paths(parent / name)


@contextmanager
def shared_folder(folders: Iterable[Path], key: str, **options: Any) -> Iterator[Path]:
    """Open the `results_folder` that process 0 chooses for all processes."""
    with ExitStack() as stack:
        yield compute_once(lambda: stack.enter_context(results_folder(folders, key, **options)))
