"""List the choices of every group, or describe those of one group."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from blackout.config.choices import choices, describe, groups
from blackout.errors import CommandParser, did_you_mean, refuse, run_command
from blackout.files import CONF

WIDTH = 110  # columns of the terminal that are used
GROUP_WIDTH = 20  # columns of the names of groups


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout choices", description=__doc__)
    parser.add_argument("group", nargs="?", help="such as dataset, sampler or experiment")
    parser.add_argument(
        "--config-dir", type=Path, default=CONF, help="a folder of your own, as for train.py"
    )
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    folder = options.config_dir
    refuse(not folder.is_dir(), f"--config-dir {folder}: no such folder")
    if options.group is None:
        print_groups(folder)
    else:
        print_choices(options.group.strip("/"), folder)


def print_groups(conf: Path = CONF) -> None:
    """Print a line for every group of a configuration folder with the names of its choices."""
    for group in groups(conf):
        print(
            textwrap.fill(
                ", ".join(choices(group, conf)),
                WIDTH,
                initial_indent=f"{group:<{GROUP_WIDTH}} ",
                subsequent_indent=" " * (GROUP_WIDTH + 1),
            )
        )
    print("\nblackout choices <group> describes them.")


def print_choices(group: str, conf: Path = CONF) -> None:
    """Print a line for every choice of a group in a configuration folder, with its description.

    Raises:
        UserError: there is no such group.
    """
    names = groups(conf)
    refuse(
        group not in names,
        f"{group}: no such group{did_you_mean(group, names)}; one of {', '.join(names)}",
    )
    group_choices = choices(group, conf)
    column = max(len(f"{group}={choice}") for choice in group_choices) + 2
    for choice in group_choices:
        name = f"{group}={choice}"
        print(
            textwrap.fill(
                describe(group, choice, conf) or "see the file",
                WIDTH,
                initial_indent=f"{name:<{column}}",
                subsequent_indent=" " * column,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


if __name__ == "__main__":
    main()
