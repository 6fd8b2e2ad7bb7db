"""Errors of a user are one line: leftover variables, signals, names and terminals of any kind."""

from __future__ import annotations

import io
import os
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from blackout.errors import errors_in_one_line, escaped, printable, run_command
from blackout.files import creating

GROUP = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
AGENT = GROUP | {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
LEFTOVERS = (
    ({"RANK": "1"}, "unset RANK"),
    ({"LOCAL_RANK": "3"}, "unset LOCAL_RANK"),
    ({"RANK": "2", "WORLD_SIZE": "2", **GROUP}, "unset RANK"),
    ({"WORLD_SIZE": "2"}, "MASTER_ADDR"),
    ({"WORLD_SIZE": "2", **GROUP}, "RANK"),
    ({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "RANK": "0"}, "MASTER_PORT"),
    ({"TORCHELASTIC_RUN_ID": "x"}, "unset TORCHELASTIC_RUN_ID"),
    ({**AGENT, "RANK": "0"}, "WORLD_SIZE"),
    ({**AGENT, "WORLD_SIZE": "1"}, "RANK"),
    ({"SLURM_PROCID": "1"}, "unset SLURM_PROCID"),
    ({"SLURM_PROCID": "2", "SLURM_NTASKS": "2"}, "unset SLURM_PROCID"),
    ({"JSM_NAMESPACE_RANK": "1"}, "unset JSM_NAMESPACE_RANK"),
    *(({"WORLD_SIZE": value}, "whole number") for value in ("", "x", "-1", "1.5", "²", "9" * 5000)),
    ({"SLURM_NTASKS": "many"}, "whole number"),
)
LAUNCHED = (
    {},
    {"WORLD_SIZE": "1"},
    {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"},
    {"WORLD_SIZE": "2", "RANK": "1", **GROUP},
    {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0", **GROUP},  # Lightning's own
    {**AGENT, "WORLD_SIZE": "1", "RANK": "0"},
    {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
    {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0"},
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_", "JSM_")) or name.endswith(
            ("RANK", "WORLD_SIZE")
        ):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("variables", "word"), LEFTOVERS)
def test_leftover_variables_of_a_launcher_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    word: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"), errors_in_one_line():
        raise AssertionError("nothing starts")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the environment variable ") and word in line


@pytest.mark.parametrize("variables", LAUNCHED)
def test_variables_that_belong_together_are_those_of_a_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    started = False
    with errors_in_one_line():
        started = True
    assert started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_that_a_signal_ends_leaves_no_hidden_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def run(_: object) -> None:
        with creating(tmp_path / "file") as part:
            part.write_text("half")
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 5)  # a handler runs between two lines

    # whoever started the tests may ignore the signal, as nohup does
    is_interrupt = number == signal.SIGINT
    default = signal.default_int_handler if is_interrupt else signal.SIG_DFL  # as Python starts
    earlier = signal.signal(number, default)
    try:
        with pytest.raises(SystemExit) as exit_info:
            run_command(run, ArgumentParser(), [])
        assert exit_info.value.code == 128 + number and not list(tmp_path.iterdir())
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert signal.getsignal(number) is default
    finally:
        signal.signal(number, earlier)


def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run_command(lambda _: os.kill(os.getpid(), signal.SIGHUP), ArgumentParser(), [])
    finally:
        signal.signal(signal.SIGHUP, earlier)


def test_names_are_shown_without_what_moves_a_cursor() -> None:
    assert escaped(Path("a  b")) == "a  b" and printable("a  b\nc") == "a b c"
    assert escaped("\x1b[2J\n\r\u202e\udcff\x00é") == "\\x1b[2J\\n\\r\\u202e\\udcff\\x00é"


def test_a_terminal_without_a_character_shows_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with errors_in_one_line():
        print("0.5 ± 0.1 \udcff")
    assert written.getvalue() == b"0.5 \\xb1 0.1 \\udcff\n"
