"""What a model's description says of its data: which facts there are, and of which kind each must be."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from blackout.counts import LARGEST_COUNT
from blackout.errors import UserError, refuse


def _whole(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _each(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is a list of such."""
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _pair(value: Any) -> bool:
    if not isinstance(value, list) or len(value) not in (3, 4):
        return False
    return all(map(_count, value[:2])) and all(map(_number, value))


_NOT_NEGATIVE = (lambda v: _number(v) and v >= 0), "a number that is finite and not negative"
_WHOLE, _WORD = (_whole, "a whole number of at least 1"), (_word, "text")
_WHOLES, _WORDS = (_each(_whole), "a list of whole numbers"), (_each(_word), "a list of text")
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "shape": (lambda v: _WHOLES[0](v) and 1 <= len(v) <= 4, _WHOLES[1]),
    "max_count": _WHOLE,
    "mean": _NOT_NEGATIVE,
    "std": _NOT_NEGATIVE,
    "total_dispersion": _NOT_NEGATIVE,
    "covariance_excess": _NOT_NEGATIVE,
    "num_classes": _WHOLE,
    "covariates": (
        lambda v: type(v) is dict and all(v.values()) and all(_each(_number)(x) or _WORDS[0](x) for x in v.values()),
        "lists of finite numbers or of words by name",
    ),
    "covariate_levels": _WHOLES,
    "label_counts": (_each(_count), _WHOLES[1]),
    "sample_shape": _WHOLES,
    "features": _WORDS,
    "class_names": _WORDS,
    "class_values": (lambda v: isinstance(v, dict) and all(map(_each(_word), v.values())), "lists of text by name"),
    "units": (lambda v: _each(_count)(v) and len(v) == 2 and _whole(v[1]), "offset and gain, two whole numbers"),
    "equal_pairs": (_each(_pair), "lists of two elements, a share and perhaps a distance"),
    "name": _WORD,
    "layer": _WORD,
}


def checked_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that components of a model may ask for by name.

    Args:
        description: of a model, perhaps from a damaged file.

    Raises:
        UserError: a fact is missing, of another kind, or none of a diffusion model's.
    """
    data = description.get("data")
    if not isinstance(data, Mapping):
        raise UserError("there is no description of the data")
    for name in ("shape", "max_count", *data):
        fits, kind = _KINDS.get(name, (lambda _: False, "left out: there is no such fact"))
        refuse(not fits(data.get(name)), f"{name} of the data must be {kind}, not {reprlib.repr(data.get(name))}")
    if any(max(pair[:2]) >= math.prod(data["shape"]) for pair in data.get("equal_pairs", [])):
        raise UserError(f"equal_pairs of the data name elements that the shape {data['shape']} does not have")
    found = description.get("calibration")
    if found is not None and not _calibrates(found):
        raise UserError(f"the calibration must be rising logits with a positive factor each, not {reprlib.repr(found)}")
    return {name: fact for name, fact in data.items() if name != "name"}


def _calibrates(given: Any) -> bool:
    """Whether these are rising logits with a positive factor each."""
    if not isinstance(given, Mapping) or given.keys() != {"logits", "factors"}:
        return False
    logits, factors = given["logits"], given["factors"]
    if not (_each(_number)(logits) and _each(_number)(factors)):
        return False
    return 0 < len(logits) == len(factors) and all(a < b for a, b in pairwise(logits)) and min(factors) > 0
