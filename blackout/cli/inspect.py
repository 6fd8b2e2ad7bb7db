"""Show how dataset=counts reads a file, and what looks wrong, with settings that correct it."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from blackout.config.arguments import check_arguments
from blackout.config.overrides import format_command, format_override
from blackout.data import counts
from blackout.data.findings import Finding, Note
from blackout.errors import CommandParser, UserError, printable, run_command


def inspect(path: Path, settings: list[str]) -> int:
    """Print the data in a file, a line for each finding, and the command that trains on it.

    Lines that begin with "note" say what was done with the file; nothing has to be done about them,
    nor about warnings of the libraries, which are left out.

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
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        data = counts(path, **values)
    print(f"data:    {printable(str(data))}")
    num_findings = 0
    for warning in recorded:
        message = warning.message
        if isinstance(message, Note) or warning.category is UserWarning:
            print(f"note:    {printable(str(message))}")
        if not isinstance(message, Finding):
            continue
        print(f"finding: {printable(str(message))}")
        num_findings += 1
        for name, value in message.settings.items():
            if isinstance(value, list):
                value = [*_as_list(values.get(name)), *value]
            values[name] = value
    words = []
    for name, value in {"path": path, **values}.items():
        words.append(format_override(f"dataset.{name}", value))
    command = format_command(["python", "train.py", "dataset=counts", *words])
    print(f"command: {command}")
    return num_findings


def main(words: list[str] | None = None) -> None:
    """Run the command line; exit code 1 if there are findings."""
    parser = CommandParser(prog="blackout inspect", description=__doc__)
    parser.add_argument("file", type=Path, help="a file of counts")
    parser.add_argument("settings", nargs="*", help="dataset.<name>=<value>, as for train.py")
    run_command(_run, parser, words)


def _parse_settings(settings: list[str]) -> dict[str, Any]:
    """Return the values of settings of `dataset=counts` by name, as Hydra reads them.

    Raises:
        UserError: a word that is not a setting, or the path, which is an argument of its own.
    """
    parser = OverridesParser.create()
    values = {}
    for word in settings:
        name, equals, _ = word.removeprefix("dataset.").partition("=")
        if not equals or name == "path":
            raise UserError(f"settings are dataset.<name>=<value>, not {' '.join(settings)}")
        try:
            value = OmegaConf.create([parser.parse_override(word).value()])
            values[name] = OmegaConf.to_container(value, resolve=True)[0]  # type: ignore[index]
        except (HydraException, OmegaConfBaseException) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{word}: Hydra cannot read it; quote the value ({reason})") from None
    return values


def _as_list(value: Any) -> list[Any]:
    """Return the elements that a setting has already."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _run(options: argparse.Namespace) -> None:
    if inspect(options.file, options.settings):
        sys.exit(1)


if __name__ == "__main__":
    main()
