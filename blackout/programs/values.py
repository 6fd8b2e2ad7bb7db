"""The values of settings: their kinds, and the checks of what a command line gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blackout.errors import UserError

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a name", list: "a list"}
_OPTIONAL = frozenset(("ema_decay",))
"""Settings that may be null although their default is not."""
_ALSO = {"compile": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")}
"""Names that a setting takes besides values of its kind."""
_PLAIN_GROUPS = frozenset(("likelihood",))
"""Groups of settings that name no component."""


def kind_of(default: Any) -> type | None:
    """The type of a setting's values, by its default; None for any."""
    return type(default) if type(default) in KINDS else None


def checked(name: str, value: Any, kind: type | None, default: Any = None) -> Any:
    """The value of a setting.

    Args:
        name: of the setting.
        value: as it was given.
        kind: type it must have; None for any. Whole numbers are numbers, and any number is a name.
        default: of the setting, which says what a plain group may hold.

    Raises:
        UserError: a value of another kind.
    """
    if name in _PLAIN_GROUPS:
        return _checked_group(name, value, default)
    if value is None and name in _OPTIONAL:
        return None
    if isinstance(value, str) and value in _ALSO.get(name, ()):
        return value
    if kind in (float, str) and type(value) in (int, kind, float):
        return kind(value)  # a directory may be called 17
    if kind is not None and type(value) is not kind:
        raise UserError(f"{name} must be {_described(name, kind)}, not {value!r}")
    return value


def _described(name: str, kind: type) -> str:
    return ", ".join((KINDS[kind], *_ALSO.get(name, ())))


def _checked_group(name: str, given: Any, default: Any) -> dict[str, Any] | str:
    if isinstance(given, str):  # the name of a file, for families that read one
        return given
    if not isinstance(given, Mapping):
        raise UserError(f"{name} must be a group of settings, not {given!r}")
    if unknown := sorted(given.keys() - default.keys()):
        raise UserError(f"{name}.{unknown[0]}: no such option; one of {', '.join(default)}")
    return {part: checked(f"{name}.{part}", value, kind_of(default[part])) for part, value in given.items()}


def path(config: Mapping[str, Any], name: str) -> str | None:
    """A setting that names a file or directory, or null.

    Raises:
        UserError: it is a list or a mapping.
    """
    value = config[name]
    if isinstance(value, dict | list | bool):
        raise UserError(f"{name} must be the name of a file or directory, not {value!r}")
    return None if value is None else str(value)
