"""`train.py` and `sample.py` as a user types them, in this process, whose imports are done."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra

from tests.safety_net.choices import ROOT

REFUSED = 2  # exit code of a command that cannot be carried out as it is typed


def run(program: str, words: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a program to its end.

    Args:
        program: train or sample.
        words: of its command line.
        folder: where it is run.

    Returns:
        Its exit code, and what it wrote to standard error.
    """
    errors = io.StringIO()
    code = 0
    GlobalHydra.instance().clear()
    quiet = (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
        warnings.catch_warnings(),
    )
    with quiet[0], quiet[1], quiet[2], _command(program, words), _inside(folder):
        warnings.simplefilter("ignore")
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception as error:  # a command that ends in a traceback is a result, too
            return 1, f"{type(error).__name__}: {error}"
    return code, errors.getvalue()


@contextlib.contextmanager
def _command(program: str, words: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [str(ROOT / f"{program}.py"), *words]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
