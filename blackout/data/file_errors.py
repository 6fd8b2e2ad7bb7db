"""One-line errors about files."""

from __future__ import annotations

from pathlib import Path

from blackout.errors import UserError


def file_error(path: Path, problem: str, cause: Exception) -> UserError:
    """An error that names a file, what is wrong with it and the library's reason, in one line."""
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    if "pickle" in reason:  # NumPy's guess about any bytes that are not its own; pickles are not read on any advice
        reason = "these are not the bytes of a NumPy file"
    return UserError(f"{path}: {problem} ({' '.join(reason.split()) or type(cause).__name__})")
