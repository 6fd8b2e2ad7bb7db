"""report.html: what a run is, what it reached, and how to repeat it, on one page without a network."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from PIL import Image
from safetensors import SafetensorError, safe_open

from blackout.component import leaves
from blackout.errors import UserError
from blackout.files import replacing

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
        ("Curves", picture(run / "curves.png", "of metrics.csv")),
        ("Samples", "".join(_pictures(run))),
        ("Model", _model(run)),
        ("Sampler", fields(scores.get("metrics.json", {}).get("sampler") or {})),
        ("How to repeat it", _repeat(run, config, scores.get("metrics.json", {}))),
    ]
    steps = scores.get("metrics.json", {}).get("training_steps", "an unknown number of")
    lead = f"{steps} optimiser steps of {config.get('batch_size')}, seed {config.get('seed')}"
    with replacing(run / "report.html") as part:
        part.write_text(page(f"{run.absolute().parent.name} / {run.absolute().name}", sections, lead))
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
    return table(rows, head) + folded("how they were made", fields(provenance))


def _pictures(run: Path) -> Iterator[str]:
    """Closing samples, trajectories and what the family draws, then some grids from training."""
    previews = sorted((run / "samples").glob("step_*.png"))
    last = len(previews) - 1
    chosen = sorted({round(i * last / (_PREVIEWS - 1)) for i in range(_PREVIEWS)}) if previews else []
    drawn = [path for path in sorted(run.glob("*/*.png")) if path not in previews]
    room = _MOST
    for path in [*drawn, *sorted(run.glob("*/*.webp")), *(previews[number] for number in chosen)]:
        shown = picture(path, str(path.relative_to(run)))
        room -= len(shown)
        if room < 0:
            yield paragraph(f"{path.relative_to(run)} and what follows are too large for this page.")
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
    return paragraph(size) + folded("description", fields(_read(path)))


def _repeat(run: Path, config: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    said = report.get("command")
    lines = [f"{said}  # the same settings are the same run" if said else "# no command is known: see all settings"]
    lines.append(f"blackout-sample {shlex.quote(f'ckpt={run}')} num_samples=64 evaluate=true trajectory=true")
    lines.append(f"python -m blackout.report {shlex.quote(str(run))}  # this page, with the new samples")
    settings = code(yaml.safe_dump(dict(config), sort_keys=False))
    note = "In the repository, python train.py and python sample.py are the two commands."
    return code("\n".join(lines)) + paragraph(note) + folded("all settings", settings)


# --- Self-contained HTML pages: text is escaped, pictures are inside, nothing is loaded and nothing is run.

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1, h2 { line-height: 1.2 }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd }
img { max-width: 100%; height: auto; image-rendering: pixelated }
figure { display: inline-block; margin: 0 1rem 1rem 0; vertical-align: top }
figcaption { color: #666; font-size: .85rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #eee }
td.number { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto }
"""
_LARGEST = 400_000
"""Bytes of a picture that is embedded as it is; a larger one is made smaller."""
_WIDEST = 1000


def page(title: str, sections: Iterable[tuple[str, str]], lead: str = "") -> str:
    """A whole page of (heading, HTML) sections; empty ones are left out."""
    shown = [f"<section><h2>{text(name)}</h2>{content}</section>" for name, content in sections if content]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><h1>{text(title)}</h1>{paragraph(lead)}\n"
        + "\n".join(shown)
        + "\n</body></html>\n"
    )


def text(value: Any) -> str:
    """A plain value, escaped; numbers with five digits."""
    return html.escape(f"{value:.5g}" if isinstance(value, float) else str(value))


def paragraph(words: str) -> str:
    """A paragraph of plain text, if there is any."""
    return f"<p>{text(words)}</p>" if words else ""


def code(lines: str) -> str:
    """Plain text as it stands."""
    return f"<pre>{text(lines)}</pre>"


def table(rows: Iterable[Sequence[Any]], head: Sequence[Any] = ()) -> str:
    """Rows of plain values, numbers to the right; nothing for no rows."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    above = f"<thead><tr>{''.join(f'<th>{text(name)}</th>' for name in head)}</tr></thead>" if head else ""
    return f'<div class="wide"><table>{above}<tbody>{body}</tbody></table></div>' if body else ""


def fields(content: Mapping[str, Any]) -> str:
    """Nested mappings as a table of dotted names and values."""
    return table(leaves(content))


def folded(summary: str, content: str) -> str:
    """What is shown when its summary is clicked; nothing for no content."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>" if content else ""


def picture(path: Path, caption: str | None = None) -> str:
    """A picture file inside the page; nothing where there is none, or none that can be read."""
    try:
        content, kind = _content(path)
    except (OSError, Image.DecompressionBombError):
        return ""
    return embedded(content, kind, path.name if caption is None else caption)


def embedded(content: bytes, kind: str, caption: str) -> str:
    """The bytes of a picture of that kind (png, webp) with a caption."""
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return f'<figure><img src="{source}" alt="{text(caption)}"><figcaption>{text(caption)}</figcaption></figure>'


def _content(path: Path) -> tuple[bytes, str]:
    """The file as it is if it is small; else, made smaller, as WebP."""
    with Image.open(path) as image:
        if path.stat().st_size <= _LARGEST:
            return path.read_bytes(), str(image.format).lower()
        image.thumbnail((_WIDEST, _WIDEST))
        with io.BytesIO() as file:
            image.convert("RGB").save(file, "webp", quality=80)
            return file.getvalue(), "webp"


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f'<td class="number">{text(value)}</td>' if number else f"<td>{text(value)}</td>"
