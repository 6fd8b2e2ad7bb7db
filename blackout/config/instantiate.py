"""From descriptions to objects.

A description is plain containers, as YAML and model files hold them. A component in it is a mapping
with a `_target_`, the address of a class or function, and its arguments; `_partial_: true` passes
the function on with these arguments filled in.

Hydra's own `instantiate` is not used, because descriptions also come from model files of strangers:
arguments are compared with signatures first, and messages name the setting that is wrong.
"""

from __future__ import annotations

import functools
import pkgutil
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

from blackout.config.arguments import check_arguments
from blackout.errors import UserError, error_context, refuse

# keys of a description that are not arguments of the component
COMPONENT_KEYS = ("_target_", "_partial_")


def instantiate(config: Any, setting: str, **arguments: Any) -> Any:
    """Build the object that a description stands for, with all components inside it.

    Args:
        config: a description; a copy is returned of what is not a component.
        setting: name of the setting, for messages.
        arguments: further arguments of the component, passed as they are.

    Raises:
        UserError: the component does not exist, or its arguments are wrong or refused.
    """
    if isinstance(config, list):
        return [instantiate(item, f"{setting}[{number}]") for number, item in enumerate(config)]
    if not isinstance(config, Mapping):
        return config
    parts = {
        key: instantiate(value, f"{setting}.{key}")
        for key, value in config.items()
        if not str(key).startswith("_")
    }
    if "_target_" not in config:
        return parts
    reserved = [str(key) for key in config if str(key).startswith("_")]
    unknown = [key for key in reserved if key not in COMPONENT_KEYS]
    if unknown:
        raise UserError(f"{setting}.{unknown[0]}: no component has such an argument")
    target = find_target(config, setting)
    is_partial = bool(config.get("_partial_", False))
    all_arguments = {**parts, **arguments}
    check_arguments(target, all_arguments, setting, is_partial)
    with error_context(setting):
        if is_partial:
            return functools.partial(target, **all_arguments)
        return target(**all_arguments)


def is_component(config: Any) -> bool:
    """Return whether a part of a description stands for an object."""
    return isinstance(config, Mapping) and "_target_" in config


def find_target(config: Mapping[str, Any], setting: str) -> Callable[..., Any]:
    """Return the class or function that a component's description names.

    Raises:
        UserError: there is none.
    """
    address = config.get("_target_")
    if not isinstance(address, str) or "." not in address:
        text = f", not {address!r}" if address else ""
        raise UserError(
            f"{setting}: _target_ must be the full name of a class or function, such as "
            f"blackout.networks.UNet{text}"
        )
    package = address.split(".")[0]
    if package in sys.stdlib_module_names:
        raise UserError(
            f"{setting}: {address} is in Python's standard library, which has no components"
        )
    try:
        with error_context(f"{setting}: {address} cannot be found"):
            target = pkgutil.resolve_name(address)
    except UserError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == package:
            raise UserError(
                f"{setting}: {address}: {package} cannot be imported: type "
                f"PYTHONPATH=<folder that contains {package}> before the command, or install it"
            ) from error
        raise
    except AttributeError as error:
        raise UserError(f"{setting}: {address} cannot be found: {error}") from None
    refuse(not callable(target), f"{setting}: {address} is not a class or function")
    return typing.cast(Callable[..., Any], target)
