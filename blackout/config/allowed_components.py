"""What a model file may hold and which components it may name: the trust boundary; descriptions from files are data.

A component is named by the package that offers it, `<listed package>.<name in its __all__>`, and carries a mark that
says where it may stand (`blackout.component`). Nothing else is resolved or imported, unless the user trusts its module;
and nothing in a file names a path.
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
from blackout.config.instantiate import check_arguments, find, is_component, rebuilt, with_more
from blackout.errors import UserError, refuse
from blackout.files import MAX_DEPTH, MAX_VALUES

_CODED, _SHUFFLE = "blackout.permutations.coded", "blackout.permutations.shuffle"
_PUZZLES = ("blackout.permutations.datasets", "blackout.permutations.tours")
_FLOWS = ("blackout.flows", "blackout.flows.energies")
PACKAGES: dict[str, tuple[str, ...]] = {
    "family": ("blackout.diffusion", *_FLOWS, _CODED, _SHUFFLE),
    "model": ("blackout.diffusion", "blackout.networks", *_FLOWS, "blackout.permutations", _CODED, _SHUFFLE),
    "dataset": ("blackout.data", "blackout.flows.energies", _CODED, *_PUZZLES),
    "metrics": ("blackout.evaluation", "blackout.data", _CODED),
}
"""Section of a model file -> the packages whose marked components it may name."""
PATHS = frozenset(
    ("cache", "cache_dir", "data_dir", "directory", "file", "filename", "folder", "matrix", "path", "reference", "root")
    + ("save_dir", "uri", "url", "weights")
)
"""Arguments that say where something is: a file may give them as null or numbers written out, never as text."""
_WORDS = {"reference": ("train", "test")}
"""Text that such an argument may have nevertheless."""
_FROM_THE_USER = ("data_dir", "download")
"""Arguments of datasets that are never taken from a file."""
_LONGEST, _LONGEST_KEY = 10_000, 200
_NO_TEXT = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes, in names of files for instance, that are no UTF-8."""
_OWN = ("_target_", "_partial_")


def plain(node: Any, where: str) -> Any:
    """A copy in mappings, lists, strings, numbers, booleans and null: what JSON has. Tuples become lists.

    Args:
        node: as it was read from a file.
        where: its name, for messages.

    Raises:
        UserError: it holds anything else, an interpolation (`${...}`), NaN or a number beyond 64 bits, or is too deep
            or too large for a description.
    """
    check_bounds(node, f"{where}: too deep or too large for the description of a model")
    return _copied(node, where, 0)


def check_bounds(node: Any, problem: str) -> None:
    """Refuse mappings, lists and tuples whose copy, without shared parts, would be too deep or too large.

    Args:
        node: as it was read from a file, in which parts can be shared or hold themselves.
        problem: the message.

    Raises:
        UserError: more than `MAX_DEPTH` levels or `MAX_VALUES` values.
    """
    refuse(_size(node, {}, 0) > MAX_VALUES, problem)


def _size(node: Any, known: dict[int, float], depth: int) -> float:
    """The number of entries of a copy; infinite for what is too deep or holds itself.

    Args:
        node: a pickled description can hold one part many times.
        known: sizes of containers by their `id`, so that each is counted once.
        depth: of `node`.
    """
    if not isinstance(node, dict | list | tuple):
        return 1
    if depth >= MAX_DEPTH:
        return math.inf
    if id(node) not in known:
        known[id(node)] = math.inf  # as long as it is not known
        parts = node.values() if isinstance(node, dict) else node
        known[id(node)] = 1 + sum(_size(part, known, depth + 1) for part in parts)
    return known[id(node)]


def _copied(node: Any, where: str, depth: int) -> Any:
    if type(node) in (list, tuple):
        if all(type(item) is float for item in node) and not any(map(math.isnan, node)):
            return list(node)  # a row of a matrix
        return [_copied(item, where, depth + 1) for item in node]
    if not isinstance(node, dict):
        return _leaf(node, where)
    return {_name(key, where): _copied(value, f"{where}.{key}", depth + 1) for key, value in node.items()}


def _name(key: Any, where: str) -> str:
    if type(key) is not str or not key.isprintable() or len(key) > _LONGEST_KEY:
        raise UserError(f"{where}: {reprlib.repr(key)} is no name of a setting")
    return key


def _leaf(value: Any, where: str) -> Any:
    if type(value) not in (type(None), bool, int, float, str):
        raise UserError(f"{where} holds more than plain values: {type(value).__name__}")
    if isinstance(value, str) and ("${" in value or len(value) > _LONGEST or _NO_TEXT.search(value)):
        raise UserError(f"{where}: {reprlib.repr(value)} is an interpolation, too long or no text: no plain value")
    if (isinstance(value, float) and math.isnan(value)) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise UserError(f"{where}: {reprlib.repr(value)} is no number that a model is made of")
    return value


def check(part: Any, section: str, trusted: tuple[str, ...] = ()) -> None:
    """Refuse what a file must not ask for, before anything of it is made.

    Args:
        part: plain containers.
        section: family, model, dataset or metrics, which decides what it may name.
        trusted: further modules, the user's own, whose components it may name, with any arguments but paths.

    Raises:
        UserError: a component that is not marked for its place, arguments that are not in its signature or of
            another kind, or a path.
    """
    refuse(section != "model" and not is_component(part), f"{section}: the model file names no _target_")
    _Checker(section, trusted).check(part, section, section, False)


def marked(name: str, section: str) -> tuple[Any, Mark] | None:
    """The component of this package that a file may name in a section, with its mark; None if there is none.

    Args:
        name: its address.
        section: family, model, dataset or metrics.
    """
    package, _, short = name.rpartition(".")
    if package not in PACKAGES[section]:
        return None
    offered = importlib.import_module(package)
    target = getattr(offered, short, None) if short in offered.__all__ else None
    mark = mark_of(target)
    own = str(getattr(target, "__module__", "")).startswith("blackout.")
    return (target, mark) if mark is not None and own else None


class _Checker:
    """Walks one section.

    Args:
        section: which one it is.
        trusted: modules of the user's.
    """

    def __init__(self, section: str, trusted: tuple[str, ...]) -> None:
        self._section, self._trusted = section, trusted

    def check(self, node: Any, where: str, place: str, anywhere: bool) -> None:
        """Check a node given as the argument `place`; `anywhere` inside the user's components, which have their own."""
        if isinstance(node, str):
            if place in PATHS and node not in _WORDS.get(place, ()):
                said = f"a model file may not say where something is ({reprlib.repr(node)}): the command line does"
                raise UserError(f"{where}: {said}")
        elif isinstance(node, list):
            for item in node:
                if isinstance(item, str | list | Mapping):
                    self.check(item, where, place, anywhere)
        elif isinstance(node, Mapping):
            own = _OWN if "_target_" in node else ()
            if odd := [key for key in node if key.startswith("_") and key not in own]:
                raise UserError(f"{where}: {reprlib.repr(odd[0])} is not an argument that a model file may give")
            inside = self._component(node, where, place, anywhere) if own else anywhere
            for key, value in node.items():
                if key not in own:
                    self.check(value, f"{where}.{key}", key, inside)

    def _component(self, node: Mapping[str, Any], where: str, place: str, anywhere: bool) -> bool:
        """Check a component's address and arguments; whether it is the user's."""
        name, partial = node["_target_"], node.get("_partial_", False)
        if not isinstance(name, str) or not isinstance(partial, bool):
            raise UserError(f"{where}: {reprlib.repr(name)} is no component")
        mark = self._listed(node, name, place, anywhere, where)
        if mark is None:
            if self._of_the_user(node, name, where):
                return True
            told = f"{where}: the model file asks for {reprlib.repr(name)}, which "
            package, _, short = name.rpartition(".")
            if package in PACKAGES[self._section] and not hasattr(sys.modules[package], short):
                raise UserError(f"{told}does not exist in this version of blackout: not loaded")
            advice = "" if name.startswith("blackout.") else " (trusted=[...] names modules of your own)"
            raise UserError(f"{told}is not one of this package's components there: not loaded{advice}")
        # of components, which are checked by themselves, something of no plain kind
        given = {key: object() if is_component(value) else value for key, value in node.items() if key not in _OWN}
        if partial:
            if wrong := [key for key in mark.called if key in given]:
                raise UserError(f"{where}.{wrong[0]}: {name} is given it when it is called, not by a file")
            given |= dict.fromkeys(mark.called, object())
        # what is made gets more from the model, such as the process; what is passed on must be complete
        check_arguments(find(node, where), given, where, partial=not partial or anywhere, closed=True)
        return False

    def _listed(self, node: Mapping[str, Any], name: str, place: str, anywhere: bool, where: str) -> Mark | None:
        """The mark of what may stand at this place, or at any place inside the user's components."""
        found = marked(name, self._section)
        if found is None:
            return None
        mark = found[1]
        refuse(mark.ask is not None, f"{where}: {name} is not chosen by a file: give {mark.ask} on the command line")
        places = mark.passed if node.get("_partial_", False) else mark.made
        return mark if places and (anywhere or place in places) else None

    def _of_the_user(self, node: Mapping[str, Any], name: str, where: str) -> bool:
        """Whether the user trusts a component: by its address first, so that nothing foreign is even imported."""
        within = tuple(f"{module}." for module in self._trusted)
        return name.startswith(within) and f"{getattr(find(node, where), '__module__', '')}.".startswith(within)


def named_in_file(part: Any, section: str, data_dir: str, trusted: tuple[str, ...] = ()) -> Any:
    """A dataset or scores that a model file chose by name, checked; where datasets lie is the command line's to say.

    Args:
        part: plain containers from the file.
        section: dataset or metrics.
        data_dir: folder of datasets, of the command line.
        trusted: as for `check`.

    Raises:
        UserError: as for `check`.
    """
    bare = rebuilt(part, section, lambda whole, _: {k: v for k, v in whole.items() if k not in _FROM_THE_USER})
    check(bare, section, trusted)
    places = {"data_dir": data_dir, "download": False}

    def placed(component: dict[str, Any], where: str) -> dict[str, Any]:
        wanted = inspect.signature(find(component, where)).parameters
        return {name: value for name, value in places.items() if name in wanted}

    return with_more(bare, section, placed)


def pathless(part: Any) -> Any:
    """A description without the paths that a model file must not name, for the file to be written."""
    never = PATHS - _WORDS.keys()
    kept = lambda whole, _: {k: v for k, v in whole.items() if k not in never or not isinstance(v, str | Path)}  # noqa: E731
    return rebuilt(part, "", kept)
