"""List the choices of every group, or describe those of one group."""

from __future__ import annotations

import argparse
import textwrap

from blackout.config.choices import choices, describe, groups
from blackout.errors import CommandParser, did_you_mean, refuse, run_command

WIDTH = 110  # columns of the terminal that are used
GROUP_WIDTH = 20  # columns of the names of groups


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout choices", description=__doc__)
    parser.add_argument("group", nargs="?", help="such as dataset, sampler or experiment")
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    if options.group is None:
        print_groups()
    else:
        print_choices(options.group.strip("/"))


def print_groups() -> None:
    """Print a line for every group with the names of its choices."""
    for group in groups():
        print(
            textwrap.fill(
                ", ".join(choices(group)),
                WIDTH,
                initial_indent=f"{group:<{GROUP_WIDTH}} ",
                subsequent_indent=" " * (GROUP_WIDTH + 1),
            )
        )
    print("\nblackout choices <group> describes them.")


def print_choices(group: str) -> None:
    """Print a line for every choice of a group with its description.

    Raises:
        UserError: there is no such group.
    """
    names = groups()
    refuse(
        group not in names,
        f"{group}: no such group{did_you_mean(group, names)}; one of {', '.join(names)}",
    )
    group_choices = choices(group)
    column = max(len(f"{group}={choice}") for choice in group_choices) + 2
    for choice in group_choices:
        name = f"{group}={choice}"
        print(
            textwrap.fill(
                describe(group, choice) or "see the file",
                WIDTH,
                initial_indent=f"{name:<{column}}",
                subsequent_indent=" " * column,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


if __name__ == "__main__":
    main()
