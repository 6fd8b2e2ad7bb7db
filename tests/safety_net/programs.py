"""`train.py` and `sample.py` with the arguments of a user, in a process whose imports are done."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra

from tests.safety_net.choices import ROOT

REFUSED = 2  # exit code of a command line that asks for something impossible


@dataclass(frozen=True)
class Result:
    """How a program ended.

    Args:
        exit_code: 1 for an exception.
        errors: standard error, or the exception.
    """

    exit_code: int
    errors: str


def run_program(program: str, arguments: Sequence[str], folder: Path) -> Result:
    """Run a program to its end.

    Args:
        program: train or sample.
        arguments: of its command line.
        folder: working directory.
    """
    errors = io.StringIO()
    GlobalHydra.instance().clear()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(errors))
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(_command_line(program, arguments))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as error:
            if isinstance(error.code, int):
                return Result(error.code, errors.getvalue())
            return Result(int(error.code is not None), errors.getvalue())
        except Exception as error:  # a traceback is a way to end that is compared, too
            return Result(1, f"{type(error).__name__}: {error}")
    return Result(0, errors.getvalue())


@contextlib.contextmanager
def _command_line(program: str, arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [str(ROOT / f"{program}.py"), *arguments]
    try:
        yield
    finally:
        sys.argv = before
