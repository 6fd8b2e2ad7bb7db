"""Marks of components: which classes and functions a model file may name, and for which arguments.

A model file is data from strangers. It may ask for what carries a mark, given explicitly where the
class or function is defined: a mark is never inferred from annotations, inherited, or copied by a
wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

Plain: TypeAlias = Mapping[str, Any]
"""Plain values by name, as in YAML and model files: settings, or the description of a component."""
Stats: TypeAlias = Plain
"""Plain values that describe data: shape, max_count, mean, ..."""
FromStats: TypeAlias = Callable[[Plain, Stats], Plain]
"""(arguments, statistics) -> the arguments that the data decide; a pure function."""
Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mark:
    """What a model file may do with a component.

    Args:
        built: names of the arguments for which it may be built.
        passed: names of the arguments for which it may be passed on, with arguments filled in
            (`_partial_: true`).
        called: names of the arguments that a function which is passed on receives when it is
            called, and so never from a file.
        ask: what to type on the command line, which alone may choose the component; None if a file
            may.
        from_stats: the arguments that follow from the data, or the description of another
            component; None if none do.
    """

    built: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    ask: str | None = None
    from_stats: FromStats | None = None


_MARKS: dict[int, tuple[object, Mark]] = {}
"""id(target) -> (target, mark). Subclasses would inherit an attribute, and wrappers copy it."""


def component(*built: str, **more: Any) -> Callable[[Target], Target]:
    """Return a decorator that marks a component, to be the outermost one; arguments of `Mark`."""

    def mark(target: Target) -> Target:
        _MARKS[id(target)] = target, Mark(built, **more)
        return target

    return mark


def mark_of(target: object) -> Mark | None:
    """Return the mark of this very object; None if it has none."""
    marked, mark = _MARKS.get(id(target), (None, None))
    return mark if marked is target else None


class FrozenDict(dict[str, Any]):
    """A mapping that cannot be changed; copies made by `|`, `{**...}` or `thaw` can."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a description is immutable: make a changed copy with {**description, ...}")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenDict:
        return self


class FrozenList(list[Any]):
    """A list that cannot be changed; copies made by `[*...]` or `thaw` can."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a description is immutable: make a changed copy with [*values, ...]")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return FrozenList, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenList:
        return self


def freeze(node: Any) -> Any:
    """Return plain containers as immutable ones, which are JSON and equal to the plain ones."""
    if isinstance(node, Mapping):
        return FrozenDict({key: freeze(value) for key, value in node.items()})
    if isinstance(node, list | tuple):
        return FrozenList(freeze(value) for value in node)
    return node


def thaw(node: Any) -> Any:
    """Return a copy of nested containers in plain dictionaries and lists."""
    if isinstance(node, Mapping):
        return {key: thaw(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [thaw(value) for value in node]
    return node


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of everything in nested mappings that is not a mapping."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node
