"""From plain descriptions to objects.

A component is a mapping with a `_target_`, the address of a class or function, beside its arguments; `_partial_: true`
asks for a function that takes the rest of them. What the source decides (its facts) need not be written down: every
component whose signature asks for one of these names gets it.
"""

from __future__ import annotations

import collections.abc
import difflib
import functools
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blackout import addresses
from blackout.errors import UserError, naming

OWN_MODULES = ("blackout.networks", "blackout.diffusion")
"""Where the components of a saved model come from, unless the user trusts others."""
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_PLAIN = (bool, int, float, str, list, dict, type(None))


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
    with naming(where):
        return functools.partial(target, **given) if partial else target(**given)


def find(config: Mapping[str, Any], where: str) -> Callable[..., Any]:
    """The class or function that a description names.

    Raises:
        UserError: there is none.
    """
    address = config.get("_target_")
    if not isinstance(address, str) or "." not in address:
        raise UserError(f"{where}: the configuration names no _target_" + (f", but {address!r}" if address else ""))
    try:
        with naming(f"{where}: {address} cannot be found"):
            target = pkgutil.resolve_name(addresses.current(address))
    except AttributeError as error:
        raise UserError(f"{where}: {address} cannot be found: {error}") from None
    if not callable(target):
        raise UserError(f"{where}: {address} is no class or function")
    return typing.cast(Callable[..., Any], target)


def check_arguments(target: Callable[..., Any], given: Mapping[str, Any], where: str, partial: bool = False) -> None:
    """Compare arguments with a signature: their names, and for this package's components the kinds of plain values.

    Raises:
        UserError: an unknown or missing argument, or one of the wrong kind.
    """
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # some classes of C code have no signature
        return
    name = getattr(target, "__name__", str(target))
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [key for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in given:
        if key not in named and not takes_all:
            near = difflib.get_close_matches(key, named, n=1, cutoff=0.6)
            raise UserError(
                f"{where}.{key}: {name} has no such argument" + (f" (did you mean {near[0]}?)" * bool(near))
            )
    for key in named:
        if not partial and key not in given and parameters[key].default is inspect.Parameter.empty:
            raise UserError(f"{where}.{key} must be given: {name} needs it")
    if target.__module__.split(".")[0] == "blackout":
        hints = _hints(target)
        for key, value in given.items():
            if key in hints and not fits(value, hints[key]):
                raise UserError(f"{where}.{key} must be {described(hints[key])}, not {value!r}")


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, AttributeError, TypeError):  # names that only type checkers import
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value agrees with an annotation, as far as plain values and containers go."""
    if not isinstance(value, _PLAIN) or hint is Any or isinstance(hint, typing.TypeVar):
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if hint in (None, type(None)):
        return value is None
    if hint in (bool, int, float, str):
        return type(value) is hint or (hint is float and type(value) is int)
    kind = origin or hint
    if isinstance(value, list):
        return _is_sequence(kind) and all(fits(item, arguments[0] if arguments else Any) for item in value)
    if isinstance(value, dict):
        return kind in (dict, collections.abc.Mapping)
    return isinstance(value, str) and kind is Path


def described(hint: Any) -> str:
    """An annotation in words, for messages."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    words = [
        _KINDS.get(one, "a list" if _is_sequence(one) else "a component (a mapping with _target_)") for one in options
    ]
    if typing.get_origin(hint) is typing.Literal:
        words = [repr(one) for one in typing.get_args(hint)]
    return " or ".join(dict.fromkeys(words))


def _is_sequence(hint: Any) -> bool:
    return (typing.get_origin(hint) or hint) in (list, tuple, collections.abc.Sequence)


def fill(part: Any, facts: Mapping[str, Any], where: str) -> Any:
    """Give every component inside `part` the facts its signature asks for and its configuration leaves out."""
    if isinstance(part, list):
        return [fill(item, facts, where) for item in part]
    if not isinstance(part, dict):
        return part
    filled = {key: fill(value, facts, f"{where}.{key}") for key, value in part.items()}
    if "_target_" in filled and not filled.get("_partial_", False):
        wanted = inspect.signature(find(filled, where)).parameters
        filled.update({name: fact for name, fact in facts.items() if name in wanted and filled.get(name) is None})
    return filled


def check_targets(config: Any, trusted: tuple[str, ...] = (), own: tuple[str, ...] = OWN_MODULES) -> None:
    """Refuse a description read from a file that names anything but this package's components.

    Args:
        config: plain containers.
        trusted: further module prefixes whose components may be made.
        own: this package's modules whose components are meant here.

    Raises:
        UserError: a `_target_` outside `own` and `trusted`.
    """
    if isinstance(config, (list, tuple)):
        for item in config:
            check_targets(item, trusted, own)
    if not isinstance(config, Mapping):
        return
    for value in config.values():
        check_targets(value, trusted, own)
    if "_target_" in config:
        name, allowed = config["_target_"], (*own, *trusted)
        # the address's prefix first, so that nothing foreign is even imported; then where the object really lives
        prefix_ok = isinstance(name, str) and name.startswith(tuple(f"{module}." for module in allowed))
        if not prefix_ok or not str(find(config, "model").__module__).startswith(allowed):
            raise UserError(
                f"the model file asks for '{name}', which is not a component of {', '.join(allowed)}: not loaded"
            )
