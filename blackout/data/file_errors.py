"""Bad files, said in one line."""

from __future__ import annotations

from pathlib import Path

from blackout.errors import UserError


def file_error(path: Path, problem: str, cause: Exception) -> UserError:
    """The error that names a file, what is wrong with it and what a library said of it, on one line."""
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return UserError(f"{path}: {problem} ({' '.join(reason.split()) or type(cause).__name__})")
