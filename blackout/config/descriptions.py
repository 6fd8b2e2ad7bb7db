"""Descriptions of components: completing them, and writing them down for objects.

The data decide some arguments of components: their shape, largest count and mean, for instance.
These statistics need not be written in a configuration: every component whose signature has an
argument of that name receives it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from blackout.component import Mark, Stats, mark_of
from blackout.config.instantiate import find_target
from blackout.errors import UserError

# (mapping, its dotted name) -> new mapping
Change: TypeAlias = Callable[[dict[str, Any], str], dict[str, Any]]


def map_mappings(config: Any, setting: str, change: Change) -> Any:
    """Return a copy of plain containers with every mapping changed, inner ones first."""
    if isinstance(config, list):
        return [
            map_mappings(item, f"{setting}[{number}]", change) for number, item in enumerate(config)
        ]
    if not isinstance(config, Mapping):
        return config
    prefix = f"{setting}." if setting else ""
    mapped = {key: map_mappings(value, f"{prefix}{key}", change) for key, value in config.items()}
    return change(mapped, setting)


def update_components(config: Any, setting: str, additions: Change) -> Any:
    """Return a copy of plain containers with `additions` to every component, inner ones first."""

    def update(mapping: dict[str, Any], place: str) -> dict[str, Any]:
        if "_target_" not in mapping:
            return mapping
        return mapping | additions(mapping, place)

    return map_mappings(config, setting, update)


def fill_statistics(config: Any, stats: Stats, setting: str) -> Any:
    """Return a copy in which every component has the statistics that it takes and does not set."""
    return update_components(
        config, setting, lambda part, place: _select_statistics(part, stats, place)
    )


def complete_description(config: Any, stats: Stats, setting: str) -> Any:
    """Return the complete description of a component, with nothing left to defaults.

    For every component, outer ones first:
    1. its own hook (`Mark.from_stats`) may change arguments, or replace the component;
    2. the components inside it are completed;
    3. it receives the statistics that its signature names and that are not set;
    4. the defaults of the signature are written out, so that a saved model keeps them.

    Args:
        config: plain containers.
        stats: plain values, from the data or from the description of a trained model.
        setting: name of the setting, for messages.

    Raises:
        UserError: a component that does not exist.
    """
    if isinstance(config, list):
        return [
            complete_description(item, stats, f"{setting}[{number}]")
            for number, item in enumerate(config)
        ]
    if not isinstance(config, Mapping):
        return config
    part = dict(config)
    is_component = "_target_" in part
    if is_component:
        part = _apply_hook(part, stats, setting)
    part = {
        key: complete_description(value, stats, f"{setting}.{key}") for key, value in part.items()
    }
    if not is_component:
        return part
    part |= _select_statistics(part, stats, setting)
    return part | _missing_defaults(find_target(part, setting), part)


def add_defaults(config: Any, setting: str) -> Any:
    """Return a copy in which every component of this package has all its arguments.

    A component that cannot be found is left as it is: `instantiate` refuses it where it is needed.
    """

    def find_defaults(part: dict[str, Any], place: str) -> dict[str, Any]:
        if not str(part["_target_"]).startswith("blackout."):
            return {}
        try:
            target = find_target(part, place)
        except UserError:
            return {}
        return _missing_defaults(target, part)

    return update_components(config, setting, find_defaults)


def to_description(component: Any, setting: str, *, is_argument: bool = False) -> Any:
    """Return the description from which `instantiate` builds a component.

    Args:
        component: a class or function, a `functools.partial` of one, a dataclass, a mapping, or a
            plain value.
        setting: its name, for messages.
        is_argument: whether it is an argument of another component; a function is then passed on
            instead of called.

    Raises:
        UserError: an object whose arguments cannot be recovered.
    """
    if isinstance(component, bool | int | float | str | None):
        return component
    if isinstance(component, Mapping):
        return {
            key: to_description(value, f"{setting}.{key}", is_argument=True)
            for key, value in component.items()
        }
    if isinstance(component, list | tuple):
        return [to_description(item, setting, is_argument=True) for item in component]
    target, arguments = _recover_arguments(component, setting)
    is_passed_on = is_argument and inspect.isfunction(target)
    partial = {"_partial_": True} if is_passed_on else {}
    return {"_target_": _public_address(target), **partial, **to_description(arguments, setting)}


def _apply_hook(part: dict[str, Any], stats: Stats, setting: str) -> dict[str, Any]:
    """Return a component with the arguments that its `from_stats` decides, or its replacement."""
    mark = mark_of(find_target(part, setting))
    if mark is None or mark.from_stats is None:
        return part
    changes = mark.from_stats(part, stats)
    return dict(changes) if "_target_" in changes else {**part, **changes}


def _select_statistics(part: Mapping[str, Any], stats: Stats, setting: str) -> dict[str, Any]:
    """Return the statistics for a component's arguments that are missing or null.

    What is passed on instead of built (`_partial_`) receives none.
    """
    if part.get("_partial_", False):
        return {}
    parameters = inspect.signature(find_target(part, setting)).parameters
    return {
        name: value
        for name, value in stats.items()
        if name in parameters and part.get(name) is None
    }


def _missing_defaults(target: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return descriptions of the defaults of missing arguments, as far as they can be described."""
    mark = mark_of(target) or Mark()
    defaults = {}
    for name, parameter in inspect.signature(target).parameters.items():
        is_missing = name not in arguments and name not in mark.call_arguments
        if is_missing and parameter.default is not parameter.empty:
            # A default that has no description, such as a tensor, stays the signature's.
            with contextlib.suppress(UserError):
                defaults[name] = to_description(parameter.default, name, is_argument=True)
    return defaults


def _recover_arguments(component: Any, setting: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the class or function of a component, and the arguments it was given."""
    if inspect.isclass(component) or inspect.isfunction(component):
        return component, {}
    if isinstance(component, functools.partial) and not component.args:
        return component.func, component.keywords
    if dataclasses.is_dataclass(component) and not isinstance(component, torch.nn.Module):
        fields = [field.name for field in dataclasses.fields(component) if field.init]
        return type(component), {name: getattr(component, name) for name in fields}
    name = type(component).__name__
    raise UserError(
        f"{setting}: this {name} does not say from which arguments it was built, so that it could "
        f"not be saved: give functools.partial({name}, ...) with its arguments by name"
    )


def _public_address(target: Any) -> str:
    """Return the shortest package that exports a class or function, with its name."""
    module = target.__module__
    folders = module.split(".") if module.startswith("blackout.") else []
    for length in range(2, len(folders) + 1):
        package = ".".join(folders[:length])
        exported = vars(sys.modules[package])
        name = target.__name__
        if name in exported.get("__all__", ()) and exported.get(name) is target:
            return f"{package}.{name}"
    return f"{module}.{target.__qualname__}"
