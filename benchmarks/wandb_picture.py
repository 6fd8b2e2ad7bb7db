"""A picture of what an offline W&B run has logged: `python -m benchmarks.wandb_picture RUN`.

RUN is the folder of a run that was trained with `logger=wandb` (or `[csv,wandb]`) and
`logger.wandb.mode=offline`. The panels are those of examples/wandb_dashboard.yaml for which the run
has values, read from its own files. It is not a screenshot of W&B.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from matplotlib import pyplot
from matplotlib.axes import Axes
from PIL import Image

from benchmarks.wandb_file import OfflineRun, read_run

LAYOUT = Path(__file__).parents[1] / "examples" / "wandb_dashboard.yaml"
NUM_COLUMNS = 4
TITLE = "Plotted from the files of an offline W&B run (not a screenshot of W&B)"

Panel = Mapping[str, Any]


def panels_with_values(layout: Mapping[str, Sequence[Panel]], run: OfflineRun) -> list[Panel]:
    """Return the panels of curves and pictures for which a run has values."""
    logged = {name.removesuffix("/filenames") for row in run.history for name in row}
    return [
        panel
        for section in layout.values()
        for panel in section
        if logged & {*panel.get("lines", ()), *panel.get("pictures", ())}
    ]


def draw_lines(axes: Axes, panel: Panel, run: OfflineRun) -> None:
    """Draw the curves of a panel against the images seen."""
    for name in panel["lines"]:
        rows = [row for row in run.history if name in row and "images" in row]
        if rows:
            axes.plot(
                [row["images"] for row in rows],
                [row[name] for row in rows],
                marker="." if len(rows) < 20 else "",
                label=name,
            )
    names = [name for name in panel["lines"] if any(name in row for row in run.history)]
    axes.set_title(", ".join(names), fontsize=9)
    axes.set_xlabel("images seen", fontsize=8)
    axes.tick_params(labelsize=7)
    if panel.get("log"):
        axes.set_yscale("log")


def draw_picture(axes: Axes, panel: Panel, run_folder: Path, run: OfflineRun) -> None:
    """Draw the last picture of a panel."""
    name = panel["pictures"][0]
    files = [row[f"{name}/filenames"] for row in run.history if f"{name}/filenames" in row]
    with Image.open(run_folder / "files" / files[-1][-1]) as picture:
        axes.imshow(picture.convert("RGB"))
    axes.set_title(f"{name}, the last", fontsize=9)
    axes.axis("off")


def draw(run_folder: Path, out: Path) -> None:
    """Draw the panels of an `offline-run-*` folder."""
    run = read_run(run_folder)
    layout = yaml.safe_load(LAYOUT.read_text(encoding="utf-8"))
    panels = panels_with_values(layout, run)
    num_rows = -(-len(panels) // NUM_COLUMNS)
    figure, grid = pyplot.subplots(
        num_rows, NUM_COLUMNS, figsize=(11, 2.6 * num_rows), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, panel in zip(grid.flat, panels, strict=False):
        if "lines" in panel:
            draw_lines(axes, panel, run)
        else:
            draw_picture(axes, panel, run_folder, run)
    figure.suptitle(TITLE, fontsize=10)
    figure.savefig(out, dpi=90)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Draw the last offline run in the folder of a run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wandb_picture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=Path("wandb.png"))
    options = parser.parse_args(argv)
    folders = sorted(options.run.glob("wandb/offline-run-*"))
    if not folders:
        parser.error(f"no offline W&B run is in {options.run / 'wandb'}; train with logger=wandb")
    draw(folders[-1], options.out)


if __name__ == "__main__":
    main()
