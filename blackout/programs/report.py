"""report.html: what a run is, what it reached, and how to repeat it, on one page without a network."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from safetensors import SafetensorError, safe_open

from blackout.errors import UserError
from blackout.files import replacing
from blackout.programs import pages

_PREVIEWS = 4
"""Grids from training that are shown, the first and the last among them."""
_MOST = 4_000_000
"""Characters of pictures in a page; those beyond are left out."""


def command() -> str | None:
    """The command line of this process, where Hydra runs, quoted for a shell."""
    if not HydraConfig.initialized():
        return None
    return shlex.join([f"blackout-{HydraConfig.get().job.name}", *HydraConfig.get().overrides.task])


def save_report(run: Path) -> Path:
    """Write `report.html` into a run directory, from the files there.

    Raises:
        UserError: it is not a run's directory, or a file in it is damaged.
    """
    config, scores = settings_of(run), scores_of(run)
    sections = [
        ("Scores", "".join(_scores(place, content) for place, content in scores.items())),
        ("Curves", pages.picture(run / "curves.png", "of metrics.csv")),
        ("Samples", "".join(_pictures(run))),
        ("Model", _model(run)),
        ("Sampler", pages.fields(scores.get("metrics.json", {}).get("sampler") or {})),
        ("How to repeat it", _repeat(run, config, scores.get("metrics.json", {}))),
    ]
    steps = scores.get("metrics.json", {}).get("training_steps", "an unknown number of")
    lead = f"{steps} optimiser steps of {config.get('batch_size')}, seed {config.get('seed')}"
    with replacing(run / "report.html") as part:
        part.write_text(pages.page(f"{run.absolute().parent.name} / {run.absolute().name}", sections, lead))
    return run / "report.html"


def settings_of(run: Path) -> Mapping[str, Any]:
    """The run's config.yaml.

    Raises:
        UserError: there is none.
    """
    if not (run / "config.yaml").exists():
        raise UserError(f"{run} is no run directory: it has no config.yaml")
    return _read(run / "config.yaml")


def scores_of(run: Path) -> dict[str, Mapping[str, Any]]:
    """Contents of `metrics.json` of the run, and of the folders of samples in it, by their place in the run."""
    found = [run / "metrics.json", *sorted(run.glob("*/metrics.json"))]
    return {str(path.relative_to(run)): _read(path) for path in found if path.exists()}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = (json.loads if path.suffix == ".json" else yaml.safe_load)(path.read_text())
    except (ValueError, yaml.YAMLError, RecursionError, OSError) as error:
        raise UserError(f"{path} is damaged: {(str(error).splitlines() or [''])[0]}") from None
    if not isinstance(content, Mapping):
        raise UserError(f"{path} is damaged: it holds no names")
    return content


def _scores(place: str, content: Mapping[str, Any]) -> str:
    """The values of one metrics.json, beside those of real data, and how they were made."""
    values = content.get("values", {})
    real = (content.get("held_out_data") or {}).get("values", {})
    rows = [
        (name, value, *([real.get(name, "")] if real else []))
        for name, value in values.items()
        if not name.startswith("share_")
    ]
    provenance = {name: value for name, value in content.items() if name != "held_out_data"}
    head = (place, "value", *(["held-out data"] if real else []))
    return pages.table(rows, head) + pages.folded("how they were made", pages.fields(provenance))


def _pictures(run: Path) -> Iterator[str]:
    """Closing samples, trajectories and what the family draws, then some grids from training."""
    previews = sorted((run / "samples").glob("step_*.png"))
    last = len(previews) - 1
    chosen = sorted({round(i * last / (_PREVIEWS - 1)) for i in range(_PREVIEWS)}) if previews else []
    drawn = [path for path in sorted(run.glob("*/*.png")) if path not in previews]
    room = _MOST
    for path in [*drawn, *sorted(run.glob("*/*.webp")), *(previews[number] for number in chosen)]:
        shown = pages.picture(path, str(path.relative_to(run)))
        room -= len(shown)
        if room < 0:
            yield pages.paragraph(f"{path.relative_to(run)} and what follows are too large for this page.")
            return
        yield shown


def _model(run: Path) -> str:
    """Sizes, and the description of the exported model."""
    path, weights = run / "model" / "config.json", run / "model" / "model.safetensors"
    if not (path.exists() and weights.exists()):
        return ""
    try:
        with safe_open(weights, "pt") as file:
            sizes = [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise UserError(f"{weights} is damaged: {error}") from None
    size = f"{sum(sizes):,} numbers in {len(sizes)} tensors, {weights.stat().st_size:,} bytes"
    return pages.paragraph(size) + pages.folded("description", pages.fields(_read(path)))


def _repeat(run: Path, config: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    said = report.get("command")
    lines = [f"{said}  # the same settings are the same run" if said else "# no command is known: see all settings"]
    lines.append(f"blackout-sample {shlex.quote(f'ckpt={run}')} num_samples=64 evaluate=true trajectory=true")
    lines.append(f"python -m blackout.report {shlex.quote(str(run))}  # this page, with the new samples")
    settings = pages.code(yaml.safe_dump(dict(config), sort_keys=False))
    note = "In the repository, python train.py and python sample.py are the two commands."
    return pages.code("\n".join(lines)) + pages.paragraph(note) + pages.folded("all settings", settings)
