"""From plain descriptions to objects: `_target_` and arguments, those that the data decide filled in.

A component is a mapping with a `_target_`, the address of a class or function, beside its arguments; `_partial_: true`
asks for a function that takes the rest of them. What the source decides (its statistics) need not be written down:
every component whose signature asks for one of these names gets it.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import pkgutil
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from blackout.component import Mark, Stats, mark_of
from blackout.errors import UserError, error_context, nearest, refuse

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_KINDS |= {dict: "a mapping"}
_PLAIN = (bool, int, float, str, list, dict, type(None))
_ALSO = {int: float, str: Path, dict: collections.abc.Mapping, type(None): None}
"""Kind of a plain value -> another annotation that it agrees with."""


def make(config: Any, where: str, **arguments: Any) -> Any:
    """Make the object that a description stands for, with all components inside it.

    Args:
        config: plain containers: a mapping with `_target_`, or anything else, of which a copy is returned.
        where: the name of the setting, for messages.
        arguments: further arguments, given as they are.

    Raises:
        UserError: the component does not exist, or its arguments are wrong or refused.
    """
    if isinstance(config, list):
        return [make(item, f"{where}[{number}]") for number, item in enumerate(config)]
    if not isinstance(config, Mapping):
        return config
    parts = {key: make(value, f"{where}.{key}") for key, value in config.items() if not str(key).startswith("_")}
    if "_target_" not in config:
        return parts
    target, partial = find(config, where), bool(config.get("_partial_", False))
    given = {**parts, **arguments}
    check_arguments(target, given, where, partial)
    with error_context(where):
        return functools.partial(target, **given) if partial else target(**given)


def is_component(part: Any) -> bool:
    """Whether a part of a description stands for an object."""
    return isinstance(part, Mapping) and "_target_" in part


def find(config: Mapping[str, Any], where: str) -> Callable[..., Any]:
    """The class or function that a description names.

    Raises:
        UserError: there is none.
    """
    address = config.get("_target_")
    if not isinstance(address, str) or "." not in address:
        raise UserError(f"{where}: the configuration names no _target_" + (f", but {address!r}" if address else ""))
    if address.split(".")[0] in sys.stdlib_module_names:
        raise UserError(f"{where}: {address} is of Python's own library, which has no components")
    try:
        with error_context(f"{where}: {address} cannot be found"):
            target = pkgutil.resolve_name(address)
    except AttributeError as error:
        raise UserError(f"{where}: {address} cannot be found: {error}") from None
    refuse(not callable(target), f"{where}: {address} is no class or function")
    return typing.cast(Callable[..., Any], target)


def check_arguments(
    target: Callable[..., Any], given: Mapping[str, Any], where: str, partial: bool = False, closed: bool = False
) -> None:
    """Compare arguments with a signature: their names, for this package's components the kinds of plain values, and of
    others whether what is true or false by default still is.

    Args:
        target: class or function.
        given: arguments by name.
        where: the name of the setting, for messages.
        partial: whether further arguments will come.
        closed: refuse a component whose annotations cannot be read, rather than not look at them.

    Raises:
        UserError: an unknown or missing argument, one of the wrong kind, or a whole number beyond 2^48 that is no seed.
    """
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # some classes of C code have no signature
        return
    for key, value in given.items():
        bits = 63 if "seed" in key else 48  # a few sizes are multiplied before torch says that there is no memory
        refuse(type(value) is int and value.bit_length() > bits, f"{where}.{key}: {value} is too large a number")
    name = getattr(target, "__name__", str(target))
    named = [key for key, p in parameters.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    unknown = [key for key in given if key not in named]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UserError(f"{where}.{unknown[0]}: {name} has no such argument{nearest(unknown[0], named)}")
    for key, p in parameters.items() if not partial else ():
        needed = p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        refuse(needed and key not in given, f"{where}.{key} must be given: {name} needs it")
    switches = {key: bool for key, p in parameters.items() if isinstance(p.default, bool)}
    hints = _hints(target) if target.__module__.split(".")[0] == "blackout" else switches
    if closed and hints is None:
        raise UserError(f"{where}: the annotations of {name} cannot be read, and so its arguments not checked")
    hints = hints or {}
    for key in given.keys() & hints.keys():
        if not fits(given[key], hints[key]):
            raise UserError(f"{where}.{key} must be {in_words(hints[key])}, not {reprlib.repr(given[key])}")


def _hints(target: Callable[..., Any]) -> dict[str, Any] | None:
    try:
        if dataclasses.is_dataclass(target):  # whose fields may be a base class's, of another module
            return typing.get_type_hints(target)
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, AttributeError, TypeError):  # names that only type checkers import
        return None


def fits(value: Any, hint: Any) -> bool:
    """Whether a value agrees with an annotation, as far as plain values and containers go."""
    if not isinstance(value, _PLAIN) or hint is Any:
        return True
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if kind is typing.Literal:
        return value in inner
    if isinstance(value, list):
        length = len(inner) if kind is tuple and inner[1:] != (...,) else len(value)
        return _is_sequence(kind) and len(value) == length and all(fits(item, inner[0]) for item in value if inner)
    own = dict if isinstance(value, dict) else type(value)  # descriptions are immutable ones
    return kind in (own, _ALSO.get(own, own))


def in_words(hint: Any) -> str:
    """An annotation in words, for messages."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    component = "a component (a mapping with _target_)"
    words = [_KINDS.get(one, "a list" if _is_sequence(one) else component) for one in options]
    if typing.get_origin(hint) is typing.Literal:
        words = [repr(one) for one in typing.get_args(hint)]
    return " or ".join(dict.fromkeys(words))


def _is_sequence(hint: Any) -> bool:
    return (typing.get_origin(hint) or hint) in (list, tuple, collections.abc.Sequence)


def fill(part: Any, stats: Stats, where: str) -> Any:
    """Give every component inside `part` the statistics its signature asks for and its configuration leaves out."""
    return with_more(part, where, lambda component, place: _asked_for(component, stats, place))


def with_more(part: Any, where: str, more: Callable[[dict[str, Any], str], dict[str, Any]]) -> Any:
    """A copy of plain containers; every component, inner ones first, has what `more` says of it and its place."""
    return rebuilt(part, where, lambda whole, at: whole | more(whole, at) if "_target_" in whole else whole)


def rebuilt(part: Any, where: str, change: Callable[[dict[str, Any], str], dict[str, Any]]) -> Any:
    """A copy of plain containers; every mapping, inner ones first, is what `change` makes of it and its place."""
    if isinstance(part, list):
        return [rebuilt(item, f"{where}[{number}]", change) for number, item in enumerate(part)]
    if not isinstance(part, Mapping):
        return part
    return change({k: rebuilt(v, f"{where}.{k}" if where else str(k), change) for k, v in part.items()}, where)


def resolve(part: Any, stats: Stats, where: str) -> Any:
    """The complete description of a component: what the data decide, what they say, and every default written out.

    First the component's own hook (`Mark.from_stats`), which may change what is inside it, or name another component
    to take its place; then the components inside;
    then statistics that the signature asks for by name; then the defaults of the signature, so that a saved model does
    not follow later ones.

    Args:
        part: plain containers.
        stats: plain values: of the source, or of the description of a trained model.
        where: the name of the setting, for messages.

    Raises:
        UserError: a component that does not exist.
    """
    if isinstance(part, list):
        return [resolve(item, stats, f"{where}[{number}]") for number, item in enumerate(part)]
    if not isinstance(part, Mapping):
        return part
    given = dict(part)
    if "_target_" in part:
        hook = (mark_of(find(part, where)) or Mark()).from_stats
        decided = {} if hook is None else hook(given, stats)
        given = dict(decided) if "_target_" in decided else {**given, **decided}
    given = {key: resolve(value, stats, f"{where}.{key}") for key, value in given.items()}
    if "_target_" not in part:
        return given
    given |= _asked_for(given, stats, where)
    return given | _defaults(find(given, where), given)


def with_defaults(part: Any, where: str) -> Any:
    """Plain containers in which every component of this package has all its arguments, defaults too.

    What cannot be found is left as it is: `make` refuses it where it is needed.
    """

    def defaults(component: dict[str, Any], place: str) -> dict[str, Any]:
        with contextlib.suppress(UserError):
            if str(component["_target_"]).startswith("blackout."):
                return _defaults(find(component, place), component)
        return {}

    return with_more(part, where, defaults)


def _asked_for(part: Mapping[str, Any], stats: Stats, where: str) -> dict[str, Any]:
    """Statistics for a component's arguments that are left out or null; none for what is passed on."""
    if part.get("_partial_", False):
        return {}
    wanted = inspect.signature(find(part, where)).parameters
    return {name: value for name, value in stats.items() if name in wanted and part.get(name) is None}


def _defaults(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Descriptions of the defaults of arguments that are not given, as far as they can be described."""
    called = (mark_of(target) or Mark()).called
    defaults = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.default is not parameter.empty and name not in given and name not in called:
            with contextlib.suppress(UserError):
                defaults[name] = described(parameter.default, name, inner=True)
    return defaults


def described(component: Any, where: str, inner: bool = False) -> Any:
    """The plain description from which `make` makes a component.

    Args:
        component: a class or function, a `functools.partial` of one, a dataclass, a mapping, or a plain value.
        where: its name, for messages.
        inner: whether it is an argument of another component, to which functions are passed on.

    Raises:
        UserError: an object whose arguments are not known any more.
    """
    if isinstance(component, bool | int | float | str | None):
        return component
    if isinstance(component, Mapping):
        return {key: described(value, f"{where}.{key}", True) for key, value in component.items()}
    if isinstance(component, list | tuple):
        return [described(one, where, True) for one in component]
    target, given = _taken_apart(component, where)
    passed_on = {"_partial_": True} if inner and inspect.isfunction(target) else {}
    return {"_target_": _address(target), **passed_on, **described(given, where)}


def _taken_apart(component: Any, where: str) -> tuple[Any, Mapping[str, Any]]:
    """A component's class or function, and its arguments."""
    if inspect.isclass(component) or inspect.isfunction(component):
        return component, {}
    if isinstance(component, functools.partial) and not component.args:
        return component.func, component.keywords
    if dataclasses.is_dataclass(component) and not isinstance(component, torch.nn.Module):
        given = {one.name: getattr(component, one.name) for one in dataclasses.fields(component) if one.init}
        return type(component), given
    kind = type(component).__name__
    advice = f"give functools.partial({kind}, ...) with its arguments by name"
    raise UserError(f"{where}: a {kind} that is made already could not be made again from a file: {advice}")


def _address(target: Callable[..., Any]) -> str:
    """The public name of a class or function: the shortest package that offers it, or where it is defined."""
    module = target.__module__
    folders = module.split(".") if module.startswith("blackout.") else []
    for length in range(2, len(folders) + 1):
        package = ".".join(folders[:length])
        offered = vars(sys.modules[package])
        if offered.get(target.__name__) is target and target.__name__ in offered.get("__all__", ()):
            return f"{package}.{target.__name__}"
    return f"{module}.{target.__qualname__}"
