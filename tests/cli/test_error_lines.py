"""Errors and warnings of every program are one line on stderr."""

import os
import sys
import warnings

import pytest

from benchmarks import (
    energy_discrepancy,
    graph_methods,
    permutation_chain,
    permutation_mixing,
    table,
)
from blackout.cli import anneal, compare, compress, inspect, programs, report, solve, verify
from blackout.data.findings import Finding
from blackout.errors import CommandParser, UserError, run_command


def raising(error):
    def act(options):
        raise error

    return act


@pytest.mark.parametrize(
    "error, code, message",
    [
        (UserError("bad\n input"), 2, "error: bad input\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (UserError("\x1b[2J\ud800\u202e"), 2, "error: \\x1b[2J\\ud800\\u202e\n"),
        (
            OSError(28, "No space left on device", "x.npz"),
            2,
            "error: x.npz: No space left on device; remove files, "
            "or choose a folder on another disk\n",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "y"),
            2,
            "error: y: No such file or directory\n",
        ),
    ],
)
def test_programs_end_in_one_line(capsys, error, code, message):
    with pytest.raises(SystemExit) as exit_info:
        run_command(raising(error), CommandParser("x"), [])
    assert exit_info.value.code == code and capsys.readouterr().err == message


def test_a_warning_is_one_line_and_says_where_it_comes_from_if_it_is_for_developers(capsys):
    def warn(options):
        warnings.warn("few\x1b samples", stacklevel=1)
        warnings.warn("an old name", FutureWarning, stacklevel=1)
        warnings.warn(Finding("a column is text", exclude=["cell"]), stacklevel=1)

    original = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        run_command(
            lambda options: run_command(warn, CommandParser("x"), []), CommandParser("x"), []
        )
    first_line, second_line, third = capsys.readouterr().err.splitlines()
    assert third == "warning: a column is text: dataset.exclude=[cell]"
    assert first_line == "warning: few\\x1b samples"
    assert (
        second_line.startswith("warning: ")
        and second_line.endswith("FutureWarning: an old name")
        and __file__ in second_line
    )
    assert warnings.showwarning is original


def test_a_closed_standard_output_ends_the_program_without_a_traceback(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
        with pytest.raises(SystemExit) as end:
            programs.run(lambda: print("a line"), "train")
        assert end.value.code == 1
        sys.stdout.flush()


def test_every_command_refuses_unknown_options_in_one_line(command):
    for main in (
        compare.main,
        report.main,
        compress.main,
        solve.main,
        anneal.main,
        graph_methods.main,
        verify.main,
        energy_discrepancy.main,
        permutation_chain.main,
        permutation_mixing.main,
        inspect.main,
        table.main,
    ):
        command(main, "--no-such-option").assert_refused("")
    command(inspect.main, "x.npy", "dataset.path=y.npy").assert_refused("settings are")
