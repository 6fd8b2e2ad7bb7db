"""The dashboard of logger=wandb, made on a W&B server: `python examples/wandb_dashboard.py <entity>`.

It needs `pip install wandb-workspaces` and a key (`wandb login`; WANDB_BASE_URL for a server of your own). With --show
nothing is sent: the panels are listed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

LAYOUT = Path(__file__).with_name("wandb_dashboard.yaml")


def panels(layout: Mapping[str, Any]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Kind and arguments of every panel, by section, as `wandb_workspaces.reports.v2` names them."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for section, listed in layout.items():
        found[section] = []
        for panel in listed:
            if "pictures" in panel:
                found[section].append(("MediaBrowser", {"media_keys": panel["pictures"], "num_columns": 2}))
            elif "bars" in panel:
                found[section].append(("BarPlot", {"title": panel["bars"][0], "metrics": panel["bars"]}))
            else:
                how = {"title": ", ".join(panel["lines"]), "x": "images", "y": panel["lines"], "title_x": "images seen"}
                found[section].append(("LinePlot", how | {"log_y": bool(panel.get("log"))}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entity", help="user or team")
    parser.add_argument("--project", default="blackout")
    parser.add_argument("--name", default="blackout", help="of the view")
    parser.add_argument("--show", action="store_true", help="list the panels and send nothing")
    given = parser.parse_args()
    sections = panels(yaml.safe_load(LAYOUT.read_text(encoding="utf-8")))
    if given.show:
        for section, listed in sections.items():
            print(section, *(f"\n  {kind} {arguments}" for kind, arguments in listed))
        return
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    made = [
        workspaces.Section(name=name, panels=[getattr(reports, kind)(**how) for kind, how in listed], is_open=True)
        for name, listed in sections.items()
    ]
    view = workspaces.Workspace(entity=given.entity, project=given.project, name=given.name, sections=made)
    print(view.save().url)


if __name__ == "__main__":
    main()
