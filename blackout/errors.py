"""What ends a program on purpose, and which errors a user can mend.

A user mends settings and files. What a user's own code raises is for its author, and a bug of ours is for us: both keep
their traceback.
"""

from __future__ import annotations

import difflib
import errno
import os
import signal
import sys
import traceback
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_LIBRARIES = frozenset(
    ("torch", "torchvision", "torchmetrics", "torch_fidelity", "pytorch_lightning", "lightning_fabric", "hydra")
    + ("lightning_utilities", "omegaconf", "wandb", "safetensors", "sklearn", "scipy", "numpy", "matplotlib", "PIL")
    + ("rich", "filelock", "yaml", "tensorboard", "fsspec", "_distutils_hack")
)
_REFUSALS = (ValueError, RuntimeError, ArithmeticError, ImportError, OSError, MemoryError)
"""What code raises about what it was given; the other kinds are slips of whoever wrote it."""


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
def error_context(component: str = "") -> Iterator[None]:
    """Inside, what goes wrong is about `component`, where one is given.

    Raises:
        UserError: the user can mend it; one line that names the component.
        Exception: anything else, as it was, with a note that names the component.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_user_error(error):
            raise UserError(f"{component}: {summary(error)}" if component else summary(error)) from error
        if component:
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


def is_user_error(error: BaseException) -> bool:
    """Whether settings or files caused an error, rather than somebody's code.

    It is not, if code outside this package and its libraries took part; nor if this package itself made a slip (a wrong
    type, a missing key or attribute).
    """
    modules = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [getattr(module.get("__spec__"), "name", None) or module.get("__name__", "") for module in modules]
    packages = [str(name).split(".")[0] for name in names]  # of a module that is run the name is __main__
    if set(packages) - {"blackout"} - _LIBRARIES - sys.stdlib_module_names:
        return False
    defined_by_library = any(kind.__module__.split(".")[0] in _LIBRARIES for kind in type(error).__mro__)
    return isinstance(error, _REFUSALS) or defined_by_library or (bool(packages) and packages[-1] != "blackout")


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


@contextmanager
def ends_in_one_line(continues: bool = False) -> Iterator[None]:
    """Around a whole program: what the user can mend is one line on stderr and exit code 2.

    Any other error is a bug and keeps its traceback; `BLACKOUT_DEBUG=1` shows all tracebacks. Ctrl-C gives code 130.

    Args:
        continues: the program is one of those that go on where they stopped.
    """
    _check_environment()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = out = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (None where `>&-` closed it)
    if "write" not in vars(out):
        out.write, out.flush = _unbroken(out.write), _unbroken(out.flush)  # type: ignore[method-assign]
    usage, form = ArgumentParser.error, warnings.formatwarning
    ArgumentParser.error = lambda parser, message: _leave(message)  # type: ignore[assignment,method-assign]
    warnings.formatwarning = _without_place
    try:
        yield
    except UserError as error:
        _leave(str(error))
    except Preempted as error:
        print(str(error), file=sys.stderr)
        sys.exit(error.code)
    except OSError as error:
        if continues and error.errno not in _DISK:
            raise
        _leave(summary(error))
    except KeyboardInterrupt:
        print("interrupted" + "; the same command continues from the last checkpoint" * continues, file=sys.stderr)
        sys.exit(130)
    finally:
        ArgumentParser.error = usage  # type: ignore[method-assign]
        warnings.formatwarning = form


def run_command(run: Callable[[Namespace], object], parser: ArgumentParser, words: list[str] | None = None) -> None:
    """Run a program beside `train.py` and `sample.py`, by the same rules: see `ends_in_one_line`.

    Args:
        run: gets what the command line says.
        parser: of the command line.
        words: of the command line; None for that of this process.
    """
    with ends_in_one_line(), error_context():
        run(parser.parse_args(words))


def shown(text: str) -> str:
    """One line, in which what would move a terminal's cursor, or is no text, is written out: names come from files."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _without_place(message: object, category: type[Warning], filename: str, lineno: int, line: object = None) -> str:
    """A warning for users in one line; one for developers with the line of code that it is about."""
    if issubclass(category, DeprecationWarning | PendingDeprecationWarning | FutureWarning):
        return f"{filename}:{lineno}: {category.__name__}: {message}\n"
    return f"warning: {shown(str(message))}\n"


def _unbroken(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of standard output whose reader may leave (`python train.py | head -1`): what follows is lost."""

    def tried(*arguments: str) -> Any:
        try:
            return method(*arguments)
        except BrokenPipeError:  # Python flushes the descriptor once more when it exits
            return os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return tried


def _check_environment() -> None:
    """Leave with one line where a launcher's variables are not numbers."""
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_PORT"):
        value = os.environ.get(name)
        if value is not None and not value.isdecimal():
            _leave(f"the environment variable {name} must be a whole number, not {value!r}")


def _leave(message: str) -> NoReturn:
    if os.environ.get("BLACKOUT_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    print("error: " + shown(message), file=sys.stderr)
    sys.exit(2)
