"""The command line: `blackout <command> ...`, or `python -m blackout <command> ...`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NamedTuple

from blackout.errors import did_you_mean, errors_in_one_line, refuse


class Command(NamedTuple):
    """Where a command is, and what it does."""

    module: str  # imported when the command runs
    function: str
    help: str


COMMANDS = {
    "train": Command("blackout.cli.programs", "run_train", "train a model, like python train.py"),
    "sample": Command(
        "blackout.cli.programs", "run_sample", "draw samples and score them, like python sample.py"
    ),
    "choices": Command(
        "blackout.cli.choices", "main", "list the choices of every group, or of one"
    ),
    "inspect": Command("blackout.cli.inspect", "main", "check a file of counts"),
    "report": Command("blackout.cli.report", "main", "write the report of a run again"),
    "compare": Command("blackout.cli.compare", "main", "compare several runs on one page"),
    "watch": Command("blackout.cli.watch", "main", "show reports in a browser as runs train"),
    "demo": Command("blackout.cli.demo", "main", "draw samples interactively in a browser"),
    "solve": Command(
        "blackout.cli.solve", "main", "solve a jigsaw or problems on graphs, without a model"
    ),
    "anneal": Command(
        "blackout.cli.anneal", "main", "sample a target by annealing, without a network"
    ),
    "compress": Command("blackout.cli.compress", "main", "compress counts without loss"),
    "verify": Command(
        "blackout.cli.verify", "main", "check processes and samplers against exact enumeration"
    ),
}


def main() -> None:
    """Run the command that the first word names; the other words are its command line."""
    name, *words = sys.argv[1:] or ["--help"]
    with errors_in_one_line():
        if name in ("-h", "--help"):
            print(help_text())
            return
        refuse(
            name not in COMMANDS,
            f"{name}: no such command{did_you_mean(name, [*COMMANDS])}; "
            f"one of {', '.join(COMMANDS)}",
        )
    command = COMMANDS[name]
    sys.argv = [f"blackout {name}", *words]  # Hydra reads its command line from there
    getattr(import_module(command.module), command.function)()


def help_text() -> str:
    """Return the usage and a line for every command."""
    lines = [f"  {name:<10}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: blackout <command> ...",
            "",
            *lines,
            "",
            "Type blackout <command> --help for the options of a command.",
        ]
    )
