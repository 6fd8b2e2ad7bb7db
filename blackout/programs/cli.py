"""Command line: one line and exit code 2 for every error that a user can mend in settings or files."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from blackout.errors import Preempted, UserError, debugging
from blackout.programs.messages import explain, misunderstood
from blackout.programs.words import completed, refuse_structure

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # hand composition errors to us instead of printing and exiting with 1

T = TypeVar("T")
_in_job = False  # Hydra has parsed the command line: any other kind of error from now on is a bug
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENAMETOOLONG}
_DISK |= {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
"""What the disk may refuse: full, over quota, read-only, not ours, too large; and names it cannot have."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what the user can mend into one line on stderr and exit code 2.

    Any other error is a bug and keeps its traceback; `BLACKOUT_DEBUG=1` shows all tracebacks.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    global _in_job
    _in_job = False
    sys.argv = completed(sys.argv)
    _check_environment()
    if not isinstance(sys.stdout, _Unbroken):
        sys.stdout = _Unbroken(sys.stdout or open(os.devnull, "w"))  # noqa: SIM115  (None where `>&-` closed it)
    usage = argparse.ArgumentParser.error
    argparse.ArgumentParser.error = lambda parser, message: _leave(message)  # type: ignore[assignment,method-assign]
    try:
        yield
    except UserError as error:
        _leave(str(error))
    except Preempted as error:
        print(str(error), file=sys.stderr)
        sys.exit(error.code)
    except (HydraException, OmegaConfBaseException) as error:
        _leave(explain(error))
    except OSError as error:
        if error.errno not in _DISK and _in_job:
            raise
        _leave(f"{error.filename or 'writing a file'}: {error.strerror}")
    except Exception as error:
        if _in_job:
            raise
        _leave(misunderstood((str(error).splitlines() or [type(error).__name__])[0]))
    except KeyboardInterrupt:
        print("interrupted; the same command continues from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    finally:
        argparse.ArgumentParser.error = usage  # type: ignore[method-assign]


class _Unbroken:
    """Standard output whose reader may leave (`python train.py | head -1`): what is printed afterwards is lost."""

    def __init__(self, stream: Any) -> None:
        self._stream: Any = stream

    def write(self, text: str) -> int:
        """Print text, or nothing."""
        try:
            return int(self._stream.write(text))
        except BrokenPipeError:
            self._silence()
            return len(text)

    def flush(self) -> None:
        """Pass on what was printed, or nothing."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._silence()

    def _silence(self) -> None:
        # Python flushes the descriptor once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _check_environment() -> None:
    """Leave with one line where a launcher's variables are not numbers."""
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_PORT"):
        value = os.environ.get(name)
        if value is not None and not value.isdecimal():
            _leave(f"the environment variable {name} must be a whole number, not {value!r}")


def task(function: Callable[..., T]) -> Callable[..., T]:
    """`one_line_errors` inside Hydra's job, before Hydra adds lines of its own."""
    import functools

    @functools.wraps(function)
    def wrapped(*args: object, **kwargs: object) -> T:
        global _in_job
        with one_line_errors():
            _in_job = True
            from hydra.core.hydra_config import HydraConfig

            from blackout.programs import output, sweeps

            refuse_structure(HydraConfig.get().overrides.task)
            return sweeps.job(function, *args, **kwargs) if output.sweeping() else function(*args, **kwargs)
        raise AssertionError("unreachable")

    return wrapped


def end_of_sweep() -> None:
    """Exit code 1 after a sweep with jobs that failed."""
    sweeps = sys.modules.get("blackout.programs.sweeps")  # not imported: no job has run, only --help or the like
    failed = list(sweeps.failures) if sweeps else []
    if sweeps and failed:
        sweeps.failures.clear()
        print(f"{len(failed)} job(s) failed: {failed[-1]}", file=sys.stderr)
        sys.exit(1)


def _leave(message: str) -> NoReturn:
    if debugging():
        traceback.print_exc()
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)
