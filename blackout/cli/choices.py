"""List the choices of every group, describe those of one, or show the settings of a choice."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from blackout.config.choices import describe_choice, list_choices, list_groups
from blackout.errors import CommandParser, did_you_mean, refuse, run_command
from blackout.files import CONF

WIDTH = 100  # columns of the terminal that are used
GROUP_WIDTH = 20  # columns of the names of groups


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout choices", description=__doc__)
    parser.add_argument("group", nargs="?", help="such as dataset or sampler=poisson")
    parser.add_argument(
        "--config-dir", type=Path, default=CONF, help="a folder of your own, as for train.py"
    )
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    folder = options.config_dir
    refuse(not folder.is_dir(), f"--config-dir {folder}: no such folder")
    group, is_choice, choice = (options.group or "").partition("=")
    if not group:
        print_groups(folder)
    elif is_choice:
        print_settings(group.strip("/"), choice, folder)
    else:
        print_choices(group.strip("/"), folder)


def print_groups(conf: Path = CONF) -> None:
    """Print a line for every group of a configuration folder with the names of its choices."""
    for group in list_groups(conf):
        print(
            textwrap.fill(
                ", ".join(list_choices(group, conf)),
                WIDTH,
                initial_indent=f"{group:<{GROUP_WIDTH}} ",
                subsequent_indent=" " * (GROUP_WIDTH + 1),
            )
        )
    print(
        "\nblackout choices <group> describes them, blackout choices <group>=<choice> one of them."
    )


def print_choices(group: str, conf: Path = CONF) -> None:
    """Print a line for every choice of a group in a configuration folder, with its description.

    Raises:
        UserError: there is no such group.
    """
    check_group(group, conf)
    group_choices = list_choices(group, conf)
    column = max(len(f"{group}={choice}") for choice in group_choices) + 2
    for choice in group_choices:
        name = f"{group}={choice}"
        print(
            textwrap.fill(
                describe_choice(group, choice, conf) or "see the file",
                WIDTH,
                initial_indent=f"{name:<{column}}",
                subsequent_indent=" " * column,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


def print_settings(group: str, choice: str, conf: Path = CONF) -> None:
    """Print the file of a choice: its description, and its settings with their comments.

    Raises:
        UserError: there is no such group or choice.
    """
    check_group(group, conf)
    names = list_choices(group, conf)
    refuse(
        choice not in names,
        f"{group}={choice}: no such choice{did_you_mean(choice, names)}; "
        f"`blackout choices {group}` lists them",
    )
    print((conf / group / f"{choice}.yaml").read_text(encoding="utf-8").rstrip())


def check_group(group: str, conf: Path = CONF) -> None:
    """Raise UserError unless a configuration folder has a group."""
    names = list_groups(conf)
    refuse(
        group not in names,
        f"{group}: no such group{did_you_mean(group, names)}; one of {', '.join(names)}",
    )


if __name__ == "__main__":
    main()
