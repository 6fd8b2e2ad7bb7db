"""One-line `repr`s of objects with large arrays: shapes in place of values, settings not defaults.

A class takes one of the two functions as its `__repr__`:

Example:
    >>> import torch
    >>> @dataclasses.dataclass
    ... class Samples:
    ...     x: torch.Tensor
    ...     seed: int = 0
    ...     __repr__ = format_fields
    >>> Samples(torch.zeros(1000, 12))
    Samples(x=float32 [1000, 12])
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MAX_LENGTH = 100  # characters of a value
MAX_ITEMS = 6  # entries of a list that are shown


def format_fields(instance: Any, always: Sequence[str] = ()) -> str:
    """Return the `repr` of a dataclass: its name, and the fields that differ from their defaults.

    Args:
        instance: of a dataclass.
        always: fields that are shown even if they have their defaults.
    """
    values = {
        field.name: getattr(instance, field.name)
        for field in dataclasses.fields(instance)
        if field.repr and (field.name in always or not _is_default(instance, field))
    }
    return _format_call(instance, values)


def format_arguments(instance: Any) -> str:
    """Return the `repr` of an object: its class, and arguments that differ from their defaults.

    Only arguments that the object keeps as attributes of the same name are shown.
    """
    return _format_call(instance, changed_arguments(instance))


def changed_arguments(instance: Any) -> dict[str, Any]:
    """Return constructor arguments that an object keeps and that differ from their defaults.

    Properties are left out, since they may compute: an extractor's would load its weights.
    """
    parameters = inspect.signature(type(instance).__init__).parameters
    changed = {}
    for name, parameter in [*parameters.items()][1:]:  # without self
        attribute = inspect.getattr_static(type(instance), name, None)
        if isinstance(attribute, property | functools.cached_property):
            continue
        value = getattr(instance, name, None)
        if value is not None and not _equal(value, parameter.default):
            changed[name] = value
    return changed


def join_values(values: Mapping[str, Any]) -> str:
    """Return values by name as they are written in a call."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in values.items())


def format_value(value: Any) -> str:
    """Return a value in a few words of one line: dtype and shape of arrays, names of functions."""
    if isinstance(value, Tensor | np.ndarray):
        return _format_array(value)
    if isinstance(value, functools.partial):
        return _shorten(f"{_name(value.func)}({join_values(value.keywords)})", _name(value.func))
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return _format_list(value)
    if isinstance(value, Mapping):
        return _shorten(
            "{" + ", ".join(f"{key}: {format_value(item)}" for key, item in value.items()) + "}",
            f"{len(value)} entries",
        )
    if isinstance(value, nn.Module) and type(value).__repr__ is nn.Module.__repr__:
        return type(value).__name__
    has_no_repr = type(value).__repr__ is object.__repr__
    if has_no_repr or inspect.isroutine(value) or inspect.isclass(value):
        return _name(value)
    text = reprlib.repr(value) if isinstance(value, str) else repr(value)
    return _shorten(text, type(value).__name__)


def _format_array(array: Tensor | np.ndarray) -> str:
    if array.ndim == 0:
        number = array.item()
        return f"{number:.4g}" if isinstance(number, float) else str(number)
    dtype = str(array.dtype).removeprefix("torch.")
    return f"{dtype} {list(array.shape)}"


def _format_list(values: list[Any] | tuple[Any, ...]) -> str:
    opening, closing = "[]" if isinstance(values, list) else "()"
    if len(values) > MAX_ITEMS:
        return f"{type(values).__name__} of {len(values)}"
    text = ", ".join(format_value(value) for value in values)
    comma = "," if len(values) == 1 and opening == "(" else ""
    return _shorten(f"{opening}{text}{comma}{closing}", f"{type(values).__name__} of {len(values)}")


def _format_call(instance: Any, values: Mapping[str, Any]) -> str:
    return f"{type(instance).__name__}({join_values(values)})"


def _is_default(instance: Any, field: dataclasses.Field[Any]) -> bool:
    value = getattr(instance, field.name, None)
    if field.default_factory is not dataclasses.MISSING:
        return _equal(value, field.default_factory())
    return _equal(value, field.default)


def _equal(value: Any, default: Any) -> bool:
    if value is default:
        return True
    if isinstance(value, Tensor | np.ndarray):
        same_type = type(value) is type(default) and value.shape == default.shape
        return same_type and bool((torch.as_tensor(value) == torch.as_tensor(default)).all())
    return type(value) is type(default) and bool(value == default)


def _name(value: Any) -> str:
    """Return the name of a function, a class, or of the class of an object."""
    return str(getattr(value, "__name__", type(value).__name__))


def _shorten(text: str, replacement: str) -> str:
    return text if len(text) <= MAX_LENGTH and "\n" not in text else replacement
