"""What a model's description says of its data: plain values, checked before any component gets them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from blackout.counts import LARGEST_COUNT
from blackout.errors import UserError


def _whole(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_NOT_NEGATIVE = (lambda v: _number(v) and v >= 0), "a number that is finite and not negative"
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "shape": (lambda v: isinstance(v, list) and 1 <= len(v) <= 4 and all(map(_whole, v)), "a list of whole numbers"),
    "max_count": (_whole, "a whole number of at least 1"),
    "mean": _NOT_NEGATIVE,
    "std": _NOT_NEGATIVE,
    "total_dispersion": _NOT_NEGATIVE,
    "covariance_excess": _NOT_NEGATIVE,
    "num_classes": (_whole, "a whole number of at least 1"),
    "covariates": (
        lambda v: (
            isinstance(v, dict) and all(isinstance(one, list) and one and all(map(_number, one)) for one in v.values())
        ),
        "lists of finite numbers by name",
    ),
    "covariate_levels": (lambda v: isinstance(v, list) and all(map(_whole, v)), "a list of whole numbers"),
    "sample_shape": (lambda v: isinstance(v, list) and all(map(_whole, v)), "a list of whole numbers"),
    "features": (lambda v: isinstance(v, list) and all(isinstance(one, str) for one in v), "a list of text"),
    "class_names": (lambda v: isinstance(v, list) and all(isinstance(one, str) for one in v), "a list of text"),
    "name": (lambda v: isinstance(v, str), "text"),
}


def checked_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that components of a model may ask for by name.

    Args:
        description: of a model, perhaps from a damaged file.

    Raises:
        UserError: a fact is missing, of another kind, or none of a diffusion model's.
    """
    data, pilot = description.get("data"), description.get("pilot")
    if not isinstance(data, Mapping):
        raise UserError("there is no description of the data")
    for name in ("shape", "max_count", *data):
        fits, kind = _KINDS.get(name, (lambda _: False, "left out: there is no such fact"))
        if not fits(data.get(name)):
            raise UserError(f"{name} of the data must be {kind}, not {reprlib.repr(data.get(name))}")
    if pilot is not None and not _is_pilot(pilot):
        raise UserError(
            f"the pilot run must be lists of finite numbers, logits and curvature, not {reprlib.repr(pilot)}"
        )
    return {name: fact for name, fact in data.items() if name != "name"} | {"pilot": pilot}


def _is_pilot(pilot: Any) -> bool:
    if not isinstance(pilot, Mapping) or pilot.keys() != {"logits", "curvature"}:
        return False
    return all(isinstance(values, list) and all(map(_number, values)) for values in pilot.values())
