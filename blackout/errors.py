"""The error a user can mend: shown as one line, exit code 2."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input from outside: a file, a value, a name. The message says what is wrong, where, and what is allowed."""
