"""Command line: one line and exit code 2 for every error that a user can mend in settings or files."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from blackout.errors import Preempted, UserError, debugging

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # hand composition errors to us instead of printing and exiting with 1

T = TypeVar("T")
CONF = next(path for folder in Path(__file__).parents[1:] if (path := folder / "conf").is_dir())
"""The configurations: in a wheel inside the package, in the repository beside it."""
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
    sys.argv = without_data(sys.argv)
    _check_environment()
    if not isinstance(sys.stdout, _Unbroken):
        sys.stdout = _Unbroken(sys.stdout)
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
        _leave(f"this command line cannot be understood: {(str(error).splitlines() or [type(error).__name__])[0]}")
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
            from blackout.programs import output, sweeps

            return sweeps.job(function, *args, **kwargs) if output.sweeping() else function(*args, **kwargs)
        raise AssertionError("unreachable")

    return wrapped


def without_data(command: list[str]) -> list[str]:
    """A command line without the default dataset, if its family says `dataset: null` and nothing else chooses one."""
    chosen = [word.partition("=")[2] for word in command[1:] if word.startswith("family=")]
    if not chosen or any(word.lstrip("+~").startswith(("dataset", "experiment=")) for word in command[1:]):
        return command
    none = (path := CONF / "family" / f"{chosen[-1]}.yaml").is_file() and re.search(r"^dataset: null\b", path.read_text(), re.MULTILINE)
    return [*command, "~dataset"] if none else command


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


def explain(error: Exception) -> str:
    """Hydra's and OmegaConf's messages in one sentence, with the nearest valid name where a name is wrong."""
    text, cause = str(error), str(error.__cause__ or "")
    if match := re.search(
        r"Could not find '([^']+)'\s+Available options in '([^']+)':((?:\s+\S+)*?)(?:\s*\n\s*Config search|\Z)", text
    ):
        wrong, group, options = match.group(1).rsplit("/", 1)[-1], match.group(2), match.group(3).split()
        return f"{group}={wrong}: no such choice{_nearest(wrong, options)}; one of {', '.join(options)}"
    if match := re.search(r"In '([^']+)': Could not override '([^']+)'", text):
        recipe, group = match.group(1), match.group(2).split("@")[0]
        where, _, choice = recipe.rpartition("/")
        return f"{where}={choice} chooses a {group}, which the chosen family lacks: choose another {where}, or ~{where}"
    if match := re.search(r"Could not (?:override|delete)[^']*'([^']+)'", text):
        key = match.group(1).split("=")[0]
        keys = _default_keys()
        return f"{key}: no such option" + (" of the chosen groups" if key in keys else _nearest(key, keys))
    if match := re.search(r"Interpolation key '([^']+)' not found", text):
        reader = text.split("full_key: ")[-1].split()[0]
        wanted, group = match.group(1), reader.split(".")[0]
        return f"{reader} is made from {wanted}, which the chosen family lacks: choose another {group}"
    if match := re.search(r"Missing mandatory value: (\S+)", f"{text} {cause}"):
        return f"{match.group(1)} must be given"
    return (text.splitlines() or [type(error).__name__])[0] + (f" ({cause.splitlines()[0]})" if cause else "")


def _nearest(word: str, options: list[str]) -> str:
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def _default_keys() -> list[str]:
    """Every key of the default configuration of the running command, in dotted form."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig

    def walk(node: DictConfig, prefix: str) -> Iterator[str]:
        for key in node:
            path = prefix + str(key)
            yield path
            child = node._get_node(key)
            if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
                yield from walk(child, f"{path}.")

    command = Path(sys.argv[0]).stem.removeprefix("blackout-")
    if not (CONF / f"{command}.yaml").exists():
        return []
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return list(walk(compose(command), ""))
