"""`blackout <command> ...`, the same as `python -m blackout <command> ...`."""

from __future__ import annotations

import sys
from importlib import import_module

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
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: blackout <command> ...\n\n{_table()}\n\nblackout <command> --help says more.")
        return
    if words[0] not in COMMANDS:
        print(f"error: blackout {words[0]}: no such command; one of {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    module, function, _ = COMMANDS[words[0]]
    sys.argv = [f"blackout {words[0]}", *words[1:]]  # where Hydra and argparse read a command line
    getattr(import_module(module), function)()


def _table() -> str:
    return "\n".join(f"  {name:<10}{text}" for name, (_, _, text) in COMMANDS.items())
