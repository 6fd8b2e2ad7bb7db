"""Create the dashboard of logger=wandb on a W&B server.

    pip install wandb-workspaces
    wandb login    # with WANDB_BASE_URL for a server of your own
    python examples/wandb_dashboard.py ENTITY

With --show the panels are listed and nothing is sent.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

LAYOUT = Path(__file__).with_name("wandb_dashboard.yaml")


def panels(layout: Mapping[str, Any]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return classes of `wandb_workspaces.reports.v2` and arguments of all panels, by section."""
    panels_by_section: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for section, listed in layout.items():
        section_panels: list[tuple[str, dict[str, Any]]] = []
        for panel in listed:
            if "pictures" in panel:
                section_panels.append(
                    ("MediaBrowser", {"media_keys": panel["pictures"], "num_columns": 2})
                )
            elif "bars" in panel:
                section_panels.append(
                    ("BarPlot", {"title": panel["bars"][0], "metrics": panel["bars"]})
                )
            else:
                arguments = {
                    "title": ", ".join(panel["lines"]),
                    "x": "images",
                    "y": panel["lines"],
                    "title_x": "images seen",
                }
                section_panels.append(("LinePlot", arguments | {"log_y": bool(panel.get("log"))}))
        panels_by_section[section] = section_panels
    return panels_by_section


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("entity", help="user or team")
    parser.add_argument("--project", default="blackout")
    parser.add_argument("--name", default="blackout", help="of the view")
    parser.add_argument("--show", action="store_true", help="list the panels and send nothing")
    options = parser.parse_args()
    sections = panels(yaml.safe_load(LAYOUT.read_text(encoding="utf-8")))
    if options.show:
        for section, listed in sections.items():
            print(section, *(f"\n  {kind} {arguments}" for kind, arguments in listed))
        return
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    view_sections = [
        workspaces.Section(
            name=name,
            panels=[getattr(reports, kind)(**arguments) for kind, arguments in listed],
            is_open=True,
        )
        for name, listed in sections.items()
    ]
    view = workspaces.Workspace(
        entity=options.entity, project=options.project, name=options.name, sections=view_sections
    )
    print(view.save().url)


if __name__ == "__main__":
    main()
