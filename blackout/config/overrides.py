"""Settings as they are typed: quoted for Hydra's grammar, and commands also for the shell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

# characters that Hydra reads as they are, without quotation marks
PLAIN = re.compile(r"[A-Za-z0-9_/.+\-]*[A-Za-z0-9_/]")
SHELL_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def format_override(name: str, value: Any) -> str:
    """Return a setting as a word of Hydra's grammar.

    Args:
        name: of the setting.
        value: None, a boolean, number, text or path, or a list of these.

    Example:
        >>> format_override("dataset.exclude", ["id", "a b"])
        "dataset.exclude=[id,'a b']"
    """
    return f"{name}={_format_value(value)}"


def format_command(words: Sequence[str]) -> str:
    """Return words as one line for the shell.

    Example:
        >>> print(format_command(["train.py", "dataset.columns=[a,b]"]))
        train.py 'dataset.columns=[a,b]'
    """
    return " ".join(map(_quote_for_shell, words))


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        # numbers of elements are as good as their names
        words = [str(part) if _is_whole(part) else _format_value(part) for part in value]
        return f"[{','.join(words)}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | os.PathLike):
        return _format_text(os.fspath(value))
    return str(value)


def _format_text(text: str) -> str:
    """Return text as Hydra reads it, in quotation marks unless it stays text without them."""
    if PLAIN.fullmatch(text) and isinstance(yaml.safe_load(text), str) and not _is_number(text):
        return text
    # a backslash counts as one, unless a quotation mark or an interpolation follows
    escaped = re.sub(r"(\\*)('|\$\{)", lambda match: 2 * match[1] + "\\" + match[2], text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"


def _is_number(text: str) -> bool:
    """Whether text is a number for Hydra, such as 1e3 or nan."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_whole(value: Any) -> bool:
    """Whether a value is text that is the same as a whole number: 7, but not 007."""
    return isinstance(value, str) and re.fullmatch(r"0|[1-9][0-9]{0,14}", value) is not None


def _quote_for_shell(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    parts = []
    for character in word:
        if character in SHELL_ESCAPES:
            parts.append(SHELL_ESCAPES[character])
        elif character.isprintable():
            parts.append(character)
        else:
            data = character.encode(errors="surrogateescape")
            parts.append("".join(f"\\x{byte:02x}" for byte in data))
    return f"$'{''.join(parts)}'"
