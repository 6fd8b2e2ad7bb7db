"""Comparing the arguments of a component with its signature, before it is built."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blackout.errors import UserError, did_you_mean, refuse

TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    dict: "a mapping",
}
PLAIN_TYPES = (bool, int, float, str, list, dict, type(None))
# type of a plain value -> another annotation that it satisfies
COMPATIBLE_ANNOTATIONS = {
    int: float,
    str: Path,
    dict: collections.abc.Mapping,
    type(None): None,
}
MAX_SIZE_BITS = 48  # a few sizes are multiplied before torch reports that memory is short
MAX_SEED_BITS = 63


def check_arguments(
    target: Callable[..., Any],
    arguments: Mapping[str, Any],
    setting: str,
    is_partial: bool = False,
    *,
    require_annotations: bool = False,
) -> None:
    """Compare arguments with a signature: their names, and the types of plain values.

    Types are compared for components of this package; for others, only that arguments which are
    true or false by default still are.

    Args:
        target: class or function.
        arguments: arguments by name.
        setting: name of the setting, for messages.
        is_partial: whether further arguments follow when it is called.
        require_annotations: refuse a component whose annotations cannot be read, rather than
            leaving its types unchecked.

    Raises:
        UserError: an unknown or missing argument, one of the wrong type, or a whole number beyond
            2^48 that is not a seed.
    """
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # some classes of C code have no signature
        return
    target_name = getattr(target, "__name__", str(target))
    _check_sizes(arguments, setting)
    _check_names(parameters, arguments, setting, target_name)
    if not is_partial:
        _check_required(parameters, arguments, setting, target_name)

    # Types of plain values.
    annotations = _read_annotations(target, parameters)
    if annotations is None:
        problem = f"{setting}: the annotations of {target_name} cannot be read"
        refuse(require_annotations, f"{problem}, so its arguments cannot be checked")
        return
    for key in arguments.keys() & annotations.keys():
        if not matches_annotation(arguments[key], annotations[key]):
            expected = describe_annotation(annotations[key])
            raise UserError(
                f"{setting}.{key} must be {expected}, not {reprlib.repr(arguments[key])}"
            )


def _check_sizes(arguments: Mapping[str, Any], setting: str) -> None:
    for key, value in arguments.items():
        max_bits = MAX_SEED_BITS if "seed" in key else MAX_SIZE_BITS
        if type(value) is int and value.bit_length() > max_bits:
            raise UserError(f"{setting}.{key}: {value} is too large a number")


def _check_names(
    parameters: Mapping[str, inspect.Parameter],
    arguments: Mapping[str, Any],
    setting: str,
    target_name: str,
) -> None:
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)
    ]
    unknown = [key for key in arguments if key not in names]
    if unknown:
        suggestion = did_you_mean(unknown[0], names) or f"; it takes {', '.join(names) or 'none'}"
        raise UserError(f"{setting}.{unknown[0]}: {target_name} has no such argument{suggestion}")


def _check_required(
    parameters: Mapping[str, inspect.Parameter],
    arguments: Mapping[str, Any],
    setting: str,
    target_name: str,
) -> None:
    for name, parameter in parameters.items():
        can_be_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        is_required = can_be_named and parameter.default is parameter.empty
        is_missing = is_required and name not in arguments
        refuse(is_missing, f"{setting}.{name} must be given: {target_name} needs it")


def _read_annotations(
    target: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> Mapping[str, Any] | None:
    """Return the annotations to check, by argument; None if they cannot be read."""
    if target.__module__.split(".")[0] != "blackout":
        return {name: bool for name, p in parameters.items() if isinstance(p.default, bool)}
    is_function = not inspect.isclass(target)
    # The fields of a dataclass may come from a base class in another module.
    has_own_annotations = is_function or dataclasses.is_dataclass(target)
    try:
        return typing.get_type_hints(target if has_own_annotations else target.__init__)
    except (NameError, AttributeError, TypeError):  # names that only type checkers import
        return None


def matches_annotation(value: Any, annotation: Any) -> bool:
    """Return whether a value has the annotated type, as far as plain values and containers go."""
    if not isinstance(value, PLAIN_TYPES) or annotation is Any:
        return True
    origin = typing.get_origin(annotation) or annotation
    type_arguments = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(matches_annotation(value, option) for option in type_arguments)
    if origin is typing.Literal:
        return value in type_arguments
    if isinstance(value, list):
        if not _is_sequence(origin):
            return False
        has_fixed_length = origin is tuple and type_arguments[1:] != (...,)
        if has_fixed_length and len(value) != len(type_arguments):
            return False
        return not type_arguments or all(
            matches_annotation(item, type_arguments[0]) for item in value
        )
    # An immutable description is a subclass of dict.
    value_type = dict if isinstance(value, dict) else type(value)
    return origin in (value_type, COMPATIBLE_ANNOTATIONS.get(value_type, value_type))


def describe_annotation(annotation: Any) -> str:
    """Return an annotation in words, for messages."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        words = [repr(option) for option in typing.get_args(annotation)]
    else:
        is_union = origin in (typing.Union, types.UnionType)
        options = typing.get_args(annotation) if is_union else (annotation,)
        words = [_describe_type(option) for option in options]
    return " or ".join(dict.fromkeys(words))


def _describe_type(annotation: Any) -> str:
    if annotation in TYPE_NAMES:
        return TYPE_NAMES[annotation]
    return "a list" if _is_sequence(annotation) else "a component (a mapping with _target_)"


def _is_sequence(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return origin in (list, tuple, collections.abc.Sequence)
