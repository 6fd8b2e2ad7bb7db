"""What ends a program on purpose: the error a user can mend, and being told to leave."""

from __future__ import annotations


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
