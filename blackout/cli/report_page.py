"""report.html: the page of a run, with its samples, curves, scores and settings.

The page needs no network. It appears with the first logged row, is rewritten as the run trains, and
once more at the end; `blackout report RUN` writes it again.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from blackout.cli.curves import curve_panels
from blackout.cli.metrics_file import comparison_rows
from blackout.cli.pages import Picture, load_picture, save_page
from blackout.cli.run_results import (
    MAX_FILE_BYTES,
    num_decimals,
    read_part,
    read_scores,
    read_settings,
    round_to,
)
from blackout.errors import summary
from blackout.safe_reading import open_regular, read_mapping

MAX_PICTURE_CHARACTERS = 16_000_000  # of all pictures in a page; further ones are only named
MAX_PREVIEW_BYTES = MAX_PICTURE_CHARACTERS // 3  # with more, only every k-th preview is shown
MIN_SECONDS = 3.0  # between two pages of a run that trains
MAX_TIME_SHARE = 0.005  # of a run's time that writing its pages may take
SKIPPED_FOLDERS = ("checkpoints", "model", "wandb", "tensorboard")
FIRST_PICTURES = ("grid", "reconstruction")  # stems of pictures that come first in a folder


class LivePage:
    """Writes report.html of a run that trains; an error is a warning and does not stop the run.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._next_time = 0.0
        self._has_failed = False

    def __call__(self) -> None:
        """Write the page if enough time has passed since the last one."""
        start = time.monotonic()
        if start < self._next_time:
            return
        self._save(refresh=max(MIN_SECONDS, self._next_time - start))
        seconds = time.monotonic() - start
        self._next_time = start + max(MIN_SECONDS, seconds / MAX_TIME_SHARE)

    def finish(self) -> None:
        """Write the page of a run that has ended."""
        self._has_failed = False
        self._save(refresh=None)

    def _save(self, refresh: float | None) -> None:
        # Files of others in the folder of the run can cause any error, which must not end a run of
        # days: the page that is there stays, and the first error is a warning.
        try:
            save_report(self._run, refresh=refresh)
        except Exception as error:
            if not self._has_failed:
                page = self._run / "report.html"
                warnings.warn(f"{page} cannot be written: {summary(error)}", stacklevel=2)
            self._has_failed = True


def save_report(run: Path, refresh: float | None = None) -> Path:
    """Write report.html of a run from the files in its directory, and return its path.

    Args:
        run: the run directory.
        refresh: seconds after which the page reloads; None for a run that does not train.

    Raises:
        UserError: not a run directory, or a file in it is damaged.
    """
    settings = read_settings(run)
    scores = read_scores(run)
    final = scores.get("metrics.json", {})
    warning_lines: list[Any] = []
    for content in scores.values():
        warning_lines += [*content["warnings"], content.get("warning")]
    pictures = collect_pictures(run, scores)
    save_page(
        "report.html",
        run / "report.html",
        title=f"{run.absolute().parent.name} / {run.absolute().name}",
        run=str(run),
        refresh=refresh and round(refresh, 1),
        written=int(time.time()),
        config=settings,
        settings=yaml.safe_dump(dict(settings), sort_keys=False),
        final=final,
        trainer=read_part(settings, "trainer"),
        warnings=[line for line in warning_lines if line],
        scores=scores,
        curve_data=curve_panels({"": run / "metrics.csv"}, read_part(final, "references")),
        previews=pictures.previews,
        comparisons=[
            (place, line, [_round_comparison(*row) for row in rows])
            for place, line, rows in comparison_rows(scores)
        ],
        folders=pictures.folders,
        left_out=pictures.left_out,
        model=read_model_description(run),
    )
    return run / "report.html"


class RunPictures(NamedTuple):
    """The pictures of a run."""

    folders: list[tuple[str, list[Picture]]]  # by folder, the end of training first
    previews: list[Picture]  # samples during training, and at its end
    left_out: list[str]  # pictures that are not shown


def collect_pictures(run: Path, score_places: Iterable[str]) -> RunPictures:
    """Return the pictures of a run, up to the size that a page may have.

    Args:
        run: the run directory.
        score_places: places of metrics.json, whose folders are listed even without pictures.
    """
    # 1. Find the pictures.
    paths: list[Path] = []
    for folder, subfolders, names in os.walk(run):
        subfolders[:] = [
            name for name in subfolders if name[0] != "." and name not in SKIPPED_FOLDERS
        ]
        paths += [
            Path(folder, name)
            for name in names
            if name.endswith((".png", ".webp")) and name[0] != "."
        ]
    paths.sort(
        key=lambda path: (
            path.parent,
            path.stem not in FIRST_PICTURES,
            path.suffix == ".webp",
            path.name,
        )
    )

    # 2. Choose previews: evenly spaced ones if all of them are too large, and the last one.
    last = run / "samples" / "final.png"
    previews = [path for path in paths if path.match("samples/step_*.png")]
    interval = 1 + sum(path.stat().st_size for path in previews) // MAX_PREVIEW_BYTES
    selected = previews[::-1][::interval][::-1]
    if last in paths:
        selected.append(last)
    left_out: list[str] = []
    if interval > 1:
        left_out.append(f"{interval - 1} of every {interval} grids of training")

    # 3. Load previews, then all others, until the page is full.
    space = MAX_PICTURE_CHARACTERS
    shown_previews: list[Picture] = []
    folders: dict[str, list[Picture]] = {}
    for score_place in score_places:
        if "/" in score_place:
            folders[score_place.rpartition("/")[0]] = []
    other_pictures = [path for path in paths if path not in {*previews, last}]
    for path in [*selected, *other_pictures]:
        place = path.relative_to(run)
        loaded = load_picture(path, str(place), run)
        if loaded is not None:
            space -= len(loaded.source)
        if loaded is None or space < 0:
            left_out.append(str(place))
        elif path in selected:
            shown_previews.append(loaded)
        else:
            folders.setdefault(str(place.parent), []).append(loaded)
    ordered = sorted(folders.items(), key=lambda item: (item[0] != "samples/final", item[0]))
    return RunPictures(ordered, shown_previews, left_out)


def read_model_description(run: Path) -> dict[str, Any] | None:
    """Return the size and the description of a run's exported model; None without one."""
    config = run / "model" / "config.json"
    weights = run / "model" / "model.safetensors"
    if not (config.exists() and weights.exists()):
        return None
    open_regular(weights, run).close()  # refuses links that lead out of the run
    return {
        "size": f"{weights.stat().st_size:,} bytes",
        "description": read_mapping(config, run, MAX_FILE_BYTES),
    }


def _round_comparison(
    baseline: str, value: float, difference: float, error: float, verdict: str
) -> tuple[str, float, float, float, str]:
    """Return a row of a comparison with as many decimals as its error has significant ones."""
    decimals = num_decimals(value, error)
    rounded = (round_to(value, decimals), round_to(difference, decimals), round_to(error, decimals))
    return (baseline, *rounded, verdict)
