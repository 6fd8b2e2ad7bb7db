"""`blackout inspect FILE`: what `dataset=counts` makes of a file, what looks wrong, and what mends it."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from pathlib import Path

import yaml

from blackout.config.arguments import check_arguments
from blackout.data import counts
from blackout.data.doctor import Finding, plain
from blackout.errors import CommandParser, UserError, printable, run_command


def inspect(path: Path, given: list[str]) -> int:
    """Print the data of a file, a line for each finding, and the command that trains on it.

    Args:
        path: the file.
        given: settings of `dataset=counts`, such as "dataset.exclude=[id]".

    Returns:
        The number of findings.

    Raises:
        UserError: the file cannot be used, or there is no such setting.
    """
    settings = dict(one.removeprefix("dataset.").split("=", 1) for one in given if "=" in one)
    if len(settings) < len(given) or "path" in settings:
        raise UserError(f"settings are dataset.<name>=<value>, not {' '.join(given)}")
    chosen = {name: yaml.safe_load(value) for name, value in settings.items()}
    check_arguments(counts, {"path": path, **chosen}, "dataset")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        print(f"data:    {printable(str(counts(path, **chosen)))}")
    for one in said:
        print(f"found:   {printable(str(one.message))}")
        for name, value in one.message.settings.items() if isinstance(one.message, Finding) else ():
            chosen[name] = [*chosen.get(name, []), *value] if isinstance(value, list) else value
    words = [f"dataset.{name}={plain(value)}" for name, value in {"path": path, **chosen}.items()]
    print(f"command: {printable(shlex.join(['python', 'train.py', 'dataset=counts', *words]))}")
    return len(said)


def main(arguments: list[str] | None = None) -> None:
    """Exit code 1 where something was found."""
    parser = CommandParser(prog="blackout inspect", description=__doc__)
    parser.add_argument("file", type=Path, help="a file of counts")
    parser.add_argument("settings", nargs="*", help="dataset.<name>=<value>, as for train.py")
    run_command(_run, parser, arguments)


def _run(given: argparse.Namespace) -> None:
    if inspect(given.file, given.settings):
        sys.exit(1)


if __name__ == "__main__":
    main()
