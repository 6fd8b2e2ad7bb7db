"""Show how dataset=counts reads a file, and what looks wrong, with settings that correct it."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import yaml

from blackout.config.arguments import check_arguments
from blackout.data import counts
from blackout.data.findings import Finding, format_setting
from blackout.errors import CommandParser, UserError, printable, run_command


def inspect(path: Path, settings: list[str]) -> int:
    """Print the data in a file, a line for each finding, and the command that trains on it.

    Args:
        path: the file.
        settings: of `dataset=counts`, such as "dataset.exclude=[id]".

    Returns:
        The number of findings.

    Raises:
        UserError: the file cannot be used, or there is no such setting.
    """
    values = _parse_settings(settings)
    check_arguments(counts, {"path": path, **values}, "dataset")
    with warnings.catch_warnings(record=True) as findings:
        warnings.simplefilter("always")
        data = counts(path, **values)
    print(f"data:    {printable(str(data))}")
    for finding in findings:
        print(f"finding: {printable(str(finding.message))}")
        if isinstance(finding.message, Finding):
            for name, value in finding.message.settings.items():
                if isinstance(value, list):
                    value = [*values.get(name, []), *value]
                values[name] = value
    words = [
        f"dataset.{name}={format_setting(value)}"
        for name, value in {"path": path, **values}.items()
    ]
    command = shlex.join(["python", "train.py", "dataset=counts", *words])
    print(f"command: {printable(command)}")
    return len(findings)


def main(words: list[str] | None = None) -> None:
    """Run the command line; exit code 1 if there are findings."""
    parser = CommandParser(prog="blackout inspect", description=__doc__)
    parser.add_argument("file", type=Path, help="a file of counts")
    parser.add_argument("settings", nargs="*", help="dataset.<name>=<value>, as for train.py")
    run_command(_run, parser, words)


def _parse_settings(settings: list[str]) -> dict[str, Any]:
    """Return the values of settings of `dataset=counts` by name.

    Raises:
        UserError: a word that is not a setting, or the path, which is an argument of its own.
    """
    words = [word.removeprefix("dataset.").partition("=") for word in settings]
    if any(not equals or name == "path" for name, equals, _ in words):
        raise UserError(f"settings are dataset.<name>=<value>, not {' '.join(settings)}")
    return {name: yaml.safe_load(value) for name, _, value in words}


def _run(options: argparse.Namespace) -> None:
    if inspect(options.file, options.settings):
        sys.exit(1)


if __name__ == "__main__":
    main()
