"""What a run reached: metrics.json, where numbers have others beside them and say how they were made, and report.html,
its page with samples, curves and scores.

The page is what a run is, what it reached, and how to repeat it, without a network. It is there from the first logged
row on, and written anew as the run goes; `blackout report RUN ...` writes it once more. Pages are the
templates beside this module. What they are given is escaped, pictures are inside them, and no program runs in them but
`page.js`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from hydra.core.hydra_config import HydraConfig
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from blackout.comparisons import describe_comparison, is_comparison
from blackout.component import Plain, leaves
from blackout.errors import CommandParser, UserError, refuse, run_command
from blackout.files import opened, read_mapping, read_rows, reading, replacing, write_json
from blackout.protocols import Draw, Source, Split
from blackout.version import __version__


def write_scores(report: Plain, path: Path, references: Sequence[str] = Draw.references) -> None:
    """Write metrics.json, where each value has beside it what held-out data and fitted models have, and print both;
    behind +- standard errors of means, where values have them.

    Args:
        report: with `values`.
        path: of the file.
        references: see `Draw.references`.
    """
    values = beside(report, references)
    write_json({**report, "beside": values}, path)
    said = {f"{name}_{what}" for name, of in values.items() for what in of}
    said |= {f"{name}_error" for name in report["values"]}
    for name, value in report["values"].items():
        if isinstance(value, int | float) and not name.startswith("share_") and name not in said:
            told = [f"{what.replace('_', ' ')} {number:.4f}" for what, number in values.get(name, {}).items()]
            error = f" +- {report['values'][f'{name}_error']:.4f}" if f"{name}_error" in report["values"] else ""
            print(f"{name}: {value:.4f}{error}" + (f" ({', '.join(told)})" if told else ""))
    for name, comparison in report.get("comparisons", {}).items():
        print(describe_comparison(name, comparison))


_ONE, _NONE = "(?<!c2st_)accuracy|correct|kendall|ndcg|optimal|(^|/)ess$|r_hat|slope|surely", "rmse|mae|gap$|drop"
_PERFECT = (1.0, _ONE), (1.0, "residual_chi_square$"), (0.0, _NONE), (0.5, "coverage_50$"), (0.9, "coverage_90$")
"""Values that nothing surpasses, or that what is right has in the mean, where nothing else is known."""


def beside(report: Plain, references: Sequence[str] = Draw.references) -> dict[str, dict[str, float]]:
    """What stands beside the values of a report, by their names: `held_out_data`, and the strongest baseline by its.

    What a family has put there itself stays, and a value `x` has the `x_<reference>` of the report beside it;
    bounds of log Z have log Z. Where nothing is known but what is perfect, that is.

    Args:
        report: with `values`.
        references: see `Draw.references`.
    """
    real, fitted = ((report.get(name) or {}) for name in ("held_out_data", "baseline"))
    found: dict[str, dict[str, float]] = {}
    for name in report["values"]:
        base = re.sub("^(val|test)/|_lower$", "", name).replace("eubo", "log_z")
        one: dict[str, Any] = {
            **{what: report["values"].get(f"{base}_{what}") for what in references},
            "held_out_data": real.get("values", {}).get(name),
            str(fitted.get("name")): fitted.get("values", {}).get(name),
        }
        bits = report.get("baselines", {}).get(name, {})
        least = min(bits, key=bits.__getitem__, default=None)
        strongest = report.get("comparisons", {}).get(name, {}).get("strongest", least)
        one |= {} if strongest is None else {strongest: bits[strongest]}
        known = report.get("beside", {}).get(name, {})
        known = known | {what: value for what, value in one.items() if value is not None}
        known = known or next(({"of_perfect": value} for value, names in _PERFECT if re.search(names, name)), {})
        found |= {name: known} if known else {}
    return found


_LIBRARIES = ("torch", "torchvision", "pytorch-lightning", "torchmetrics", "torch-fidelity", "numpy", "scipy")
_SPLITS: tuple[Split, ...] = ("train", "val", "test")


def provenance(device: torch.device, began: float, source: Source | None = None) -> dict[str, Any]:
    """How numbers were made, as plain values for metrics.json: `made_with`, `seconds`, `date` and, of a source, `data`.

    Args:
        device: that computed them.
        began: of `time.perf_counter`.
        source: the data they are of; each of its splits is told by its hash.
    """
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    made_with = {
        "versions": {"blackout": __version__, **{name: version(name) for name in _LIBRARIES}},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": f"{device} ({on})",
        "threads": torch.get_num_threads(),
        "git_commit": git_commit(),
    }
    known = {"made_with": made_with, "seconds": round(time.perf_counter() - began, 3)}
    if source is not None:
        known["data"] = {"name": source.name, **data_hashes(source)}
    return {**known, "date": datetime.now(UTC).isoformat(timespec="seconds")}


def data_hashes(source: Source) -> dict[str, str]:
    """Hashes of the splits of a source, as `<split>_sha256`."""
    return {f"{split}_sha256": source.fingerprint(split) for split in _SPLITS if source.size(split)}


def git_commit() -> str | None:
    """The commit of this code, with "-dirty" if it was changed since; None where it is in no repository of its own."""

    def git(*command: str) -> str:
        options: dict[str, Any] = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "timeout": 5.0}
        return subprocess.run(["git", *command], check=True, **options).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):  # no git, or no repository
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not merely installed within somebody's repository
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return None


_ROUGH, _FEW = 6.0, 30
"""A curve of more than so many points is noisy where it goes up and down by so many times its range."""
_STRETCHES = 500
"""Of a long curve on a page: the least and the largest value of each are kept."""


def read_curves(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """(steps, values) of every column of a metrics.csv, finite values only.

    Raises:
        UserError: the file is damaged.
    """
    curves: dict[str, tuple[list[int], list[float]]] = {}
    with reading(path, "it is damaged"):
        for step, row in (read_rows(path) if path.exists() else {}).items():
            for name, text in row.items():
                if name != "step" and math.isfinite(value := float(text)):
                    steps, values = curves.setdefault(name, ([], []))
                    steps.append(step)
                    values.append(value)
    return curves


def noisy(values: list[float]) -> bool:
    """Whether a running mean helps to read a curve: not that of a learning rate, nor one of a few points.

    Of values [n], whose steps add up to many times their range. Ours (tests/cli/test_curves.py).
    """
    return len(values) > _FEW and float(np.abs(np.diff(values)).sum()) > _ROUGH * float(np.ptp(values))


def curve_panels(runs: Mapping[str, Path], beside: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """What a page's program draws of runs: a panel for every curve of two points or more, a line for every run.

    Args:
        runs: metrics.csv by the name of its run.
        beside: what stands beside values by their names, for every run: levels of the panels.

    Returns:
        runs: their names; panels; step: the last one.

    Raises:
        UserError: a file is damaged.
    """
    curves, panels = {run: read_curves(path) for run, path in runs.items()}, list[dict[str, Any]]()
    order = {"train/loss": 0, "val": 1, "train": 3}  # losses, validation, scores, how training went
    names = {name for one in curves.values() for name in one if not name.endswith("_std") and "share_" not in name}
    for name in sorted(names, key=lambda name: (order.get(name, order.get(name.split("/")[0], 2)), name)):
        lines: list[dict[str, Any]] = [
            {"run": run, "colour": colour, "noisy": noisy(values), **_thinned(steps, values)}
            for colour, (run, one) in enumerate(curves.items())
            for steps, values in ([one[name]] if name in one else [])
        ]
        if max(len(line["steps"]) for line in lines) > 1:
            known = {what: value for of in beside.values() for what, value in of.get(name, {}).items()}
            levels = [(what.replace("_", " "), value) for what, value in known.items()]
            panels.append({"name": name, "lines": lines, "levels": levels})
    step = max((steps[-1] for one in curves.values() for steps, _ in one.values()), default=0)
    return {"runs": list(curves), "panels": panels, "step": step}


def _thinned(steps: list[int], values: list[float]) -> dict[str, list[Any]]:
    """A curve, steps and values [n], with the extremes of its stretches alone, to six digits.

    Ours (tests/cli/test_curves.py).
    """
    x, chosen = np.array(values), np.arange(len(values))
    if len(x) > 2 * _STRETCHES:
        parts = np.array_split(chosen, _STRETCHES)
        ends = {int(part[of(x[part])]) for part in parts for of in (np.argmin, np.argmax)}
        chosen = np.array(sorted(ends | {0, len(x) - 1}))
    return {"steps": [steps[k] for k in chosen], "values": [float(f"{x[k]:.6g}") for k in chosen]}


_MOST = 4_000_000
"""Bytes of a file of settings or scores."""
_ROOM = 16_000_000
"""Characters of pictures in a page; those beyond are named, and grids of training are then fewer, evenly spaced."""
_LARGEST, _WIDEST, _MOVING = 400_000, 1000, 4_000_000
"""Bytes of a picture that is embedded as it is, the pixels at most of a larger one, and bytes of one that moves."""
RIGHT = ("held_out_data", "exact", "optimum", "ceiling", "of_perfect")
"""What stands beside a score that nothing surpasses but by chance."""
_CARDS = 12
"""Scores that are shown large."""
_CALM, _SHARE = 3.0, 0.005
"""Least seconds between two pages of a run that trains, and the most of its time that they may take."""
_NO_DRAWS, _FIRST = ("checkpoints", "model", "wandb", "tensorboard"), ("grid", "reconstruction")
PAGES = Environment(
    loader=PackageLoader("blackout"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: f"{value:.5g}" if isinstance(value, float) else value,
)


def under(place: str, content: Mapping[str, Any]) -> str:
    """The place of a metrics.json, with the condition of its samples, where they have one."""
    given = ", ".join(f"{name} {value}" for name, value in (content.get("condition") or {}).items())
    return f"{place}, given {given}" if given else place


PAGES.filters |= {"leaves": leaves, "quoted": shlex.quote}
PAGES.filters["broken"] = lambda name: Markup("_<wbr>").join(name.split("_"))  # where a narrow screen may break it
_OWN = {
    name: Markup((Path(__file__).with_name("templates") / file).read_text())  # ours, not what pages are given
    for name, file in (("style", "page.css"), ("script", "page.js"))
}
_HASHES = {name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in _OWN.items()}
POLICY = "; ".join(
    ["default-src 'none'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    + [f"{name}-src 'sha256-{digest}'" for name, digest in _HASHES.items()]
)
"""What browsers are told to allow in a page: pictures inside it, its own style and program, no other."""
PAGES.globals |= {**_OWN, "under": under, "policy": Markup(POLICY), "every": None}


def command() -> str | None:
    """The command line of this process, where Hydra runs, quoted for a shell."""
    if not HydraConfig.initialized():
        return None
    return shlex.join(["blackout", HydraConfig.get().job.name, *HydraConfig.get().overrides.task])


class LivingPage:
    """Writes report.html of a run that trains, as often as a two-hundredth of the time allows; no error stops the run.

    Args:
        run: its directory.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._due = run, 0.0

    def __call__(self) -> None:
        """Write it if it is time to."""
        if (began := time.monotonic()) < self._due:
            return
        # A page that cannot be written ends no training; it is written again later, and the last time with an error.
        with suppress(OSError, UserError):
            save_report(self._run, every=max(_CALM, self._due - began))
        took = time.monotonic() - began
        self._due = began + max(_CALM, took / _SHARE)


def save_report(run: Path, every: float | None = None) -> Path:
    """Write `report.html` into a run directory, from the files there.

    Args:
        run: the directory.
        every: seconds after which the page looks for a newer one of itself; None for a run that does not train.

    Raises:
        UserError: it is not a run's directory, or a file in it is damaged.
    """
    config, scores = settings_of(run), scores_of(run)
    final = scores.get("metrics.json", {})
    draws, through, left_out = _draws(run, scores)
    save_page(
        "report.html",
        run / "report.html",
        title=f"{run.absolute().parent.name} / {run.absolute().name}",
        run=str(run),
        every=every and round(every, 1),
        written=int(time.time()),
        config=config,
        settings=yaml.safe_dump(dict(config), sort_keys=False),
        final=final,
        warnings=[line for one in scores.values() for line in (*one.get("warnings", ()), one.get("warning")) if line],
        scores=scores,
        lines=curve_panels({"": run / "metrics.csv"}, {"": final.get("beside") or {}}),
        through=through,
        compared=comparison_rows(scores),
        draws=draws,
        left_out=left_out,
        model=_model(run),
    )
    return run / "report.html"


def save_page(template: str, path: Path, **content: Any) -> None:
    """Write the page of a template."""
    with replacing(path) as part:
        part.write_text(PAGES.get_template(template).render(content), encoding="utf-8")


def settings_of(run: Path) -> Mapping[str, Any]:
    """The run's config.yaml.

    Raises:
        UserError: there is none.
    """
    refuse(not (run / "config.yaml").exists(), f"{run} is no run directory: it has no config.yaml")
    return read_mapping(run / "config.yaml", run, _MOST)


def scores_of(run: Path) -> dict[str, dict[str, Any]]:
    """Contents of `metrics.json` of the run, and of the folders of samples in it, by their place in the run.

    Results of the run at shorter lengths, which are in the same file, have places of their own.
    """
    found = [run / "metrics.json", *sorted(run.glob("*/metrics.json")), *sorted(run.glob("*/*/metrics.json"))]
    contents = {str(path.relative_to(run)): read_mapping(path, run, _MOST) for path in found if path.exists()}
    earlier = contents.get("metrics.json", {}).get("earlier")
    for number, content in enumerate(earlier if isinstance(earlier, list) else (), 1):
        if isinstance(content, dict):
            contents[f"earlier results {number} (step {content.get('training_steps')})/metrics.json"] = content
    for content in contents.values():  # what is no mapping where one must be is not shown
        for name in ("values", "beside", "comparisons", "condition", "sampler", "made_with", "data"):
            content[name] = part if isinstance(part := content.get(name), Mapping) else {}
        content["beside"] = {name: of for name, of in content["beside"].items() if isinstance(of, Mapping)}
    return contents


def comparison_rows(
    scores: Mapping[str, Mapping[str, Any]],
) -> list[tuple[str, str, list[tuple[Any, ...]]]]:
    """Return what a page shows of the comparisons with baselines in the files of scores.

    Args:
        scores: contents of metrics.json by place; comparisons that are not of the expected form are left out.

    Returns:
        For each comparison the place, the line with its verdict, and a row for each baseline: name, value, difference,
        error and verdict.
    """
    found = []
    for place, content in scores.items():
        for name, comparison in content["comparisons"].items():
            if not is_comparison(comparison):
                continue
            rows = [
                (baseline, row["value"], row["difference"], row["error"], row["verdict"])
                for baseline, row in sorted(comparison["baselines"].items(), key=lambda one: one[1]["value"])
            ]
            found.append((place, describe_comparison(name, comparison), rows))
    return found


def cards(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The scores of one metrics.json that have something beside them, then others: value, error, the place between
    held-out data or the exact value (0) and a fitted model (1), where both are known, and what is beside it.
    """
    values, beside = content.get("values", {}), content.get("beside") or {}
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    told = {f"{name}_{what}" for name in numbers for what in ("error", "std", "low", "high", *beside.get(name, ()))}
    shown = [name for name in numbers if name not in told and not name.startswith("share_")]
    cards = []
    for name in sorted(shown, key=lambda name: name not in beside)[:_CARDS]:
        of = {what: value for what, value in beside.get(name, {}).items() if isinstance(value, int | float)}
        place, right = None, next((of[what] for what in RIGHT if what in of), None)
        fitted = [value for what, value in of.items() if what not in RIGHT]
        if right is not None and fitted and fitted[-1] != right:
            place = min(1.14, max(-0.14, (numbers[name] - right) / (fitted[-1] - right)))
        others = [(what.replace("_", " "), float(f"{value:.4g}")) for what, value in of.items()]
        value, error = numbers[name], numbers.get(f"{name}_error", numbers.get(f"{name}_std"))
        cards.append({"name": name, "value": float(f"{value:.4g}"), "error": error and float(f"{error:.2g}"),
                      "place": place, "others": others})  # fmt: skip
    return cards


PAGES.globals["cards"] = cards


def _draws(run: Path, places: Iterable[str]) -> tuple[list[tuple[str, list[Picture]]], list[Picture], list[str]]:
    """Every folder with pictures or with scores, which are at these places, the end of training first; samples through
    training; what is left out."""
    paths = list[Path]()
    for folder, inside, names in os.walk(run):
        inside[:] = [name for name in inside if not name.startswith(".") and name not in _NO_DRAWS]
        paths += [Path(folder, name) for name in names if name.endswith((".png", ".webp")) and name[0] != "."]
    paths.sort(key=lambda path: (path.parent, path.stem not in _FIRST, path.suffix == ".webp", path.name))
    last, previews = run / "samples" / "final.png", [path for path in paths if path.match("samples/step_*.png")]
    every = 1 + sum(path.stat().st_size for path in previews) // (_ROOM // 3)
    chosen = [*previews[::-1][::every][::-1], *(path for path in paths if path == last)]
    room, left_out, through = _ROOM, [f"{every - 1} of every {every} grids of training"] * (every > 1), []
    folders: dict[str, list[Picture]] = {place.rpartition("/")[0]: [] for place in places if "/" in place}
    for path in [*chosen, *(path for path in paths if path not in {*previews, last})]:
        place = path.relative_to(run)
        found = picture(path, str(place), run)
        room -= 0 if found is None else len(found.source)
        if found is None or room < 0:
            left_out.append(str(place))
        elif path in chosen:
            through.append(found)
        else:
            folders.setdefault(str(place.parent), []).append(found)
    return sorted(folders.items(), key=lambda one: (one[0] != "samples/final", one[0])), through, left_out


class Picture(NamedTuple):
    """A picture inside a page, as an address that holds all of it."""

    source: str
    title: str
    about: str
    width: int
    height: int


def picture(path: Path, title: str, run: Path) -> Picture | None:
    """A picture file, made smaller where it is large; None where the run has none, or none that can be read."""
    with suppress(OSError, UserError, Image.DecompressionBombError):  # the page is written without this picture
        status = path.stat()
        return _picture(path, title, run, (status.st_mtime_ns, status.st_size))
    return None


@lru_cache(maxsize=512)
def _picture(path: Path, title: str, run: Path, stamp: tuple[int, int]) -> Picture | None:
    """Read once for all pages of a run that are written while the file is as it was."""
    with opened(path, run) as content, Image.open(content, formats=("PNG", "WEBP")) as image:
        width, height, kind = *image.size, str(image.format).lower()
        about = f"{path.relative_to(run)}"
        if isinstance(told := image.info.get("Description"), str) and told:
            about = f"{told[:2000]} ({about})"
        if stamp[1] <= (_MOVING if getattr(image, "is_animated", False) else _LARGEST):
            content.seek(0)
            data = content.read()
        else:
            image.thumbnail((_WIDEST, _WIDEST))
            file = io.BytesIO()
            image.convert("RGB").save(file, kind := "webp", quality=80)
            data, (width, height) = file.getvalue(), image.size
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Picture(source, title, about, width, height)


def _model(run: Path) -> dict[str, Any] | None:
    """The size on the disk of the exported model, and its description."""
    path, weights = run / "model" / "config.json", run / "model" / "model.safetensors"
    if not (path.exists() and weights.exists()):
        return None
    opened(weights, run).close()
    return {"size": f"{weights.stat().st_size:,} bytes", "description": read_mapping(path, run, _MOST)}


def main(arguments: list[str] | None = None) -> None:
    """Write the pages and print where they are."""
    parser = CommandParser(prog="blackout report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    run_command(lambda given: [print(save_report(run)) for run in given.runs], parser, arguments)


if __name__ == "__main__":
    main()
