"""What ends a program on purpose, and which errors a user can mend.

A user mends settings and files. What a user's own code raises is for its author, and a bug of ours is for us: both keep
their traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARIES = frozenset(
    ("torch", "torchvision", "torchmetrics", "torch_fidelity", "pytorch_lightning", "lightning_fabric", "hydra")
    + ("lightning_utilities", "omegaconf", "wandb", "safetensors", "sklearn", "scipy", "numpy", "matplotlib", "PIL")
    + ("rich", "filelock", "yaml", "tensorboard", "fsspec", "_distutils_hack")
)
_REFUSALS = (ValueError, RuntimeError, ArithmeticError, ImportError, OSError, MemoryError)
"""What code raises about what it was given; the other kinds are slips of whoever wrote it."""


class UserError(ValueError):
    """Bad input from outside: a file, a value, a name. The message says what is wrong, where, and what is allowed."""


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


def debugging() -> bool:
    """Whether BLACKOUT_DEBUG asks for the traceback of every error."""
    return os.environ.get("BLACKOUT_DEBUG", "") not in ("", "0")


@contextmanager
def error_context(component: str) -> Iterator[None]:
    """Inside, what goes wrong is about `component`.

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
            raise UserError(f"{component}: {summary(error)}") from error
        error.add_note(f"This happened in the component `{component}`.")
        raise


def is_user_error(error: BaseException) -> bool:
    """Whether settings or files caused an error, rather than somebody's code.

    It is not, if code outside this package and its libraries took part; nor if this package itself made a slip (a wrong
    type, a missing key or attribute).
    """
    frames = traceback.walk_tb(error.__traceback__)
    packages = [str(frame.f_globals.get("__name__", "")).split(".")[0] for frame, _ in frames]
    if set(packages) - {"blackout"} - _LIBRARIES - sys.stdlib_module_names:
        return False
    defined_by_library = any(kind.__module__.split(".")[0] in _LIBRARIES for kind in type(error).__mro__)
    return isinstance(error, _REFUSALS) or defined_by_library or (bool(packages) and packages[-1] != "blackout")


def summary(error: BaseException) -> str:
    """An exception's first line, with its kind where that says more than the line."""
    line = (str(error).splitlines() or [""])[0]
    plain = isinstance(error, ValueError | TypeError | ImportError) or "Misconfiguration" in type(error).__name__
    return line if plain and line else f"{type(error).__name__} {line}".strip()
