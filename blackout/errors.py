"""Errors that a user can fix, and how a program turns them into one line.

Code that knows about settings and files raises `UserError` for a user's mistake. Every other error
is a bug, in this package or in a user's component, and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import io
import logging
import os
import re
import signal
import sys
import threading
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# environment variables of torchrun, Lightning and SLURM that are whole numbers
LAUNCHER_NUMBERS = (
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_PORT",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS",
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
)
# variable with the number of a process -> that with the number of processes, which is larger
WORLD_SIZE_OF_RANK = {
    "RANK": "WORLD_SIZE",
    "LOCAL_RANK": "WORLD_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
    "JSM_NAMESPACE_RANK": "JSM_NAMESPACE_SIZE",
}
MAX_LAUNCHER_DIGITS = 9  # of a number in `LAUNCHER_NUMBERS`
MEMORY_ADVICE = (
    "close other programs, raise `ulimit -v`, or choose a smaller batch_size or num_samples"
)
# PyTorch has no type of its own for a CPU without memory, and libraries none for a full machine
ALLOCATION_ERRORS = ("can't allocate memory", "out of memory", "can't start new thread")
MAX_DETAIL = 200  # characters of a library's message about memory
SIGNAL_CODE = 128  # plus the number of a signal: exit code of a command that it ended, as in shells


class UserError(ValueError):
    """Error of the user's input. The message says what is wrong, where, and what is allowed."""


class Unobtainable(UserError):
    """Error of a failed download. The message says where to put the file instead."""


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
    """Add the name of a component or setting to errors that are raised in the block.

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
    """Return " (did you mean ...?)" with the most similar name; empty if none is similar."""
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f" (did you mean {matches[0]}?)" if matches else ""


def ensure(condition: object, message: str) -> None:
    """Raise ValueError with this message unless a condition on arguments or data holds.

    Raises:
        ValueError: it does not hold.
    """
    if not condition:
        raise ValueError(message)


def refuse(condition: object, message: str) -> None:
    """Raise UserError with this message if a condition of bad input holds.

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
    """Return one line that describes an exception; for a file, its name and the reason.

    The type of the exception is included where the line alone says too little.
    """
    if isinstance(error, OSError) and error.strerror:
        operation = "writing a file" if error.errno in DISK_ERRORS else type(error).__name__
        name = operation if error.filename is None else os.fsdecode(error.filename)
        return f"{name}: {error.strerror}{DISK_ADVICE.get(error.errno or 0, '')}"
    type_name = type(error).__name__
    line = (str(error).splitlines() or [""])[0]
    is_for_users = isinstance(error, ValueError | TypeError | ImportError)
    if line and (is_for_users or "Misconfiguration" in type_name):
        return line
    return f"{type_name} {line}".strip()


# errors of the operating system that the user can fix
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
# what to do about errors of a disk
DISK_ADVICE = {
    errno.EDQUOT: "; remove files, or choose a folder on another disk",
    errno.EFBIG: "; raise the limit of `ulimit -f`, or choose a folder on another disk",
    errno.ENOSPC: "; remove files, or choose a folder on another disk",
}


class CommandParser(ArgumentParser):
    """Argument parser that raises a UserError in place of printing its usage."""

    def error(self, message: str) -> NoReturn:
        """Raise the error of a command line as a UserError.

        Raises:
            UserError: always.
        """
        raise UserError(message)


# what precedes the text of warnings for users; findings and notes are about files of data
WARNING_PREFIX = re.compile(r"^.*?:\d+: (UserWarning|Finding|Note): ")


class WarningFormatter(logging.Formatter):
    """Formatter that prints a logged Python warning as one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a warning; for warnings that are not for users, with their place."""
        # logged as "<file>:<line>: <category>: <text>\n  <line of code>"
        line = record.getMessage().splitlines()[0]
        return "warning: " + printable(WARNING_PREFIX.sub("", line, count=1))


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
    """Exit with code 2 and one line on stderr for errors of the user in the block.

    Any other error is a bug and keeps its traceback; `BLACKOUT_DEBUG=1` shows all tracebacks.
    Ctrl-C gives exit code 130.

    Args:
        continues: whether the same command continues where the program stopped.
    """
    try:
        with _warnings_in_one_line():
            _escape_unencodable_output()
            _check_environment()
            yield
            if sys.stdout is not None:  # as Python has it where `>&-` closed standard output
                sys.stdout.flush()
    except UserError as error:
        _exit_with_error(str(error))
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
        _exit_with_error(summary(error))
    except MemoryError as error:
        detail = f" ({error})" if str(error) else ""
        _exit_with_error(f"not enough memory{detail}; {MEMORY_ADVICE}")
    except RuntimeError as error:
        if not any(words in str(error) for words in ALLOCATION_ERRORS):
            raise
        _exit_with_error(
            f"not enough memory ({printable(str(error))[:MAX_DETAIL]}); {MEMORY_ADVICE}"
        )
    except KeyboardInterrupt:
        advice = "; the same command continues from the last checkpoint" if continues else ""
        print(f"interrupted{advice}", file=sys.stderr)
        sys.exit(130)


def run_command(
    run: Callable[[Namespace], object], parser: ArgumentParser, words: list[str] | None = None
) -> None:
    """Parse the command line and run a command, with errors in one line; see `errors_in_one_line`.

    Args:
        run: called with the parsed arguments.
        parser: of the command line.
        words: of the command line; None for that of this process.
    """
    with errors_in_one_line(), _exit_on_signals():
        run(parser.parse_args(words))


def printable(text: str) -> str:
    """Return text as one line with control characters and invalid characters escaped.

    Names come from files, and must not move a terminal's cursor.
    """
    return escaped(" ".join(text.split()))


def escaped(name: object) -> str:
    """Return a path or another name with control characters and invalid characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(name))


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """End a command by SIGTERM or SIGHUP as by Ctrl-C, so that it removes its unfinished files."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Preempted(f"stopped by {signal.Signals(number).name}", SIGNAL_CODE + number)

    # a signal that the user ignores, as `nohup` does, stays ignored
    is_main_thread = threading.current_thread() is threading.main_thread()
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if is_main_thread and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _escape_unencodable_output() -> None:
    """Make standard output and error escape what their encoding does not have, such as ± in ASCII.

    Python would raise an error there, and names that are not UTF-8 have no encoding at all.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_environment() -> None:
    """Refuse variables of a launcher that are no numbers, or that the others do not go with.

    Such variables are left over in a shell. A process that takes itself for the second one of a
    run would write nothing and hold no lock.

    Raises:
        UserError: names the variables, and what to unset or to set.
    """
    numbers = {}
    for name in LAUNCHER_NUMBERS:
        value = os.environ.get(name)
        if value is None:
            continue
        if not (value.isascii() and value.isdecimal() and len(value) <= MAX_LAUNCHER_DIGITS):
            raise UserError(
                f"the environment variable {name} must be a whole number, not {value!r}"
            )
        numbers[name] = int(value)
    for rank, size in WORLD_SIZE_OF_RANK.items():
        if rank in numbers and numbers[rank] >= numbers.get(size, 1):
            total = f"{size}={numbers[size]}" if size in numbers else f"there is no {size}"
            raise UserError(
                f"the environment variable {rank}={numbers[rank]} is left over from a launcher, "
                f"because {total}: unset {rank}"
            )
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ
    if not is_launched and numbers.get("WORLD_SIZE", 1) == 1:
        return
    needed = ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    if is_launched:
        needed += ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    elif "LOCAL_RANK" not in os.environ:  # by which Lightning numbers the processes it starts
        needed.append("RANK")
    missing = [name for name in needed if name not in os.environ]
    if missing:
        source = "TORCHELASTIC_RUN_ID" if is_launched else f"WORLD_SIZE={numbers['WORLD_SIZE']}"
        raise UserError(
            f"the environment variable {source} is left over from a launcher, because there is no "
            f"{missing[0]}: unset {source.partition('=')[0]}, or start the processes with torchrun"
        )


def _exit_with_error(message: str) -> NoReturn:
    if os.environ.get("BLACKOUT_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    print("error: " + printable(message), file=sys.stderr)
    sys.exit(2)
