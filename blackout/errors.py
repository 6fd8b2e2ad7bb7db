"""What ends a program on purpose, and how errors become one line for the user.

A user fixes settings and files: code that knows about them raises `UserError`. Every other error is a bug, of this
package or of a user's component, and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


class UserError(ValueError):
    """Bad input from outside: a file, a value, a name. The message says what is wrong, where, and what is allowed."""


class Unobtainable(UserError):
    """Weights or files that a program would fetch, and cannot. The message says where to put them."""


class Preempted(BaseException):
    """The run left because a signal asked it to; what it had done is saved.

    A signal may arrive inside anybody's `except Exception`; like KeyboardInterrupt, it must come through.

    Args:
        message: what was saved, for the user.
        code: the process's exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def error_context(component: str) -> Iterator[None]:
    """Name the component, or the setting, that the code inside makes or checks.

    `ValueError` is how a component refuses its arguments or its data, `OSError` how a file is refused, and
    `ImportError` how a package is missed. Every other error is a bug and only gets a note.

    Raises:
        UserError: in place of one of these three; one line that names the component.
        Exception: any other error, as it was, with a note that names the component.
    """
    try:
        yield
    except UserError:
        raise
    except (ValueError, OSError, ImportError) as error:
        raise UserError(f"{component}: {summary(error)}") from error
    except Exception as error:
        error.add_note(f"This happened in the component `{component}`.")
        raise


def nearest(word: str, names: list[str]) -> str:
    """The name that is most like a word, as the end of a message; nothing if none is."""
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def ensure(good: object, message: str) -> None:
    """A requirement on arguments or data, beside what is said where it does not hold: made in any case, so a cheap one.

    Raises:
        ValueError: `good` is not true.
    """
    if not good:
        raise ValueError(message)


def refuse(bad: object, message: str) -> None:
    """As `ensure`, of what comes from outside: what is wrong with it, and what is said where it is.

    Raises:
        UserError: `bad` is true.
    """
    if bad:
        raise UserError(message)


def check_at_least_one(**numbers: int | None) -> None:
    """Refuse numbers by name, of steps or samples, that are not whole and at least 1; None is no number.

    Raises:
        ValueError: the first one.
    """
    for name, number in numbers.items():
        if number is not None and (type(number) is not int or number < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, not {number}")


def check_at_most(largest: int, **numbers: int | None) -> None:
    """Refuse numbers by name, of steps or samples, that are too large; None is no number.

    Raises:
        ValueError: the first one.
    """
    for name, number in numbers.items():
        if number is not None and number > largest:
            raise ValueError(f"{name} must be at most {largest:,}, not {number:,}")


def summary(error: BaseException) -> str:
    """An exception's first line, with its kind where that says more than the line; which file the system refused."""
    if isinstance(error, OSError) and error.strerror:
        kind = "writing a file" if error.errno in _DISK else type(error).__name__
        return f"{error.filename or kind}: {error.strerror}"
    line = (str(error).splitlines() or [""])[0]
    plain = isinstance(error, ValueError | TypeError | ImportError) or "Misconfiguration" in type(error).__name__
    return line if plain and line else f"{type(error).__name__} {line}".strip()


_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENAMETOOLONG}
_DISK |= {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
"""What the disk may refuse: full, over quota, read-only, not ours, too large; and names it cannot have."""


class CommandParser(ArgumentParser):
    """A parser of a command line that refuses it in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            UserError: always.
        """
        raise UserError(message)


class _WarningFormatter(logging.Formatter):
    """One line for a warning that `logging.captureWarnings` has logged."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a `UserWarning`, and of others also where they come from."""
        # logged as "<file>:<line>: <category>: <text>\n  <line of code>"
        line = record.getMessage().splitlines()[0]
        _, is_for_users, text = line.partition(": UserWarning: ")
        return "warning: " + shown(text if is_for_users else line)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print the warnings inside as one line each on stderr."""
    logger = logging.getLogger("py.warnings")
    if any(isinstance(handler.formatter, _WarningFormatter) for handler in logger.handlers):
        yield  # a program within a program: the outer one prints them
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_WarningFormatter())
    logger.addHandler(handler)
    propagated = logger.propagate
    logger.propagate = False
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        logger.propagate = propagated
        logger.removeHandler(handler)


@contextmanager
def ends_in_one_line(continues: bool = False) -> Iterator[None]:
    """Around a whole program: what the user can fix is one line on stderr and exit code 2.

    Any other error is a bug and keeps its traceback; `BLACKOUT_DEBUG=1` shows all tracebacks. Ctrl-C gives code 130.

    Args:
        continues: the program is one of those that go on where they stopped.
    """
    try:
        with _warnings_in_one_line():
            _check_environment()
            yield
            if sys.stdout is not None:  # as Python has it where `>&-` closed standard output
                sys.stdout.flush()
    except UserError as error:
        _leave(str(error))
    except Preempted as error:
        print(str(error), file=sys.stderr)
        sys.exit(error.code)
    except BrokenPipeError:  # the reader of standard output has left, as in `python train.py | head -1`
        if continues:
            print("standard output was closed: the same command continues from the last checkpoint", file=sys.stderr)
        # Python flushes standard output once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if continues and error.errno not in _DISK:
            raise
        _leave(summary(error))
    except MemoryError as error:
        _leave(f"not enough memory: {error}")
    except KeyboardInterrupt:
        print("interrupted" + "; the same command continues from the last checkpoint" * continues, file=sys.stderr)
        sys.exit(130)


def run_command(run: Callable[[Namespace], object], parser: ArgumentParser, words: list[str] | None = None) -> None:
    """Run a program beside `train.py` and `sample.py`, by the same rules: see `ends_in_one_line`.

    Args:
        run: gets what the command line says.
        parser: of the command line.
        words: of the command line; None for that of this process.
    """
    with ends_in_one_line():
        run(parser.parse_args(words))


def shown(text: str) -> str:
    """One line, in which what would move a terminal's cursor, or is no text, is written out: names come from files."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _check_environment() -> None:
    """Refuse a launcher's variables that are not numbers.

    Raises:
        UserError: the first one.
    """
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_PORT"):
        value = os.environ.get(name)
        if value is not None and not value.isdecimal():
            raise UserError(f"the environment variable {name} must be a whole number, not {value!r}")


def _leave(message: str) -> NoReturn:
    if os.environ.get("BLACKOUT_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    print("error: " + shown(message), file=sys.stderr)
    sys.exit(2)
