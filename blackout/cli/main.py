"""`blackout <command> ...`, the same as `python -m blackout <command> ...`."""

from __future__ import annotations

import sys
from importlib import import_module

from blackout.errors import did_you_mean, errors_in_one_line, refuse

COMMANDS = {
    "train": ("blackout.cli.programs", "run_train", "train a model: the same as python train.py"),
    "sample": ("blackout.cli.programs", "run_sample", "draw samples and score them: the same as python sample.py"),
    "choices": ("blackout.cli.choices", "main", "list the choices of every group, or of one"),
    "inspect": ("blackout.inspect", "main", "look for mistakes in a file of counts"),
    "report": ("blackout.report", "main", "write the page of a run again"),
    "compare": ("blackout.compare", "main", "a table and a page of several runs"),
    "watch": ("blackout.watch", "main", "the pages of all runs in a browser, as they train"),
    "demo": ("blackout.demo", "main", "draw from a model in a browser"),
    "solve": ("blackout.solve", "main", "a jigsaw from its picture, or problems on graphs, without a model"),
    "anneal": ("blackout.flows.anneal", "main", "annealed importance sampling of a target, without a network"),
    "compress": ("blackout.compress", "main", "compress counts with a trained model, without loss"),
    "verify": ("blackout.verification.__main__", "main", "check processes and samplers against exact enumeration"),
}
"""Command -> module, function and help."""


def main() -> None:
    """Run the command that the first word names, with the other words as its command line."""
    command, *words = sys.argv[1:] or ["--help"]
    with errors_in_one_line():
        if command in ("-h", "--help"):
            print(f"usage: blackout <command> ...\n\n{_table()}\n\nblackout <command> --help says more.")
            return
        known = ", ".join(COMMANDS)
        refuse(command not in COMMANDS, f"{command}: no such command{did_you_mean(command, [*COMMANDS])}; one of {known}")
    module, function, _ = COMMANDS[command]
    sys.argv = [f"blackout {command}", *words]  # Hydra reads a command line from there alone
    getattr(import_module(module), function)()


def _table() -> str:
    return "\n".join(f"  {name:<10}{text}" for name, (_, _, text) in COMMANDS.items())
