"""`blackout choices [GROUP]`: the choices of every group, or of one with the first comment of each."""

from __future__ import annotations

import argparse
import textwrap

from blackout.config.choices import choices, describe, groups
from blackout.errors import CommandParser, did_you_mean, refuse, run_command

WIDTH = 110  # columns of the terminal that are used


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = CommandParser(prog="blackout choices", description=__doc__)
    parser.add_argument("group", nargs="?", help="such as dataset, sampler or experiment")
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    names = groups()
    if options.group is None:
        for group in names:
            line = ", ".join(choices(group))
            print(textwrap.fill(line, WIDTH, initial_indent=f"{group:<20} ", subsequent_indent=" " * 21))
        print("\nblackout choices <group> describes them.")
        return
    group = options.group.strip("/")
    refuse(group not in names, f"{group}: no such group{did_you_mean(group, names)}; one of {', '.join(names)}")
    listed = choices(group)
    column = max(len(f"{group}={choice}") for choice in listed) + 2
    for choice in listed:
        head = f"{f'{group}={choice}':<{column}}"
        text = describe(group, choice) or "see the file"
        wrap = textwrap.TextWrapper(WIDTH, head, " " * column, break_long_words=False, break_on_hyphens=False)
        print(wrap.fill(text))


if __name__ == "__main__":
    main()
