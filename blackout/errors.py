"""Errors that a user can fix, and how a program turns them into one line.

Code that knows about settings and files raises `UserError` for a user's mistake. Every other error
is a bug, in this package or in a user's component, and keeps its traceback.
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
    """Bad input. The message says what is wrong, where, and what is allowed."""


class Unobtainable(UserError):
    """Weights or files that cannot be downloaded. The message says where to put them."""


class Preempted(BaseException):
    """Raised when a signal stops the run, after its state was saved.

    Like KeyboardInterrupt it is not an `Exception`: a signal may arrive inside any code that
    catches those.

    Args:
        message: what was saved, for the user.
        code: the process's exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def error_context(component: str) -> Iterator[None]:
    """Name the component, or the setting, that the code inside builds or checks, in its errors.

    A component raises ValueError for wrong arguments or data, a file OSError, and a missing package
    ImportError. Every other error is a bug and only gets a note.

    Raises:
        UserError: in place of these three, one line that names the component.
        Exception: any other error, with a note that names the component.
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


def did_you_mean(word: str, names: list[str]) -> str:
    """Return a suggestion of the most similar name, the end of a message; empty without one."""
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f" (did you mean {matches[0]}?)" if matches else ""


def ensure(condition: object, message: str) -> None:
    """Require a condition on arguments or data.

    Raises:
        ValueError: it does not hold.
    """
    if not condition:
        raise ValueError(message)


def refuse(condition: object, message: str) -> None:
    """Refuse a user's input under a condition.

    Raises:
        UserError: the condition holds.
    """
    if condition:
        raise UserError(message)


def check_at_least_one(**numbers: int | None) -> None:
    """Require numbers of steps or samples, by name, to be whole and at least 1, or None.

    Raises:
        ValueError: names the first that is not.
    """
    for name, number in numbers.items():
        if number is not None and (type(number) is not int or number < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, not {number}")


def check_at_most(largest: int, **numbers: int | None) -> None:
    """Require numbers of steps or samples, by name, to be at most `largest`, or None.

    Raises:
        ValueError: names the first that is not.
    """
    for name, number in numbers.items():
        if number is not None and number > largest:
            raise ValueError(f"{name} must be at most {largest:,}, not {number:,}")


def summary(error: BaseException) -> str:
    """Return the first line of an exception; for a file, its name and the reason.

    The type of the exception is included where the line alone says too little.
    """
    if isinstance(error, OSError) and error.strerror:
        operation = "writing a file" if error.errno in DISK_ERRORS else type(error).__name__
        return f"{error.filename or operation}: {error.strerror}"
    type_name = type(error).__name__
    line = (str(error).splitlines() or [""])[0]
    is_for_users = isinstance(error, ValueError | TypeError | ImportError)
    if line and (is_for_users or "Misconfiguration" in type_name):
        return line
    return f"{type_name} {line}".strip()


DISK_ERRORS = frozenset(
    [
        errno.EACCES,
        errno.EDQUOT,  # over quota
        errno.EEXIST,
        errno.EFBIG,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,  # read-only
    ]
)
"""Errors of the operating system that the user can fix."""


class CommandParser(ArgumentParser):
    """A parser whose errors are one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            UserError: always.
        """
        raise UserError(message)


class WarningFormatter(logging.Formatter):
    """One line for a warning that `logging.captureWarnings` has logged."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a `UserWarning`, and of others also where they come from."""
        # logged as "<file>:<line>: <category>: <text>\n  <line of code>"
        line = record.getMessage().splitlines()[0]
        _, is_for_users, text = line.partition(": UserWarning: ")
        return "warning: " + printable(text if is_for_users else line)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print the warnings inside as one line each on stderr."""
    logger = logging.getLogger("py.warnings")
    if any(isinstance(handler.formatter, WarningFormatter) for handler in logger.handlers):
        yield  # a program within a program: the outer one prints them
        return
    handler = logging.StreamHandler()
    handler.setFormatter(WarningFormatter())
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
def errors_in_one_line(continues: bool = False) -> Iterator[None]:
    """Run a program inside: an error that the user can fix is one line on stderr and exit code 2.

    Any other error is a bug and keeps its traceback; `BLACKOUT_DEBUG=1` shows all tracebacks.
    Ctrl-C gives exit code 130.

    Args:
        continues: whether the same command continues where the program stopped.
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
    except BrokenPipeError:  # the reader of standard output has ended: `python train.py | head -1`
        if continues:
            message = "standard output was closed: the same command continues"
            print(f"{message} from the last checkpoint", file=sys.stderr)
        # Python flushes standard output once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if continues and error.errno not in DISK_ERRORS:
            raise
        _leave(summary(error))
    except MemoryError as error:
        _leave(f"not enough memory: {error}")
    except KeyboardInterrupt:
        advice = "; the same command continues from the last checkpoint" if continues else ""
        print(f"interrupted{advice}", file=sys.stderr)
        sys.exit(130)


def run_command(
    run: Callable[[Namespace], object], parser: ArgumentParser, words: list[str] | None = None
) -> None:
    """Run a command that argparse reads, with errors as in `train.py`: see `errors_in_one_line`.

    Args:
        run: called with the parsed arguments.
        parser: of the command line.
        words: of the command line; None for that of this process.
    """
    with errors_in_one_line():
        run(parser.parse_args(words))


def printable(text: str) -> str:
    """Return text as one line with control characters and invalid characters escaped.

    Names come from files, and must not move a terminal's cursor.
    """
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _check_environment() -> None:
    """Refuse a launcher's variables that are not numbers.

    Raises:
        UserError: the first one.
    """
    names = (
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_PORT",
    )
    for name in names:
        value = os.environ.get(name)
        if value is not None and not value.isdecimal():
            problem = f"must be a whole number, not {value!r}"
            raise UserError(f"the environment variable {name} {problem}")


def _leave(message: str) -> NoReturn:
    if os.environ.get("BLACKOUT_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    print("error: " + printable(message), file=sys.stderr)
    sys.exit(2)
