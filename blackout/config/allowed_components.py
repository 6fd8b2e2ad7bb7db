"""What a model file may contain and which components it may name: the trust boundary.

A model file is data from strangers. It names a component by the package that exports it:
`<listed package>.<name in its __all__>`. The component carries a mark that says where it may stand
(`blackout.component`). Nothing else is resolved or imported, unless the user trusts its module, and
nothing in a file names a path.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blackout.component import Mark, mark_of
from blackout.config.arguments import check_arguments
from blackout.config.descriptions import map_mappings, update_components
from blackout.config.instantiate import COMPONENT_KEYS, find_target, is_component
from blackout.errors import UserError, refuse
from blackout.safe_reading import MAX_DEPTH, MAX_VALUES

# section of a model file -> packages whose marked components it may name
ALLOWED_PACKAGES: dict[str, tuple[str, ...]] = {
    "family": (
        "blackout.diffusion",
        "blackout.flows",
        "blackout.flows.energies",
        "blackout.permutations.coded",
        "blackout.permutations.shuffle",
    ),
    "model": (
        "blackout.diffusion",
        "blackout.networks",
        "blackout.flows",
        "blackout.flows.energies",
        "blackout.permutations",
        "blackout.permutations.coded",
        "blackout.permutations.shuffle",
    ),
    "dataset": (
        "blackout.data",
        "blackout.flows.energies",
        "blackout.permutations.coded",
        "blackout.permutations.datasets",
    ),
    "metrics": ("blackout.evaluation", "blackout.data", "blackout.permutations.coded"),
}
# arguments that may say where something is: in a model file they are null or numbers, not text
PATH_ARGUMENTS = frozenset(
    [
        "cache",
        "cache_dir",
        "data_dir",
        "directory",
        "file",
        "filename",
        "folder",
        "matrix",
        "path",
        "reference",
        "root",
        "save_dir",
        "test_path",
        "uri",
        "url",
        "weights",
    ]
)
# argument of `PATH_ARGUMENTS` -> text that it may be nevertheless
ALLOWED_WORDS = {"reference": ("train", "test")}
COMMAND_LINE_ARGUMENTS = ("data_dir", "download")  # of datasets, never taken from a file
MAX_TEXT_LENGTH = 10_000  # characters of a value
MAX_KEY_LENGTH = 200  # characters
# what Python makes of bytes that are not UTF-8, in names of files for instance
SURROGATES = re.compile("[\ud800-\udfff]")


def copy_plain_values(node: Any, setting: str) -> Any:
    """Return a copy in mappings, lists, text, numbers, truth values and null; tuples become lists.

    Args:
        node: as it was read from a file.
        setting: its name, for messages.

    Raises:
        UserError: any other type, an interpolation (`${...}`), NaN, a number beyond 64 bits, or
            containers too deep or too large for a description.
    """
    check_size(node, f"{setting}: too deep or too large for the description of a model")
    return _copy_node(node, setting)


def check_size(node: Any, message: str) -> None:
    """Refuse containers whose copy, without shared parts, would be too deep or too large.

    Args:
        node: as it was read from a file; parts can be shared or contain themselves.
        message: text of the error.

    Raises:
        UserError: more than `MAX_DEPTH` levels or `MAX_VALUES` values.
    """
    refuse(_count_values(node, {}, 0) > MAX_VALUES, message)


def check_components(config: Any, section: str, trusted: tuple[str, ...] = ()) -> None:
    """Refuse what a model file must not ask for, before any of it is built.

    Args:
        config: plain containers.
        section: family, model, dataset or metrics, which decides what the file may name.
        trusted: modules of the user's, whose components it may name too, with any arguments but
            paths.

    Raises:
        UserError: a component that is not marked for its place, arguments that are not in its
            signature or of another type, or a path.
    """
    lacks_target = section != "model" and not is_component(config)
    refuse(lacks_target, f"{section}: the model file names no _target_")
    checker = _Checker(section, trusted)
    checker.check(config, section, section, is_inside_trusted=False)


def find_allowed(address: str, section: str) -> tuple[Any, Mark] | None:
    """Return the component that a file may name in a section, with its mark; None if there is none.

    Args:
        address: package and name.
        section: family, model, dataset or metrics.
    """
    package, _, name = address.rpartition(".")
    if package not in ALLOWED_PACKAGES[section]:
        return None
    module = importlib.import_module(package)
    target = getattr(module, name, None) if name in module.__all__ else None
    mark = mark_of(target)
    is_from_blackout = str(getattr(target, "__module__", "")).startswith("blackout.")
    return (target, mark) if mark is not None and is_from_blackout else None


def component_from_file(
    config: Any, section: str, data_dir: str, trusted: tuple[str, ...] = ()
) -> Any:
    """Return the checked description of a dataset or of scores that a model file names.

    Where data sets are stored, and whether they are downloaded, is decided by the command line.

    Args:
        config: plain containers from the file.
        section: dataset or metrics.
        data_dir: folder of data sets, from the command line.
        trusted: as for `check_components`.

    Raises:
        UserError: as for `check_components`.
    """

    def remove_locations(mapping: dict[str, Any], setting: str) -> dict[str, Any]:
        return {key: mapping[key] for key in mapping if key not in COMMAND_LINE_ARGUMENTS}

    def choose_locations(component: dict[str, Any], setting: str) -> dict[str, Any]:
        parameters = inspect.signature(find_target(component, setting)).parameters
        values = {"data_dir": data_dir, "download": False}
        return {name: value for name, value in values.items() if name in parameters}

    checked = map_mappings(config, section, remove_locations)
    check_components(checked, section, trusted)
    return update_components(checked, section, choose_locations)


def remove_paths(config: Any) -> Any:
    """Return a description without the paths that a model file must not name, to be written."""

    def drop_paths(mapping: dict[str, Any], setting: str) -> dict[str, Any]:
        return {
            key: value
            for key, value in mapping.items()
            if key not in PATH_ARGUMENTS
            or key in ALLOWED_WORDS
            or not isinstance(value, str | Path)
        }

    return map_mappings(config, "", drop_paths)


class _Checker:
    """Walks one section of a model file.

    Args:
        section: which one it is.
        trusted: modules of the user's.
    """

    def __init__(self, section: str, trusted: tuple[str, ...]) -> None:
        self._section = section
        self._trusted = trusted

    def check(self, node: Any, setting: str, argument: str, *, is_inside_trusted: bool) -> None:
        """Check a node, the value of `argument`.

        Args:
            node: plain containers.
            setting: its dotted name, for messages.
            argument: name of the argument whose value it is; a list passes it on to its items.
            is_inside_trusted: whether a trusted component of the user's contains it; such
                components have arguments of their own, for which anything marked may stand.
        """
        if isinstance(node, str):
            if argument in PATH_ARGUMENTS and node not in ALLOWED_WORDS.get(argument, ()):
                raise UserError(
                    f"{setting}: a model file may not contain a path or an address, such as "
                    f"{reprlib.repr(node)}: give it on the command line"
                )
        elif isinstance(node, list):
            for item in node:
                if isinstance(item, str | list | Mapping):
                    self.check(item, setting, argument, is_inside_trusted=is_inside_trusted)
        elif isinstance(node, Mapping):
            self._check_mapping(node, setting, argument, is_inside_trusted)

    def _check_mapping(
        self, node: Mapping[str, Any], setting: str, argument: str, is_inside_trusted: bool
    ) -> None:
        reserved = COMPONENT_KEYS if "_target_" in node else ()
        for key in node:
            if key.startswith("_") and key not in reserved:
                raise UserError(
                    f"{setting}: {reprlib.repr(key)} is not an argument that a model file may give"
                )
        if reserved and self._check_component(node, setting, argument, is_inside_trusted):
            is_inside_trusted = True
        elif reserved:
            is_inside_trusted = False
        for key, value in node.items():
            if key not in reserved:
                self.check(value, f"{setting}.{key}", key, is_inside_trusted=is_inside_trusted)

    def _check_component(
        self, node: Mapping[str, Any], setting: str, argument: str, is_inside_trusted: bool
    ) -> bool:
        """Check a component's address and arguments; return whether it is a trusted one."""
        address = node["_target_"]
        is_partial = node.get("_partial_", False)
        if not isinstance(address, str) or not isinstance(is_partial, bool):
            raise UserError(f"{setting}: {reprlib.repr(address)} is not a component")

        # 1. May it stand here?
        mark = self._find_mark(node, address, argument, is_inside_trusted, setting)
        if mark is None:
            if self._is_trusted(node, address, setting):
                return True
            raise UserError(f"{setting}: {self._explain_refusal(address)}")

        # 2. Its arguments; components among them are checked by themselves.
        arguments = {
            key: object() if is_component(value) else value
            for key, value in node.items()
            if key not in COMPONENT_KEYS
        }
        if is_partial:
            for key in mark.call_arguments:
                message = f"{setting}.{key}: a file may not set what the caller of {address} passes"
                refuse(key in arguments, message)
            arguments |= dict.fromkeys(mark.call_arguments, object())
        # What is built receives more from the model, such as the process; what is passed on must be
        # complete.
        is_incomplete = not is_partial or is_inside_trusted
        target = find_target(node, setting)
        check_arguments(target, arguments, setting, is_incomplete, require_annotations=True)
        return False

    def _find_mark(
        self,
        node: Mapping[str, Any],
        address: str,
        argument: str,
        is_inside_trusted: bool,
        setting: str,
    ) -> Mark | None:
        """Return the mark of a component that may be the value of `argument`; else None."""
        allowed = find_allowed(address, self._section)
        if allowed is None:
            return None
        mark = allowed[1]
        is_for_user = mark.command_line is not None
        refuse(is_for_user, f"{setting}: a file may not choose {address}; type {mark.command_line}")
        places = mark.partial_for if node.get("_partial_", False) else mark.instance_for
        return mark if places and (is_inside_trusted or argument in places) else None

    def _is_trusted(self, node: Mapping[str, Any], address: str, setting: str) -> bool:
        """Return whether the user trusts a component.

        Its address is compared first, so that nothing else is even imported.
        """
        prefixes = tuple(f"{module}." for module in self._trusted)
        if not address.startswith(prefixes):
            return False
        defining_module = getattr(find_target(node, setting), "__module__", "")
        return f"{defining_module}.".startswith(prefixes)

    def _explain_refusal(self, address: str) -> str:
        package, _, name = address.rpartition(".")
        request = f"the model file asks for {reprlib.repr(address)}, which"
        if package in ALLOWED_PACKAGES[self._section] and not hasattr(sys.modules[package], name):
            return f"{request} does not exist in this version of blackout: not loaded"
        advice = ""
        if not address.startswith("blackout."):
            advice = " (trusted=[...] names modules of your own)"
        return f"{request} is not a component that may stand there: not loaded{advice}"


def _count_values(node: Any, sizes: dict[int, float], depth: int) -> float:
    """Return the number of values of a copy; infinite for what is too deep or contains itself.

    Args:
        node: plain containers; a pickled description can contain one part many times.
        sizes: sizes of containers by their `id`, so that each is counted once.
        depth: level of `node`.
    """
    if not isinstance(node, dict | list | tuple):
        return 1
    if depth >= MAX_DEPTH:
        return math.inf
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # until it is known: a container inside itself has no end
        parts = node.values() if isinstance(node, dict) else node
        sizes[id(node)] = 1 + sum(_count_values(part, sizes, depth + 1) for part in parts)
    return sizes[id(node)]


def _copy_node(node: Any, setting: str) -> Any:
    if type(node) in (list, tuple):
        is_row_of_numbers = all(type(item) is float for item in node)
        if is_row_of_numbers and not any(map(math.isnan, node)):
            return list(node)
        return [_copy_node(item, setting) for item in node]
    if not isinstance(node, dict):
        return _check_value(node, setting)
    return {
        _check_key(key, setting): _copy_node(value, f"{setting}.{key}")
        for key, value in node.items()
    }


def _check_key(key: Any, setting: str) -> str:
    if type(key) is not str or not key.isprintable() or len(key) > MAX_KEY_LENGTH:
        raise UserError(f"{setting}: {reprlib.repr(key)} is not the name of a setting")
    return key


def _check_value(value: Any, setting: str) -> Any:
    if type(value) not in (type(None), bool, int, float, str):
        allowed = "use null, a truth value, a number or text"
        raise UserError(f"{setting}: {type(value).__name__} is not allowed; {allowed}")
    if isinstance(value, str):
        is_too_long = len(value) > MAX_TEXT_LENGTH
        if "${" in value or is_too_long or SURROGATES.search(value):
            raise UserError(
                f"{setting}: {reprlib.repr(value)} is not plain text: "
                "it is an interpolation, too long, or not UTF-8"
            )
    is_nan = isinstance(value, float) and math.isnan(value)
    is_too_large = isinstance(value, int) and not -(2**63) <= value < 2**63
    if is_nan or is_too_large:
        raise UserError(f"{setting}: {reprlib.repr(value)} is NaN or has more than 64 bits")
    return value
