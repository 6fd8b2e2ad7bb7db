"""Which components a model file may name, and the values in nested settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Table(NamedTuple):
    """The components of one package that a model file may name: `TABLE` in the package's `components.py`.

    Names are below the package. A place is the name of the argument that the component is given for.
    """

    made: Mapping[str, tuple[str, ...]]
    """Place -> classes and factories, which are called with the arguments described beside them."""
    passed: Mapping[str, tuple[str, ...]] = {}
    """Place -> classes and pure functions that are passed on with arguments filled in (`_partial_: true`)."""
    called: Mapping[str, tuple[str, ...]] = {}
    """Place -> the arguments that what is passed on there gets when it is called, and so not from a file."""
    asked: Mapping[str, str] = {}
    """What only the command line may choose -> what to give there."""


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in nested mappings."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node
