"""report.html: what a run is, what it reached, and how to repeat it, on one page without a network.

Pages are the templates beside this module. What they are given is escaped, and pictures are inside them.
"""

from __future__ import annotations

import base64
import io
import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.core.hydra_config import HydraConfig
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image
from safetensors import SafetensorError, safe_open

from blackout.component import leaves
from blackout.errors import UserError
from blackout.files import opened, read_text, replacing

_PREVIEWS = 4
"""Grids from training that are shown, the first and the last among them."""
_MOST = 4_000_000
"""Characters of pictures in a page; those beyond are left out. Bytes of a file of settings or scores."""
_LARGEST, _WIDEST = 400_000, 1000
"""Bytes of a picture that is embedded as it is, and the pixels at most of a larger one."""

PAGES = Environment(
    loader=PackageLoader("blackout.programs"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: f"{value:.5g}" if isinstance(value, float) else value,
)
PAGES.filters |= {"leaves": leaves, "quoted": shlex.quote}


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
    pictures, left_out = _pictures(run)
    save_page(
        "report.html",
        run / "report.html",
        title=f"{run.absolute().parent.name} / {run.absolute().name}",
        run=str(run),
        config=config,
        settings=yaml.safe_dump(dict(config), sort_keys=False),
        final=scores.get("metrics.json", {}),
        scores=[_score_table(place, content) for place, content in scores.items()],
        curves=picture(run / "curves.png", "of metrics.csv", run),
        pictures=pictures,
        left_out=left_out,
        model=_model(run),
    )
    return run / "report.html"


def save_page(template: str, path: Path, **content: Any) -> None:
    """Write the page of a template."""
    with replacing(path) as part:
        part.write_text(PAGES.get_template(template).render(content))


def settings_of(run: Path) -> Mapping[str, Any]:
    """The run's config.yaml.

    Raises:
        UserError: there is none.
    """
    if not (run / "config.yaml").exists():
        raise UserError(f"{run} is no run directory: it has no config.yaml")
    return _read(run / "config.yaml", run)


def scores_of(run: Path) -> dict[str, Mapping[str, Any]]:
    """Contents of `metrics.json` of the run, and of the folders of samples in it, by their place in the run."""
    found = [run / "metrics.json", *sorted(run.glob("*/metrics.json")), *sorted(run.glob("*/*/metrics.json"))]
    return {str(path.relative_to(run)): _read(path, run) for path in found if path.exists()}


def _read(path: Path, run: Path) -> Mapping[str, Any]:
    text = read_text(path, run, _MOST)
    try:
        content = (json.loads if path.suffix == ".json" else yaml.safe_load)(text)
    except (ValueError, yaml.YAMLError, RecursionError, OSError) as error:
        raise UserError(f"{path} is damaged: {(str(error).splitlines() or [''])[0]}") from None
    if not isinstance(content, Mapping):
        raise UserError(f"{path} is damaged: it holds no names")
    return content


def _score_table(place: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The values of one metrics.json, beside those of real data and fitted models, and how they were made."""
    values = {name: value for name, value in content.get("values", {}).items() if not name.startswith("share_")}
    beside = content.get("beside") or {}
    others = list(dict.fromkeys(what for one in beside.values() for what in one))
    return {
        "head": (under(place, content), "value", *(what.replace("_", " ") for what in others)),
        "rows": [
            (name, value, *(beside.get(name, {}).get(what, "") for what in others)) for name, value in values.items()
        ],
        "warnings": content.get("warnings", ()),
        "how": {name: value for name, value in content.items() if name not in ("held_out_data", "baseline", "beside")},
    }


def under(place: str, content: Mapping[str, Any]) -> str:
    """The place of a metrics.json, with the condition of its samples, where they have one."""
    given = ", ".join(f"{name} {value}" for name, value in (content.get("condition") or {}).items())
    return f"{place}, given {given}" if given else place


def _pictures(run: Path) -> tuple[list[Picture], str | None]:
    """Closing samples, trajectories and what the family draws, then some grids from training; the first left out."""
    previews = sorted((run / "samples").glob("step_*.png"))
    last = len(previews) - 1
    chosen = sorted({round(i * last / (_PREVIEWS - 1)) for i in range(_PREVIEWS)}) if previews else []
    places = ("*/*", "samples/final/*")
    drawn, moving = (sorted(path for place in places for path in run.glob(place + kind)) for kind in (".png", ".webp"))
    shown, room = list[Picture](), _MOST
    for path in [*(path for path in drawn if path not in previews), *moving, *(previews[number] for number in chosen)]:
        name = str(path.relative_to(run))
        if (found := picture(path, name, run)) is None:
            continue
        room -= len(found.source)
        if room < 0:
            return shown, name
        shown.append(found)
    return shown, None


class Picture(NamedTuple):
    """A picture inside a page, as an address that holds all of it."""

    source: str
    caption: str


def picture(path: Path, caption: str, run: Path) -> Picture | None:
    """A picture file, made smaller where it is large; None where the run has none, or none that can be read."""
    try:
        with opened(path, run) as content, Image.open(content, formats=("PNG", "WEBP")) as image:
            if path.stat().st_size <= _LARGEST:
                content.seek(0)
                return embedded(content.read(), str(image.format).lower(), caption)
            image.thumbnail((_WIDEST, _WIDEST))
            file = io.BytesIO()
            image.convert("RGB").save(file, "webp", quality=80)
            return embedded(file.getvalue(), "webp", caption)
    except (OSError, UserError, Image.DecompressionBombError):
        return None


def embedded(content: bytes, kind: str, caption: str) -> Picture:
    """The bytes of a picture of that kind (png, webp)."""
    return Picture(f"data:image/{kind};base64,{base64.b64encode(content).decode()}", caption)


def _model(run: Path) -> dict[str, Any] | None:
    """Sizes, and the description of the exported model."""
    path, weights = run / "model" / "config.json", run / "model" / "model.safetensors"
    if not (path.exists() and weights.exists()):
        return None
    try:
        opened(weights, run).close()
        with safe_open(weights, "pt") as file:
            sizes = [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise UserError(f"{weights} is damaged: {error}") from None
    size = f"{sum(sizes):,} numbers in {len(sizes)} tensors, {weights.stat().st_size:,} bytes"
    return {"size": size, "description": _read(path, run)}
