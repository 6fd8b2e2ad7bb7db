"""Marks of components: which classes and functions a model file may name, and for which arguments.

A model file may come from a stranger. It may only name classes and functions that carry a mark. A
mark is set explicitly where a class or function is defined. It is never inferred from annotations,
inherited, or copied by a wrapper.
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
    """Permissions of a component: what a model file may use it for.

    Args:
        instance_for: names of the arguments whose value may be an instance (or result) of it.
        partial_for: names of the arguments whose value may be the class or function itself, with
            some arguments bound (`_partial_: true`).
        call_arguments: arguments that such a function receives when it is called, and so never
            from a file.
        command_line: what to type for a component that only the command line may choose; None if a
            file may choose it.
        from_stats: function that returns the arguments which follow from the data, or the
            description of another component; None without one.
    """

    instance_for: tuple[str, ...] = ()
    partial_for: tuple[str, ...] = ()
    call_arguments: tuple[str, ...] = ()
    command_line: str | None = None
    from_stats: FromStats | None = None


_MARKS: dict[int, tuple[object, Mark]] = {}
"""id(target) -> (target, mark). Subclasses would inherit an attribute, and wrappers copy it."""


def component(
    *instance_for: str,
    partial_for: tuple[str, ...] = (),
    call_arguments: tuple[str, ...] = (),
    command_line: str | None = None,
    from_stats: FromStats | None = None,
) -> Callable[[Target], Target]:
    """Return a decorator that marks a class or function as a component.

    It must be the outermost decorator. The arguments are those of `Mark`.
    """
    mark = Mark(instance_for, partial_for, call_arguments, command_line, from_stats)

    def add_mark(target: Target) -> Target:
        _MARKS[id(target)] = target, mark
        return target

    return add_mark


def mark_of(target: object) -> Mark | None:
    """Return the mark of exactly this class or function; None if it has none."""
    marked, mark = _MARKS.get(id(target), (None, None))
    return mark if marked is target else None


class FrozenDict(dict[str, Any]):
    """Immutable dictionary; `|`, `{**...}` and `thaw` make mutable copies."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a description is immutable: make a changed copy with {**description, ...}")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenDict:
        return self


class FrozenList(list[Any]):
    """Immutable list; `[*...]` and `thaw` make mutable copies."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a description is immutable: make a changed copy with [*values, ...]")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return FrozenList, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenList:
        return self


def freeze(node: Any) -> Any:
    """Return an immutable copy of nested containers, which equals them and is written as JSON."""
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
    """Yield (dotted name, value) for all values of nested mappings, such as ("a.b", 1)."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node
